"""LinearisedProposal: a Gauss–Newton fit to p(z | ancestor, y), particle by particle."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from nopf.arguments import positive_integer, share_of_one
from nopf.compiling import run_once, traced_once
from nopf.gaussian import is_traced, shown
from nopf.layout import MANY
from nopf.linear import (
    Pattern,
    as_array,
    as_vector,
    cholesky,
    combine,
    dot,
    finite,
    jacobian_rows,
    scaled,
    solve_lower,
    solve_upper,
    times,
    total,
    transposed,
)
from nopf.model import Particle, StateSpaceModel
from nopf.proposals.factor import Factor, OfFewRows, OfPrecision, embedded, put
from nopf.proposals.law import GaussianLaw
from nopf.proposals.proposal import Proposal
from nopf.proposals.seen import pattern_of, seen_in
from nopf.steps import Step

SHARE = 0.01
SEVERAL_MODES = 0.1  # the share where one fit may miss a mode
WINDING = np.pi / 6  # standard deviation of a step from which on an angle may go either way round

Trust = Callable[[Float[Array, " m"]], Float[Array, " m"] | None]


class LinearisedProposal(Proposal):
    """A Gaussian around the most likely next state, found by Gauss–Newton iterations.

    Needs additive observation noise and no training. With a linear observation and Gaussian noise
    one iteration is the optimal proposal. With robust noise a coordinate far from what is predicted
    counts less.

    At every iteration the whitened residual r(z) of the observation is replaced by its tangent
    b + J z, which makes the target normal with precision I + JᵀJ and mean −(I + JᵀJ)⁻¹ Jᵀ b.

    Args:
        iterations: how often to linearise; the last one gives the covariance too.
        defensive: share of the particles drawn from the transition instead, which bounds the
            weights. Left out, it is 0.01; but 0.1 where several states may be likely and the fit
            sees one: with robust noise (the measurement is believed, or is called an outlier) and
            with an angle whose noise of one step can carry it round either way.
        pattern: for each noise number the entries of the observation that depend on it, so that no
            time is spent on the others; a filter finds it by trying if it is left out.
    """

    iterations: int = eqx.field(static=True)
    defensive: float | None = eqx.field(static=True)
    pattern: Pattern | None = eqx.field(static=True)

    def __init__(
        self,
        iterations: int = 2,
        defensive: float | int | None = None,
        pattern: Pattern | None = None,
    ):
        self.iterations = positive_integer(iterations, "iterations")
        self.defensive = None if defensive is None else share_of_one(defensive, "defensive")
        try:
            self.pattern = None if pattern is None else tuple(tuple(rows) for rows in pattern)
        except TypeError:
            raise TypeError(
                f"pattern: expected a tuple of indices for each noise number, got {shown(pattern)}"
            ) from None

    def check(self, model: StateSpaceModel) -> None:
        reason = model.likelihood.why_not_additive
        if model.likelihood.sensors is None:
            raise ValueError(
                f"proposal: LinearisedProposal needs additive observation noise, but {reason}; "
                "learn a proposal with nopf.train, or use InnerSamplingProposal"
            )

    @property
    def share(self) -> float:
        return SHARE if self.defensive is None else self.defensive

    @property
    def meets_prior(self) -> bool:
        return True

    def settled(self, model: StateSpaceModel) -> "LinearisedProposal":
        defensive = self.defensive
        if defensive is None:
            several = model.likelihood.why_not_gaussian is not None or _may_wind(model)
            defensive = SEVERAL_MODES if several else SHARE
        return LinearisedProposal(self.iterations, defensive, self.pattern or pattern_of(model))

    def law(
        self,
        model: StateSpaceModel,
        ancestor: Particle,
        y: Float[Array, " m"],
        step: Step,
    ) -> GaussianLaw:
        fit = gauss_newton(model, ancestor, y, step, self.iterations, self.pattern)
        mean, factor = embedded(*fit, seen_in(self.pattern), model.noise_size)
        motion = model.motion(ancestor, step)
        # The fit leaves out what is not finite, so that the law is sound by construction.
        return GaussianLaw(mean, factor, lambda z: model.log_likelihood(y, motion(z), step), None)


def _may_wind(model: StateSpaceModel) -> bool:
    """Whether one step's noise can carry an angle round either way, as far as can be seen now."""
    angles = list(model.space.angles)
    if not angles:
        return False
    unknown = model.reads_control and not model.control_names
    if is_traced((model, jnp.zeros(()))) or unknown:
        return True  # It cannot be seen: better safe.
    noise = model.process_noise
    if noise is not None and noise.constant is not None:  # Nothing needs to be tried.
        return bool(np.any(np.asarray(noise.constant.std)[angles] > WINDING))
    whites = np.random.default_rng(0).normal(size=(64, model.noise_size))
    spread = _spread_of_a_step(model, jax.random.key(0), jnp.asarray(whites))
    return bool(np.any(np.asarray(spread)[angles] > WINDING))


