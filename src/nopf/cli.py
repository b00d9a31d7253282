"""The command `nopf`."""

import dataclasses
import difflib
import importlib.resources
import importlib.util
import json
import os
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import numpy as np
import typer

from nopf.benchmarks import BENCHMARKS
from nopf.benchmarks.cluster import ClusterError
from nopf.benchmarks.progress import Cells
from nopf.benchmarks.results import Results, ResultsError, write_csv
from nopf.benchmarks.runner import plan, run
from nopf.benchmarks.tables import Table, tabulate
from nopf.catalogue import LEARNED, NAMES
from nopf.check import Report, check
from nopf.estimate import (
    filter_live,
    filter_recording,
    imitation,
    make_user_filter,
    oddities,
    proposal_for,
)
from nopf.files import write_whole
from nopf.filters import Filter
from nopf.model import StateSpaceModel
from nopf.proposals import NeuralProposal
from nopf.recipe import Recipe
from nopf.recording import (
    DataError,
    Named,
    Recording,
    csv_header,
    csv_table,
    estimate_names,
    estimate_rows,
    format_csv,
    format_json,
    live_rows,
    read_recording,
    write_estimates,
)
from nopf.training import TrainingInterrupted, train

MOST_SAID = 10  # warnings that a terminal gets
FILTERS = tuple(name for name in NAMES if name not in LEARNED)

