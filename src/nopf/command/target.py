"""The model that a command is given."""

import importlib.util
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np
import typer

from nopf.benchmarks import BENCHMARKS
from nopf.gaussian import Numbers
from nopf.model import StateSpaceModel
from nopf.words import did_you_mean


class Loaded(NamedTuple):
    """A model, its horizon if that is known, and the file that it comes from."""

    model: StateSpaceModel
    horizon: int | None = None
    module: ModuleType | None = None

    def controls(self, horizon: int) -> Numbers:
        """Control inputs of a typical series: `controls(steps)` of the model's file."""
        make = getattr(self.module, "controls", None)
        if not callable(make):
            raise typer.BadParameter(
                "this model reads step.control, but its file does not define typical controls: add "
                "a function controls(steps) that returns an array with one row per step"
            )
        try:
            return make(horizon)
        except Exception as error:
            raise typer.BadParameter(
                f"controls({horizon}) of the model's file: {type(error).__name__}: {error}"
            ) from None

    @property
    def landmarks(self) -> np.ndarray | None:
        """Places to mark on a map: `landmarks` of the model's file, `(k, 2)`."""
        try:
            found = np.asarray(getattr(self.module, "landmarks", None), np.float64)
        except (TypeError, ValueError):
            return None
        return found if found.ndim == 2 and found.shape[1] == 2 else None


def load(target: str) -> Loaded:
    """The model that `target` names."""
    if target in BENCHMARKS:
        return Loaded(BENCHMARKS[target].model, BENCHMARKS[target].horizon)
    path, colon, name = target.rpartition(":")
    if not colon or not path.endswith(".py"):
        raise typer.BadParameter(
            f"expected FILE.py:OBJECT or one of {', '.join(BENCHMARKS)}, got {target!r}"
            f"{did_you_mean(target, BENCHMARKS)}"
        )
    if not Path(path).is_file():
        raise typer.BadParameter(f"{path}: no such file")
    module = _execute(path)
    found = getattr(module, name, None)
    if not isinstance(found, StateSpaceModel):
        models = [key for key, value in vars(module).items() if isinstance(value, StateSpaceModel)]
        raise typer.BadParameter(
            f"{path}: expected a nopf.StateSpaceModel named {name}, "
            f"found {'none' if found is None else type(found).__name__}; "
            f"models in this file: {', '.join(models) or 'none'}{did_you_mean(name, models)}"
        )
    return Loaded(found, None, module)


def _execute(path: str) -> ModuleType:
    """The user's file as a module."""
    spec = importlib.util.spec_from_file_location("nopf_user_model", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(Path(path).parent))  # for what lies beside it
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        own = {path, os.path.abspath(path)}
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename in own]
        line = frames[-1].lineno if frames else None
        if isinstance(error, SyntaxError) and error.filename in own:
            line = error.lineno
        where = f"{path}, line {line}" if line else path
        raise typer.BadParameter(f"{where}: {type(error).__name__}: {error}") from None
    return module
