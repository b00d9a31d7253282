"""`nopf check`: looks a model over."""

import dataclasses
import json
import warnings
from pathlib import Path
from typing import Annotated, Any

import jax
import typer

from nopf.benchmarks.progress import Counted
from nopf.command import advice
from nopf.command.advice import MOST_PARTICLES, Report
from nopf.command.filter import FILTERS
from nopf.command.options import (
    AsJson,
    ControlColumns,
    Model,
    ObservationColumns,
    Seed,
    TimeColumn,
    check_known,
    check_plot,
    named_columns,
    recording_of,
    show,
    warnings_said,
)
from nopf.command.target import load
from nopf.command.trials import set_up
from nopf.command.voice import say, tell, voice
from nopf.filters import Calibration, Filter, KalmanFilter, calibration
from nopf.model import StateSpaceModel
from nopf.recording import Named, oddities, start_time
from nopf.training import TrainingInterrupted
from nopf.training.to_file import Series as Simulated
from nopf.words import listed

EXAMPLES = (
    "nopf check robot.py:model --data run.csv",
    "nopf check robot.py:model --horizon 200 --plot paths.svg",
    "nopf check robot.py:model --train",
    "nopf check robot.py:model --calibration --filter lpf --particles 500",
)
Horizon = Annotated[
    int | None,
    typer.Option(min=2, help="Number of steps of a simulated trajectory. If left out: 100."),
]
Data = Annotated[
    Path | None,
    typer.Option(
        "--data",
        help="A recording. Its columns are checked, and the filters are tried on simulations with "
        "the times, controls and missing cells of its first rows.",
    ),
]
Train = Annotated[
    bool,
    typer.Option("--train", help="Also train a proposal and try it, which takes about a minute."),
]
Particles = Annotated[
    int,
    typer.Option(
        min=2,
        help=f"Number of particles. Filters are tried with at most {MOST_PARTICLES} of them.",
    ),
]
Plot = Annotated[
    Path | None,
    typer.Option(
        help="File to draw simulated trajectories to, or with --calibration the ranks: .svg, .png "
        "or .pdf."
    ),
]
Calibrate = Annotated[
    bool,
    typer.Option("--calibration", help="Test whether the filter is as certain as it should be."),
]
Short = Annotated[
    str | None,
    typer.Option(
        "--filter",
        help="For --calibration: the filter to test, without trying others. One of "
        f"{', '.join(FILTERS)}.",
    ),
]
Series = Annotated[
    int, typer.Option(min=20, help="For --calibration: number of series to simulate.")
]


