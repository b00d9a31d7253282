"""Linear algebra on models: tangents, tests of linearity, and small systems for many particles."""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from nopf.compiling import is_tracing, run_once
from nopf.gaussian import is_traced
from nopf.layout import MANY
from nopf.model import StateSpaceModel
from nopf.steps import Step, make_steps, part

Pattern = tuple[tuple[int, ...], ...]
"""For each input the outputs that depend on it."""

AT_ONCE = 64  # steps


def linearise(
    function: Callable[[Array], Array], x: Float[Array, " d"]
) -> tuple[Float[Array, " m"], Float[Array, "m d"]]:
    """The value and the Jacobian at `x`."""

    def twice(x: Array) -> tuple[Array, Array]:
        value = function(x)
        return value, value

    jacobian, value = jax.jacfwd(twice, has_aux=True)(x)
    return value, jacobian


def linear_motion(
    model: StateSpaceModel, mean: Float[Array, " d"], step: Step
) -> tuple[Float[Array, " d"], Float[Array, "d d"], Float[Array, "d d"]]:
    """Of a linear transition: where `mean` goes, the matrix, and the covariance of the noise."""
    d = mean.size
    forecast, jacobian = linearise(
        lambda point: model.motion(point[:d], step)(point[d:]),
        jnp.concatenate([mean, jnp.zeros(model.noise_size)]),
    )
    matrix, root = jacobian[:, :d], jacobian[:, d:]
    return forecast, matrix, root @ root.T


def why_not_linear(
    model: StateSpaceModel,
    steps: Step | None = None,
    names: tuple[str, ...] = ("transition", "observation"),
) -> str | None:
    """None if the `transition` and the `observation` are linear (affine) in the state.

    The transition must be so in state and noise together. Compares each function with its tangent
    at a draw of the prior, far away from it: at `steps`, with a leading time axis, or at a few of a
    regular grid. A model that reads controls can be judged only at `steps`.
    """
    if is_traced((model, steps)) or is_tracing():
        return None
    if steps is None:
        if model.reads_control:
            return None
        steps = make_steps(3, model.dt)
    count = len(steps.index)
    for start in range(0, count, AT_ONCE):
        # Always as many, so that it is compiled once: the last ones are looked at again and again.
        rows = np.minimum(start + np.arange(AT_ONCE), count - 1)
        bent = _is_bent(model, part(steps, rows))
        for name in names:
            if bent[name].any():
                first = steps.index[rows[np.argmax(bent[name])]]
                return f"the {name} is not linear in the state (at step {first})"
    return None


def _is_bent(model: StateSpaceModel, steps: Step) -> dict[str, Bool[np.ndarray, " t"]]:
    noise = np.random.default_rng(1).normal(size=(9, model.noise_size))
    moved, seen = _bends(model, steps, noise)
    return {"transition": np.asarray(moved), "observation": np.asarray(seen)}


@run_once
def _bends(
    model: StateSpaceModel, steps: Step, noise: Float[Any, "n k"]
) -> tuple[Bool[Array, " t"], Bool[Array, " t"]]:
    keys = jax.random.split(jax.random.key(0), len(noise))
    states = jax.vmap(model.sample_prior)(keys)

    def move(point: Array, step: Step) -> Array:
        return model.motion(point[: model.space.size], step)(point[model.space.size :])

    def is_bent(function: Callable[..., Array], draws: Array, step: Step) -> Bool[Array, ""]:
        centre = draws[0]
        far = centre[None] + 10 * (draws[1:] - centre[None])
        value, jacobian = linearise(lambda x: function(x, step), centre)
        tangent = value[None] + (far - centre[None]) @ jacobian.T
        actual = jax.vmap(lambda x: function(x, step))(far)
        # Rounding is relative to the numbers that went in, coordinate by coordinate.
        size = (
            jnp.max(jnp.abs(actual), axis=0) + jnp.max(jnp.abs(far), axis=0) @ jnp.abs(jacobian).T
        )
        return jnp.any(jnp.abs(actual - tangent) > 1e-4 * (size + 1e-6)[None])

    both = jnp.concatenate([states, noise], axis=1)

    def at(step: Step) -> tuple[Bool[Array, ""], Bool[Array, ""]]:
        seen = jnp.zeros((), bool)
        if model.likelihood.predicts:
            seen = is_bent(model.predict_observation, states, step)
        return is_bent(move, both, step), seen

    return jax.lax.map(at, steps)


# Matrices and vectors as lists of scalars, each of which is one array over particles: written out
# entry by entry, XLA vectorises a factorisation over particles, where LAPACK is called once for
# each. An entry that is known to be zero is the number 0.0, and takes no time.
Columns = list[list[Any]]


def is_zero(entry: Any) -> bool:
    """Whether an entry is known to be zero."""
    return isinstance(entry, float) and entry == 0.0


