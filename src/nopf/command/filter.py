"""`nopf filter`: estimates of the states behind a recording, or a live stream."""

import contextlib
from pathlib import Path
from typing import Annotated

import jax
import typer

from nopf.catalogue import CATALOGUE
from nopf.command.cells import Cluster, Workers, check_workers
from nopf.command.many import filter_many
from nopf.command.one import filter_one
from nopf.command.options import (
    ControlColumns,
    Model,
    ObservationColumns,
    Seed,
    TimeColumn,
    check_known,
    check_plot,
    check_writable,
    named_columns,
    warnings_said,
)
from nopf.command.request import AUTO, Request
from nopf.command.sources import check_folder, several
from nopf.command.stream import filter_stream
from nopf.command.target import load
from nopf.command.voice import tell
from nopf.model import StateSpaceModel
from nopf.proposals import NeuralProposal
from nopf.recording import Beside

EXAMPLES = (
    "nopf filter robot.py:model --data run.csv --out states.csv --plot states.html",
    "nopf filter robot.py:model --data run.csv --smooth --forecast 5 > all.csv",
    "nopf filter robot.py:model --data run.csv --filter lpf --truth true_x,true_y",
    "cat run.csv | nopf filter robot.py:model - --filter lpf",
)
# Training by the published recipe is for the benchmarks.
FILTERS = tuple(name for name in CATALOGUE if not name.endswith("-paper"))

ALL = "all"  # what --smooth means without a number

Stream = Annotated[
    str | None, typer.Argument(metavar="[-]", help="A live stream from standard input.")
]
Data = Annotated[
    str | None,
    typer.Option(
        help="The recording: a CSV file (may be gzipped) or a Parquet file, or - for a live "
        "stream. A folder or a quoted pattern such as 'runs/*.csv' names many recordings; --out "
        "is then a folder."
    ),
]
RunColumn = Annotated[
    str | None,
    typer.Option(
        "--run",
        help="For Parquet data (a file or a folder): the column that names the run of each row. "
        "Each run is a recording.",
    ),
]
Learned = Annotated[
    Path | None,
    typer.Option(help="A file from nopf train. If left out: --filter nopf trains a proposal."),
]
Short = Annotated[
    str,
    typer.Option(
        "--filter",
        help="auto, or one of "
        f"{', '.join(FILTERS)}. auto uses the filter that nopf check advises for the same data: "
        "the one with the most accurate means for the computing time, of those without training.",
    ),
]
Particles = Annotated[int, typer.Option(min=2, help="Number of particles.")]
Start = Annotated[
    float | None,
    typer.Option(help="Time of the prior. If left out: one dt of the model before the first row."),
]
Smooth = Annotated[
    str | None,
    typer.Option(
        "--smooth",
        metavar="[LAG]",
        help="Also estimate each state given later rows: all of them, or at most LAG.",
    ),
]
Forecast = Annotated[
    int,
    typer.Option(min=0, max=1_000_000, help="Number of predicted rows to add after the last one."),
]
Recover = Annotated[
    float,
    typer.Option(
        min=0.0,
        max=1.0,
        help="Share of the particles to redraw from the prior when the filter is lost.",
    ),
]
Truth = Annotated[
    str | None,
    typer.Option(
        "--truth",
        help="Columns of true states as state=column, separated by commas (the column alone if it "
        "has the state's name). Prints the error of the estimates.",
    ),
]
ListWarnings = Annotated[
    bool,
    typer.Option("--list-warnings", help="List every warning, instead of one line for each kind."),
]
Double = Annotated[
    bool,
    typer.Option("--double", help="Compute in double precision, for coordinates far from zero."),
]
Out = Annotated[
    Path | None,
    typer.Option(help="File of the estimates, .csv or .parquet. If left out: standard output."),
]
Plot = Annotated[
    Path | None,
    typer.Option(
        help="File to draw the estimates to: .html for a page; .svg, .png or .pdf for a figure."
    ),
]
Form = Annotated[
    str | None,
    typer.Option(
        "--format",
        help="Output format of a live stream: csv or json. If left out: that of its input.",
    ),
]
SkipBad = Annotated[
    bool,
    typer.Option("--skip-bad", help="For a live stream: leave out lines that cannot be read."),
]
SummaryAsJson = Annotated[bool, typer.Option("--json", help="Print a summary as JSON.")]