def check_command(
    target: Model,
    data: Data = None,
    time_column: TimeColumn = None,
    controls: ControlColumns = None,
    observations: ObservationColumns = None,
    horizon: Horizon = None,
    learn: Train = False,
    particles: Particles = 1000,
    seed: Seed = 0,
    calibrate: Calibrate = False,
    short: Short = None,
    series: Series = 200,
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """Checks a model: simulates it, looks for mistakes, tries filters, and advises one.

    nopf filter then uses the advised filter for the same recording. With --calibration, true states
    of simulated series are ranked among draws of the posterior, to test for each state whether the
    filter is too certain, too vague or shifted.
    """
    tell(f"reading the model {target}")
    loaded = load(target)
    model = loaded.model
    check_plot(plot, (".svg", ".png", ".pdf"))
    if short is not None:
        check_known("--filter", [short], FILTERS)
        if not calibrate:
            raise typer.BadParameter("needs --calibration", param_hint="--filter")
    columns, odd = named_columns(time_column, controls, observations), list[str]()
    if data is None:
        if columns != Named():
            raise typer.BadParameter(
                "needed, since options that name columns are for a recording", param_hint="--data"
            )
        steps = horizon or loaded.horizon or 100
        like = Simulated(steps, controls=loaded.controls(steps) if model.reads_control else None)
    else:
        if horizon is not None:
            raise typer.BadParameter(
                "not with --data: the recording gives the number of steps", param_hint="--horizon"
            )
        like, odd = _like(data, model, columns)
    report, paths, found, flt = None, None, None, None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if short is None:
            tell("simulating, and trying filters, each of which is compiled")
            report, paths, flt = advice.check(
                model, like, particles, seed, learn, progress=voice.bars
            )
            short = report.advised
        if calibrate and short is not None and (report is None or particles > MOST_PARTICLES):
            flt = _named(model, short, particles, like, seed)
    if any(issubclass(warning.category, TrainingInterrupted) for warning in caught):
        raise KeyboardInterrupt
    troubles = list(dict.fromkeys(str(w.message) for w in caught if w.category is UserWarning))
    if report is not None:
        report.problems += [*odd, *troubles]
    else:
        for line in [*odd, *troubles]:
            say(line)
    if calibrate and flt is not None:
        key = jax.random.fold_in(jax.random.key(seed), 1)
        with Counted("series", voice.bars) as count, warnings_said():
            found = calibration(
                flt,
                like.horizon,
                key,
                series=series,
                times=like.times,
                controls=like.controls,
                start=like.start,
                missing=like.missing,
                tell=count,
            )
    if plot is not None:
        from nopf.report.figures import calibration_figure, save, trajectory_figure

        if found is not None:
            save(calibration_figure(found), plot)
        elif paths is not None:
            save(trajectory_figure(model, paths), plot)
    if as_json:
        whole = {} if report is None else dataclasses.asdict(report)
        if found is not None:
            settings = {"filter": short, "particles": particles, "horizon": like.horizon}
            whole["calibration"] = settings | _as_json(found)
        print(json.dumps(whole))
    else:
        if report is not None:
            _print_report(report, like.horizon)
        if found is not None:
            exact = isinstance(flt, KalmanFilter)
            words = f"{short}" if exact else f"{short} with {particles} particles"
            _print_calibration(found, words, like.horizon)
        if plot is not None:
            print(f"{plot}: {'simulated trajectories' if found is None else 'ranks of the truth'}")
    if report is not None and report.problems:
        raise typer.Exit(1)


def _like(file: Path, model: StateSpaceModel, columns: Named) -> tuple[Simulated, list[str]]:
    """Series like a recording; and what looks as if it and the model did not mean the same."""
    recording = recording_of(file, model, columns)
    first = None if recording.times is None else float(recording.times[0])
    recording = recording._replace(start=start_time(model, first))
    odd = [f"{file}: {message}" for message in oddities(model, recording)]
    return advice.series_like(model, recording), odd


def _named(
    model: StateSpaceModel, short: str, particles: int, like: Simulated, seed: int
) -> Filter:
    """The filter that was asked for."""
    try:
        return set_up(model, short, particles, like, jax.random.key(seed), progress=voice.bars)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--filter") from None


def _as_json(found: Calibration) -> dict[str, Any]:
    columns = zip(
        found.state_names,
        found.p_value.tolist(),
        found.coverage.tolist(),
        found.histogram.T.tolist(),
        found.is_calibrated.tolist(),
        found.verdicts,
        strict=True,
    )
    names = ("p_value", "coverage", "histogram", "is_calibrated", "verdict")
    states = {state: dict(zip(names, values, strict=True)) for state, *values in columns}
    return {"series": len(found.ranks), "states": states}


def _print_calibration(found: Calibration, words: str, horizon: int) -> None:
    series = len(found.ranks)
    print(f"\nCalibration of {words}: {series} simulated series of {horizon} steps\n\n{found}\n")
    pairs = zip(found.state_names, found.is_calibrated, strict=True)
    wrong = [state for state, good in pairs if not good]
    if wrong:
        show(
            f"NOT CALIBRATED in {listed(wrong)}: its standard deviations and quantiles cannot be "
            "trusted there."
        )
        show("Try more particles (--particles), or another filter (--filter).")
    else:
        show(f"The test with {series} series found nothing wrong.")


def _print_report(report: Report, horizon: int) -> None:
    for line in report.findings:
        show(line)
    for line in report.problems:
        show(f"PROBLEM: {line}")
    if not report.problems:
        show("shapes, gradients and angles: nothing wrong found")
    print(f"\n{horizon} simulated steps, {report.particles} particles:\n")
    print("filter       ESS     draws   ms / step        draws per ms   training")
    for trial in report.trials:
        ess, draws, rate = "–", "exact", "–"
        if trial.ess is not None:
            ess, draws, rate = f"{trial.ess:.0f}", f"{trial.draws:.3g}", f"{trial.rate:.3g}"
        trained = "–" if trial.training is None else f"{trial.training:.0f} s"
        print(
            f"{trial.name:7}{ess:>9}{draws:>10}{trial.milliseconds:>12.2f}{rate:>20}{trained:>11}"
        )
    print()
    show(
        "ESS: effective sample size, averaged over steps. Draws: the number of independent draws "
        "of the posterior that would give means as accurate (median over steps and states)."
    )
    print()
    show(report.advice)
    if report.problems:
        show(f"But first correct what is marked PROBLEM above ({len(report.problems)}).")
