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

Particles = Annotated[
    int | None, typer.Option(help="Number of particles. If left out: the paper's.")
]
Repeats = Annotated[
    int,
    typer.Option(
        help="Number of runs of each filter on the same data, to measure how many independent "
        "draws its means are worth."
    ),
]
Window = Annotated[
    str | None,
    typer.Option(
        help="The steps over which metrics are averaged: all, or paper, which leaves out the "
        "first step as the paper does. If left out: all, or paper with --against-paper."
    ),
]
AgainstPaper = Annotated[
    bool, typer.Option("--against-paper", help="Show the published value beside each number.")
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

    Every filter gets the same simulated data. If the command is interrupted, run it again to
    resume. For each benchmark it writes metrics.csv to OUT, with one row per filter and seed, and
    the table as table.md, table.csv and table.tex.

    With --repeats, metrics.csv also has the columns draws and draws_worst: the number of
    independent draws of the posterior that would give means as accurate (median over steps and
    states, and for the worst state).

    The first step is the one with the first observation. Wall times, draws and log-evidences are
    always those of all steps.
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
