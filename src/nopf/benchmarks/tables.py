"""Tables of results: mean ± sample standard deviation, the best two of a column marked."""

import csv
import dataclasses
import functools
import importlib.resources
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from nopf.benchmarks import BENCHMARKS
from nopf.benchmarks.results import METRICS, POSITION, Row
from nopf.catalogue import LABELS, NAMES

TARGET = 0.9  # of the joint coverage
BEST = 2
CLEARLY = 2  # standard errors
PUBLISHED_SEEDS = 10
TITLES = {
    "nmse": "NMSE ↓",
    "pnll": "PNLL ↓",
    "es": "ES ↓",
    "ess": "ESS ↑",
    "wt": "WT [s] ↓",
    "made": "MADE ↓",
    "picp": "Joint PICP → 0.9",
    "position": "Position error [m] ↓",
    "draws_rate": "Draws per second ↑",
    "worst_rate": "of the worst state ↑",
}
RATES = {"draws_rate": "draws", "worst_rate": "draws_worst"}


@dataclasses.dataclass(frozen=True)
class Entry:
    """One cell of a table.

    Attributes:
        mean, std: over the seeds; the standard deviation is NaN for a single seed.
        rank: 0 for the best of the column.
        leading: whether it is the best of the column, or cannot be told from it, and some other
            can: the difference, seed by seed, is more than `CLEARLY` times its standard error.
        published: the paper's mean and standard deviation, if it has them.
    """

    mean: float
    std: float
    rank: int = 0
    leading: bool = False
    published: tuple[float, float] | None = None

    @property
    def best(self) -> bool:
        return self.rank < BEST

    def difference(self, seeds: int) -> float | None:
        """From the published mean, in standard errors of both; the paper's is one of ten seeds.
        None without a published one, or if there is no standard error."""
        if self.published is None or math.isnan(self.std):
            return None
        mean, std = self.published
        error = math.sqrt(self.std**2 / seeds + std**2 / PUBLISHED_SEEDS)
        return (self.mean - mean) / error if error else None


