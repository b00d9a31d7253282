"""Space: which coordinates are angles, and the arithmetic that follows from it."""

import operator
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from nopf.arguments import positive_integer, whole_numbers
from nopf.crowd import totals
from nopf.gaussian import is_traced
from nopf.layout import one_by_one, weighted_sums, written_out
from nopf.trigonometry import arctan2, cos, elementwise, sin

QUANTILE_ERROR = 0.0086  # of a standard deviation: the width of a bin
EXTREME_LEVEL = 1e-4
FEW = 12  # coordinates; up to so many covariances are written out one by one


@elementwise(jnp.ones_like)
def _wrapped(angle: Array) -> Array:
    pi = jnp.asarray(np.pi, angle.dtype)
    wrapped = angle - 2 * pi * jnp.ceil((angle - pi) / (2 * pi))
    # Far from zero the subtraction rounds, and may land a rounding error outside the interval.
    wrapped = jnp.minimum(wrapped, pi)
    return jnp.where(wrapped <= -pi, pi, wrapped)


def wrap_angle(angle: Float[Array | np.ndarray, "*shape"]) -> Float[Array, "*shape"]:
    """Wraps to (−π, π]. Values already inside come back unchanged, bit for bit."""
    return _wrapped(angle)


def _plus(x: Any, shift: np.ndarray) -> Any:
    shift = shift.reshape((1,) * (np.ndim(x) - 1) + shift.shape)
    return x + jnp.asarray(shift, x.dtype) if is_traced(x) else np.asarray(x, np.float64) + shift


