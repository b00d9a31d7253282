"""How the covariances of a marginalised model move and are updated, and what its sensors see."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from nopf.gaussian import Gaussian
from nopf.likelihood import GaussianLikelihood
from nopf.linear import Columns, as_array, dot, is_zero
from nopf.marginal.conditional import Conditional, condition, full, lower_product, plus


class Weighed(NamedTuple):
    """An observation whose noise was as large as usual, or larger.

    Attributes:
        log_probs: `(c,)` log of the probability of each order times the density of y.
        update: what it says of the linear states.
        observed: which measurements it speaks of.
    """

    log_probs: Float[Array, " c"]
    update: Conditional
    observed: list[Bool[Array, ""]]


class Sight(NamedTuple):
    """What the sensors would say of a particle, and how that depends on its linear states."""

    sensors: GaussianLikelihood
    value: Float[Array, " m"]
    rows: list[Any]
    noise: Gaussian

    def apart(self, y: Float[Array, " m"], observed: list[Bool[Array, ""]]) -> list[Any]:
        """How far the measurements are from these; zero for those that do not count."""
        known = [jnp.where(seen, value, 0) for seen, value in zip(observed, y, strict=True)]
        difference = self.sensors.space.difference(jnp.stack(known), self.value)
        return [jnp.where(s, a, 0) for s, a in zip(observed, difference, strict=True)]


def predict_covariance(
    rows: list[Any], cov: Columns, linear: tuple[int, ...], nonlinear: tuple[int, ...]
) -> Conditional:
    """The covariance of a step, conditioned on where the nonlinear states go.

    Args:
        rows: for each coordinate of the next state its slope by the linear states and the noise.
        cov: lower triangle of the covariance of the linear states.
        linear, nonlinear: which coordinates are which.
    """
    size, matrix = len(linear), full(cov)
    # Row by row the covariance with what went in: the linear states, and independent noise.
    reach = [[*(dot(row[:size], column) for column in matrix), *row[size:]] for row in rows]
    a, b = ([rows[i] for i in part] for part in (nonlinear, linear))
    reach_a, reach_b = ([reach[i] for i in part] for part in (nonlinear, linear))
    between = [[dot(row, other) for other in a] for row in reach_b]
    return condition(lower_product(reach_a, a), between, lower_product(reach_b, b))


def update_covariance(rows: list[Any], cov: Columns, noise: Columns) -> Conditional:
    """The covariance of the linear states given an observation.

    Args:
        rows: for each measurement its slope by the linear states.
        cov: lower triangle of their covariance.
        noise: lower triangle of that of the noise.
    """
    matrix = full(cov)
    reach = [[dot(row, column) for column in matrix] for row in rows]
    between = [[row[i] for row in reach] for i in range(len(matrix))]
    return condition(plus(lower_product(reach, rows), noise), between, cov)


def noise_entries(noise: Gaussian) -> Columns:
    """Lower triangle of the covariance of noise."""
    factor = jnp.asarray(noise.factor)
    if factor.ndim == 1:
        return [[*([0.0] * i), value**2] for i, value in enumerate(factor)]
    covariance = noise.covariance
    return [[covariance[i, j] for j in range(i + 1)] for i in range(noise.size)]


def nonlinear_first(
    prior: Gaussian, order: np.ndarray
) -> tuple[Float[Array, " d"], Float[Array, "d d"]]:
    """Mean and lower factor, the nonlinear states first."""
    cov = prior.covariance[order][:, order]
    return jnp.asarray(prior.mean, float)[order], jnp.linalg.cholesky(cov)


def hold(tree: Any) -> Any:
    """The same; XLA computes it once, and not again for each of its uses."""
    leaves, structure = jax.tree.flatten(tree)
    kept = [i for i, leaf in enumerate(leaves) if not is_zero(leaf)]
    held = jax.lax.optimization_barrier([leaves[i] for i in kept])
    for i, leaf in zip(kept, held, strict=True):
        leaves[i] = leaf
    return jax.tree.unflatten(structure, leaves)


def fixed(entry: Any) -> Any:
    """The same, through which no derivative is taken."""
    return entry if is_zero(entry) else jax.lax.stop_gradient(entry)


def choose(condition: Any, new: Any, old: Any) -> Any:
    """One or the other; a known zero if both are."""
    return old if is_zero(new) and is_zero(old) else jnp.where(condition, new, old)


def stacked(values: list[Any]) -> Array:
    """The scalars as one array, which may be empty."""
    return as_array(values) if values else jnp.zeros(0)
