"""`nopf filter`: estimates of the states behind a recording, or a live stream."""

import contextlib
import dataclasses
import json
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Annotated

import jax
import numpy as np
import typer

from nopf.catalogue import CATALOGUE, make_filter
from nopf.command.advice import UNTRAINED, pick
from nopf.command.cells import Cluster, Workers, check_workers
from nopf.command.many import Settings, check_folder, filter_all, several
from nopf.command.options import (
    ControlColumns,
    ObservationColumns,
    Seed,
    TimeColumn,
    check_known,
    check_plot,
    check_writable,
    named_columns,
    recording_of,
    say,
    warnings_said,
)
from nopf.command.target import load
from nopf.files import write_whole
from nopf.filters import Filter, Posterior
from nopf.filters.monitor import VERDICTS
from nopf.model import StateSpaceModel
from nopf.proposals import NeuralProposal
from nopf.recording import (
    Accuracy,
    DataError,
    Named,
    Recording,
    accuracy,
    csv_header,
    csv_table,
    estimate_names,
    estimate_rows,
    filter_live,
    filter_recording,
    format_csv,
    format_json,
    live_rows,
    oddities,
    proposal_for,
    read_recording,
    start_time,
    write_estimates,
)

# Training by the published recipe is for the benchmarks.
FILTERS = tuple(name for name in CATALOGUE if not name.endswith("-paper"))

Target = Annotated[
    str, typer.Argument(metavar="MODEL", help="FILE.py:OBJECT, or a benchmark's name.")
]
Stream = Annotated[
    str | None, typer.Argument(metavar="[-]", help="A live stream from standard input.")
]
Data = Annotated[
    str | None,
    typer.Option(
        help="The recording: CSV, gzipped CSV or Parquet; or -. A folder or a quoted pattern such "
        "as 'runs/*.csv' names many, and --out a folder for them."
    ),
]
Learned = Annotated[
    Path | None, typer.Option(help="From nopf train; if left out, --filter nopf trains one.")
]
AUTO = "auto"
Short = Annotated[
    str,
    typer.Option(
        "--filter",
        help="auto tries those that need no training, on simulated data like yours, says which "
        f"gives the best means for the time, and takes it; or one of {', '.join(FILTERS)}.",
    ),
]
Particles = Annotated[int, typer.Option(min=2, help="How many.")]
Start = Annotated[
    float | None, typer.Option(help="The prior's time; one dt of the model before the first row.")
]
Recover = Annotated[
    float,
    typer.Option(
        min=0.0, max=1.0, help="Share of the particles drawn anew from the prior when it is lost."
    ),
]
Truth = Annotated[
    str | None,
    typer.Option(
        "--truth",
        help="Columns of true states, with commas, as state=column (or a column that is called as "
        "the state is): says how near the estimates are.",
    ),
]
ListWarnings = Annotated[
    bool,
    typer.Option(
        "--list-warnings", help="List each time a trouble began, not a line for each kind."
    ),
]
Double = Annotated[
    bool,
    typer.Option("--double", help="Compute in double precision: for coordinates far from zero."),
]
Out = Annotated[
    Path | None, typer.Option(help="Estimates: .csv or .parquet; standard output if left out.")
]
Plot = Annotated[
    Path | None, typer.Option(help="Draw the estimates: .svg, .png, .pdf, or .html for a page.")
]
Form = Annotated[
    str | None, typer.Option("--format", help="Of a live stream: csv or json; as it comes in.")
]
SkipBad = Annotated[
    bool, typer.Option("--skip-bad", help="Of a live stream: leave lines out that cannot be read.")
]
SummaryAsJson = Annotated[bool, typer.Option("--json", help="Print a summary as JSON.")]


