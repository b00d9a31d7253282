"""`nopf train`: a proposal for a model, in a file."""

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any

import jax
import typer

from nopf.benchmarks import BENCHMARKS
from nopf.command.options import (
    AsJson,
    ControlColumns,
    Model,
    ObservationColumns,
    Seed,
    TimeColumn,
    check_writable,
    named_columns,
    recording_of,
    warnings_said,
)
from nopf.command.target import Loaded, load
from nopf.command.voice import say, tell, voice
from nopf.recipe import Recipe
from nopf.recording import DataError, Named, imitation
from nopf.training.to_file import Series, Trained, train_to_file

EXAMPLES = (
    "nopf train robot.py:model --data run.csv --out robot.nopf",
    "nopf train robot.py:model --horizon 100 --out robot.nopf --fresh",
    "nopf filter robot.py:model --data run.csv --proposal robot.nopf --out out.csv",
)

Out = Annotated[Path, typer.Option(help="The file to write the proposal to.")]
Horizon = Annotated[
    int | None,
    typer.Option(
        min=1, help="Number of steps of a simulated trajectory. Not needed for benchmarks."
    ),
]
Data = Annotated[
    Path | None,
    typer.Option(
        "--data", help="A recording whose times, controls and missing cells the simulations have."
    ),
]
RecipeName = Annotated[str, typer.Option(help="fast, the default; or paper, the published recipe.")]
Base = Annotated[
    str | None,
    typer.Option(
        help="What the network corrects: auto, skeleton or linearised. If left out: the recipe's."
    ),
]
Components = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Number of Gaussians of the proposal. If left out: one, or two if one misses a mode.",
    ),
]
Steps = Annotated[int | None, typer.Option(help="Maximum number of gradient steps.")]
MissingRate = Annotated[
    float | None,
    typer.Option(help="Probability that a coordinate of an observation is missing in training."),
]
Fresh = Annotated[
    bool, typer.Option("--fresh", help="Start again, and do not resume an interrupted run.")
]


def train_command(
    target: Model,
    out: Out,
    horizon: Horizon = None,
    recording: Data = None,
    time_column: TimeColumn = None,
    controls: ControlColumns = None,
    observations: ObservationColumns = None,
    recipe: RecipeName = "fast",
    seed: Seed = 0,
    base: Base = None,
    components: Components = None,
    steps: Steps = None,
    missing_rate: MissingRate = None,
    fresh: Fresh = False,
    as_json: AsJson = False,
) -> None:
    """Trains a proposal on data simulated from a model, and writes it to a file.

    If training is interrupted, run the same command again to resume.
    """
    loaded = load(target)
    if recording is None:
        series = _series(loaded, horizon)
    else:
        columns = named_columns(time_column, controls, observations)
        series = _series_like(recording, loaded, columns, horizon)
    given = {
        "base": base,
        "components": components,
        "steps": steps,
        "missing_rate": missing_rate,
    }
    settings = _recipe(recipe, target, given)
    check_writable(out, "--out", target.rpartition(":")[0], recording)
    part = out.with_name(out.name + ".part")
    if fresh:
        part.unlink(missing_ok=True)
    check_writable(part, "--out")
    before = out.exists()
    tell(f"training on series of {series.horizon} steps; it begins with compiling")
    with warnings_said():
        trained = train_to_file(
            loaded.model,
            series,
            jax.random.key(seed),
            settings,
            file=out,
            part=part,
            keep_half=True,
            progress=voice.bars,
        )
    if trained.interrupted and before:
        say(f"{out} is kept as it was; the run is in {part}")
    _print_result(trained, out, as_json)
    if trained.interrupted:
        say("run the same command again to resume")
        raise typer.Exit(130)


def _series(loaded: Loaded, horizon: int | None) -> Series:
    """Series of so many steps; with the controls of the model's file if it reads any."""
    horizon = loaded.horizon if horizon is None else horizon
    if horizon is None:
        raise typer.BadParameter(
            "needed for a model from a file without --data", param_hint="--horizon"
        )
    return Series(
        horizon, controls=loaded.controls(horizon) if loaded.model.reads_control else None
    )


def _series_like(file: Path, loaded: Loaded, columns: Named, horizon: int | None) -> Series:
    """Series like a recording."""
    if horizon is not None:
        raise typer.BadParameter(
            "not with --data: the recording gives the number of steps", param_hint="--horizon"
        )
    try:
        return imitation(loaded.model, recording_of(file, loaded.model, columns))
    except DataError as error:
        raise typer.BadParameter(f"{file}: {error}", param_hint="--data") from None


def _recipe(name: str, target: str, given: dict[str, Any]) -> Recipe:
    """The recipe, with what was given beside its name."""
    if name not in ("fast", "paper"):
        raise typer.BadParameter(f"expected fast or paper, got {name!r}", param_hint="--recipe")
    changes = {option: value for option, value in given.items() if value is not None}
    try:
        if name == "paper":
            return Recipe.paper(target if target in BENCHMARKS else None, **changes)
        return Recipe.fast(**changes)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _print_result(trained: Trained, out: Path, as_json: bool) -> None:
    proposal = trained.proposal
    best = proposal.history[proposal.history[:, 2].argmin()]
    steps, share = int(proposal.history[-1, 0]), float(best[3])
    if as_json:
        result = {
            "file": str(out),
            "base": proposal.recipe.base,
            "steps": steps,
            "seconds": round(trained.seconds, 2),
            "held_out_loss": float(best[2]),
            "held_out_ess_fraction": share,
            "recipe": dataclasses.asdict(proposal.recipe),
        }
        print(json.dumps(result))
    else:
        print(
            f"{out}: {steps} steps in {trained.seconds:.1f} s on the {proposal.recipe.base} base; "
            f"held-out effective sample size {100 * share:.1f} % of the draws"
        )
        if (proposal.recipe.components or 1) > 1:
            print(
                f"The proposal has {proposal.recipe.components} Gaussians, since the posterior has "
                "several modes."
            )
        if proposal.adds_nothing:
            print(
                "The network does not improve the linearised proposal, so filters leave it out; "
                "--filter lpf does the same without a file."
            )
