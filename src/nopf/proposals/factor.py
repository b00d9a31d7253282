"""Factor: a square root F of a covariance F Fᵀ, for one particle, in the form that is cheapest.

None of them is kept as a matrix where it need not be: N matrices of shape (k, k) take longer to
write down than everything else.
"""

import abc
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from nopf.linear import (
    Columns,
    Vector,
    as_vector,
    combine,
    dot,
    solve_lower,
    solve_upper,
)


class Factor(eqx.Module):
    """A square root F of a covariance.

    Attributes:
        log_det: logarithm of its determinant.
    """

    log_det: eqx.AbstractVar[Float[Array, ""]]

    @abc.abstractmethod
    def colour(self, white: Float[Array, " k"]) -> Float[Array, " k"]:
        """F·white."""

    @abc.abstractmethod
    def whiten(self, deviation: Float[Array, " k"]) -> Float[Array, " k"]:
        """F⁻¹·deviation."""

    def square(self, size: int) -> Float[Array, ""]:
        """The sum of the squares of all entries, which is the trace of the covariance."""
        return jnp.sum(jax.vmap(self.colour)(jnp.eye(size)) ** 2)


class Diagonal(Factor):
    """Standard deviations."""

    diagonal: Float[Array, " k"]
    log_det: Float[Array, ""]

    def __init__(self, diagonal: Float[Array, " k"]):
        self.diagonal = diagonal
        self.log_det = jnp.sum(jnp.log(diagonal))

    def colour(self, white: Float[Array, " k"]) -> Float[Array, " k"]:
        return self.diagonal * white

    def whiten(self, deviation: Float[Array, " k"]) -> Float[Array, " k"]:
        return deviation / self.diagonal

    def square(self, size: int) -> Float[Array, ""]:
        return jnp.sum(self.diagonal**2)


class Dense(Factor):
    """A lower triangular matrix."""

    matrix: Float[Array, "k k"]
    log_det: Float[Array, ""]

    def __init__(self, matrix: Float[Array, "k k"]):
        """What is above the diagonal does not count."""
        matrix = jnp.tril(matrix)
        self.matrix = matrix
        self.log_det = jnp.sum(jnp.log(jnp.diagonal(matrix)))

    def colour(self, white: Float[Array, " k"]) -> Float[Array, " k"]:
        return self.matrix @ white

    def whiten(self, deviation: Float[Array, " k"]) -> Float[Array, " k"]:
        return jax.scipy.linalg.solve_triangular(self.matrix, deviation, lower=True)


class Triangular(Factor):
    """A lower triangular matrix as its diagonal and the entries below it, column by column."""

    diagonal: Float[Array, " k"]
    below: Float[Array, " e"]
    log_det: Float[Array, ""]

    def __init__(self, diagonal: Float[Array, " k"], below: Float[Array, " e"]):
        self.diagonal, self.below = diagonal, below
        self.log_det = jnp.sum(jnp.log(diagonal))

    def colour(self, white: Float[Array, " k"]) -> Float[Array, " k"]:
        spread, gather = _triangle(white.size)
        return self.diagonal * white + (self.below * (white @ spread)) @ gather

    def whiten(self, deviation: Float[Array, " k"]) -> Float[Array, " k"]:
        rest, white, start = deviation, [], 0
        for j in range(deviation.size):
            entry = rest[0] / self.diagonal[j]
            white.append(entry)
            end = start + deviation.size - 1 - j
            rest = rest[1:] - self.below[start:end] * entry
            start = end
        return jnp.stack(white)

    def square(self, size: int) -> Float[Array, ""]:
        return jnp.sum(self.diagonal**2) + jnp.sum(self.below**2)


@functools.cache
def _triangle(size: int) -> tuple[np.ndarray, np.ndarray]:
    """0/1 matrices that spread a vector over the entries below the diagonal, and sum them up."""
    pairs = [(i, j) for j in range(size) for i in range(j + 1, size)]
    spread, gather = (
        np.zeros((size, len(pairs)), np.float32),
        np.zeros((len(pairs), size), np.float32),
    )
    for entry, (i, j) in enumerate(pairs):
        spread[j, entry] = gather[entry, i] = 1
    return spread, gather


def _log_diagonal(rows: Columns) -> Float[Array, ""]:
    # One after the other: stacked, they would be turned into rows of a few numbers each.
    total = jnp.log(rows[0][-1])
    for row in rows[1:]:
        total = total + jnp.log(row[-1])
    return total


class OfPrecision(Factor):
    """C⁻ᵀ, with C the Cholesky factor of the precision; its entries are scalars, row by row."""

    rows: Columns
    log_det: Float[Array, ""]

    def __init__(self, rows: Columns):
        self.rows = rows
        self.log_det = -_log_diagonal(rows)

    def colour(self, white: Float[Array, " k"]) -> Float[Array, " k"]:
        return jnp.stack(solve_upper(self.rows, list(white)))

    def whiten(self, deviation: Float[Array, " k"]) -> Float[Array, " k"]:
        count = range(len(self.rows))
        columns = [[row[i] for row in self.rows[i:]] for i in count]
        return jnp.stack([dot(columns[i], deviation[i:]) for i in count])


class OfFewRows(Factor):
    """Andrews' square root of (I + JᵀJ)⁻¹: I − Jᵀ C⁻ᵀ (C + I)⁻¹ J, with C the factor of I + JJᵀ.

    For fewer rows of J than columns. All entries are scalars; or, where they are many, rows of J
    are arrays.
    """

    jacobian: list[Vector]
    rows: Columns
    log_det: Float[Array, ""]

    def __init__(self, jacobian: list[Vector], rows: Columns):
        self.jacobian, self.rows = jacobian, rows
        self.log_det = -_log_diagonal(rows)

    def colour(self, white: Float[Array, " k"]) -> Float[Array, " k"]:
        inner = solve_lower(self._shifted(), self._project(white))
        return white - self._lift(solve_upper(self.rows, inner))

    def whiten(self, deviation: Float[Array, " k"]) -> Float[Array, " k"]:
        return deviation + self._lift(solve_upper(self._shifted(), self._project(deviation)))

    def _shifted(self) -> Columns:
        return [[*row[:-1], row[-1] + 1] for row in self.rows]

    def _project(self, z: Float[Array, " k"]) -> list[Array]:
        vector = as_vector(z)
        return [dot(row, vector) for row in self.jacobian]

    def _lift(self, inner: list[Array]) -> Float[Array, " k"]:
        return combine(self.jacobian, inner)


class Product(Factor):
    """outer · inner."""

    outer: Factor
    inner: Factor
    log_det: Float[Array, ""]

    def __init__(self, outer: Factor, inner: Factor):
        self.outer, self.inner = outer, inner
        self.log_det = outer.log_det + inner.log_det

    def colour(self, white: Float[Array, " k"]) -> Float[Array, " k"]:
        return self.outer.colour(self.inner.colour(white))

    def whiten(self, deviation: Float[Array, " k"]) -> Float[Array, " k"]:
        return self.inner.whiten(self.outer.whiten(deviation))
