"""The command `nopf`."""

import dataclasses
import difflib
import importlib.util
import json
import os
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Annotated, Any

import jax
import typer

from nopf.benchmarks import BENCHMARKS
from nopf.benchmarks.cluster import ClusterError
from nopf.benchmarks.filters import NAMES
from nopf.benchmarks.progress import Cells
from nopf.benchmarks.runner import Results, ResultsError, plan, run, write_csv
from nopf.benchmarks.tables import Table, tabulate
from nopf.files import write_whole
from nopf.model import StateSpaceModel
from nopf.recipe import Recipe
from nopf.training import TrainingInterrupted, train

app = typer.Typer(
    help="Particle filters that learn where to put their particles.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.command("train")
def train_command(
    target: Annotated[
        str, typer.Argument(help=f"A model: FILE.py:OBJECT, or one of {', '.join(BENCHMARKS)}.")
    ],
    out: Annotated[Path, typer.Option(help="Where to write the proposal.")],
    horizon: Annotated[
        int | None,
        typer.Option(min=1, help="Steps of a simulated trajectory; known for benchmarks."),
    ] = None,
    recipe: Annotated[str, typer.Option(help="fast, or paper: the published one.")] = "fast",
    seed: Annotated[
        int, typer.Option(min=0, max=2**31 - 1, help="The same seed gives the same proposal.")
    ] = 0,
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
    model, known_horizon = _load(target)
    horizon = known_horizon if horizon is None else horizon
    if horizon is None:
        raise typer.BadParameter("needed for a model from a file", param_hint="--horizon")
    if recipe not in ("fast", "paper"):
        raise typer.BadParameter(f"expected fast or paper, got {recipe!r}", param_hint="--recipe")
    if out.is_dir():
        raise typer.BadParameter(f"{out} is a folder; name a file", param_hint="--out")
    if not out.parent.is_dir():
        raise typer.BadParameter(f"the folder {out.parent} does not exist", param_hint="--out")
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
        proposal = train(
            model,
            horizon,
            jax.random.key(seed),
            recipe=settings,
            checkpoint=part,
        )
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
    try:
        from nopf.report.drawing import draw_all
        from nopf.report.page import page
    except ImportError:
        print(
            "nopf: the report needs matplotlib and Plotly: python -m pip install 'nopf[plots]'",
            file=sys.stderr,
        )
        raise typer.Exit(1) from None
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


def _load(target: str) -> tuple[StateSpaceModel, int | None]:
    """The model that `target` names, and its horizon if that is known."""
    if target in BENCHMARKS:
        return BENCHMARKS[target].model, BENCHMARKS[target].horizon
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
    except Exception as error:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == path]
        line = error.lineno if isinstance(error, SyntaxError) else frames and frames[-1].lineno
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
    return found, None


def main() -> None:
    """Runs the command; turns what the library raises into one line and exit code 1."""
    try:
        app()
    except (ValueError, TypeError, FloatingPointError, OSError, ClusterError) as error:
        print(f"nopf: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("nopf: interrupted", file=sys.stderr)
        sys.exit(130)
