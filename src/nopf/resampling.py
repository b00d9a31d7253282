"""Resampling: from weights to ancestors, in O(N), with any number of particles.

Every scheme lays N sorted points on [0, N) and counts how many lie below each cumulative weight.
A position is kept as a whole number and a remainder in [0, 1): a single-precision cumulative weight
cannot tell neighbouring particles apart beyond a million of them, this form can.
"""

from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from nopf.crowd import total, weigh_up

BLOCK = 128
EXACT = 2**24  # from there on single precision does not hold every whole number

Position = tuple[Int[Array, " n"], Float[Array, " n"]]


@runtime_checkable
class Resampling(Protocol):
    """Draws ancestors: `(key, log_weights (n,)) -> (n,)` indices, ascending.

    The expected number of copies of particle i is n·wᵢ, w being the normalised weights; the
    log-weights need not be normalised.
    """

    def __call__(self, key: PRNGKeyArray, log_weights: Float[Array, " n"]) -> Int[Array, " n"]: ...


def systematic(key: PRNGKeyArray, log_weights: Float[Array, " n"]) -> Int[Array, " n"]:
    """One uniform shift of a regular grid. The least noise of the four; the paper's choice."""
    weights = _normalised(log_weights)
    whole, rest = _cumulative(weights.size * weights)
    point = jax.random.uniform(key, dtype=weights.dtype)
    return _ancestors(whole + (rest > point), weights)


def stratified(key: PRNGKeyArray, log_weights: Float[Array, " n"]) -> Int[Array, " n"]:
    """One uniform point in each of N equal strata."""
    weights = _normalised(log_weights)
    whole, rest = _cumulative(weights.size * weights)
    points = jax.random.uniform(key, weights.shape, weights.dtype)
    return _ancestors(whole + (rest > points.at[whole].get(mode="clip")), weights)


def multinomial(key: PRNGKeyArray, log_weights: Float[Array, " n"]) -> Int[Array, " n"]:
    """N independent draws."""
    weights = _normalised(log_weights)
    position = _cumulative(weights.size * weights)
    return _ancestors(_uniform_points_below(key, position, jnp.asarray(weights.size)), weights)


def residual(key: PRNGKeyArray, log_weights: Float[Array, " n"]) -> Int[Array, " n"]:
    """⌊N·wᵢ⌋ copies of each particle for certain, the rest by independent draws."""
    weights = _normalised(log_weights)
    expected = weights.size * weights
    copies = jnp.floor(expected)
    certain = _counted(copies)
    remaining = jnp.maximum(weights.size - certain[-1], 0)
    left_over = expected - copies
    # Rounding aside, the left-overs sum to `remaining` already.
    scale = remaining / jnp.maximum(jnp.sum(left_over), jnp.finfo(weights.dtype).tiny)
    position = _cumulative(left_over * scale)
    return _ancestors(certain + _uniform_points_below(key, position, remaining), weights)


def effective_sample_size(
    log_weights: Float[Array, "*batch n"], axis: str | None = None
) -> Float[Array, "*batch"]:
    """1 / Σ wᵢ² of the normalised weights, between 1 and n; 0 if every weight is zero.

    Args:
        log_weights: need not be normalised.
        axis: of the devices that the particles are spread over, if they are.
    """
    return weigh_up(log_weights, axis).ess


def should_resample(
    log_weights: Float[Array, " n"], ess_threshold: float, axis: str | None = None
) -> Bool[Array, ""]:
    """Whether the effective sample size is below `ess_threshold` · n.

    At a threshold of one that is: whenever the weights are not all equal (the paper resamples at
    every step; with equal weights there is nothing to gain from it). Each device decides that for
    itself.
    """
    if ess_threshold >= 1:
        return jnp.max(log_weights) > jnp.min(log_weights)
    count = total(jnp.asarray(log_weights.size), axis)
    return effective_sample_size(log_weights, axis) < ess_threshold * count


def _normalised(log_weights: Float[Array, " n"]) -> Float[Array, " n"]:
    """The weights, summing to one; equal ones if all are zero."""
    if log_weights.ndim != 1 or log_weights.size < 1:
        raise ValueError(f"log_weights: expected a vector, got shape {log_weights.shape}")
    nothing = jnp.max(log_weights) == -jnp.inf
    return jax.nn.softmax(jnp.where(nothing, 0, log_weights))


