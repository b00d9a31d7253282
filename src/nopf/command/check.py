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
from nopf.command.advice import Report
from nopf.command.filter import FILTERS
from nopf.command.options import (
    AsJson,
    Model,
    Seed,
    check_known,
    check_plot,
    say,
    warnings_said,
)
from nopf.command.target import load
from nopf.filters import Calibration, Filter, KalmanFilter, calibration
from nopf.model import StateSpaceModel
from nopf.training import TrainingInterrupted

Horizon = Annotated[
    int | None, typer.Option(min=2, help="Steps of a simulated trajectory; 100 if left out.")
]
Particles = Annotated[int, typer.Option(min=2, help="Of the filters tried.")]
Plot = Annotated[
    Path | None,
    typer.Option(
        help="Draw simulated trajectories, or with --calibration its ranks: .svg, .png or .pdf."
    ),
]
Calibrate = Annotated[
    bool, typer.Option("--calibration", help="Is the filter advised as sure as it should be?")
]
Short = Annotated[
    str | None,
    typer.Option(
        "--filter",
        help=f"Of --calibration: this one, without a look at others. One of {', '.join(FILTERS)}.",
    ),
]
Series = Annotated[int, typer.Option(min=20, help="Of --calibration: how many to simulate.")]


def check_command(
    target: Model,
    horizon: Horizon = None,
    particles: Particles = 1000,
    seed: Seed = 0,
    calibrate: Calibrate = False,
    short: Short = None,
    series: Series = 200,
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """Looks a model over: simulates it, looks for mistakes, tries filters, and advises one.

    With --calibration it says of each state whether that filter is too certain, too vague or
    shifted: true states of simulated series are ranked among draws of its posterior.
    """
    loaded = load(target)
    check_plot(plot, (".svg", ".png", ".pdf"))
    if short is not None:
        check_known("--filter", [short], FILTERS)
        if not calibrate:
            raise typer.BadParameter("goes with --calibration only", param_hint="--filter")
    horizon = horizon or loaded.horizon or 100
    controls = loaded.controls(horizon) if loaded.model.reads_control else None
    report, paths, found = None, None, None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if short is None:
            report, paths, flt = advice.check(loaded.model, horizon, particles, seed, controls)
            short = report.advised
        else:
            flt = _named(loaded.model, short, particles, horizon, seed, controls)
    if any(issubclass(warning.category, TrainingInterrupted) for warning in caught):
        raise KeyboardInterrupt
    troubles = list(dict.fromkeys(str(w.message) for w in caught if w.category is UserWarning))
    if report is not None:
        report.problems += troubles
    else:
        for line in troubles:
            say(line)
    if calibrate and flt is not None:
        key = jax.random.fold_in(jax.random.key(seed), 1)
        with Counted("series") as tell, warnings_said():
            found = calibration(flt, horizon, key, series=series, controls=controls, tell=tell)
    if plot is not None:
        from nopf.report.figures import calibration_figure, save, trajectory_figure

        if found is not None:
            save(calibration_figure(found), plot)
        elif paths is not None:
            save(trajectory_figure(loaded.model, paths), plot)
    if as_json:
        whole = {} if report is None else dataclasses.asdict(report)
        if found is not None:
            settings = {"filter": short, "particles": particles, "horizon": horizon}
            whole["calibration"] = settings | _as_json(found)
        print(json.dumps(whole))
    else:
        if report is not None:
            _print_report(report, horizon)
        if found is not None:
            exact = isinstance(flt, KalmanFilter)
            words = f"{short}" if exact else f"{short} with {particles} particles"
            _print_calibration(found, words, horizon)
        if plot is not None:
            print(f"{plot}: {'simulated trajectories' if found is None else 'ranks of the truth'}")
    if report is not None and report.problems:
        raise typer.Exit(1)


def _named(
    model: StateSpaceModel, short: str, particles: int, horizon: int, seed: int, controls: Any
) -> Filter:
    """The filter that was asked for."""
    try:
        return advice.set_up(model, short, particles, horizon, jax.random.key(seed), controls)
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
        print(
            f"NOT CALIBRATED in {', '.join(wrong)}: there its spread and quantiles cannot be taken "
            "at their word.\nTry more particles (--particles), or another filter (--filter)."
        )
    else:
        print(f"Nothing is wrong with it, as far as {series} series can tell.")


def _print_report(report: Report, horizon: int) -> None:
    for line in report.findings:
        print(line)
    for line in report.problems:
        print(f"PROBLEM: {line}")
    if not report.problems:
        print("shapes, gradients and angles: nothing wrong found")
    print(f"\n{horizon} simulated steps, {report.particles} particles:\n")
    print("filter       ESS     draws   ms a step   draws for each ms   training")
    for trial in report.trials:
        ess, draws, rate = "–", "exact", "–"
        if trial.ess is not None:
            ess, draws, rate = f"{trial.ess:.0f}", f"{trial.draws:.3g}", f"{trial.rate:.3g}"
        trained = "–" if trial.training is None else f"{trial.training:.0f} s"
        print(
            f"{trial.name:7}{ess:>9}{draws:>10}{trial.milliseconds:>12.2f}{rate:>20}{trained:>11}"
        )
    print(
        "\nESS: particles that count in the last step. Draws: how many independent draws of the "
        "posterior\nwould give means as good (median over steps and states)."
    )
    print(f"\n{report.advice}")
    if report.problems:
        print(f"But first mend what is marked PROBLEM above ({len(report.problems)}).")
