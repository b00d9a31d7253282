"""How far the posterior means of a single run may be off: by the families that particles come from.

At some step, particles are numbered in families of neighbours. Descendants keep the family of their
ancestor. With normalised weights wᵢ and a posterior mean x̄, a family's share in the error of the
mean is

    S = Σ wᵢ (xᵢ − x̄),  over the particles i of the family

and, since families that began apart have gone their ways nearly independently, the variance of x̄
from run to run is about Σ S² over the families (Lee and Whiteley, 2018). They are families and not
single ancestors for two reasons: sums over neighbours also see how evenly systematic resampling
spreads, which single ancestors do not, and there are always the same number of sums.

Families die out. What happened before they began does not show in them, and when few are left there
is nothing to compare. So there are two numberings (Olsson and Douc, 2019, choose a lag for the same
reason): the older one counts, until it has few families left; the younger one takes its place then,
and a new one begins.

Resampling gives ancestors in ascending order, so that a family stays a range of neighbours: all
there is to carry are the ends of these ranges.
"""

import functools
import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

FAMILIES = 64
BLOCKS = (
    256  # particles are summed up in so many blocks before it is asked which family they are of
)
YOUNG, OLD = 1 / 2, 1 / 24  # of the families left: no longer young, too old
FEW, NONE = 5.0, 2.5  # families left: too few to trust, too few for anything


class Families(NamedTuple):
    """Where families begin and end: of N particles, those from `old[g]` to `old[g + 1]` are of
    family g; and the same in the younger numbering."""

    old: Int[Array, " f"]
    young: Int[Array, " f"]

    def after(self, ancestors: Int[Array, " n"]) -> "Families":
        """Those of the particles that descend from these ancestors."""
        # How many ancestors are before each end: first by rows of them, then within one. That is
        # quick to compile, and quick to run.
        ends, count = jnp.stack(self)[..., None], ancestors.size
        count_true = functools.partial(jnp.sum, axis=-1, dtype=ends.dtype)
        width = max(1, math.isqrt(count))
        beyond = np.iinfo(np.int32).max
        rows = jnp.pad(ancestors, (0, -count % width), constant_values=beyond).reshape(-1, width)
        row = jnp.clip(count_true(rows[None, None, :, 0] < ends) - 1, 0)
        return Families(*(row * width + count_true(rows[row] < ends)))

    def with_new(self, kept: Int[Array, " k"], count: int) -> "Families":
        """Those of the particles that are kept and, behind them, of new ones: `count` together.

        The older numbering has no place for the new ones, and counts them as relatives of the last
        family: if they take over, it soon is too old. The younger one begins anew."""
        old = self.after(kept).old
        return Families(old.at[-1].set(count), jnp.asarray(_ends(count)))


def new_families(count: int) -> Families:
    """Families of neighbours, in both numberings."""
    ends = jnp.asarray(_ends(count))
    return Families(ends, ends)


def errors(
    families: Families,
    weights: Float[Array, " n"],
    apart: Float[Array, "d n"],
    variance: Float[Array, " d"],
) -> tuple[Float[Array, " d"], Families]:
    """The standard error of each posterior mean, and the families to go on with.

    Args:
        families: of the particles.
        weights: normalised.
        apart: each particle less the mean, by column.
        variance: of the posterior, which no error exceeds: that would be less than one draw.
    """
    fresh = _ends(weights.size)
    most = len(fresh) - 1
    columns = jnp.concatenate([weights[None], weights[None] * apart])
    (left, young_left), (found, young_found) = _judge(families, columns)
    # When only few families are left, what the younger ones say may be more; of one or two nothing
    # can be learned, and the mean is worth no more than a draw.
    found = jnp.where(left < FEW, jnp.maximum(found, young_found), found)
    error = jnp.sqrt(jnp.where(left < NONE, variance, jnp.minimum(found, variance)))
    retired = (left < OLD * most) & (young_left < YOUNG * most)
    # A younger numbering that says the same as the older one is begun anew.
    same = (left < YOUNG * most) & (young_left < 1.5 * left)
    old = jnp.where(retired, families.young, families.old)
    young = jnp.where(retired | same, fresh, families.young)
    return error, Families(old, young)


def _ends(count: int) -> np.ndarray:
    families = min(FAMILIES, count)
    return (np.arange(families + 1) * count // families).astype(np.int32)


def _judge(
    families: Families, columns: Float[Array, "c n"]
) -> tuple[Float[Array, "2"], Float[Array, "2 d"]]:
    """For both numberings: how many families are left, counted by weight, and Σ S² over them."""
    count = columns.shape[1]
    width = -(-count // BLOCKS)
    starts = (np.arange(-(-count // width)) * width).astype(np.int32)[None, None]
    padding = starts.size * width - count
    # By a product with ones, which is vectorised; a sum over so short an axis is not.
    rows = jnp.pad(columns, ((0, 0), (0, padding))).reshape(-1, width)
    blocks = (rows @ jnp.ones(width, rows.dtype)).reshape(columns.shape[0], -1)
    # A block that two families share is split between them as if it were all alike.
    ends = jnp.stack(families)
    begin, end = ends[:, :-1, None], ends[:, 1:, None]
    shared = jnp.minimum(end, starts + width) - jnp.maximum(begin, starts)
    sizes = np.minimum(width, count - starts)
    sums = (jnp.clip(jnp.minimum(shared, sizes), 0) / sizes).astype(blocks.dtype) @ blocks.T
    totals = jnp.sum(sums**2, axis=1)
    left = 1 / totals[:, 0]
    # As a sample variance is divided by one less: the mean is that of the same particles. And by
    # the median of χ² over its degrees of freedom, so that of few families half say too much and
    # half too little.
    median = (1 - 2 / (9 * jnp.maximum(left - 1, 1))) ** 3
    return left, totals[:, 1:] / (median * jnp.maximum(1 - totals[:, 0], 1e-6))[:, None]
