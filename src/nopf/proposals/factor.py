"""Factor: a square root F of a covariance F Fᵀ, for one particle, in the form that is cheapest.

None of them is kept as a matrix where it need not be: N matrices of shape (k, k) take longer to
write down than everything else.
"""

import abc
import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from nopf.layout import MANY, summed
from nopf.linear import (
    Columns,
    Vector,
    as_vector,
    combine,
    dot,
    is_zero,
    solve_lower,
    solve_upper,
    total,
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
        self.log_det = summed(jnp.log, diagonal)

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


Pairs = tuple[tuple[int, int], ...]


class Triangular(Factor):
    """A lower triangular matrix as its diagonal and the entries at `pairs` (i, j) below it."""

    diagonal: Float[Array, " k"]
    below: Float[Array, " e"]
    log_det: Float[Array, ""]
    pairs: Pairs = eqx.field(static=True)

    def __init__(
        self, diagonal: Float[Array, " k"], below: Float[Array, " e"], pairs: Pairs | None = None
    ):
        """With an entry at every place below the diagonal, column by column, if `pairs` is None."""
        self.diagonal, self.below = diagonal, below
        self.log_det = summed(jnp.log, diagonal)
        size = diagonal.shape[-1]
        every = ((i, j) for j in range(size) for i in range(j + 1, size))
        self.pairs = tuple(every) if pairs is None else pairs

    def colour(self, white: Float[Array, " k"]) -> Float[Array, " k"]:
        if white.size > MANY:
            spread, gather = _triangle(white.size, self.pairs)
            return self.diagonal * white + (self.below * (white @ spread)) @ gather
        rows = [[d * w] for d, w in zip(self.diagonal, white, strict=True)]
        for entry, (i, j) in zip(self.below, self.pairs, strict=True):
            rows[i].append(entry * white[j])
        return jnp.stack([total(row) for row in rows])

    def whiten(self, deviation: Float[Array, " k"]) -> Float[Array, " k"]:
        size = deviation.size
        if size > MANY:
            matrix = jnp.diag(self.diagonal)
            places = np.asarray(self.pairs, int).reshape(-1, 2)
            matrix = matrix.at[places[:, 0], places[:, 1]].set(self.below)
            return jax.scipy.linalg.solve_triangular(matrix, deviation, lower=True)
        rows: Columns = [[0.0] * i + [d] for i, d in enumerate(self.diagonal)]
        for entry, (i, j) in zip(self.below, self.pairs, strict=True):
            rows[i][j] = entry
        return jnp.stack(solve_lower(rows, list(deviation)))

    def square(self, size: int) -> Float[Array, ""]:
        return jnp.sum(self.diagonal**2) + jnp.sum(self.below**2)


@functools.cache
def _triangle(size: int, pairs: Pairs) -> tuple[np.ndarray, np.ndarray]:
    """0/1 matrices that spread a vector over the entries below the diagonal, and sum them up."""
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


class Sparse(eqx.Module):
    """A matrix as scalars, without the entries that are known to be zero.

    Arrays over particles are made of all that a law holds: of zeros too, if they were in it.
    """

    entries: list[list[Any]]
    places: tuple[tuple[int, ...], ...] = eqx.field(static=True)
    widths: tuple[int, ...] = eqx.field(static=True)

    def __init__(self, rows: Columns):
        self.places = tuple(
            tuple(j for j, entry in enumerate(row) if not is_zero(entry)) for row in rows
        )
        self.widths = tuple(len(row) for row in rows)
        self.entries = [
            [row[j] for j in places] for row, places in zip(rows, self.places, strict=True)
        ]

    @property
    def rows(self) -> Columns:
        rows = []
        for entries, places, width in zip(self.entries, self.places, self.widths, strict=True):
            row: list[Any] = [0.0] * width
            for place, entry in zip(places, entries, strict=True):
                row[place] = entry
            rows.append(row)
        return rows


class OfPrecision(Factor):
    """C⁻ᵀ, with C the Cholesky factor of the precision; its entries are scalars, row by row."""

    matrix: Sparse
    log_det: Float[Array, ""]

    def __init__(self, rows: Columns):
        self.matrix = Sparse(rows)
        self.log_det = -_log_diagonal(rows)

    def colour(self, white: Float[Array, " k"]) -> Float[Array, " k"]:
        return jnp.stack(solve_upper(self.matrix.rows, list(white)))

    def whiten(self, deviation: Float[Array, " k"]) -> Float[Array, " k"]:
        rows = self.matrix.rows
        count = range(len(rows))
        columns = [[row[i] for row in rows[i:]] for i in count]
        return jnp.stack([dot(columns[i], list(deviation)[i:]) for i in count])


class OfFewRows(Factor):
    """Andrews' square root of (I + JᵀJ)⁻¹: I − Jᵀ C⁻ᵀ (C + I)⁻¹ J, with C the factor of I + JJᵀ.

    For fewer rows of J than columns. All entries are scalars; or, where they are many, rows of J
    are arrays.
    """

    rows_of_jacobian: Sparse | list[Vector]
    matrix: Sparse
    log_det: Float[Array, ""]

    def __init__(self, jacobian: list[Vector], rows: Columns):
        lists = [row for row in jacobian if isinstance(row, list)]
        self.rows_of_jacobian = Sparse(lists) if lists else jacobian
        self.matrix = Sparse(rows)
        self.log_det = -_log_diagonal(rows)

    @property
    def jacobian(self) -> list[Vector]:
        given = self.rows_of_jacobian
        return [*given.rows] if isinstance(given, Sparse) else given

    def colour(self, white: Float[Array, " k"]) -> Float[Array, " k"]:
        inner = solve_lower(self._shifted(), self._project(white))
        return white - self._lift(solve_upper(self.matrix.rows, inner))

    def whiten(self, deviation: Float[Array, " k"]) -> Float[Array, " k"]:
        return deviation + self._lift(solve_upper(self._shifted(), self._project(deviation)))

    def _shifted(self) -> Columns:
        return [[*row[:-1], row[-1] + 1] for row in self.matrix.rows]

    def _project(self, z: Float[Array, " k"]) -> list[Array]:
        vector = as_vector(z)
        return [dot(row, vector) for row in self.jacobian]

    def _lift(self, inner: list[Array]) -> Float[Array, " k"]:
        return combine(self.jacobian, inner)


class Embedded(Factor):
    """A factor of some coordinates, the others being independent and standard normal."""

    inner: Factor
    log_det: Float[Array, ""]
    places: tuple[int, ...] = eqx.field(static=True)

    def __init__(self, inner: Factor, places: tuple[int, ...]):
        self.inner, self.places = inner, places
        self.log_det = inner.log_det

    def colour(self, white: Float[Array, " k"]) -> Float[Array, " k"]:
        return put(self.inner.colour(take(white, self.places)), self.places, list(white))

    def whiten(self, deviation: Float[Array, " k"]) -> Float[Array, " k"]:
        inner = self.inner.whiten(take(deviation, self.places))
        return put(inner, self.places, list(deviation))

    def square(self, size: int) -> Float[Array, ""]:
        return self.inner.square(len(self.places)) + (size - len(self.places))


def embedded(
    mean: Float[Array, " s"], factor: Factor, places: tuple[int, ...] | None, size: int
) -> tuple[Float[Array, " k"], Factor]:
    """The mean and the factor of all coordinates, of those of some."""
    if places is None or len(places) == size:
        return mean, factor
    return put(mean, places, [0.0] * size), Embedded(factor, places)


def take(values: Float[Array, " k"], places: tuple[int, ...]) -> Float[Array, " s"]:
    """Some of the coordinates. One by one: a gather is slower."""
    return jnp.stack([values[place] for place in places])


def put(values: Float[Array, " s"], places: tuple[int, ...] | None, others: list[Any]) -> Array:
    """All of the coordinates: `values` at `places`, and `others` elsewhere."""
    if places is None or len(places) == len(others):
        return values
    everything = list(others)
    for value, place in zip(values, places, strict=True):
        everything[place] = value
    return jnp.stack(everything)


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