@dataclasses.dataclass(frozen=True)
class Table:
    """The metrics of some filters on one benchmark at one number of particles.

    Attributes:
        benchmark: its name.
        particles: their number.
        seeds: how many, by filter.
        entries: by filter, then by metric; None where a filter has no such number.
        window: which steps metrics are averages of (`results.WINDOWS`).
    """

    benchmark: str
    particles: int
    seeds: dict[str, int]
    entries: dict[str, dict[str, Entry | None]]
    window: str = "all"

    def label(self, short: str) -> str:
        """The name of a filter; with its number of seeds if others have more."""
        count = self.seeds[short]
        most = max(self.seeds.values())
        return LABELS[short] + ("" if count == most else f" ({seeds_in_words(count)})")

    def title(self) -> str:
        """What the table is about."""
        most = seeds_in_words(max(self.seeds.values()))
        left_out = ", without the first step" if self.window == "paper" else ""
        return f"{self.benchmark}, N = {self.particles}, {most}{left_out}"

    def text(
        self, against_paper: bool = False, bold: bool = False, width: int | None = None
    ) -> str:
        """For a terminal; `bold` marks the best with escape codes, else with a star.

        A table that is wider than `width` has a column a filter instead of a row, and is cut into
        as many as it takes.
        """
        entries: list[list[Entry | None]] = [[None] * (1 + len(self.metrics()))]
        entries += [[None, *row.values()] for row in self.entries.values()]
        words = [["", *self.titles()], *self._grid(against_paper)]
        cells = [list(zip(*pair, strict=True)) for pair in zip(words, entries, strict=True)]
        if width is None or sum(_widths(cells, bold)) <= width:
            return _aligned(cells, bold)
        head, *columns = (list(column) for column in zip(*cells, strict=True))
        rows = [head, *columns]  # a metric each, below the names of the filters
        blocks, shown = [], 1
        while shown < len(head):
            last = shown + 1
            while last < len(head) and sum(_widths(_part(rows, shown, last + 1), bold)) <= width:
                last += 1
            blocks.append(_aligned(_part(rows, shown, last), bold))
            shown = last
        return "\n\n".join(blocks)

    def markdown(self, against_paper: bool = False) -> str:
        titles = self.titles()
        lines = [f"| Filter | {' | '.join(titles)} |", "|---" * (len(titles) + 1) + "|"]
        for (short, row), words in zip(
            self.entries.items(), self._grid(against_paper), strict=True
        ):
            cells = [
                f"**{cell}**" if entry and entry.best else cell
                for cell, entry in zip(words[1:], row.values(), strict=True)
            ]
            lines.append(f"| {self.label(short)} | {' | '.join(cells)} |")
        return "\n".join(lines) + "\n"

    def latex(self, against_paper: bool = False) -> str:
        arrows = {"↓": r"$\downarrow$", "↑": r"$\uparrow$", "→": r"$\to$"}
        titles = " & ".join(self.titles())
        for sign, code in arrows.items():
            titles = titles.replace(sign, code)
        lines = [
            r"\begin{tabular}{l" + "c" * len(self.titles()) + "}",
            r"\toprule",
            rf"Filter & {titles} \\",
            r"\midrule",
        ]
        for (short, row), words in zip(
            self.entries.items(), self._grid(against_paper), strict=True
        ):
            cells = []
            for cell, entry in zip(words[1:], row.values(), strict=True):
                code = cell.replace("–", "--") if entry is None else f"${cell}$"
                code = code.replace("±", r"\pm").replace(" [", r"\ [")
                cells.append(rf"\boldmath {code}" if entry and entry.best else code)
            lines.append(rf"{self.label(short)} & {' & '.join(cells)} \\")
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"

    def csv(self, against_paper: bool = False) -> str:
        """One line a filter and metric."""
        columns = ["benchmark", "particles", "filter", "metric", "mean", "std", "best"]
        columns += ["published_mean", "published_std", "difference"] if against_paper else []
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        for short, row in self.entries.items():
            for metric, entry in row.items():
                if entry is None:
                    continue
                std = "" if math.isnan(entry.std) else repr(entry.std)
                line: list[Any] = [self.benchmark, self.particles, short, metric, entry.mean, std]
                line.append(int(entry.best))
                if against_paper:
                    apart = entry.difference(self.seeds[short])
                    line += [
                        *(entry.published or ["", ""]),
                        "" if apart is None else round(apart, 2),
                    ]
                writer.writerow(line)
        return text.getvalue()

    def numbers(self) -> dict[str, Any]:
        """For JSON."""
        found: dict[str, Any] = {}
        for short, row in self.entries.items():
            found[short] = {
                metric: entry
                and {
                    "mean": entry.mean,
                    "std": None if math.isnan(entry.std) else entry.std,
                    "best": entry.best,
                    "published": entry.published,
                    "difference": entry.difference(self.seeds[short]),
                }
                for metric, entry in row.items()
            }
        return {
            "benchmark": self.benchmark,
            "particles": self.particles,
            "seeds": self.seeds,
            "window": self.window,
            "filters": found,
        }

    def metrics(self) -> list[str]:
        """Those that there are, in order."""
        return list(next(iter(self.entries.values())))

    def titles(self) -> list[str]:
        """What they are called."""
        return [TITLES[metric] for metric in self.metrics()]

    def _grid(self, against_paper: bool) -> list[list[str]]:
        return [
            [self.label(short)]
            + [words_of(metric, entry, against_paper) for metric, entry in row.items()]
            for short, row in self.entries.items()
        ]


Cell = tuple[str, Entry | None]


def _part(rows: list[list[Cell]], first: int, end: int) -> list[list[Cell]]:
    """The heads of rows, and some of their columns."""
    return [[row[0], *row[first:end]] for row in rows]


def _widths(rows: Sequence[Sequence[Cell]], bold: bool) -> list[int]:
    """Of columns, with the space after them."""
    star = 0 if bold else 1
    lengths = [max(len(words) for words, _ in column) + star for column in zip(*rows, strict=True)]
    return [length + 2 for length in lengths[:-1]] + lengths[-1:]


def _aligned(rows: Sequence[Sequence[Cell]], bold: bool) -> str:
    widths, lines = _widths(rows, bold), []
    for row in rows:
        line = ""
        for (words, entry), width in zip(row, widths, strict=True):
            best = entry is not None and entry.best
            marked = words if not best else f"\033[1m{words}\033[0m" if bold else f"{words}*"
            line += marked + " " * (width - len(words) - (1 if best and not bold else 0))
        lines.append(line.rstrip())
    return "\n".join(lines)


def words_of(metric: str, entry: Entry | None, against_paper: bool = False) -> str:
    """A cell in words, with the paper's in brackets if asked for."""
    if entry is None:
        return "–"

    def pair(mean: float, std: float) -> str:
        digits = {"ess": 1, "draws_rate": 0, "worst_rate": 0, POSITION: 3}.get(metric, 4)
        return f"{mean:.{digits}f}" + ("" if math.isnan(std) else f" ± {std:.{digits}f}")

    words = pair(entry.mean, entry.std)
    if against_paper and entry.published is not None:
        words += f" [{pair(*entry.published)}]"
    return words


