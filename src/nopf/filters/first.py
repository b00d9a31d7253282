"""The first step: how particles come to be where the first observation says.

A prior is often wide, and the first observation then kills nearly all of its draws. Slow states
(biases) live on the few that are left, whatever the effective sample size says later. So the first
observation is met by a step from nowhere, whose noise v is that of the prior and of the transition
together: standard normal a priori, as in any other step. Two things help:

- Where the prior is made of Gaussians and the measurements have residuals, laws are fitted to v, by
  Gauss–Newton iterations as for any other step: not for each particle, but around the modes that
  are found from several places.
- As many draws are made as it takes for their effective sample size to reach N, up to `BLOCKS` · N.
  How many that are is judged by draws that are not used for anything else, so that the evidence
  stays unbiased. They come in blocks of N, of which each keeps its share of the N particles.

Weights are exact, as always: w = p(y | x) φ(v) / q(v).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from nopf.compiling import in_brief
from nopf.crowd import weigh_up
from nopf.filters.moving import draw_prior, started, white_numbers
from nopf.layout import by_column
from nopf.linear import linearise
from nopf.model import StateSpaceModel
from nopf.proposals.importance import weigh
from nopf.resampling import systematic
from nopf.steps import Step

BLOCKS = 100  # times N draws at most
CLOSE, WIDE = 0.75, 0.2  # shares of the laws as fitted and of wider ones; the rest is the prior's
WIDER = 9.0
STARTS, MODES, ITERATIONS = 32, 8, 8  # how modes are looked for
STRIDE = np.uint32(2654435769)  # 2³² by the golden ratio: its multiples spread evenly


class Opening(NamedTuple):
    """The particles of a first step.

    Attributes:
        states: N particles, not yet assimilated.
        log_weights: `(N,)`; their sum is an estimate of p(y), but for `level`.
        level: the log of the factor that is missing.
        ess: the effective sample size of all draws, N at most.
    """

    states: Any
    log_weights: Float[Array, " n"]
    level: Float[Array, ""]
    ess: Float[Array, ""]


class Fits(NamedTuple):
    """Gaussian laws of v, N(mean, (C Cᵀ)⁻¹), each for one of the Gaussians of a prior. A draw is of
    one of them; the prior itself is among them.

    Attributes:
        origin: `(j,)` which Gaussian of the prior each is for.
        mean: `(j, v)`.
        root: `(j, v, v)`, C, lower triangular.
        log_share: `(j,)`, log of the share of the draws.
    """

    origin: Int[Array, " j"]
    mean: Float[Array, "j v"]
    root: Float[Array, "j v v"]
    log_share: Float[Array, " j"]


def meet(
    model: StateSpaceModel,
    key: PRNGKeyArray,
    count: int,
    y: Float[Array, " m"],
    step: Step,
    before: Step | None,
    axis: str | None = None,
) -> Opening:
    """N particles that have met the first observation.

    Args:
        model: the model.
        key: random key.
        count: N, on one device.
        y, step: the observation.
        before: the steps without an observation since the prior, stacked; None if there are none.
        axis: of the devices that the particles are spread over, if they are.
    """
    block = _draws(model, count, y, step, before)
    most = count * (1 if axis is None else jax.lax.axis_size(axis))

    def take(last: Any) -> Any:
        number, blocks, level, states, log_weights, log_sum, log_squares = last
        draw_key, resample_key, place_key = jax.random.split(jax.random.fold_in(key, number), 3)
        drawn, drawn_weights = block(draw_key)
        found = weigh_up(drawn_weights, axis)
        # Log-likelihoods can be so large that their digits end above the decimal point.
        level = jnp.where((number < 0) & jnp.isfinite(found.largest), found.largest, level)
        drawn_weights = drawn_weights - level
        own_sum = found.largest - level + found.log_whole
        squares = jnp.where(found.squares > 0, found.squares, 1)
        own_squares = 2 * (found.largest - level) + jnp.log(squares)
        # Those before the first block say how many it takes, and are not used otherwise.
        pilot = number < 0
        needed = jnp.ceil(most / jnp.maximum(_ess(own_sum, own_squares), 1e-3))
        # No block without a slot: its weight would be lost.
        blocks = jnp.where(pilot, jnp.clip(needed, 1, min(BLOCKS, count)), blocks)
        # The slots of this block, and for each of them one in so many of a resampled block.
        slots = jnp.arange(count)
        first, after = (
            jnp.minimum(jnp.ceil(n * (count / blocks)), count).astype(jnp.int32)
            for n in (number, number + 1)
        )
        kept = after - first
        own = (slots >= first) & (slots < first + kept) & ~pilot
        place = (slots - first + jax.random.uniform(place_key)) * (count / jnp.maximum(kept, 1))
        chosen = systematic(resample_key, drawn_weights)
        chosen = chosen[jnp.clip(place.astype(jnp.int32), 0, count - 1)]
        states = jax.tree.map(
            lambda new, old: jnp.where(own.reshape(-1, *[1] * (old.ndim - 1)), new[chosen], old),
            drawn,
            states,
        )
        each = jax.nn.logsumexp(drawn_weights) - jnp.log(most * blocks * kept)
        log_weights = jnp.where(own, each, log_weights)
        log_sum = jnp.where(pilot, log_sum, jnp.logaddexp(log_sum, own_sum))
        log_squares = jnp.where(pilot, log_squares, jnp.logaddexp(log_squares, own_squares))
        return number + 1, blocks, level, states, log_weights, log_sum, log_squares

    drawn, drawn_weights = jax.eval_shape(block, key)
    states = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), drawn)
    nothing = jnp.full(count, -jnp.inf, drawn_weights.dtype)
    one, zero = jnp.ones((), nothing.dtype), jnp.zeros((), nothing.dtype)
    begin = (-1, one, zero, states, nothing, nothing[0], nothing[0])
    _, _, level, states, log_weights, log_sum, log_squares = jax.lax.while_loop(
        lambda last: last[0] < last[1], take, begin
    )
    ess = jnp.minimum(_ess(log_sum, log_squares), most)
    return Opening(states, log_weights, level, ess)


def _ess(log_sum: Float[Array, ""], log_squares: Float[Array, ""]) -> Float[Array, ""]:
    """(Σ w)² / Σ w²; 0 if all are zero."""
    found = jnp.isfinite(log_sum)
    return jnp.where(found, jnp.exp(2 * log_sum - jnp.where(found, log_squares, 0)), 0)


def _draws(
    model: StateSpaceModel, count: int, y: Float[Array, " m"], step: Step, before: Step | None
) -> Callable[[PRNGKeyArray], tuple[Any, Float[Array, " n"]]]:
    """A function of a key that gives N draws of the first step, and their log-weights."""
    prior_parts = model.prior_parts
    moves = jax.vmap(model.move, in_axes=(0, 0, None))
    weighs = jax.vmap(weigh, in_axes=(None, 0, 0, 0, None, None))

    def until_now(key: PRNGKeyArray, states: Any) -> Any:
        if before is None:
            return states

        def move(states: Any, inputs: Any) -> Any:
            key, step = inputs
            return moves(states, white_numbers(key, count, model.noise_size), step), None

        keys = jax.random.split(key, before.index.shape[0])
        return jax.lax.scan(move, by_column(states), (keys, before))[0]

    if prior_parts is None:

        def of_prior(key: PRNGKeyArray) -> tuple[Any, Float[Array, " n"]]:
            prior_key, path_key, key = jax.random.split(key, 3)
            states = draw_prior(model, prior_key, count)
            states = by_column(until_now(path_key, states))
            z = white_numbers(key, count, model.noise_size)
            return weighs(model, states, z, jnp.zeros(count), y, step)[:2]

        return of_prior

    log_chances, parts = prior_parts
    size = model.start_size
    width = size + model.noise_size
    fits = _fits(model, y, step, before)
    # White numbers of a law, each row of a matrix: v = mean + white C⁻¹.
    identity = jnp.eye(width, dtype=fits.root.dtype)
    inverses = jax.vmap(lambda root: jax.scipy.linalg.solve_triangular(root, identity, lower=True))(
        fits.root
    )

    def block(key: PRNGKeyArray) -> tuple[Any, Float[Array, " n"]]:
        key, place_key, path_key = jax.random.split(key, 3)
        white = white_numbers(key, count, width)
        # Which law: spread evenly over neighbours too, since these make up the families.
        bits = jax.random.bits(place_key, dtype=jnp.uint32)
        bits = bits + jnp.arange(count, dtype=jnp.uint32) * STRIDE
        ends = jnp.cumsum(jnp.exp(fits.log_share))
        place = (bits >> 8).astype(white.dtype) / 2**24 * ends[-1]
        which = jnp.sum(place[:, None] >= ends[None, :-1], axis=1)
        origin = fits.origin[which]

        def place_one(v: Array, number: Array, fit: Fits, inverse: Array) -> Array:
            return jnp.where((which == number)[:, None], fit.mean[None] + white @ inverse, v)

        v = _over(place_one, white, fits, jnp.arange(len(ends)), fits, inverses)
        squares = jnp.sum(v**2, axis=1)

        def weigh_one(log_ratio: Array, fit: Fits) -> Array:
            back = (v - fit.mean[None]) @ fit.root
            ratio = 0.5 * (squares - jnp.sum(back**2, axis=1)) + _log_det(fit.root)
            ratio = ratio + fit.log_share - log_chances[fit.origin]
            return jnp.where(origin == fit.origin, jnp.logaddexp(log_ratio, ratio), log_ratio)

        log_ratio = _over(weigh_one, jnp.full(count, -jnp.inf, v.dtype), fits, fits)

        states = started(model, parts, origin, by_column(v[:, :size]))
        states = by_column(until_now(path_key, by_column(states)))
        return weighs(model, states, by_column(v[:, size:]), log_ratio, y, step)[:2]

    return block


def _over(function: Callable[..., Array], start: Array, fits: Fits, *inputs: Any) -> Array:
    """Goes over all laws that have a share."""

    def one(last: Array, given: Any) -> Any:
        log_share, rest = given
        found = jax.lax.cond(jnp.isfinite(log_share), lambda: function(last, *rest), lambda: last)
        return found, None

    return jax.lax.scan(one, start, (fits.log_share, inputs))[0]


def _fits(model: StateSpaceModel, y: Float[Array, " m"], step: Step, before: Step | None) -> Fits:
    """Laws of v given y: around the modes that are found from several places, and the prior."""
    prior_parts = model.prior_parts
    assert prior_parts is not None
    log_chances, parts = prior_parts
    width, count = model.start_size + model.noise_size, log_chances.size
    everywhere = jnp.arange(count)
    plain = Fits(
        everywhere,
        jnp.zeros((count, width)),
        jnp.broadcast_to(jnp.eye(width), (count, width, width)),
        log_chances,
    )
    if model.likelihood.sensors is None:
        return plain
    # From the middle of each Gaussian, and from draws of it.
    places = np.random.default_rng(0).normal(size=(STARTS, width))
    places[0] = 0
    origin = jnp.repeat(everywhere, STARTS)
    own = jax.tree.map(lambda leaf: leaf[origin], parts)
    starts = jnp.tile(jnp.asarray(places), (count, 1))
    with in_brief():
        means, roots, promises = _fit_all(model, y, step, before, own, starts)

    def next_mode(promises: Array, _: None) -> tuple[Array, tuple[Array, Array]]:
        best = jnp.argmax(promises)
        away = jnp.einsum("jv,vw->jw", means - means[best][None], roots[best])
        near = (jnp.sum(away**2, axis=1) < width) & (origin == origin[best])
        return jnp.where(near, -jnp.inf, promises), (best, promises[best])

    promises = promises + log_chances[origin]
    _, (chosen, promise) = jax.lax.scan(next_mode, promises, None, length=MODES)
    some = jnp.isfinite(promise[0])
    log_share = jnp.where(some, jax.nn.log_softmax(jnp.where(some, promise, 0)), -jnp.inf)
    # Each mode twice: the wider law is there for what bends.
    wide = jax.vmap(_wider)(roots[chosen])
    well = jnp.all(jnp.isfinite(wide), axis=(1, 2))
    kinds = [
        Fits(origin[chosen], means[chosen], roots[chosen], log_share + np.log(CLOSE)),
        Fits(
            origin[chosen],
            means[chosen],
            jnp.where(well[:, None, None], wide, roots[chosen]),
            jnp.where(well, log_share + np.log(WIDE), -jnp.inf),
        ),
        plain._replace(log_share=log_chances + np.log(1 - CLOSE - WIDE)),
    ]
    fits = Fits(*(jnp.concatenate(leaves) for leaves in zip(*kinds, strict=True)))
    # Where no fit came out sound, all draws are the prior's.
    return fits._replace(log_share=jax.nn.log_softmax(fits.log_share))


def _wider(root: Float[Array, "v v"]) -> Float[Array, "v v"]:
    """Of the same law, as if measurements had `WIDER` times the variance."""
    identity = jnp.eye(root.shape[0], dtype=root.dtype)
    return jnp.linalg.cholesky(identity + (root @ root.T - identity) / WIDER)


def _log_det(root: Float[Array, "v v"]) -> Float[Array, ""]:
    return jnp.sum(jnp.log(jnp.diagonal(root)))


def _fit_all(
    model: StateSpaceModel,
    y: Float[Array, " m"],
    step: Step,
    before: Step | None,
    parts: Any,
    places: Float[Array, "j v"],
) -> tuple[Float[Array, "j v"], Float[Array, "j v v"], Float[Array, " j"]]:
    """Laws of v given y, each for one of the Gaussians of the prior and found from one place: their
    means, their roots, and log p(y) by Laplace's formula.

    As matrices: they are made once, and not for each particle.
    """
    size, width = model.start_size, places.shape[1]

    def arrive(part: Any, v: Float[Array, " v"]) -> Any:
        x = model.start(part, v[:size])
        if before is not None:
            x, _ = jax.lax.scan(lambda x, step: (model.skeleton(x, step), None), x, before)
        return model.motion(x, step)(v[size:])

    def misfit(part: Any, v: Float[Array, " v"]) -> Float[Array, ""]:
        arrived = model.wrap(arrive(part, v))
        value = 0.5 * jnp.sum(v**2) - model.log_likelihood(y, arrived, step)
        return jnp.where(jnp.isfinite(value), value, jnp.inf)

    def tangent(part: Any, v: Float[Array, " v"]) -> tuple[Float[Array, "v v"], Float[Array, " v"]]:
        value, rows = linearise(lambda v: model.residual(y, arrive(part, v), step), v)
        rows = jnp.where(jnp.isfinite(rows), rows, 0)
        at_zero = jnp.where(jnp.isfinite(value), value, 0) - rows @ v
        share = model.likelihood.trust(at_zero / jnp.sqrt(1 + jnp.sum(rows**2, axis=1)))
        if share is not None:
            root = jnp.sqrt(share)
            at_zero, rows = root * at_zero, root[:, None] * rows
        precision = jnp.eye(v.size, dtype=v.dtype) + rows.T @ rows
        root = jnp.linalg.cholesky(precision)
        return root, -jax.scipy.linalg.cho_solve((root, True), rows.T @ at_zero)

    def improve(part: Any, v: Float[Array, " v"]) -> tuple[Array, Array, Array]:
        root, target = tangent(part, v)
        # A full step may go too far where the prior is wide.
        tried = jnp.stack([*(v + share * (target - v) for share in (1.0, 0.5, 0.2)), v])
        misfits = jax.vmap(lambda v: misfit(part, v))(tried)
        best = jnp.argmin(misfits)
        return tried[best], root, misfits[best]

    # Vectorised inside the loop: to vectorise a loop takes several times as long to trace.
    identity = jnp.broadcast_to(jnp.eye(width, dtype=places.dtype), (*places.shape, width))
    begin = (places, identity, jnp.full(places.shape[:1], jnp.inf, places.dtype))
    means, roots, least = jax.lax.fori_loop(
        0, ITERATIONS, lambda _, last: jax.vmap(improve)(parts, last[0]), begin
    )
    sound = jnp.all(jnp.isfinite(roots), axis=(1, 2)) & jnp.all(jnp.isfinite(means), axis=1)
    roots = jnp.where(sound[:, None, None], roots, identity)
    means = jnp.where(sound[:, None], means, 0)
    log_dets = jax.vmap(_log_det)(roots)
    return means, roots, jnp.where(sound, -least - log_dets, -jnp.inf)
