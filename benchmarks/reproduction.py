"""Writes what the documentation shows of the paper's tables, from a folder of results.

`docs/reproduction.md` keeps its own sentences; what stands between a pair of markers is written
anew. `docs/published-cells.md` is written as a whole, and figures are copied. So no number of these
pages is copied by hand.
"""

import argparse
import csv
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from nopf.benchmarks import BENCHMARKS
from nopf.benchmarks.results import Results, Row
from nopf.benchmarks.tables import TITLES, Entry, Table, published, tabulate, words_of
from nopf.catalogue import LABELS

DOCS = Path(__file__).parent.parent / "docs"
ALIKE = 3.0  # standard errors; of 204 cells that agree, half a one is expected beyond
# The filter of ours that does what the paper describes to the letter.
AS_PUBLISHED = {"enkf": "enkf-paper", "nopf": "nopf-paper"}
FIGURES = ("states", "snapshots", "snapshots-z", "sweep")


class Explanation(NamedTuple):
    """Why cells differ: of which benchmarks, filters and metrics; empty for all of them."""

    benchmarks: str
    filters: str
    metrics: str
    words: str


# The first that fits a cell is taken. Where none does, the page says so.
EXPLANATIONS = [
    Explanation("", "", "wt", "Another machine and other software."),
    Explanation(
        "range-bearing",
        "ispf",
        "",
        "[The number of inner samples](reproduction.md#ispf-on-range-bearing).",
    ),
    Explanation("", "upf", "", "[Jitter](reproduction.md#upf)."),
    Explanation(
        "sensor-bias",
        "",
        "ess",
        "[The simulated series](reproduction.md#sensor-bias-n-2-000): that of the exact optimal "
        "proposal differs as well.",
    ),
]


def explained(benchmark: str, short: str, metric: str) -> str:
    """Why a cell differs from the published one."""
    for benchmarks, filters, metrics, words in EXPLANATIONS:
        if all(
            not allowed or own in allowed.split()
            for allowed, own in ((benchmarks, benchmark), (filters, short), (metrics, metric))
        ):
            return words
    return "unexplained"


class Compared(NamedTuple):
    """A published cell beside ours."""

    benchmark: str
    published: str
    ours: str
    metric: str
    entry: Entry | None
    seeds: int

    @property
    def difference(self) -> float | None:
        return None if self.entry is None else self.entry.difference(self.seeds)


def compare(tables: dict[str, Table]) -> Iterator[Compared]:
    """Every published cell, beside the filter that is set up as the paper says."""
    for benchmark, short, metric in published():
        table = tables.get(benchmark)
        ours = AS_PUBLISHED.get(short, short)
        entry = None if table is None else table.entries.get(ours, {}).get(metric)
        seeds = 0 if entry is None or table is None else table.seeds[ours]
        yield Compared(benchmark, short, ours, metric, entry, seeds)


def cells_page(cells: list[Compared]) -> str:
    """Every published cell in a row of its own."""
    lines = [
        "# Every published cell",
        "",
        "Mean ± standard deviation over seeds, and the difference of the means in standard errors "
        "of both. Where it is larger than 3, the last column says why, or that it is unexplained: "
        "[The paper's tables](reproduction.md#how-far-from-the-published-tables) has the counts. "
        "This page is written by `make reproduce`.",
        "",
        "| Benchmark | Filter | Metric | Here | Published | Difference | Why |",
        "|---|---|---|---:|---:|---:|---|",
    ]
    for cell in cells:
        entry, apart = cell.entry, cell.difference
        here = "not run" if entry is None else words_of(cell.metric, entry)
        mean, std = published()[cell.benchmark, cell.published, cell.metric]
        beside = words_of(cell.metric, Entry(mean, std))
        far = apart is not None and abs(apart) > ALIKE
        why = explained(cell.benchmark, cell.published, cell.metric) if far else ""
        told = "–" if apart is None else f"{apart:+.1f}"
        label, title = LABELS[cell.ours], TITLES[cell.metric].split(" [")[0]
        lines.append(
            f"| {cell.benchmark} | {label} | {title} | {here} | {beside} | {told} | {why} |"
        )
    return "\n".join(lines) + "\n"


def differences(cells: list[Compared]) -> str:
    """How many agree, and all that do not."""
    known = [cell for cell in cells if cell.difference is not None]
    same = [
        cell
        for cell in cells
        if cell.entry is not None
        and cell.difference is None
        and cell.entry.mean == published()[cell.benchmark, cell.published, cell.metric][0]
    ]
    far = [cell for cell in known if abs(cell.difference or 0) > ALIKE]
    times = [cell for cell in far if cell.metric == "wt"]
    others = [cell for cell in far if cell.metric != "wt"]
    why = [explained(cell.benchmark, cell.published, cell.metric) for cell in others]
    absent = len(cells) - len(known) - len(same)
    lines = [
        f"Of {len(cells)} published cells, {len(known) + len(same) - len(far)} are within "
        f"{ALIKE:g} standard errors of ours, {len(times)} differ by more because they are wall "
        f"times, and {len(others)} others differ by more: {len(why) - why.count('unexplained')} "
        f"with an explanation, {why.count('unexplained')} without. "
        + (f"{absent} have not been run or have no standard error. " if absent else "")
        + "[Every published cell](published-cells.md) has them all.",
        "",
        "| Benchmark | Filter | Metric | Here | Published | Difference | Why |",
        "|---|---|---|---:|---:|---:|---|",
    ]
    for cell, words in zip(others, why, strict=True):
        assert cell.entry is not None
        mean, std = published()[cell.benchmark, cell.published, cell.metric]
        lines.append(
            f"| {cell.benchmark} | {LABELS[cell.ours]} | {TITLES[cell.metric]} "
            f"| {words_of(cell.metric, cell.entry)} | {words_of(cell.metric, Entry(mean, std))} "
            f"| {cell.difference:+.1f} | {words.replace('reproduction.md', '')} |"
        )
    return "\n".join(lines)