def total(terms: Iterable[Any]) -> Any:
    """The sum of those that are not known to be zero."""
    return sum((term for term in terms if not is_zero(term)), start=0.0)


def times(a: Any, b: Any) -> Any:
    """a·b."""
    return 0.0 if is_zero(a) or is_zero(b) else a * b


def over(a: Any, b: Any) -> Any:
    """a/b."""
    return 0.0 if is_zero(a) else a / b


def less(a: Any, b: Any) -> Any:
    """a − b."""
    return a if is_zero(b) else a - b


def cholesky(matrix: Columns, smallest_pivot: float = 0.0) -> Columns:
    """Lower factor L with L Lᵀ = matrix; only the lower triangle is read and written.

    A pivot below `smallest_pivot` is raised to it.
    """
    factor: Columns = []
    for i, given in enumerate(matrix):
        row: list[Any] = []
        for j in range(i):
            known = total(times(row[k], factor[j][k]) for k in range(j))
            row.append(over(less(given[j], known), factor[j][j]))
        known = total(times(entry, entry) for entry in row)
        row.append(jnp.sqrt(jnp.maximum(less(given[i], known), smallest_pivot)))
        factor.append(row)
    return factor


def solve_lower(factor: Columns, right: list[Any]) -> list[Any]:
    """x with L x = right, whose entries may be scalars or rows."""
    solution: list[Any] = []
    for i, row in enumerate(factor):
        known = total(times(row[k], solution[k]) for k in range(i))
        solution.append(over(less(right[i], known), row[i]))
    return solution


def solve_upper(factor: Columns, right: list[Any]) -> list[Any]:
    """x with Lᵀ x = right."""
    size = len(factor)
    solution: list[Any] = [None] * size
    for i in reversed(range(size)):
        known = total(times(factor[k][i], solution[k]) for k in range(i + 1, size))
        solution[i] = over(less(right[i], known), factor[i][i])
    return solution


# The same for vectors: a list of scalars, or where they are many an array, which takes less time to
# compile.
Vector = list[Any] | Array


def as_vector(values: Float[Array, " k"]) -> Vector:
    """As scalars, or as it is if they are many."""
    return list(values) if values.size <= MANY else values


def dot(a: Vector, b: Vector) -> Any:
    """Σ aᵢ bᵢ."""
    if isinstance(a, list) or isinstance(b, list):
        return total(times(x, y) for x, y in zip(a, b, strict=True))
    return jnp.sum(a * b)


def transposed(vectors: list[Vector]) -> list[Vector]:
    """The columns of a matrix, of its rows."""
    if isinstance(vectors[0], list):
        return [list(entries) for entries in zip(*vectors, strict=True)]
    return [as_vector(column) for column in jnp.stack([jnp.asarray(v) for v in vectors]).T]


def scaled(weight: Any, vector: Vector) -> Vector:
    """w v."""
    return [times(weight, x) for x in vector] if isinstance(vector, list) else weight * vector


def combine(vectors: list[Vector], weights: list[Any]) -> Float[Array, " k"]:
    """Σ wᵢ vᵢ."""
    if isinstance(vectors[0], list):
        return as_array([dot(list(entries), weights) for entries in zip(*vectors, strict=True)])
    return sum((w * v for w, v in zip(weights, vectors, strict=True)), start=jnp.zeros(()))


def as_array(vector: list[Any]) -> Float[Array, " k"]:
    """The scalars as one array."""
    return jnp.stack([jnp.asarray(entry, float) if is_zero(entry) else entry for entry in vector])


def apart(pattern: Pattern) -> list[list[int]]:
    """Groups of noise numbers of which no two show in the same entry."""
    groups: list[list[int]] = []
    for i, rows in enumerate(pattern):
        for group in groups:
            if not any(set(rows) & set(pattern[j]) for j in group):
                group.append(i)
                break
        else:
            groups.append([i])
    return groups


def jacobian_rows(
    push: Callable[[Array], Array], size: int, width: int, pattern: Pattern | None
) -> list[Vector]:
    """The rows of a Jacobian, given how it is multiplied with a vector.

    Inputs of which no two show in the same output share one product. Entries outside the pattern
    are known to be zero.
    """
    if pattern is None:
        columns = finite(jax.vmap(push)(jnp.eye(size)))
        return [as_vector(row) for row in columns.T]
    entries: list[list[Any]] = [[0.0] * size for _ in range(width)]
    for group in apart(pattern):
        pushed = push(jnp.asarray(np.isin(np.arange(size), group), float))
        for i in group:
            for row in pattern[i]:
                # One by one: XLA would put a vector together only to take it apart.
                entries[row][i] = finite(pushed[row])
    return [*entries]


def finite(values: Array) -> Array:
    """The values, zero where they are not finite: where there is no tangent nothing is learned."""
    return jnp.where(jnp.isfinite(values), values, 0)
