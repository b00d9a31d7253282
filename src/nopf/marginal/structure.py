"""Which states of a model are linear once the others are known, found by trying."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from nopf.compiling import run_once
from nopf.gaussian import Gaussian, GaussianMixture, is_traced
from nopf.linear import Pattern
from nopf.model import StateSpaceModel
from nopf.robust import Outliers
from nopf.steps import Step

PROBES = 24
CHANGED = 1e-5  # of the size of what is added up: more than rounding
CURVED = 1e-5  # of the size of the function: a smaller second derivative is rounding
FAR = 10.0  # standard deviations: how far away a tangent has to hold
MOST_DOUBTFUL = 6  # measurements that may each be an outlier: 64 cases


@dataclasses.dataclass(frozen=True)
class Structure:
    """Which states are linear given the others, and what depends on what.

    Attributes:
        linear, nonlinear: indices of the states.
        moves: for each linear state, then for each noise number, the coordinates of the next state
            that depend on it.
        shows: for each linear state the measurements that depend on it.
        doubtful: measurements with heavy tails in which a linear state shows.
        places: (i, j), i ≥ j, where the covariance of the linear states is not always zero.
        reasons: why each of the nonlinear states is left to the particles.
    """

    linear: tuple[int, ...]
    nonlinear: tuple[int, ...]
    moves: Pattern
    shows: Pattern
    doubtful: tuple[int, ...]
    places: tuple[tuple[int, int], ...]
    reasons: tuple[str, ...]

    @property
    def order(self) -> np.ndarray:
        """The nonlinear states, then the linear ones."""
        return np.asarray([*self.nonlinear, *self.linear], int)


class Shape(NamedTuple):
    """What was found out about a model's functions, over (states, noise) as inputs.

    Attributes:
        curvature: `(o, n, n)` second derivatives of transition and observation where they are
            largest, zero if they are rounding.
        bent: `(n, n)` whether the functions leave their tangent if two inputs go far.
        depends: `(n, o)` whether an output depends on an input.
        slowness: `(d,)` how many steps' noise the prior's standard deviation is.
    """

    curvature: Float[np.ndarray, "o n n"]
    bent: Bool[np.ndarray, "n n"]
    depends: Bool[np.ndarray, "n o"]
    slowness: Float[np.ndarray, " d"]


def look_at(model: StateSpaceModel) -> Shape:
    """Tries the model's functions at draws of the prior, at many steps."""
    if is_traced((model, jnp.zeros(()))):
        raise TypeError("marginalise: call it outside of jax.jit; it has to try the functions")
    if model.reads_control and not model.control_names:
        raise ValueError(
            "control_names: this model reads step.control; name the controls, so that it is known "
            "how many there are"
        )
    draw = np.random.default_rng(0)
    size = model.space.size + model.noise_size
    numbers = draw.normal(size=(PROBES, 2 * size + len(model.control_names)))
    found = jax.device_get(_try(model, jax.random.key(0), jnp.asarray(numbers, float)))
    return Shape(*found)


