"""The command `nopf`."""

import dataclasses
import importlib.util
import json
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Annotated, Any

import jax
import typer

from nopf.benchmarks import BENCHMARKS
from nopf.model import StateSpaceModel
from nopf.recipe import Recipe
from nopf.training import TrainingInterrupted, train

app = typer.Typer(
    help="Particle filters that learn where to put their particles.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def _commands() -> None:
    """Keeps `train` a command of its own while there is only one."""


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
    except (ValueError, TypeError, FloatingPointError, OSError) as error:
        print(f"nopf: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("nopf: interrupted", file=sys.stderr)
        sys.exit(130)