def filter_command(
    target: Model,
    stream: Stream = None,
    data: Data = None,
    run_column: RunColumn = None,
    proposal: Learned = None,
    short: Short = AUTO,
    particles: Particles = 1000,
    out: Out = None,
    plot: Plot = None,
    time_column: TimeColumn = None,
    controls: ControlColumns = None,
    observations: ObservationColumns = None,
    start: Start = None,
    truth: Truth = None,
    smooth: Smooth = None,
    forecast: Forecast = 0,
    recover: Recover = 0.0,
    list_warnings: ListWarnings = False,
    double: Double = False,
    seed: Seed = 0,
    form: Form = None,
    skip_bad: SkipBad = False,
    workers: Workers = 0,
    cluster: Cluster = None,
    as_json: SummaryAsJson = False,
) -> None:
    """Estimates the states behind a recording or a live stream, with a model.

    Empty cells are missing observations. The output has the mean, standard deviation and quantiles
    of each state, the effective sample size, the log-evidence, and how well the model explains the
    data. Warnings are printed in plain words. If the filtering of many recordings is interrupted,
    run the same command again to resume.
    """
    with warnings_said(), jax.enable_x64(True) if double else contextlib.nullcontext():
        source = _source(stream, data)
        check_known("--filter", [short], (AUTO, *FILTERS))
        if short == AUTO and proposal is not None:
            short = "nopf"
        tell(f"reading the model {target}")
        loaded = load(target)
        model = loaded.model
        columns = named_columns(time_column, controls, observations, truth)
        given = _given(proposal, short, model)
        request = Request(
            *(source, model, columns, short, particles, given, seed, start, recover),
            target=target,
            landmarks=loaded.landmarks,
            beside=Beside(smooth is not None, _lag(smooth), forecast),
        )
        if source == "-":
            if form not in (None, "csv", "json"):
                raise typer.BadParameter(
                    f"expected csv or json, got {form!r}", param_hint="--format"
                )
            _refuse_for_streams(
                {
                    "--out": out is not None,
                    "--plot": plot is not None,
                    "--truth": truth is not None,
                    "--json": as_json,
                    "--smooth": smooth is not None,
                    "--forecast": forecast > 0,
                    "--run": run_column is not None,
                    "--list-warnings": list_warnings,
                    "--workers": workers != 0,
                    "--cluster": cluster is not None,
                }
            )
            filter_stream(request, form, skip_bad)
            return
        if skip_bad:
            raise typer.BadParameter("is for live streams only", param_hint="--skip-bad")
        check_workers(workers, cluster)
        sources = several(source, run_column)
        if sources is not None:
            if out is None or plot is not None or form is not None or list_warnings:
                raise typer.BadParameter(
                    "for many recordings name a folder with --out; --plot, --format and "
                    "--list-warnings are for a single recording"
                )
            check_folder(out, sources)
            filter_many(request, sources, out, double, workers, cluster, as_json)
            return
        if workers or cluster is not None:
            raise typer.BadParameter(
                "is for many recordings only", param_hint="--workers, --cluster"
            )
        check_plot(plot, (".svg", ".png", ".pdf", ".html"))
        _check_out(out, source)
        if form is not None:
            raise typer.BadParameter(
                "is for live streams only; for a recording, the ending of --out gives the format",
                param_hint="--format",
            )
        if as_json and out is None:
            raise typer.BadParameter(
                "standard output has the estimates; name a file", param_hint="--out"
            )
        filter_one(request, out, plot, as_json, list_warnings)


def _lag(smooth: str | None) -> int | None:
    """How many later rows may count; None for all."""
    if smooth in (None, ALL):
        return None
    try:
        lag = int(smooth or "")
    except ValueError:
        lag = 0
    if lag < 1:
        raise typer.BadParameter(
            f"expected a number of rows, at least 1, or nothing for all of them; got {smooth!r}",
            param_hint="--smooth",
        )
    return lag


def _refuse_for_streams(given: dict[str, bool]) -> None:
    wrong = [option for option, used in given.items() if used]
    if wrong:
        raise typer.BadParameter(
            f"a live stream goes to standard output, one line per observation; "
            f"{', '.join(wrong)} {'is' if len(wrong) == 1 else 'are'} for recordings"
        )


def _source(stream: str | None, data: str | None) -> str:
    """The recording; "-" for a live stream."""
    if stream not in (None, "-") or (stream == "-" and data is not None):
        raise typer.BadParameter("name a recording with --data; a lone - means standard input")
    source = stream or data
    if source is None:
        raise typer.BadParameter("needed: a recording, or - for a live stream", param_hint="--data")
    return source


def _given(file: Path | None, short: str, model: StateSpaceModel) -> NeuralProposal | None:
    """The proposal that was given."""
    if file is None:
        return None
    if CATALOGUE[short].recipe is None:
        raise typer.BadParameter(f"the filter {short} uses none", param_hint="--proposal")
    try:
        return NeuralProposal.load(file, CATALOGUE[short].of(model))
    except (ValueError, OSError) as error:
        raise typer.BadParameter(str(error), param_hint="--proposal") from None


def _check_out(out: Path | None, source: str) -> None:
    if out is None:
        return
    check_writable(out, "--out", source)
    if out.suffix not in (".csv", ".parquet"):
        raise typer.BadParameter(
            f"{out}: expected a name that ends in .csv or .parquet", param_hint="--out"
        )
