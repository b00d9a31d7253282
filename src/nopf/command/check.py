"""`nopf check`: looks a model over."""

import dataclasses
import json
import warnings
from pathlib import Path
from typing import Annotated

import typer

from nopf.command.advice import Report, check
from nopf.command.options import AsJson, Model, Seed, check_plot
from nopf.command.target import load
from nopf.training import TrainingInterrupted

Horizon = Annotated[
    int | None, typer.Option(min=2, help="Steps of a simulated trajectory; 100 if left out.")
]
Particles = Annotated[int, typer.Option(min=2, help="Of the filters tried.")]
Plot = Annotated[Path | None, typer.Option(help="Draw simulated trajectories: .svg, .png or .pdf.")]


def check_command(
    target: Model,
    horizon: Horizon = None,
    particles: Particles = 1000,
    seed: Seed = 0,
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """Looks a model over: simulates it, looks for mistakes, tries filters, and advises one."""
    loaded = load(target)
    check_plot(plot, (".svg", ".png", ".pdf"))
    horizon = horizon or loaded.horizon or 100
    controls = loaded.controls(horizon) if loaded.model.reads_control else None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        report, paths = check(loaded.model, horizon, particles, seed, controls)
    if any(issubclass(warning.category, TrainingInterrupted) for warning in caught):
        raise KeyboardInterrupt
    report.problems += [str(w.message) for w in caught if w.category is UserWarning]
    if plot is not None:
        from nopf.report.figures import save, trajectory_figure

        save(trajectory_figure(loaded.model, paths), plot)
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
