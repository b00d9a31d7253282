"""What figures and pages show alike, in numbers."""

from collections.abc import Sequence

import numpy as np

from nopf.benchmarks.benchmark import Benchmark
from nopf.benchmarks.results import Row
from nopf.benchmarks.tables import Table

LOGARITHMIC = ("nmse", "es", "ess", "wt", "made")


def main_particles(case: Benchmark, rows: Sequence[Row]) -> int:
    """The number of particles to show: the paper's, or the largest there is."""
    counts = {row["particles"] for row in rows}
    return case.particles if case.particles in counts else max(counts)


def shade(table: Table, short: str, metric: str) -> float:
    """1 for the best of a column, 0 for the worst, by rank."""
    entry = table.entries[short][metric]
    others = sum(row[metric] is not None for row in table.entries.values())
    if entry is None or others < 2:
        return 0.0
    return 1 - entry.rank / (others - 1)


def against_particles(
    rows: Sequence[Row], short: str, metric: str
) -> list[tuple[int, float, float, float]]:
    """Number of particles, mean of a metric, and a band of one standard deviation, in order.

    On a logarithmic axis the band ends at a tenth of the mean.
    """
    found = []
    for n in sorted({row["particles"] for row in rows if row["filter"] == short}):
        column = [row[metric] for row in rows if (row["filter"], row["particles"]) == (short, n)]
        if any(value is None for value in column):
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
