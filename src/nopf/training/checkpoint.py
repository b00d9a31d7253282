"""The state of training on disk, so that a killed run goes on where it was."""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from nopf.files import FileError, fill, named_leaves, read_arrays, write_arrays
from nopf.proposals.fingerprint import differences

KIND = "nopf checkpoint"


def write_checkpoint(path: str | os.PathLike[str], run: Any, settings: Mapping[str, Any]) -> None:
    """Keeps a run and the settings that it belongs to."""
    arrays, numbers = _parts(run)
    header = {"settings": settings, "numbers": numbers, "points": len(run.history)}
    write_arrays(path, KIND, header, named_leaves(arrays))


def read_checkpoint(path: str | os.PathLike[str], run: Any, settings: Mapping[str, Any]) -> Any:
    """The kept run, or `run` itself if there is no file.

    Raises:
        FileError: if the file belongs to a training with other settings.
    """
    if not Path(path).exists():
        return run
    header, arrays = read_arrays(path, KIND)
    kept = header["settings"]
    other = differences(kept["model"], settings["model"])
    other += [
        f"another {name}"
        for name in settings
        if name != "model" and kept.get(name) != settings[name]
    ]
    if other:
        raise FileError(
            f"{path}: this checkpoint belongs to another training ({'; '.join(other)}); delete it "
            "to start anew (nopf train does with --fresh), or name another file"
        )
    run = dataclasses.replace(run, **header["numbers"], history=np.zeros((header["points"], 4)))
    tree, _ = _parts(run)
    filled = fill(tree, arrays, path)
    history = filled.pop("history")
    return dataclasses.replace(run, **jax.tree.map(jnp.asarray, filled), history=history)


def settled_base(path: str | os.PathLike[str]) -> str | None:
    """The base that the kept run has settled on, if there is one."""
    if not Path(path).exists():
        return None
    header, _ = read_arrays(path, KIND)
    return str(header["settings"]["base"])


def _parts(run: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    fields = {field.name: getattr(run, field.name) for field in dataclasses.fields(run)}
    numbers = {name: value for name, value in fields.items() if isinstance(value, int | float)}
    arrays = {name: value for name, value in fields.items() if name not in numbers}
    return eqx.filter(arrays, eqx.is_array_like), numbers