@run_once
def _try(
    model: StateSpaceModel, key: PRNGKeyArray, numbers: Float[Array, "p n"]
) -> tuple[Array, Array, Array, Array]:
    d, k = model.space.size, model.noise_size
    n, sensors = d + k, model.likelihood.sensors
    assert sensors is not None
    draws = jax.vmap(model.sample_prior)(jax.random.split(key, 256))
    centre = draws[0]
    apart = model.space.difference(draws, centre[None])
    wide = jnp.std(apart, axis=0)
    scale = jnp.concatenate([jnp.where(wide > 0, wide, 1.0), jnp.ones(k)])

    def outputs(point: Array, step: Step) -> Array:
        x = point[:d]
        return jnp.concatenate([model.motion(x, step)(point[d:]), sensors.predict(x, step)])

    def difference(a: Array, b: Array) -> Array:
        moved = model.space.difference(a[..., :d], b[..., :d])
        seen = sensors.space.difference(a[..., d:], b[..., d:])
        return jnp.concatenate([moved, seen], axis=-1)

    def one(x: Array, numbers: Array, index: Array) -> Any:
        here, there, control = jnp.split(numbers, np.cumsum([n, n]))
        step = model.nominal_step(index, control if model.reads_control else None)
        point = jnp.concatenate([x, jnp.zeros(k)]) + scale * here
        function = functools.partial(outputs, step=step)
        value, slope = function(point), jax.jacfwd(function)(point)
        size = jnp.abs(value) + jnp.abs(slope) @ scale + 1e-30
        second = jax.jacfwd(jax.jacfwd(function))(point)
        curvature = second * scale[None, :, None] * scale[None, None, :] / size[:, None, None]
        # A function with kinks has no second derivative where it is tried: so look far away too.
        steps = FAR * scale * there
        both = jnp.eye(n)[:, None] + jnp.eye(n)[None]
        shift = jnp.minimum(both, 1) * steps[None, None]
        actual = jax.vmap(jax.vmap(lambda s: function(point + s)))(shift)
        tangent = value[None, None] + jnp.tensordot(shift, slope, axes=([2], [1]))
        room = jnp.abs(actual) + jnp.tensordot(jnp.abs(shift), jnp.abs(slope), axes=([2], [1]))
        most = jnp.abs(value) + jnp.abs(slope) @ jnp.abs(point)
        room = room + most[None, None]
        off = jnp.abs(difference(actual, tangent)) > 1e-4 * room + 1e-30
        bent = jnp.any(off | ~jnp.isfinite(actual), axis=2)
        unknown = jax.vmap(lambda e: function(jnp.where(e > 0, jnp.nan, point)))(jnp.eye(n))
        # What is no number does not spread through a comparison; there another number shows, by
        # more than rounding.
        each = jnp.arange(n)
        changed = jnp.abs(actual[each, each] - value[None]) > CHANGED * room[each, each]
        depends = jnp.isnan(unknown) | changed
        own = jnp.sqrt(jnp.sum((slope[:d, d:]) ** 2, axis=1))
        return jnp.where(jnp.isfinite(curvature), curvature, jnp.inf), bent, depends, own

    indices = jnp.arange(1, PROBES + 1)
    curvature, bent, depends, own = jax.lax.map(
        lambda a: one(*a), (draws[:PROBES], numbers, indices)
    )
    largest = jnp.take_along_axis(curvature, jnp.argmax(jnp.abs(curvature), axis=0)[None], axis=0)[
        0
    ]
    largest = jnp.where(jnp.abs(largest) > CURVED, largest, 0)
    slowness = scale[:d] / jnp.maximum(jnp.mean(own, axis=0), 1e-12 * scale[:d])
    return largest, jnp.any(bent, axis=0), jnp.any(depends, axis=0), slowness


def find(model: StateSpaceModel, shape: Shape, wanted: Sequence[int] | None) -> Structure:
    """The largest set of states that are linear given the others; or the user's, if it is one."""
    d = model.space.size
    entangled = (np.abs(shape.curvature) > 0).any(axis=0) | shape.bent
    noise = entangled[d:, d:]
    if noise.any():
        raise ValueError(
            "marginalise: the transition is not linear in its noise, so nothing that it moves is "
            "Gaussian"
        )
    alone = _not_by_itself(model, shape, entangled)
    pairs = entangled[:d, :d] & ~np.eye(d, dtype=bool)
    if wanted is None:
        able = [i for i in range(d) if alone[i] is None]
        linear = largest_independent(able, pairs, shape.slowness)
        if not linear:
            said = "; ".join(f"{model.state_names[i]}: {alone[i]}" for i in range(d))
            raise ValueError(f"marginalise: no state is linear given the others. {said}")
    else:
        linear = tuple(sorted(wanted))
        _check_wanted(model, shape, linear, alone, pairs)
    nonlinear = tuple(i for i in range(d) if i not in linear)
    reasons = tuple(_reason(model, i, alone[i], pairs, linear) for i in nonlinear)
    inputs = [*linear, *range(d, d + model.noise_size)]
    moves = tuple(_true(shape.depends[i, :d]) for i in inputs)
    shows = tuple(_true(shape.depends[i, d:]) for i in linear)
    doubtful: tuple[int, ...] = ()
    if isinstance(getattr(model.likelihood, "tails", None), Outliers):
        doubtful = tuple(sorted({row for rows in shows for row in rows}))
        if len(doubtful) > MOST_DOUBTFUL:
            raise ValueError(
                f"marginalise: {len(doubtful)} measurements with robust noise depend on linear "
                f"states, and at most {MOST_DOUBTFUL} can be looked at together; say with linear= "
                "which states to take"
            )
    return Structure(linear, nonlinear, moves, shows, doubtful, (), reasons)