app = typer.Typer(
    help="Particle filters that learn where to put their particles.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


TimeColumn = Annotated[
    str | None,
    typer.Option("--time", help="Column of times; time, t or timestamp if there is one."),
]
ControlColumns = Annotated[
    str | None,
    typer.Option("--controls", help="Columns of controls, with commas; the model's if left out."),
]
ObservationColumns = Annotated[
    str | None,
    typer.Option(
        "--observations", help="Columns of the observation, with commas; the model's if left out."
    ),
]
Seed = Annotated[int, typer.Option(min=0, max=2**31 - 1, help="The same seed, the same numbers.")]


def _named(time: str | None, controls: str | None, observations: str | None) -> Named:
    """Columns from the command line, with commas taken apart."""
    both = [
        None if names is None else [name.strip() for name in names.split(",")]
        for names in (controls, observations)
    ]
    return Named(time, *both)


@app.command("train")
def train_command(
    target: Annotated[
        str,
        typer.Argument(metavar="MODEL", help=f"FILE.py:OBJECT, or one of {', '.join(BENCHMARKS)}."),
    ],
    out: Annotated[Path, typer.Option(help="Where to write the proposal.")],
    horizon: Annotated[
        int | None,
        typer.Option(min=1, help="Steps of a simulated trajectory; known for benchmarks."),
    ] = None,
    recording: Annotated[
        Path | None,
        typer.Option(
            "--data", help="A recording to imitate: its times, controls, what is missing."
        ),
    ] = None,
    time_column: TimeColumn = None,
    controls: ControlColumns = None,
    observations: ObservationColumns = None,
    recipe: Annotated[str, typer.Option(help="fast, or paper: the published one.")] = "fast",
    seed: Seed = 0,
    base: Annotated[
        str | None, typer.Option(help="auto, skeleton or linearised; the recipe's if left out.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Gradient steps at most.")] = None,
    missing_rate: Annotated[
        float | None, typer.Option(help="Chance that a coordinate is missing, while training.")
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start anew even if an earlier run was cut short.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Trains a proposal on data simulated from a model, and writes it to a file.

    A run that was cut short goes on where it was when the same command is given again.
    """
    loaded = _load(target)
    model = loaded.model
    data: dict[str, Any] = {"horizon": loaded.horizon if horizon is None else horizon}
    if recording is not None:
        if horizon is not None:
            raise typer.BadParameter("the recording says how long", param_hint="--horizon")
        columns = _named(time_column, controls, observations)
        try:
            data = imitation(model, _read(recording, model, columns))
        except DataError as error:
            raise typer.BadParameter(f"{recording}: {error}", param_hint="--data") from None
    if data["horizon"] is None:
        raise typer.BadParameter(
            "needed for a model from a file, if there is no --data", param_hint="--horizon"
        )
    if recording is None and model.reads_control:
        data["controls"] = loaded.controls(data["horizon"])
    if recipe not in ("fast", "paper"):
        raise typer.BadParameter(f"expected fast or paper, got {recipe!r}", param_hint="--recipe")
    _writable(out, "--out", target.rpartition(":")[0], recording)
    given = {"base": base, "steps": steps, "missing_rate": missing_rate}
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    try:
        if recipe == "paper":
            settings = Recipe.paper(target if target in BENCHMARKS else None, **changes)
        else:
            settings = Recipe.fast(**changes)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    part = out.with_name(out.name + ".part")
    if fresh:
        part.unlink(missing_ok=True)
    started = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        proposal = train(model, key=jax.random.key(seed), recipe=settings, checkpoint=part, **data)
    seconds = time.perf_counter() - started
    for warning in caught:
        print(f"nopf: {warning.message}", file=sys.stderr)
    interrupted = any(issubclass(w.category, TrainingInterrupted) for w in caught)
    if interrupted and out.exists():
        print(f"nopf: {out} is kept as it was; the run is in {part}", file=sys.stderr)
    else:
        proposal.save(out)
    if not interrupted:
        part.unlink(missing_ok=True)
    best = proposal.history[proposal.history[:, 2].argmin()]
    result: dict[str, Any] = {
        "file": str(out),
        "base": proposal.recipe.base,
        "steps": int(proposal.history[-1, 0]),
        "seconds": round(seconds, 2),
        "held_out_loss": float(best[2]),
        "held_out_ess_fraction": float(best[3]),
        "recipe": dataclasses.asdict(proposal.recipe),
    }
    if as_json:
        print(json.dumps(result))
    else:
        print(
            f"{out}: {result['steps']} steps in {seconds:.1f} s on the {result['base']} base; "
            f"held-out ESS {100 * result['held_out_ess_fraction']:.1f} % of the draws"
        )
    if interrupted:
        print("nopf: give the same command again to go on", file=sys.stderr)
        raise typer.Exit(130)


Names = Annotated[
    list[str], typer.Argument(help=f"Some of {', '.join(BENCHMARKS)}; or all.", metavar="NAME…")
]
Filters = Annotated[str, typer.Option(help=f"With commas, some of {', '.join(NAMES)}; or all.")]
Seeds = Annotated[int, typer.Option(help="How many simulated truths; seeds from 0 on.")]
Out = Annotated[Path, typer.Option(help="The folder of results; what is there is not run again.")]
Workers = Annotated[int, typer.Option(help="Processes to spread the work over, with Dask.")]
Cluster = Annotated[str | None, typer.Option(help="Address of a running Dask scheduler.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


@app.command("bench")
def bench_command(
    names: Names,
    filters: Filters = "enkf,bpf,nopf",
    seeds: Seeds = 10,
    particles: Annotated[
        int | None, typer.Option(help="How many; the paper's number if left out.")
    ] = None,
    out: Out = Path("results"),
    workers: Workers = 0,
    cluster: Cluster = None,
    against_paper: Annotated[
        bool, typer.Option("--against-paper", help="The published value beside each number.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Runs filters on the paper's benchmarks and tabulates seven metrics.

    Every filter sees the same simulated data. A run that was cut short goes on where it was when
    the same command is given again. For each benchmark OUT gets metrics.csv, with one row a filter
    and seed, and the table as table.md, table.csv and table.tex.
    """
    counts = None if particles is None else [particles]
    results, chosen, failures = _run_cells(names, filters, seeds, counts, out, workers, cluster)
    tables = []
    for name in chosen:
        count = BENCHMARKS[name].particles if particles is None else particles
        rows = [row for row in results.rows(name) if row["particles"] == count]
        if not rows:
            continue
        table = tabulate(rows)
        tables.append(table)
        folder = out / name
        write_csv(folder / "metrics.csv", rows)
        for suffix, text in [
            ("md", table.markdown(against_paper)),
            ("csv", table.csv(against_paper)),
            ("tex", table.latex(against_paper)),
        ]:
            write_whole(folder / f"table.{suffix}", text.encode())
    _conclude(tables, failures, out, as_json, against_paper)


def _conclude(
    tables: list[Table], failures: list[str], out: Path, as_json: bool, against_paper: bool = False
) -> None:
    """Prints the tables; ends with code 1 if a cell failed."""
    if as_json:
        print(json.dumps([table.numbers() for table in tables]))
    else:
        _print_tables(tables, against_paper)
        print(f"Written to {out}. A page with pictures: nopf report {out}")
    if failures:
        raise typer.Exit(1)


def _print_tables(tables: list[Table], against_paper: bool) -> None:
    terminal = sys.stdout.isatty()
    for table in tables:
        print(f"{table.title()}: {BENCHMARKS[table.benchmark].title}")
        print(table.text(against_paper, bold=terminal) + "\n")
    best = "bold" if terminal else "a star"
    brackets = "; in brackets: as published" if against_paper else ""
    print(f"Mean ± standard deviation over seeds; {best}: the best two of a column{brackets}.")


@app.command("sweep")
def sweep_command(
    names: Names,
    particles: Annotated[str, typer.Option(help="With commas.")] = "100,1000,10000",
    filters: Filters = "enkf,bpf,nopf",
    seeds: Seeds = 10,
    out: Out = Path("results"),
    workers: Workers = 0,
    cluster: Cluster = None,
    as_json: AsJson = False,
) -> None:
    """Runs filters with several numbers of particles: metrics against N.

    For each benchmark OUT gets sweep.csv, with one row a filter, number of particles and seed, and
    sweep.svg, the metrics against N (if matplotlib is installed).
    """
    try:
        counts = sorted({int(word) for word in particles.split(",")})
    except ValueError:
        raise typer.BadParameter(
            f"expected whole numbers with commas between them, got {particles!r}",
            param_hint="--particles",
        ) from None
    results, chosen, failures = _run_cells(names, filters, seeds, counts, out, workers, cluster)
    found = []
    for name in chosen:
        rows = results.rows(name)
        if not rows:
            continue
        write_csv(out / name / "sweep.csv", rows)
        try:
            from nopf.report.figures import save, sweep_figure
        except ImportError:
            print(
                "nopf: no figure, since matplotlib is not installed: "
                "python -m pip install 'nopf[plots]'",
                file=sys.stderr,
            )
        else:
            save(sweep_figure(rows), out / name / "sweep.svg")
        for count in counts:
            here = [row for row in rows if row["particles"] == count]
            if here:
                found.append(tabulate(here))
    _conclude(found, failures, out, as_json)


@app.command("report")
def report_command(
    folder: Annotated[Path, typer.Argument(help="A folder of results, from bench or sweep.")],
    out: Annotated[
        Path | None, typer.Option(help="The page; FOLDER/report.html if left out.")
    ] = None,
    figures: Annotated[
        str | None, typer.Option(help="svg, png or pdf: also draw every figure, in FOLDER/figures.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Makes one HTML page of results, with tables and animated particles; it needs no network."""
    if figures not in (None, "svg", "png", "pdf"):
        raise typer.BadParameter(
            f"expected svg, png or pdf, got {figures!r}", param_hint="--figures"
        )
    if not (folder / "nopf.json").is_file():
        raise typer.BadParameter(
            f"{folder} holds no results; make some with: nopf bench range-only --out {folder}"
        )
    _figures()
    from nopf.report.drawing import draw_all
    from nopf.report.page import page

    try:
        results = Results(folder)
    except ResultsError as error:
        raise typer.BadParameter(str(error)) from None
    if not any(results.rows(name) for name in results.benchmarks()):
        raise typer.BadParameter(f"{folder}: no cell is finished yet; run nopf bench again")
    target = folder / "report.html" if out is None else out
    if target.is_dir() or not target.parent.is_dir():
        raise typer.BadParameter(f"{target}: expected a file in a folder that exists, for the page")
    if not os.access(target.parent, os.W_OK):
        raise typer.BadParameter(f"{target.parent}: cannot be written to; name a page with --out")
    write_whole(target, page(results).encode())
    drawn = draw_all(results, folder / "figures", figures) if figures else []
    if as_json:
        print(json.dumps({"page": str(target), "figures": [str(file) for file in drawn]}))
        return
    print(f"{target}: open it in a browser ({target.stat().st_size / 1e6:.1f} MB, no network)")
    if drawn:
        print(f"{len(drawn)} figures in {folder / 'figures'}")


def _run_cells(
    names: list[str],
    filters: str,
    seeds: int,
    counts: list[int] | None,
    out: Path,
    workers: int,
    cluster: str | None,
) -> tuple[Results, list[str], list[str]]:
    """Checks what was asked for, and runs it."""
    chosen = list(BENCHMARKS) if names == ["all"] else list(dict.fromkeys(names))
    _known("NAME", chosen, tuple(BENCHMARKS))
    short = [word.strip() for word in filters.split(",") if word.strip()]
    short = list(NAMES) if short == ["all"] else list(dict.fromkeys(short))
    if not short:
        raise typer.BadParameter("expected at least one filter", param_hint="--filters")
    _known("--filters", short, NAMES)
    for value, hint, low in [(seeds, "--seeds", 1), (workers, "--workers", 0)]:
        if value < low:
            raise typer.BadParameter(f"expected at least {low}, got {value}", param_hint=hint)
    for count in counts or []:
        if count < 2:
            raise typer.BadParameter(f"expected at least 2, got {count}", param_hint="--particles")
    if workers and cluster is not None:
        raise typer.BadParameter("give --workers or --cluster, not both", param_hint="--workers")
    cells, skipped = plan(chosen, short, seeds, counts)
    for reason in skipped:
        print(f"nopf: {reason}", file=sys.stderr)
    if not cells:
        raise typer.BadParameter("none of these filters applies", param_hint="--filters")
    try:
        results = Results(out)
        results.prepare()
        with Cells() as tell:
            _, failures = run(results, cells, workers=workers, cluster=cluster, tell=tell)
    except ResultsError as error:
        raise typer.BadParameter(str(error), param_hint="--out") from None
    for failure in failures:
        print(f"nopf: {failure}", file=sys.stderr)
    return results, chosen, failures


def _known(hint: str, given: list[str], known: tuple[str, ...]) -> None:
    for word in given:
        if word not in known:
            near = difflib.get_close_matches(word, known, 1, 0.4)
            suggestion = f"; did you mean {near[0]}?" if near else ""
            raise typer.BadParameter(
                f"{word!r} is none of {', '.join(known)}{suggestion}", param_hint=hint
            )


@app.command("new")
def new_command(
    file: Annotated[Path, typer.Argument(help="Where to write it, for example robot.py.")],
) -> None:
    """Writes a model to start from: a robot that measures distances, with comments."""
    if file.suffix != ".py":
        raise typer.BadParameter(f"{file}: expected a name that ends in .py")
    if file.exists():
        raise typer.BadParameter(f"{file} exists already; name another file")
    if not file.parent.is_dir():
        raise typer.BadParameter(f"the folder {file.parent} does not exist")
    template = importlib.resources.files("nopf") / "templates" / "robot.py"
    text = template.read_text(encoding="utf-8").replace("TEMPLATE", file.as_posix())
    write_whole(file, text.encode())
    print(f"{file} written. Try: nopf check {file}:model")


@app.command("check")
def check_command(
    target: Annotated[
        str,
        typer.Argument(metavar="MODEL", help=f"FILE.py:OBJECT, or one of {', '.join(BENCHMARKS)}."),
    ],
    horizon: Annotated[
        int | None, typer.Option(min=2, help="Steps of a simulated trajectory; 100 if left out.")
    ] = None,
    particles: Annotated[int, typer.Option(min=2, help="Of the filters tried.")] = 1000,
    seed: Seed = 0,
    plot: Annotated[
        Path | None, typer.Option(help="Draw simulated trajectories: .svg, .png or .pdf.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Looks a model over: simulates it, looks for mistakes, tries filters, and advises one."""
    loaded = _load(target)
    _plottable(plot, (".svg", ".png", ".pdf"))
    horizon = horizon or loaded.horizon or 100
    controls = loaded.controls(horizon) if loaded.model.reads_control else None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        report, paths = check(loaded.model, horizon, particles, seed, controls)
    if any(issubclass(warning.category, TrainingInterrupted) for warning in caught):
        raise KeyboardInterrupt
    report.problems += [str(w.message) for w in caught if w.category is UserWarning]
    if plot is not None:
        figures = _figures()
        figures.save(figures.trajectory_figure(loaded.model, paths), plot)
    if as_json:
        print(json.dumps(dataclasses.asdict(report)))
    else:
        _print_report(report, horizon)
        if plot is not None:
            print(f"{plot}: simulated trajectories")
    if report.problems:
        raise typer.Exit(1)


def _print_report(report: Report, horizon: int) -> None:
    for line in report.findings:
        print(line)
    for line in report.problems:
        print(f"PROBLEM: {line}")
    if not report.problems:
        print("shapes, gradients and angles: nothing wrong found")
    print(f"\n{horizon} simulated steps, {report.particles} particles:\n")
    print("filter   particles that count   ms a step   count for each ms   training")
    for trial in report.trials:
        ess = "exact" if trial.ess is None else f"{trial.ess:.0f}"
        rate = "–" if trial.ess is None else f"{trial.rate:.0f}"
        trained = "–" if trial.training is None else f"{trial.training:.0f} s"
        print(f"{trial.name:7}{ess:>22}{trial.milliseconds:>12.2f}{rate:>20}{trained:>11}")
    print(f"\n{report.advice}")
    if report.problems:
        print(f"But first mend what is marked PROBLEM above ({len(report.problems)}).")


@app.command("filter")
def filter_command(
    target: Annotated[
        str, typer.Argument(metavar="MODEL", help="FILE.py:OBJECT, or a benchmark's name.")
    ],
    stream: Annotated[
        str | None, typer.Argument(metavar="[-]", help="A live stream from standard input.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="The recording: CSV, gzipped CSV or Parquet; or -.")
    ] = None,
    proposal: Annotated[
        Path | None, typer.Option(help="From nopf train; trained now if left out.")
    ] = None,
    short: Annotated[
        str, typer.Option("--filter", help=f"One of {', '.join(FILTERS)}, nopf.")
    ] = "nopf",
    particles: Annotated[int, typer.Option(min=2, help="How many.")] = 1000,
    out: Annotated[
        Path | None,
        typer.Option(help="Estimates: .csv or .parquet; standard output if left out."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the estimates: .svg, .png, .pdf, or .html for a page.")
    ] = None,
    time_column: TimeColumn = None,
    controls: ControlColumns = None,
    observations: ObservationColumns = None,
    seed: Seed = 0,
    form: Annotated[
        str | None, typer.Option("--format", help="Of a live stream: csv or json; as it comes in.")
    ] = None,
    skip_bad: Annotated[
        bool,
        typer.Option("--skip-bad", help="Of a live stream: leave lines out that cannot be read."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a summary as JSON.")] = False,
) -> None:
    """Estimates the states behind a recording, or a live stream, with a model.

    Empty cells are missing observations. The prior is one dt of the model before the first row.
    Estimates are mean, standard deviation and quantiles of each state, the effective sample size,
    the log-evidence, and how well the model explains the data; warnings come in plain words.
    """
    if stream not in (None, "-") or (stream == "-" and data is not None):
        raise typer.BadParameter("name a recording with --data; a lone - means standard input")
    source = stream or data
    if source is None:
        raise typer.BadParameter("needed: a recording, or - for a live stream", param_hint="--data")
    _known("--filter", [short], (*FILTERS, "nopf"))
    loaded = _load(target)
    model = loaded.model
    columns = _named(time_column, controls, observations)
    if proposal is not None and short != "nopf":
        raise typer.BadParameter(f"{short} uses none", param_hint="--proposal")
    given = None
    if proposal is not None:
        try:
            given = NeuralProposal.load(proposal, model)
        except (ValueError, OSError) as error:
            raise typer.BadParameter(str(error), param_hint="--proposal") from None

    def say(message: str) -> None:
        print(f"nopf: {message}", file=sys.stderr)

    def make(recording: Recording | None) -> Filter:
        learned = given
        if short == "nopf" and learned is None:
            try:
                learned = proposal_for(model, recording, seed, say)
            except DataError as error:
                where = "" if source == "-" else f"{source}: "
                raise typer.BadParameter(f"{where}{error}", param_hint="--filter") from None
        try:
            return make_user_filter(model, short, particles, learned)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--filter") from None

    if source == "-":
        if form not in (None, "csv", "json"):
            raise typer.BadParameter(f"expected csv or json, got {form!r}", param_hint="--format")
        if out is not None or plot is not None or as_json:
            raise typer.BadParameter(
                "a live stream goes to standard output, one line an observation; --out, --plot and "
                "--json are for recordings"
            )
        _filter_stream(make(None), columns, seed, form, say, skip_bad)
        return
    if skip_bad:
        raise typer.BadParameter("is for live streams", param_hint="--skip-bad")
    _plottable(plot, (".svg", ".png", ".pdf", ".html"))
    if out is not None:
        _writable(out, "--out", source)
    if out is not None and out.suffix not in (".csv", ".parquet"):
        raise typer.BadParameter(
            f"{out}: expected a name that ends in .csv or .parquet", param_hint="--out"
        )
    if form is not None:
        raise typer.BadParameter("is for live streams; name the file", param_hint="--format")
    if as_json and out is None:
        raise typer.BadParameter(
            "standard output has the estimates; name a file", param_hint="--out"
        )
    recording = _read(Path(source), model, columns)
    if recording.times is None:
        say(f"no column of times: rows count as {model.dt:g} apart (dt of the model)")
    for message in oddities(model, recording):
        say(message)
    flt = make(recording)
    try:
        posterior = filter_recording(flt, recording, seed)
    except ValueError as error:
        raise typer.BadParameter(f"{source}: {error}") from None
    names = estimate_names(posterior.state_names, posterior.quantile_levels)
    rows = estimate_rows(np.asarray(posterior.times), posterior)
    if out is None:
        print(csv_table(names, rows), end="")
    else:
        write_estimates(out, names, rows)
    said = posterior.warnings()
    for message in said[:MOST_SAID]:
        say(message)
    if len(said) > MOST_SAID:
        say(f"{len(said) - MOST_SAID} more warnings like these; --json has them all")
    if plot is not None:
        if plot.suffix == ".html":
            from nopf.report.estimates import estimates_page

            write_whole(plot, estimates_page(posterior, particles).encode())
        else:
            figures = _figures()
            figures.save(figures.estimate_figure(posterior), plot)
    ess = None if posterior.ess is None else float(posterior.ess.mean())
    evidence = float(posterior.log_evidence)
    summary = {
        "file": None if out is None else str(out),
        "steps": len(rows),
        "filter": short,
        "particles": particles,
        "mean_ess": ess,
        "log_evidence": evidence if np.isfinite(evidence) else None,
        "warnings": said,
    }
    if as_json:
        print(json.dumps(summary))
    elif out is not None:
        count = "" if ess is None else f", mean ESS {ess:.0f} of {particles}"
        print(f"{out}: {len(rows)} steps{count}, log-evidence {evidence:.2f}")


def _filter_stream(
    flt: Filter,
    columns: Named,
    seed: int,
    form: str | None,
    say: Callable[[str], None],
    skip_bad: bool,
) -> None:
    if sys.stdin is None:
        raise typer.BadParameter("standard input is closed", param_hint="-")
    try:
        skip = (lambda message: say(f"left out: {message}")) if skip_bad else None
        rows, incoming = live_rows("standard input", sys.stdin, flt.model, columns, skip)
        names = estimate_names(flt.model.state_names, flt.quantiles)
        outgoing = form or incoming
        if outgoing == "csv":
            print(csv_header(names), flush=True)
        for values in filter_live(flt, rows, seed, say):
            line = format_csv(values) if outgoing == "csv" else format_json(names, values)
            print(line, flush=True)
    except (DataError, UnicodeDecodeError) as error:
        print(f"nopf: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    except BrokenPipeError:  # Whoever reads has gone: nothing left to do.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _read(file: Path, model: StateSpaceModel, columns: Named) -> Recording:
    try:
        return read_recording(file, model, columns)
    except DataError as error:
        raise typer.BadParameter(str(error), param_hint="--data") from None


def _plottable(plot: Path | None, allowed: tuple[str, ...]) -> None:
    if plot is None:
        return
    if plot.suffix not in allowed:
        raise typer.BadParameter(
            f"{plot}: expected a name that ends in {', '.join(allowed)}", param_hint="--plot"
        )
    _writable(plot, "--plot")
    _figures()


def _writable(file: Path, option: str, *read: str | Path | None) -> None:
    """Refuses a file that cannot be written, or that is one of those that are read."""
    if file.is_dir():
        raise typer.BadParameter(f"{file} is a folder; name a file", param_hint=option)
    if not file.parent.is_dir():
        raise typer.BadParameter(f"the folder {file.parent} does not exist", param_hint=option)
    others = [Path(other) for other in read if other]
    if file.exists() and any(other.exists() and file.samefile(other) for other in others):
        raise typer.BadParameter(f"{file} is read here; name another file", param_hint=option)
    try:
        with tempfile.TemporaryFile(dir=file.parent):
            pass
    except OSError as error:
        raise typer.BadParameter(
            f"{file.parent}: cannot be written to ({error.strerror})", param_hint=option
        ) from None


def _figures() -> Any:
    """The module that draws, if what it needs is installed."""
    try:
        import plotly  # noqa: F401

        from nopf.report import figures
    except ImportError:
        print(
            "nopf: pictures need matplotlib and Plotly: python -m pip install 'nopf[plots]'",
            file=sys.stderr,
        )
        raise typer.Exit(1) from None
    return figures


class Loaded(NamedTuple):
    """A model, its horizon if that is known, and the file that it comes from."""

    model: StateSpaceModel
    horizon: int | None = None
    module: Any = None

    def controls(self, horizon: int) -> Any:
        """Control inputs of a typical series: `controls(steps)` of the model's file."""
        make = getattr(self.module, "controls", None)
        if not callable(make):
            raise typer.BadParameter(
                "this model reads step.control, and its file says nothing of typical ones: add a "
                "function controls(steps) that returns an array, one row a step"
            )
        try:
            return make(horizon)
        except Exception as error:
            raise typer.BadParameter(
                f"controls({horizon}) of the model's file: {type(error).__name__}: {error}"
            ) from None


def _load(target: str) -> Loaded:
    """The model that `target` names."""
    if target in BENCHMARKS:
        return Loaded(BENCHMARKS[target].model, BENCHMARKS[target].horizon)
    path, colon, name = target.rpartition(":")
    if not colon or not path.endswith(".py"):
        raise typer.BadParameter(
            f"expected FILE.py:OBJECT or one of {', '.join(BENCHMARKS)}, got {target!r}"
        )
    if not Path(path).is_file():
        raise typer.BadParameter(f"{path}: no such file")
    spec = importlib.util.spec_from_file_location("nopf_user_model", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(Path(path).parent))  # for what lies beside it
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == path]
        line = frames[-1].lineno if frames else None
        if isinstance(error, SyntaxError) and error.filename == path:
            line = error.lineno
        where = f"{path}, line {line}" if line else path
        raise typer.BadParameter(f"{where}: {type(error).__name__}: {error}") from None
    found = getattr(module, name, None)
    if not isinstance(found, StateSpaceModel):
        models = [key for key, value in vars(module).items() if isinstance(value, StateSpaceModel)]
        raise typer.BadParameter(
            f"{path}: expected a nopf.StateSpaceModel named {name}, "
            f"found {'none' if found is None else type(found).__name__}; "
            f"models in this file: {', '.join(models) or 'none'}"
        )
    return Loaded(found, None, module)


def main() -> None:
    """Runs the command; turns what the library raises into one line and exit code 1."""
    try:
        app()
    except (ValueError, TypeError, ArithmeticError, OSError, ClusterError) as error:
        print(f"nopf: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("nopf: interrupted", file=sys.stderr)
        sys.exit(130)