def tabulate(rows: Sequence[Row], window: str = "all") -> Table:
    """The table of rows of one benchmark, one number of particles and one window."""
    benchmarks = {(row["benchmark"], row["particles"]) for row in rows}
    if len(benchmarks) != 1:
        raise ValueError(
            f"rows: expected one benchmark and one number of particles, got {benchmarks}"
        )
    ((benchmark, particles),) = benchmarks
    filters = [short for short in NAMES if any(row["filter"] == short for row in rows)]
    seeds = {short: sum(row["filter"] == short for row in rows) for short in filters}
    names = [*([POSITION] if any(POSITION in row for row in rows) else ()), *METRICS]
    names += RATES if any("draws" in row for row in rows) else ()
    values = {
        (short, metric): [_value(row, metric) for row in rows if row["filter"] == short]
        for short in filters
        for metric in names
    }
    ranks = {metric: _rank(metric, {s: values[s, metric] for s in filters}) for metric in names}
    entries = {
        short: {
            metric: _entry(values[short, metric], ranks[metric].get(short, 0)) for metric in names
        }
        for short in filters
    }
    for metric in names:
        by_seed = {
            short: {row["seed"]: _value(row, metric) for row in rows if row["filter"] == short}
            for short in ranks[metric]
        }
        for short in leaders(metric, by_seed):
            entry = entries[short][metric]
            entries[short][metric] = entry and dataclasses.replace(entry, leading=True)
    if particles == BENCHMARKS[benchmark].particles:
        for short, row in entries.items():
            for metric, entry in row.items():
                beside = published().get((benchmark, short.removesuffix("-paper"), metric))
                row[metric] = entry and dataclasses.replace(entry, published=beside)
    return Table(benchmark, particles, seeds, entries, window)


def _value(row: Row, metric: str) -> float | None:
    if metric not in RATES:
        return row[metric] if metric in METRICS else row.get(metric)
    draws = row.get(RATES[metric])
    return None if draws is None else draws / row["run_seconds"]


def seeds_in_words(count: int) -> str:
    """A count with its noun."""
    return "1 seed" if count == 1 else f"{count} seeds"


@functools.cache
def published() -> dict[tuple[str, str, str], tuple[float, float]]:
    """The paper's tables: mean and standard deviation by benchmark, filter and metric."""
    text = importlib.resources.files("nopf.benchmarks").joinpath("published.csv").read_text()
    return {
        (row["benchmark"], row["filter"], row["metric"]): (float(row["mean"]), float(row["std"]))
        for row in csv.DictReader(io.StringIO(text))
    }


def leaders(metric: str, values: Mapping[str, Mapping[int, Any]]) -> list[str]:
    """The best by a metric and those that cannot be told from it, in the order of `values`; none
    if no filter can be told from the best.

    Args:
        metric: its name.
        values: by filter, then by seed.
    """
    known = {short: own for short, own in values.items() if own and _known(own.values())}
    if not known:
        return []
    costs = {
        short: dict(zip(own, _costs(metric, list(own.values())), strict=True))
        for short, own in known.items()
    }
    best = min(costs, key=lambda short: float(np.mean(list(costs[short].values()))))

    def told(short: str) -> bool:
        shared = [seed for seed in costs[best] if seed in costs[short]]
        if len(shared) < 2:
            return False
        apart = np.array([costs[short][seed] - costs[best][seed] for seed in shared])
        error = float(np.std(apart, ddof=1)) / math.sqrt(len(shared))
        return bool(np.mean(apart) > CLEARLY * error)

    found = [short for short in costs if not told(short)]
    return found if len(found) < len(costs) else []


def _costs(metric: str, column: Sequence[Any]) -> np.ndarray:
    """The lower their mean, the better."""
    values = np.array(column, np.float64)
    if metric == "picp":  # Of both sides, that on which the mean is.
        return math.copysign(1, float(np.mean(values)) - TARGET) * (values - TARGET)
    return -values if metric in ("ess", *RATES) else values


def _rank(metric: str, values: dict[str, list[Any]]) -> dict[str, int]:
    def cost(short: str) -> float:
        mean = float(np.mean(_costs(metric, values[short])))
        return math.inf if math.isnan(mean) else mean

    known = [short for short, column in values.items() if _known(column)]
    return {short: rank for rank, short in enumerate(sorted(known, key=cost))}


def _entry(column: list[Any], rank: int) -> Entry | None:
    if not _known(column):
        return None
    std = float(np.std(column, ddof=1)) if len(column) > 1 else math.nan
    return Entry(float(np.mean(column)), std, rank)


def _known(column: Iterable[Any]) -> bool:
    return all(value is not None for value in column)