def _not_by_itself(
    model: StateSpaceModel, shape: Shape, entangled: Bool[np.ndarray, "n n"]
) -> list[str | None]:
    """Why a state is not linear, whatever the others are; None for those that are."""
    d = model.space.size
    tails = getattr(model.likelihood, "tails", None)
    reasons: list[str | None] = []
    for i in range(d):
        reason = None
        if i in model.space.angles:
            reason = "it is an angle"
        elif entangled[i, i]:
            reason = f"{_culprit(model, shape, i, i)} is not linear in it"
        elif entangled[i, d:].any():
            reason = "the noise depends on it"
        elif tails is not None and not isinstance(tails, Outliers) and shape.depends[i, d:].any():
            reason = f"measurements with {type(tails).__name__} noise depend on it"
        reasons.append(reason)
    return reasons


def _culprit(model: StateSpaceModel, shape: Shape, i: int, j: int) -> str:
    """Which output is to blame, and its second derivative."""
    d = model.space.size
    sizes = np.abs(shape.curvature[:, i, j])
    if not sizes.any():
        return "the transition or the observation"
    worst = int(np.argmax(np.where(np.isnan(sizes), np.inf, sizes)))
    if worst < d:
        return f"the transition of {model.state_names[worst]}"
    return f"the observation {model.observation_names[worst - d]}"


def _reason(
    model: StateSpaceModel, i: int, alone: str | None, pairs: Any, linear: tuple[int, ...]
) -> str:
    if alone is not None:
        return alone
    others = [model.state_names[j] for j in linear if pairs[i, j]]
    if not others:
        return "it was not asked for"
    return f"it is multiplied with {', '.join(others)}"


def _check_wanted(
    model: StateSpaceModel, shape: Shape, linear: tuple[int, ...], alone: Any, pairs: Any
) -> None:
    names = model.state_names
    for i in linear:
        if alone[i] is not None:
            value = _derivative(model, shape, i, i)
            raise ValueError(f"linear: {names[i]} is not linear: {alone[i]}{value}")
        for j in linear:
            if pairs[i, j]:
                raise ValueError(
                    f"linear: {names[i]} and {names[j]} are not linear together: "
                    f"{_culprit(model, shape, i, j)} depends on their product"
                    f"{_derivative(model, shape, i, j)}; leave one of them out"
                )


def _derivative(model: StateSpaceModel, shape: Shape, i: int, j: int) -> str:
    values = shape.curvature[:, i, j]
    if not np.abs(values).any():
        return ""
    worst = values[int(np.argmax(np.abs(values)))]
    by = model.state_names[i] if i == j else f"{model.state_names[i]} and {model.state_names[j]}"
    return (
        f" (its second derivative by {by} is {worst:.2g} of its size, over a standard deviation of "
        "the prior)"
    )


def largest_independent(
    able: Sequence[int], pairs: Bool[np.ndarray, "d d"], preference: Float[np.ndarray, " d"]
) -> tuple[int, ...]:
    """A largest set of which no two are a pair; of several, the one with the most preferred.

    Slow states gain most from being solved exactly: particles lose them for good.
    """
    ranks = {i: rank for rank, i in enumerate(sorted(able, key=lambda i: preference[i]))}

    @functools.cache
    def best(left: frozenset[int]) -> tuple[int, int, tuple[int, ...]]:
        if not left:
            return 0, 0, ()
        # The one with the most partners: without it the rest falls apart soonest.
        busiest = max(left, key=lambda i: (sum(pairs[i, j] for j in left), -i))
        partners = {j for j in left if pairs[busiest, j]}
        count, rank, chosen = best(left - partners - {busiest})
        with_it = (count + 1, rank + ranks[busiest], (*chosen, busiest))
        return with_it if not partners else max(with_it, best(left - {busiest}))

    return tuple(sorted(best(frozenset(able))[2]))


def _true(mask: Bool[np.ndarray, " n"]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.flatnonzero(mask))


def prior_places(model: StateSpaceModel, structure: Structure) -> list[tuple[int, int]]:
    """Where the covariance of the linear states, given the others, is not zero at time zero."""
    prior, order = model.prior, structure.order
    count = len(structure.nonlinear)
    if not isinstance(prior, Gaussian | GaussianMixture):
        return []
    parts = [prior]
    if isinstance(prior, GaussianMixture):
        number = len(np.asarray(prior.weights))
        parts = [
            jax.tree.map(lambda leaf, k=k: np.asarray(leaf)[k], prior.components)
            for k in range(number)
        ]
    some = np.zeros((len(structure.linear),) * 2, bool)
    for part in parts:
        factor = np.linalg.cholesky(np.asarray(part.covariance, float)[order][:, order])
        own = factor[count:, count:]
        some |= np.abs(own @ own.T) > 0
    return [(int(i), int(j)) for i, j in np.argwhere(some) if i >= j]