def _cumulative(values: Float[Array, " n"]) -> Position:
    """Cumulative sum of non-negative values as whole numbers and remainders in [0, 1).

    Whole parts add up exactly. Remainders are summed in blocks, and the sums of the blocks are
    cumulated in the same way.
    """
    whole = jnp.floor(values)
    summed = _counted(whole)
    rows = _within_blocks(values - whole)
    if rows.shape[0] > 1:
        block_whole, block_rest = _cumulative(rows[:-1, -1])
        rows = rows.at[1:].add(block_rest[:, None])
        carried = jnp.repeat(block_whole, BLOCK)[: values.size - BLOCK]
        summed = summed.at[BLOCK:].add(carried)
    rest = rows.reshape(-1)[: values.size]
    carry = jnp.floor(rest)
    return summed + carry.astype(jnp.int32), rest - carry


def _counted(counts: Float[Array, " n"]) -> Int[Array, " n"]:
    """Cumulative sum of whole numbers that sum up to about n, exactly."""
    if counts.size >= EXACT:
        return jnp.cumsum(counts.astype(jnp.int32))

    def summed(counts: Array) -> Array:
        rows = _within_blocks(counts)
        if rows.shape[0] > 1:
            rows = rows.at[1:].add(summed(rows[:-1, -1])[:, None])
        return rows.reshape(-1)[: counts.size]

    return summed(counts).astype(jnp.int32)


def _within_blocks(values: Float[Array, " n"]) -> Float[Array, "r b"]:
    """Cumulative sums of each block, a row: by a product with a triangle of ones, which takes two
    thirds of the time of `jnp.cumsum`, and half as many kernels to compile."""
    rows = jnp.pad(values, (0, -values.size % BLOCK)).reshape(-1, BLOCK)
    triangle = np.triu(np.ones((BLOCK, BLOCK)))
    return jnp.matmul(rows, triangle, precision=jax.lax.Precision.HIGHEST)


def _uniform_points_below(
    key: PRNGKeyArray, position: Position, count: Int[Array, ""]
) -> Int[Array, " n"]:
    """How many of `count` independent uniform points on [0, count) lie below each position.

    The points come out sorted, as normalised sums of exponential variables. The points that share
    a position's whole number are few (Poisson with mean one), so the search that is left is short.
    """
    whole, rest = position
    size = whole.size
    gaps = jax.random.exponential(key, (size + 1,), rest.dtype)
    gaps = jnp.where(jnp.arange(size + 1) <= count, gaps, 0)
    point_whole, point_rest = _cumulative(gaps * (count / jnp.sum(gaps)))
    real = jnp.arange(size + 1) < count
    point_whole = jnp.where(real, jnp.minimum(point_whole, jnp.maximum(count - 1, 0)), size)

    per_cell = jnp.zeros(size + 1, jnp.int32).at[point_whole].add(real.astype(jnp.int32))
    cell_end = _counted(per_cell.astype(rest.dtype))
    cell = jnp.minimum(whole, size)
    end = cell_end[cell]

    def is_below(found: Array) -> Array:
        candidate = jnp.minimum(found, size)
        return (found < end) & (point_rest[candidate] < rest)

    def search(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        found = carry[0] + carry[1]
        return found, is_below(found)

    start = end - per_cell[cell]
    return jax.lax.while_loop(lambda c: jnp.any(c[1]), search, (start, is_below(start)))[0]


def _ancestors(points_below: Int[Array, " n"], weights: Float[Array, " n"]) -> Int[Array, " n"]:
    """Slot k descends from the first particle that has more than k points below its weight."""
    ends_at = jnp.zeros(weights.size, jnp.int32).at[points_below].add(1, mode="drop")
    ancestors = _counted(ends_at.astype(weights.dtype))
    # Weights sum to one only up to rounding: a slot past the end goes to the last living particle.
    last = weights.size - 1 - jnp.argmax(weights[::-1] > 0)
    ancestors = jnp.minimum(ancestors, last)
    # Cumulative weights are rounded too: a slot that this gave to a dead particle goes to the left.
    return jnp.where(weights[ancestors] > 0, ancestors, jnp.roll(ancestors, 1))


def indices_at(log_weights: Float[Array, " n"], positions: Float[Array, "*m"]) -> Int[Array, "*m"]:
    """Indices by weight, at positions between 0 and 1; for few draws out of many particles."""
    ends = jnp.cumsum(jax.nn.softmax(log_weights))
    return jnp.minimum(jnp.searchsorted(ends, positions * ends[-1], side="right"), len(ends) - 1)
