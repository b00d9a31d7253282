"""Linear algebra on models: tangents, tests of linearity, and small systems for many particles."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from nopf.gaussian import is_traced
from nopf.model import StateSpaceModel
from nopf.steps import Step


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


def why_not_linear(model: StateSpaceModel, name: str, steps: Step | None = None) -> str | None:
    """None if the `transition` or the `observation` is linear (affine) in the state.

    The transition must be so in state and noise together. Compares the function with its tangent at
    a draw of the prior, far away from it: at `steps`, with a leading time axis, or at a few of a
    regular grid. A model that reads controls can be judged only at `steps`.
    """
    if is_traced((model, steps)):
        return None
    if steps is None:
        if model.reads_control:
            return None
        steps = jax.tree.map(
            lambda *leaves: jnp.stack(leaves), *(model.nominal_step(index) for index in (1, 2, 10))
        )
    bent = _is_bent(model, name == "transition", steps)
    if is_traced(bent) or not np.asarray(bent).any():
        return None
    first = int(steps.index[np.argmax(np.asarray(bent))])
    return f"the {name} is not linear in the state (at step {first})"


@eqx.filter_jit
def _is_bent(model: StateSpaceModel, moving: bool, steps: Step) -> Bool[Array, " t"]:
    def function(point: Array, step: Step) -> Array:
        x, z = point[: model.space.size], point[model.space.size :]
        if moving:
            return model.motion(x, step)(z)
        return model.predict_observation(x, step)

    keys = jax.random.split(jax.random.key(0), 9)
    noise = jax.random.normal(jax.random.key(1), (9, model.noise_size))
    draws = jnp.concatenate([jax.vmap(model.sample_prior)(keys), noise], axis=1)
    centre = draws[0]
    far = centre[None] + 10 * (draws[1:] - centre[None])

    def at(step: Step) -> Bool[Array, ""]:
        value, jacobian = linearise(lambda x: function(x, step), centre)
        tangent = value[None] + (far - centre[None]) @ jacobian.T
        actual = jax.vmap(lambda x: function(x, step))(far)
        # Rounding is relative to the numbers that went in, coordinate by coordinate.
        size = (
            jnp.max(jnp.abs(actual), axis=0) + jnp.max(jnp.abs(far), axis=0) @ jnp.abs(jacobian).T
        )
        return jnp.any(jnp.abs(actual - tangent) > 1e-4 * (size + 1e-6)[None])

    return jax.lax.map(at, steps)


# A matrix as scalars, each of which is one array over particles: written out entry by entry, XLA
# vectorises a factorisation over particles, where LAPACK is called once for each.
Columns = list[list[Any]]


def cholesky(matrix: Columns, smallest_pivot: float = 0.0) -> Columns:
    """Lower factor L with L Lᵀ = matrix; only the lower triangle is read and written.

    A pivot below `smallest_pivot` is raised to it.
    """
    size = len(matrix)
    factor: Columns = []
    for i in range(size):
        row: list[Any] = []
        for j in range(i):
            dot = sum((row[k] * factor[j][k] for k in range(j)), start=0.0)
            row.append((matrix[i][j] - dot) / factor[j][j])
        dot = sum((entry * entry for entry in row), start=0.0)
        row.append(jnp.sqrt(jnp.maximum(matrix[i][i] - dot, smallest_pivot)))
        factor.append(row)
    return factor


def solve_lower(factor: Columns, right: list[Any]) -> list[Any]:
    """x with L x = right, whose entries may be scalars or rows."""
    solution: list[Any] = []
    for i, row in enumerate(factor):
        dot = sum((row[k] * solution[k] for k in range(i)), start=0.0)
        solution.append((right[i] - dot) / row[i])
    return solution


def solve_upper(factor: Columns, right: list[Any]) -> list[Any]:
    """x with Lᵀ x = right."""
    size = len(factor)
    solution: list[Any] = [None] * size
    for i in reversed(range(size)):
        dot = sum((factor[k][i] * solution[k] for k in range(i + 1, size)), start=0.0)
        solution[i] = (right[i] - dot) / factor[i][i]
    return solution


# The same for vectors: a list of scalars, or where they are many an array, which takes less time to
# compile.
Vector = list[Any] | Array
MANY = 16


def as_vector(values: Float[Array, " k"]) -> Vector:
    """As scalars, or as it is if they are many."""
    return list(values) if values.size <= MANY else values


def dot(a: Vector, b: Vector) -> Any:
    """Σ aᵢ bᵢ."""
    if isinstance(a, list) or isinstance(b, list):
        return sum((x * y for x, y in zip(a, b, strict=True)), start=0.0)
    return jnp.sum(a * b)


def combine(vectors: list[Vector], weights: list[Any]) -> Float[Array, " k"]:
    """Σ wᵢ vᵢ."""
    if isinstance(vectors[0], list):
        return jnp.stack([dot(list(entries), weights) for entries in zip(*vectors, strict=True)])
    return sum((w * v for w, v in zip(weights, vectors, strict=True)), start=jnp.zeros(()))