class Space(eqx.Module):
    """A vector space of `size` coordinates, some of which (`angles`) live on the circle. All that
    nopf computes is counted from the `origin`, if there is one; users see absolute coordinates.

    All methods act on the last axis and broadcast over the others of equal rank.
    """

    size: int = eqx.field(static=True)
    angles: tuple[int, ...] = eqx.field(static=True)
    origin: tuple[float, ...] | None = eqx.field(static=True)  # static: stays in double precision

    def __init__(
        self, size: int, angles: Sequence[int] = (), origin: tuple[float, ...] | None = None
    ):
        self.origin = origin
        self.size = positive_integer(size, "size")
        self.angles = tuple(sorted({*whole_numbers(angles, "angles")}))
        bad = [i for i in self.angles if not 0 <= i < self.size]
        if bad:
            raise ValueError(
                f"angles: expected indices from 0 to {self.size - 1} "
                f"(there are {self.size} coordinates), got {bad}"
            )

    def _angular(self, ndim: int) -> np.ndarray:
        mask = np.zeros(self.size, bool)
        mask[list(self.angles)] = True
        return mask.reshape((1,) * (ndim - 1) + (self.size,))

    def relative(self, x: Any) -> Any:
        """Counted from the origin: what comes in. In double precision on the host, unless it is
        traced; as it is if there is no origin."""
        return x if self.origin is None else _plus(x, -np.asarray(self.origin))

    def absolute(self, x: Any) -> Any:
        """Not counted from the origin any more: what goes out, as `relative` the other way."""
        return x if self.origin is None else _plus(x, np.asarray(self.origin))

    def wrap(self, x: Float[Array | np.ndarray, "*shape d"]) -> Float[Array, "*shape d"]:
        """Brings the angles to (−π, π] and leaves the other coordinates alone."""
        if x.shape[-1:] != (self.size,):
            raise ValueError(f"expected {self.size} coordinates on the last axis, got {x.shape}")
        x = jnp.asarray(x, jnp.result_type(x, float))
        if not self.angles:
            return x
        if not written_out(self.size):
            return jnp.where(self._angular(x.ndim), wrap_angle(x), x)
        parts = enumerate(jnp.unstack(x, axis=-1))
        return jnp.stack(
            [wrap_angle(part) if i in self.angles else part for i, part in parts], axis=-1
        )

    def difference(
        self, a: Float[Array | np.ndarray, "*#shape d"], b: Float[Array | np.ndarray, "*#shape d"]
    ) -> Array:
        """a − b, the short way round for angles."""
        return self.wrap(one_by_one(operator.sub, a, b))

    def columns_apart(
        self, columns: Float[Array, "d n"], point: Float[Array, " d"]
    ) -> Float[Array, "d n"]:
        """The difference of many points, by column, from one: not written out, for compilers."""
        apart = columns - point[:, None]
        return jnp.where(self._angular(1)[:, None], wrap_angle(apart), apart)

    def distance(
        self, a: Float[Array | np.ndarray, "*#shape d"], b: Float[Array | np.ndarray, "*#shape d"]
    ) -> Array:
        """Euclidean length of the difference, shape `(*shape,)`."""
        return jnp.linalg.norm(self.difference(a, b), axis=-1)

    def moments(
        self, points: Float[Array, "n d"], weights: Float[Array, " n"], axis: str | None = None
    ) -> tuple[Float[Array, " d"], Float[Array, "d d"]]:
        """Weighted mean and covariance; the mean of angles is the direction of the weighted sum of
        unit vectors.

        Args:
            points: one row a point.
            weights: non-negative, summing to one.
            axis: of the devices that the points are spread over, if they are.
        """
        # The first mean is only near: far from zero, weights that sum to one only up to rounding
        # would move it. What is missing is summed with the covariance, so that devices exchange
        # two vectors and no more.
        index = np.asarray(self.angles, int)
        angles = [points[:, i] for i in self.angles]
        waves = [jnp.dot(weights, wave(a)) for wave in (sin, cos) for a in angles]
        near, *around = totals([weighted_sums(weights, points), *waves], axis)
        if self.angles:
            up, along = jnp.stack(around).reshape(2, -1)
            near = near.at[index].set(arctan2(up, along))
        apart = self.difference(points, near[None])
        sums = [weighted_sums(weights, apart), self._squares(apart, weights)]
        left, squares = totals(sums, axis)
        shift = left.at[index].set(0)
        moved = shift[:, None] * left[None]
        cov = squares - moved - moved.T + shift[:, None] * shift[None]
        # Of a state in which all points agree nothing is left but rounding, of either sign.
        return near + shift, jnp.where(jnp.eye(self.size, dtype=bool), jnp.maximum(cov, 0), cov)

    def mean(self, points: Float[Array, "n d"], weights: Float[Array, " n"]) -> Float[Array, " d"]:
        """The first of the two `moments`."""
        return self.moments(points, weights)[0]

    def covariance(
        self, points: Float[Array, "n d"], weights: Float[Array, " n"], mean: Float[Array, " d"]
    ) -> Float[Array, "d d"]:
        """Weighted covariance Σ wᵢ δᵢ δᵢᵀ of the wrapped differences δᵢ from any `mean`."""
        return self._squares(self.difference(points, mean[None]), weights)

    def _squares(
        self, apart: Float[Array, "n d"], weights: Float[Array, " n"]
    ) -> Float[Array, "d d"]:
        """Σ wᵢ δᵢ δᵢᵀ."""
        if self.size > FEW:
            return (weights[:, None] * apart).T @ apart
        # Written out: with particles innermost, sums of products beat a product of matrices.
        columns = jnp.unstack(apart, axis=1)
        entries = [
            [jnp.dot(weights * a, b) for b in columns[: i + 1]] for i, a in enumerate(columns)
        ]
        both = range(self.size)
        return jnp.stack([jnp.stack([entries[max(i, j)][min(i, j)] for j in both]) for i in both])

    def quantiles(
        self,
        points: Float[Array, "n d"],
        weights: Float[Array, " n"],
        levels: tuple[float, ...],
        mean: Float[Array, " d"],
        std: Float[Array, " d"],
    ) -> Float[Array, "q d"]:
        """Weighted quantiles of every coordinate, in O(n).

        Weights are gathered in bins and interpolated inside a bin, so that the error is at most
        0.0086 standard deviations; sorting costs fifty times more. By Chebyshev's inequality the
        quantiles at p and 1 − p lie within √(1/p) standard deviations of the mean, so the bins need
        to reach no further.
        """
        histogram = self.histogram(points, weights, levels, mean, std)
        return self.quantiles_in(histogram, levels, mean, std)

    def histogram(
        self,
        points: Float[Array, "n d"],
        weights: Float[Array, " n"],
        levels: tuple[float, ...],
        mean: Float[Array, " d"],
        std: Float[Array, " d"],
    ) -> Float[Array, "b d"]:
        """The weight in each bin, from which `quantiles_in` makes quantiles at these levels. Those
        of points on several devices add up."""
        count, reach = _bins(levels)
        if not levels:
            return jnp.zeros((0, self.size), points.dtype)
        scale = jnp.where(std > 0, std, 1.0)
        z = self.difference(points, mean[None]) / scale[None]
        position = (z / reach + 1) * (count / 2)
        bins = jnp.clip(position, 0, count - 1).astype(jnp.int32)
        empty = jnp.zeros((count, self.size), points.dtype)
        return empty.at[bins, np.arange(self.size)[None]].add(weights[:, None])

    def quantiles_in(
        self,
        mass: Float[Array, "b d"],
        levels: tuple[float, ...],
        mean: Float[Array, " d"],
        std: Float[Array, " d"],
    ) -> Float[Array, "q d"]:
        """Quantiles by a `histogram`."""
        if not levels:
            return mass
        count, reach = _bins(levels)
        columns = np.arange(self.size)[None]
        cumulative = jnp.cumsum(mass, axis=0)
        target = jnp.asarray(levels, mass.dtype)[:, None] * cumulative[-1:]
        # The first bin at whose end the cumulative weight reaches the target.
        found = jnp.argmax(cumulative[None] >= target[:, None], axis=1)
        inside, reached = mass[found, columns], cumulative[found, columns]
        end = found + 1 - (reached - target) / jnp.where(inside > 0, inside, 1)
        return self.wrap(mean[None] + std[None] * reach * (end / (count / 2) - 1))


def _bins(levels: tuple[float, ...]) -> tuple[int, float]:
    """How many bins quantiles at these levels take, and how many standard deviations they reach."""
    reach = 1.01 * max((np.sqrt(1 / min(p, 1 - p)) for p in levels), default=0.0)
    return int(np.ceil(2 * reach / QUANTILE_ERROR)), reach
