"""`nopf sweep`: the paper's metrics against the number of particles."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from nopf.benchmarks.results import Row, write_csv
from nopf.benchmarks.tables import tabulate
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
from nopf.command.options import AsJson
from nopf.command.voice import say

EXAMPLES = (
    "nopf sweep sensor-bias --filters kf,bpf --particles 100,1000 --seeds 3",
    "nopf sweep range-only --particles 100,1000,10000 --out results",
)

Particles = Annotated[str, typer.Option(help="Numbers of particles, separated by commas.")]


def sweep_command(
    names: Names,
    particles: Particles = "100,1000,10000",
    filters: Filters = "enkf,bpf,nopf",
    seeds: Seeds = 10,
    out: Out = Path("results"),
    workers: Workers = 0,
    cluster: Cluster = None,
    as_json: AsJson = False,
) -> None:
    """Runs filters with several numbers of particles N, and shows the metrics against N.

    If the command is interrupted, run it again to resume. For each benchmark it writes sweep.csv to
    OUT, with one row per filter, number of particles and seed, and sweep.svg, which plots the
    metrics against N (if matplotlib is installed).
    """
    counts = _counts(particles)
    ran = run_cells(Request(names, filters, seeds, counts, out, workers, cluster))
    tables = []
    for name in ran.benchmarks:
        rows = ran.results.rows(name)
        if not rows:
            continue
        write_csv(out / name / "sweep.csv", rows)
        _draw(rows, out / name / "sweep.svg")
        for count in counts:
            here = [row for row in rows if row["particles"] == count]
            if here:
                tables.append(tabulate(here))
    conclude(tables, ran.failures, out, as_json)


def _counts(particles: str) -> list[int]:
    try:
        return sorted({int(word) for word in particles.split(",")})
    except ValueError:
        raise typer.BadParameter(
            f"expected whole numbers with commas between them, got {particles!r}",
            param_hint="--particles",
        ) from None


def _draw(rows: Sequence[Row], file: Path) -> None:
    try:
        from nopf.report.figures import save, sweep_figure
    except ImportError:
        say("no figure, since matplotlib is missing: python -m pip install 'nopf[plots]'")
    else:
        save(sweep_figure(rows), file)