@run_once
def _spread_of_a_step(
    model: StateSpaceModel, key: PRNGKeyArray, whites: Float[Array, "n k"]
) -> Float[Array, " d"]:
    control = jnp.zeros(len(model.control_names)) if model.reads_control else None
    x, step = model.sample_prior(key), model.nominal_step(control=control)
    states = jax.vmap(lambda z: model.move(x, z, step))(whites)
    states, centre = jax.vmap(model.expectation)(states), model.expectation(model.skeleton(x, step))
    apart = model.space.difference(states, centre[None])
    return jnp.sqrt(jnp.mean(apart**2, axis=0))


def gauss_newton(
    model: StateSpaceModel,
    ancestor: Particle,
    y: Float[Array, " m"],
    step: Step,
    iterations: int,
    pattern: Pattern | None,
) -> tuple[Float[Array, " s"], Factor]:
    """The last of so many fits to p(z | ancestor, y), each at the mean of the one before.

    Fits are made to the noise numbers that show, the others being zero.
    """
    sees = seen_in(pattern)
    showing = None if pattern is None or sees is None else tuple(pattern[i] for i in sees)
    motion = model.motion(ancestor, step)

    def residual(part: Float[Array, " s"]) -> Float[Array, " m"]:
        z = put(part, sees, [0.0] * model.noise_size)
        return model.residual(y, motion(z), step)

    def fit(mean: Float[Array, " s"]) -> tuple[Array, Factor]:
        return tangent_fit(residual, mean, model.likelihood.trust, showing)

    # Zero for each particle, and not for all: what changes that in the first round of a loop makes
    # JAX trace it twice.
    some = next(jnp.ravel(leaf)[0] for leaf in jax.tree.leaves(ancestor) if leaf.size)
    zero = jnp.where(some == some, 0.0, 0.0)
    mean = jnp.broadcast_to(zero, (model.noise_size if sees is None else len(sees),))
    if iterations == 1:
        return fit(mean)
    # In a loop, so that it is compiled once.
    fit, (_, factor) = traced_once(fit, mean)
    empty = jax.tree.map(lambda leaf: jnp.broadcast_to(zero, leaf.shape), factor)
    return jax.lax.fori_loop(0, iterations, lambda _, last: fit(last[0]), (mean, empty))


def tangent_fit(
    residual: Callable[[Array], Array],
    z: Float[Array, " k"],
    trust: Trust = lambda z: None,
    pattern: Pattern | None = None,
) -> tuple[Float[Array, " k"], Factor]:
    """The normal law of z, standard normal a priori, given the tangent b + J z of the residual.

    Its precision is I + JᵀJ. Whichever is smaller is factorised: that (k × k), or I + JJᵀ (m × m).
    All matrices are lists of scalars, so that each entry is one array over particles.

    Args:
        residual: the whitened residual as a function of z.
        z: where to linearise.
        trust: share of its precision that a coordinate so far from its prediction deserves.
        pattern: for each coordinate of z the entries of the residual that depend on it; all of
            them if left out.
    """
    value, push = jax.linearize(residual, z)
    rows = jacobian_rows(push, z.size, value.size, pattern if z.size <= MANY else None)
    vector, values = as_vector(z), [finite(entry) for entry in value]
    at_zero = [v - dot(row, vector) for v, row in zip(values, rows, strict=True)]  # b
    # Against what is predicted, not against the noise alone: how far is this too far?
    expected = [b / jnp.sqrt(1 + dot(row, row)) for b, row in zip(at_zero, rows, strict=True)]
    share = trust(as_array(expected))
    if share is not None:
        roots = list(jnp.sqrt(share))
        at_zero = [times(root, b) for root, b in zip(roots, at_zero, strict=True)]
        rows = [scaled(root, row) for root, row in zip(roots, rows, strict=True)]
    small = z.size <= value.size
    vectors = transposed(rows) if small else rows
    gram = [
        [total([1.0, dot(a, c)]) if a is c else dot(a, c) for c in vectors[: i + 1]]
        for i, a in enumerate(vectors)
    ]
    # No pivot of I + JᵀJ is below one; rounding may say otherwise.
    factor = cholesky(gram, smallest_pivot=1.0)
    found: Factor
    if small:
        right = [dot(column, at_zero) for column in vectors]
        mean = as_array(solve_upper(factor, solve_lower(factor, right)))
        found = OfPrecision(factor)
    else:
        inner = solve_upper(factor, solve_lower(factor, at_zero))
        mean, found = combine(vectors, inner), OfFewRows(vectors, factor)
    return -mean, found