@dataclasses.dataclass(frozen=True)
class Request:
    """What is to be filtered, and how.

    Attributes:
        source: the recording; "-" for a live stream.
        model: what to filter it with.
        columns: those that do not go by the model's names.
        short: the filter's short name.
        particles: how many.
        proposal: the trained one that was given.
        seed: of everything random.
        start: the prior's time.
        recover: share of the particles that is drawn anew when the filter is lost.
        target: what the user calls the model.
        landmarks: `(k, 2)` places of the model's map.
    """

    source: str
    model: StateSpaceModel
    columns: Named
    short: str
    particles: int
    proposal: NeuralProposal | None
    seed: int
    start: float | None
    recover: float
    target: str
    landmarks: np.ndarray | None

    def make_filter(self, recording: Recording | None) -> Filter:
        """The filter; its proposal is trained now if it needs one and none was given."""
        proposal = self.proposal
        if CATALOGUE[self.short].recipe is not None and proposal is None:
            try:
                model = CATALOGUE[self.short].of(self.model)
                proposal = proposal_for(model, recording, self.seed, say)
            except ValueError as error:
                if not isinstance(error, DataError):
                    raise typer.BadParameter(str(error), param_hint="--filter") from None
                where = "" if self.source == "-" else f"{self.source}: "
                raise typer.BadParameter(f"{where}{error}", param_hint="--filter") from None
        try:
            return make_filter(
                self.short, self.model, self.particles, proposal=proposal, recover=self.recover
            )
        except ValueError as error:
            hint = "--recover" if str(error).startswith("recover:") else "--filter"
            raise typer.BadParameter(str(error), param_hint=hint) from None

    def settled(self, recording: Recording | None) -> "Request":
        """With the filter that suits the model and the recording, if none was named."""
        if self.short != AUTO:
            return self
        try:
            names = [name for name in UNTRAINED if name != "kf" or not self.recover]
            short = pick(self.model, recording, names, self.particles, self.seed, say)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--filter") from None
        return dataclasses.replace(self, short=short)


