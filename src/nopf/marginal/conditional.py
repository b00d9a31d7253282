"""Gaussian conditioning with small matrices, for many particles at once.

Matrices are lists of scalars, as in `nopf.linear`: entries known to be zero take no time, and none
of LAPACK's small solves is needed.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp

from nopf.gaussian import NO_NOISE
from nopf.linear import Columns, dot, is_zero, less, over, solve_lower, times, total


class Conditional(NamedTuple):
    """Of two jointly Gaussian vectors a and b: a as standard normal numbers, and b given these.

    a = mean + root · z, and given z, b has its own mean plus gain · z, and the covariance `rest`.
    """

    root: Columns
    gain: Columns
    rest: Columns


def condition(of_a: Columns, between: Columns, of_b: Columns) -> Conditional:
    """Conditions b on a.

    Args:
        of_a: the lower triangle of the covariance of a.
        between: row i is the covariance of entry i of b with all of a.
        of_b: the lower triangle of the covariance of b.
    """
    root = semidefinite_root(of_a)
    safe = [[*row[:-1], jnp.where(row[-1] > 0, row[-1], 1)] for row in root]
    dead = [row[-1] <= 0 for row in root]
    gain = []
    for row in between:
        solved = solve_lower(safe, row)
        gain.append(
            [g if is_zero(g) else jnp.where(d, 0, g) for g, d in zip(solved, dead, strict=True)]
        )
    rest = [
        [less(entry, dot(gain[i], gain[j])) for j, entry in enumerate(row)]
        for i, row in enumerate(of_b)
    ]
    # Rounding may take a variance below zero.
    rest = [[*row[:-1], row[-1] if is_zero(row[-1]) else jnp.maximum(row[-1], 0)] for row in rest]
    return Conditional(root, gain, rest)


def semidefinite_root(matrix: Columns) -> Columns:
    """Lower factor of a matrix that may be singular: a direction without noise is a zero column."""
    factor: Columns = []
    alive: list[Any] = []
    for i, given in enumerate(matrix):
        row: list[Any] = []
        for j in range(i):
            known = total(times(row[k], factor[j][k]) for k in range(j))
            entry = over(less(given[j], known), jnp.where(alive[j], factor[j][j], 1))
            row.append(entry if is_zero(entry) else jnp.where(alive[j], entry, 0))
        if is_zero(given[i]):
            alive.append(False)
            row.append(0.0)
            factor.append(row)
            continue
        left = less(given[i], total(times(entry, entry) for entry in row))
        alive.append(left > NO_NOISE * given[i])
        row.append(jnp.where(alive[i], jnp.sqrt(jnp.where(alive[i], left, 1)), 0))
        factor.append(row)
    return factor


def full(lower: Columns) -> Columns:
    """All of a symmetric matrix, of its lower triangle."""
    size = range(len(lower))
    return [[lower[max(i, j)][min(i, j)] for j in size] for i in size]


def lower_product(rows: Columns, others: Columns) -> Columns:
    """The lower triangle of rows · othersᵀ."""
    return [[dot(row, other) for other in others[: i + 1]] for i, row in enumerate(rows)]


def plus(a: Columns, b: Columns) -> Columns:
    """a + b, entry by entry."""
    return [
        [total([x, y]) for x, y in zip(first, second, strict=True)]
        for first, second in zip(a, b, strict=True)
    ]
