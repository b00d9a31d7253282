"""`nopf bench`: filters on the paper's benchmarks, and their tables."""

from pathlib import Path
from typing import Annotated

import typer

from nopf.benchmarks import BENCHMARKS
from nopf.benchmarks.results import WINDOWS, write_csv
from nopf.benchmarks.tables import Table, tabulate
from nopf.command.cells import (
    Cluster,
    Filters,
    Names,
    Out,
    Request,
    Seeds,
    Workers,
    conclude,
    run_cells,
)
from nopf.command.options import AsJson, check_known
from nopf.files import write_whole

EXAMPLES = (
    "nopf bench sensor-bias --filters kf,bpf --seeds 3",
    "nopf bench range-only --filters enkf,bpf,nopf --seeds 10 --out results",
    "nopf bench all --seeds 10 --against-paper --out results",
)

Particles = Annotated[int | None, typer.Option(help="How many; the paper's number if left out.")]
Repeats = Annotated[
    int,
    typer.Option(
        help="Run each filter so many times on the same data, to see what its means are worth."
    ),
]
Window = Annotated[
    str | None,
    typer.Option(
        help="Which steps metrics are averages of: all; or paper, which leaves out the first, as "
        "the paper does. All, unless --against-paper is given."
    ),
]
AgainstPaper = Annotated[
    bool, typer.Option("--against-paper", help="The published value beside each number.")
]


def bench_command(
    names: Names,
    filters: Filters = "enkf,bpf,nopf",
    seeds: Seeds = 10,
    particles: Particles = None,
    out: Out = Path("results"),
    workers: Workers = 0,
    cluster: Cluster = None,
    repeats: Repeats = 1,
    window: Window = None,
    against_paper: AgainstPaper = False,
    as_json: AsJson = False,
) -> None:
    """Runs filters on the paper's benchmarks and tabulates seven metrics.

    Every filter sees the same simulated data. A run that was cut short goes on where it was when
    the same command is given again. For each benchmark OUT gets metrics.csv, with one row a filter
    and seed, and the table as table.md, table.csv and table.tex.

    With --repeats it has the columns draws and draws_worst as well: how many independent draws of
    the posterior would give means as good (median over steps and states, and of the worst state).

    The first step is the one at which the prior meets the first observation. Wall times, draws and
    log-evidences are those of all steps in any case.
    """
    window = window or ("paper" if against_paper else "all")
    check_known("--window", [window], tuple(WINDOWS))
    counts = None if particles is None else [particles]
    ran = run_cells(Request(names, filters, seeds, counts, out, workers, cluster, repeats))
    tables = []
    for name in ran.benchmarks:
        count = BENCHMARKS[name].particles if particles is None else particles
        rows = [row for row in ran.results.rows(name, window) if row["particles"] == count]
        if not rows:
            continue
        tables.append(tabulate(rows, window))
        write_csv(out / name / "metrics.csv", rows)
        _write_table(tables[-1], out / name, against_paper)
    conclude(tables, ran.failures, out, as_json, against_paper)


def _write_table(table: Table, folder: Path, against_paper: bool) -> None:
    for suffix, text in [
        ("md", table.markdown(against_paper)),
        ("csv", table.csv(against_paper)),
        ("tex", table.latex(against_paper)),
    ]:
        write_whole(folder / f"table.{suffix}", text.encode())
