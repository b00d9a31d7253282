"""What `nopf bench` and `nopf sweep` share: which cells to run, and how their tables are shown."""

import json
import shutil
import sys
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from nopf.benchmarks import BENCHMARKS
from nopf.benchmarks.progress import Counted
from nopf.benchmarks.results import Results, ResultsError
from nopf.benchmarks.runner import plan, run
from nopf.benchmarks.tables import Table
from nopf.catalogue import NAMES
from nopf.command.options import check_known, show
from nopf.command.voice import complain, say, tell, voice

Names = Annotated[
    list[str], typer.Argument(help=f"Some of {', '.join(BENCHMARKS)}; or all.", metavar="NAME…")
]
Filters = Annotated[
    str,
    typer.Option(help=f"Filters, separated by commas: some of {', '.join(NAMES)}; or all."),
]
Seeds = Annotated[int, typer.Option(help="Number of simulated truths; their seeds begin at 0.")]
Out = Annotated[
    Path, typer.Option(help="The folder of results. Finished results in it are not run again.")
]
Workers = Annotated[
    int, typer.Option(help="Number of processes to run in parallel on this machine, with Dask.")
]
Cluster = Annotated[str | None, typer.Option(help="Address of a running Dask scheduler.")]


class Request(NamedTuple):
    """What was asked for, as it was given."""

    names: list[str]
    filters: str
    seeds: int
    particles: list[int] | None
    out: Path
    workers: int
    cluster: str | None
    repeats: int = 1


class Ran(NamedTuple):
    """What came of it: the results, the benchmarks that were meant, and what went wrong."""

    results: Results
    benchmarks: list[str]
    failures: list[str]


def run_cells(request: Request) -> Ran:
    """Checks what was asked for, and runs it."""
    chosen, short = _chosen(request.names, request.filters)
    _check_numbers(request)
    cells, skipped = plan(chosen, short, request.seeds, request.particles, request.repeats)
    for reason in skipped:
        say(reason)
    if not cells:
        raise typer.BadParameter("none of these filters applies", param_hint="--filters")
    try:
        results = Results(request.out)
        results.prepare()
        for name in chosen:
            results.rows(name)  # Whoever has a damaged file shall not learn it after hours.
        tell(f"{len(cells)} cells to run, less those that {request.out} already has")
        with Counted("cells", voice.bars) as count:
            _, failures = run(
                results,
                cells,
                workers=request.workers,
                cluster=request.cluster,
                progress=voice.bars,
                tell=count,
            )
    except ResultsError as error:
        raise typer.BadParameter(str(error), param_hint="--out") from None
    for failure in failures:
        complain(failure)
    return Ran(results, chosen, failures)


def _chosen(names: list[str], filters: str) -> tuple[list[str], list[str]]:
    """Benchmarks and filters by name, each once."""
    chosen = list(BENCHMARKS) if names == ["all"] else list(dict.fromkeys(names))
    check_known("NAME", chosen, tuple(BENCHMARKS))
    short = [word.strip() for word in filters.split(",") if word.strip()]
    short = list(NAMES) if short == ["all"] else list(dict.fromkeys(short))
    if not short:
        raise typer.BadParameter("expected at least one filter", param_hint="--filters")
    check_known("--filters", short, NAMES)
    return chosen, short


def _check_numbers(request: Request) -> None:
    for value, hint, low in [
        (request.seeds, "--seeds", 1),
        (request.repeats, "--repeats", 1),
        *((count, "--particles", 2) for count in request.particles or []),
    ]:
        if value < low:
            raise typer.BadParameter(f"expected at least {low}, got {value}", param_hint=hint)
    check_workers(request.workers, request.cluster)


def check_workers(workers: int, cluster: str | None) -> None:
    """Refuses what cannot be spread."""
    if workers < 0:
        raise typer.BadParameter(f"expected at least 0, got {workers}", param_hint="--workers")
    if workers and cluster is not None:
        raise typer.BadParameter("give --workers or --cluster, not both", param_hint="--workers")


def conclude(
    tables: list[Table], failures: list[str], out: Path, as_json: bool, against_paper: bool = False
) -> None:
    """Prints the tables; ends with code 1 if a cell failed."""
    if as_json:
        print(json.dumps([table.numbers() for table in tables]))
    else:
        _print_tables(tables, against_paper)
        print(f"The results are in {out}. For a page with pictures, run: nopf report {out}")
    if failures:
        raise typer.Exit(1)


def _print_tables(tables: list[Table], against_paper: bool) -> None:
    terminal = sys.stdout.isatty()
    for table in tables:
        print(f"{table.title()}: {BENCHMARKS[table.benchmark].title}")
        print(table.text(against_paper, terminal, shutil.get_terminal_size().columns) + "\n")
    best = "bold" if terminal else "a star"
    brackets = "; in brackets: as published" if against_paper else ""
    show(f"Mean ± standard deviation over seeds; {best}: the best two for each metric{brackets}.")