def filter_command(
    target: Target,
    stream: Stream = None,
    data: Data = None,
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
    """Estimates the states behind a recording, or a live stream, with a model.

    Empty cells are missing observations.
    Estimates are mean, standard deviation and quantiles of each state, the effective sample size,
    the log-evidence, and how well the model explains the data; warnings come in plain words.
    """
    with warnings_said(), jax.enable_x64(True) if double else contextlib.nullcontext():
        source = _source(stream, data)
        check_known("--filter", [short], (AUTO, *FILTERS))
        if short == AUTO and proposal is not None:
            short = "nopf"
        loaded = load(target)
        model = loaded.model
        columns = named_columns(time_column, controls, observations, truth)
        given = _given(proposal, short, model)
        request = Request(
            *(source, model, columns, short, particles, given, seed, start, recover),
            target=target,
            landmarks=loaded.landmarks,
        )
        if source == "-":
            if form not in (None, "csv", "json"):
                raise typer.BadParameter(
                    f"expected csv or json, got {form!r}", param_hint="--format"
                )
            if out is not None or plot is not None or as_json or truth is not None:
                raise typer.BadParameter(
                    "a live stream goes to standard output, one line an observation; --out, "
                    "--plot, --truth and --json are for recordings"
                )
            _filter_stream(request, form, skip_bad)
            return
        if skip_bad:
            raise typer.BadParameter("is for live streams", param_hint="--skip-bad")
        check_workers(workers, cluster)
        sources = several(source)
        if sources is not None:
            if out is None or plot is not None or form is not None or list_warnings:
                raise typer.BadParameter(
                    "for many recordings name a folder with --out; --plot, --format and "
                    "--list-warnings are for one"
                )
            _filter_many(request, sources, out, double, workers, cluster, as_json)
            return
        if workers or cluster is not None:
            raise typer.BadParameter("is for many recordings", param_hint="--workers, --cluster")
        check_plot(plot, (".svg", ".png", ".pdf", ".html"))
        _check_out(out, source)
        if form is not None:
            raise typer.BadParameter("is for live streams; name the file", param_hint="--format")
        if as_json and out is None:
            raise typer.BadParameter(
                "standard output has the estimates; name a file", param_hint="--out"
            )
        _filter_recording(request, out, plot, as_json, list_warnings)


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
        raise typer.BadParameter(f"{short} uses none", param_hint="--proposal")
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


def _filter_many(
    request: Request,
    sources: list[Path],
    out: Path,
    double: bool,
    workers: int,
    cluster: str | None,
    as_json: bool,
) -> None:
    """Estimates of each recording to a file in a folder; one filter for all, which suits the first
    that can be read."""
    check_folder(out, sources)
    recording, reasons = None, []
    for source in sources:
        try:
            read = read_recording(source, request.model, request.columns)
            first = None if read.times is None else float(read.times[0])
            recording = read._replace(start=start_time(request.model, first, request.start))
            break
        except DataError as error:
            reasons.append(str(error))
    if recording is None:
        raise typer.BadParameter(f"none can be read: {reasons[0]}", param_hint="--data")
    if recording.times is None:
        say(f"no column of times: rows count as {request.model.dt:g} apart (dt of the model)")
    for message in oddities(request.model, recording):
        say(f"{sources[len(reasons)]}: {message}")
    request = request.settled(recording)
    flt, file = request.make_filter(recording), None
    learned = getattr(flt, "proposal", None)
    if isinstance(learned, NeuralProposal):
        with tempfile.TemporaryDirectory() as folder:
            learned.save(Path(folder) / "proposal.nopf")
            file = (Path(folder) / "proposal.nopf").read_bytes()
    target, colon, name = request.target.rpartition(":")
    settings = Settings(
        target=f"{Path(target).absolute()}:{name}" if colon else request.target,
        columns=request.columns,
        short=request.short,
        particles=request.particles,
        proposal=file,
        seed=request.seed,
        start=request.start,
        recover=request.recover,
        double=double,
    )
    rows = filter_all(settings, sources, out, workers, cluster)
    failed = [row for row in rows if row["error"] is not None]
    for row in failed:
        say(f"{row['recording']}: {row['error']}")
    if as_json:
        print(json.dumps({"filter": request.short, "recordings": rows}))
    else:
        counts = Counter(row["verdict"] for row in rows if row["error"] is None)
        found = [f"{verdict}: {counts[verdict]}" for verdict in VERDICTS if counts[verdict]]
        found += [f"failed: {len(failed)}"] if failed else []
        print(f"{out}: {len(rows)} recordings, {', '.join(found)}; index.html has them all")
    if failed:
        raise typer.Exit(1)


def _filter_recording(
    request: Request, out: Path | None, plot: Path | None, as_json: bool, list_warnings: bool
) -> None:
    """Estimates to a file or standard output, then warnings, a picture and a summary."""
    model = request.model
    recording = recording_of(Path(request.source), model, request.columns)
    first = None if recording.times is None else float(recording.times[0])
    try:
        recording = recording._replace(start=start_time(model, first, request.start))
    except DataError as error:
        raise typer.BadParameter(f"{request.source}: {error}", param_hint="--start") from None
    if recording.times is None:
        say(f"no column of times: rows count as {model.dt:g} apart (dt of the model)")
    for message in oddities(model, recording):
        say(message)
    request = request.settled(recording)
    flt = request.make_filter(recording)
    try:
        posterior = filter_recording(flt, recording, request.seed)
    except ValueError as error:
        raise typer.BadParameter(f"{request.source}: {error}") from None
    names = estimate_names(posterior.state_names, posterior.quantile_levels)
    rows = estimate_rows(np.asarray(posterior.times), posterior)
    if out is None:
        print(csv_table(names, rows), end="")
    else:
        write_estimates(out, names, rows)
    warnings = posterior.warnings(every=list_warnings)
    for message in warnings:
        say(message)
    if plot is not None:
        _draw(request, recording, posterior, plot)
    near = accuracy(posterior, recording.truth or {})
    if out is not None:
        _print_summary(request, posterior, warnings, near, out, as_json)
    if not as_json:
        tell = say if out is None else print  # Standard output may have the estimates.
        for name, found in near.items():
            tell(_near_in_words(name, found))


def _near_in_words(name: str, found: Accuracy) -> str:
    words = f"{name}: RMSE {found.rmse:.4g} over {found.rows} rows"
    if found.coverage is not None and found.nominal is not None:
        words += f", {100 * found.coverage:.0f} % within the {100 * found.nominal:.0f} % interval"
    if found.error_over_variance is None:
        return f"{words}; the filter says that it is exact"
    return f"{words}, squared error over variance {found.error_over_variance:.2f} (1 is right)"


def _draw(request: Request, recording: Recording, posterior: Posterior, plot: Path) -> None:
    if plot.suffix == ".html":
        from nopf.report.estimates import About, estimates_page

        about = About(request.target, Path(request.source).name, request.short)
        page = estimates_page(
            posterior, about, recording.truth, request.landmarks, model=request.model
        )
        write_whole(plot, page.encode())
    else:
        from nopf.report.figures import estimate_figure, save

        save(estimate_figure(posterior), plot)


def _print_summary(
    request: Request,
    posterior: Posterior,
    warnings: list[str],
    near: dict[str, Accuracy],
    out: Path,
    as_json: bool,
) -> None:
    steps = len(posterior.times)
    ess = None if posterior.ess is None else float(posterior.ess.mean())
    evidence = float(posterior.log_evidence)
    medians = np.median(np.asarray(posterior.draws), axis=0)
    draws = dict(zip(posterior.state_names, medians.tolist(), strict=True))
    if as_json:
        summary = {
            "file": str(out),
            "steps": steps,
            "filter": request.short,
            "particles": request.particles,
            "mean_ess": ess,
            "draws": {name: value if np.isfinite(value) else None for name, value in draws.items()},
            "log_evidence": evidence if np.isfinite(evidence) else None,
            "warnings": warnings,
            "verdict": posterior.verdict,
        }
        if near:
            summary["truth"] = {name: found._asdict() for name, found in near.items()}
        print(json.dumps(summary))
    else:
        count = "" if ess is None else f", mean ESS {ess:.0f} of {request.particles}"
        print(f"{out}: {steps} steps{count}, log-evidence {evidence:.2f}: {posterior.verdict}")
        known = {name: value for name, value in draws.items() if np.isfinite(value)}
        if known:
            worst = min(known, key=lambda name: known[name])
            print(
                f"The least known mean, that of {worst}, is worth {draws[worst]:.0f} independent "
                f"draws: off by {1 / np.sqrt(draws[worst]):.1g} of its standard deviation or so."
            )


def _filter_stream(request: Request, form: str | None, skip_bad: bool) -> None:
    """An estimate a line, as the lines of standard input come."""
    request = request.settled(None)
    flt = request.make_filter(None)
    if sys.stdin is None:
        raise typer.BadParameter("standard input is closed", param_hint="-")
    try:
        skip = (lambda message: say(f"left out: {message}")) if skip_bad else None
        rows, incoming = live_rows("standard input", sys.stdin, flt.model, request.columns, skip)
        names = estimate_names(flt.model.state_names, flt.quantiles)
        outgoing = form or incoming
        if outgoing == "csv":
            print(csv_header(names), flush=True)
        for values in filter_live(flt, rows, request.seed, say, request.start):
            line = format_csv(values) if outgoing == "csv" else format_json(names, values)
            print(line, flush=True)
    except (DataError, UnicodeDecodeError) as error:
        say(str(error))
        raise typer.Exit(2) from None
    except BrokenPipeError:  # Whoever reads has gone: nothing left to do.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