def recipes(tables: dict[str, Table]) -> str:
    """The published recipe beside the default one and beside what was published."""
    metrics = ("ess", "made", "es")
    head = [f"{TITLES[m]}, {kind}" for m in metrics for kind in ("paper's", "default", "published")]
    lines = [f"| | {' | '.join(head)} |", "|---|" + "---:|" * len(head)]
    for name, table in tables.items():
        words = []
        for metric in metrics:
            for short in ("nopf-paper", "nopf"):
                entry = table.entries.get(short, {}).get(metric)
                words.append("not run" if entry is None else words_of(metric, entry))
            mean, std = published()[name, "nopf", metric]
            words.append(words_of(metric, Entry(mean, std)))
        lines.append(f"| {name} | {' | '.join(words)} |")
    return "\n".join(lines)


def times(rows: dict[str, list[Row]]) -> str:
    """Seconds of a series, the shortest of all seeds, and over those of the bootstrap filter."""
    shortest = {
        (name, row["filter"]): min(r["wt"] for r in own if r["filter"] == row["filter"])
        for name, own in rows.items()
        for row in own
    }
    lines = [f"| | {' | '.join(rows)} |", "|---|" + "---:|" * len(rows)]
    for short in (name for name in LABELS if any((b, name) in shortest for b in rows)):
        words = []
        for name in rows:
            seconds, bpf = shortest.get((name, short)), shortest.get((name, "bpf"))
            ratio = f" ({seconds / bpf:.2g} ×)" if seconds and bpf else ""
            words.append(f"{seconds:.3g}{ratio}" if seconds else "")
        lines.append(f"| {LABELS[short]} | {' | '.join(words)} |")
    return "\n".join(lines)


def trainings(results: Results, tables: dict[str, Table]) -> str:
    """How long training took, and what came of it."""
    lines = ["| | recipe | seconds | gradient steps | base |", "|---|---|---:|---:|---|"]
    for name in tables:
        for recipe in ("fast", "paper"):
            record = results.training(name, recipe)
            if record is not None:
                took = record.get("seconds")
                seconds = "not known" if took is None else f"{took:.0f}"
                kind = "default" if recipe == "fast" else "paper"
                lines.append(
                    f"| {name} | {kind} | {seconds} | {record['steps']} | {record['base']} |"
                )
    return "\n".join(lines)


def variants(file: Path) -> str:
    """What `variants.py` has measured."""
    if not file.exists():
        return "Not run."
    lines = [
        "| Benchmark | Variant | ESS | Published | Difference |",
        "|---|---|---:|---:|---:|",
    ]
    with file.open(newline="") as rows:
        for row in csv.DictReader(rows):
            beside = published()[row["benchmark"], row["filter"], "ess"]
            entry = Entry(float(row["ess"]), float(row["std"]), published=beside)
            apart = entry.difference(int(row["seeds"]))
            told = "–" if apart is None else f"{apart:+.1f}"
            lines.append(
                f"| {row['benchmark']} | {row['variant']} | {words_of('ess', entry)} "
                f"| {words_of('ess', Entry(*beside))} | {told} |"
            )
    return "\n".join(lines)


def made(results: Results) -> str:
    """When and on what."""
    known: dict[str, Any] = results.made()
    return (
        f"Begun on {known['date'][:10]} on {known['cores']} cores of "
        f"{known.get('processor') or known['system']}, single precision, JAX {known['jax']}."
    )


def fill(page: str, blocks: dict[str, str]) -> str:
    """The page with what stands between its markers written anew."""
    for name, text in blocks.items():
        before, opening, rest = page.partition(f"<!-- begin {name} -->\n")
        _, closing, after = rest.partition(f"<!-- end {name} -->")
        if not closing:
            raise SystemExit(f"reproduction.md: expected a pair of markers {name!r}")
        page = f"{before}{opening}{text}\n{closing}{after}"
    return page


def main() -> int:
    """Writes the pages."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, help="a folder that nopf bench has filled")
    parser.add_argument("--docs", type=Path, default=DOCS)
    options = parser.parse_args()
    results = Results(options.results)
    found = {
        name: [r for r in results.rows(name, "paper") if r["particles"] == case.particles]
        for name, case in BENCHMARKS.items()
    }
    rows = {name: own for name, own in found.items() if own}
    tables = {name: tabulate(own, "paper") for name, own in rows.items()}
    if not tables:
        print(f"{options.results}: holds no results; run nopf bench first", file=sys.stderr)
        return 2
    cells = list(compare(tables))
    blocks = {name: table.markdown(against_paper=True).strip() for name, table in tables.items()}
    blocks |= {
        "made": made(results),
        "differences": differences(cells),
        "recipes": recipes(tables),
        "times": times(rows),
        "trainings": trainings(results, tables),
        "variants": variants(options.results / "variants.csv"),
    }
    page = options.docs / "reproduction.md"
    page.write_text(fill(page.read_text(), blocks))
    (options.docs / "published-cells.md").write_text(cells_page(cells))
    figures = options.results / "figures"
    for name in (*(f"{b}-{kind}" for b in BENCHMARKS for kind in FIGURES), "additional-metrics"):
        if (figures / f"{name}.png").exists():
            shutil.copyfile(figures / f"{name}.png", options.docs / "figures" / f"{name}.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
