"""What figures and pages show alike, in numbers."""

from collections.abc import Sequence

import numpy as np

from nopf.benchmarks.benchmark import Benchmark
from nopf.benchmarks.results import POSITION, Row

LOGARITHMIC = ("nmse", "es", "ess", "wt", "made", POSITION)


def main_particles(case: Benchmark, rows: Sequence[Row]) -> int:
    """The number of particles to show: that with which most filters ran; of several, the paper's,
    or the largest."""
    filters = {n: {row["filter"] for row in rows if row["particles"] == n} for n in counts(rows)}
    return max(filters, key=lambda n: (len(filters[n]), n == case.particles, n))


def counts(rows: Sequence[Row]) -> list[int]:
    """The numbers of particles of these rows, in order."""
    return sorted({row["particles"] for row in rows})


def against_particles(
    rows: Sequence[Row], short: str, metric: str
) -> list[tuple[int, float, float, float]]:
    """Number of particles, mean of a metric, and a band of one standard deviation, in order.

    On a logarithmic axis the band ends at a tenth of the mean.
    """
    found = []
    for n in sorted({row["particles"] for row in rows if row["filter"] == short}):
        own = [row for row in rows if (row["filter"], row["particles"]) == (short, n)]
        column: list[float] = [row[metric] for row in own if row.get(metric) is not None]
        if len(column) < len(own):
            continue
        std = float(np.std(column, ddof=1)) if len(column) > 1 else 0.0
        mean = float(np.mean(column))
        low = max(mean - std, 0.1 * mean) if metric in LOGARITHMIC else mean - std
        found.append((n, mean, low, mean + std))
    return found


def ess_over_time(
    rows: Sequence[Row], short: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Lowest, median and highest effective sample size of the seeds at each step, if there is one.

    Seeds where a step has no number are left out.
    """
    found = [row["ess_path"] for row in rows if row["filter"] == short]
    paths = [path for path in found if path and None not in path]
    if not paths:
        return None
    low, middle, high = np.quantile(np.array(paths), [0, 0.5, 1], axis=0)
    return low, middle, high
