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
ANEW = "delete it to start anew (nopf train does with --fresh)"


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
    kept = _settings(header, path)
    other = differences(kept["model"], settings["model"])
    other += [
        f"another {name}"
        for name in settings
        if name != "model" and kept.get(name) != settings[name]
    ]
    if other:
        raise FileError(
            f"{path}: this checkpoint belongs to another training ({'; '.join(other)}); {ANEW}, "
            "or name another file"
        )
    # The curve grows; all else has the size that it has in this run.
    curve = arrays.get("['history']", run.history).shape
    if curve != (header.get("points"), *run.history.shape[1:]):
        raise FileError(f"{path}: the header does not fit the curve; {ANEW}")
    blank = np.zeros(curve, run.history.dtype)
    run = dataclasses.replace(run, **_numbers(header, run, path), history=blank)
    tree, _ = _parts(run)
    filled = fill(tree, arrays, path)
    history = filled.pop("history")
    return dataclasses.replace(run, **jax.tree.map(jnp.asarray, filled), history=history)


def settled_base(path: str | os.PathLike[str]) -> str | None:
    """The base that the kept run has settled on, if there is one."""
    if not Path(path).exists():
        return None
    header, _ = read_arrays(path, KIND)
    return str(_settings(header, path)["base"])


def _settings(header: Mapping[str, Any], path: str | os.PathLike[str]) -> dict[str, Any]:
    kept: Any = header.get("settings")
    known = isinstance(kept, dict) and isinstance(kept.get("model"), dict)
    if not known or kept.get("base") not in ("skeleton", "linearised"):
        raise FileError(f"{path}: the header does not say to which training it belongs; {ANEW}")
    return dict(kept)


def _numbers(header: Mapping[str, Any], run: Any, path: str | os.PathLike[str]) -> dict[str, Any]:
    """The numbers of a run, each of the kind that it has in this one."""
    kept, known = header.get("numbers"), _parts(run)[1]
    if not isinstance(kept, dict) or kept.keys() != known.keys():
        raise FileError(f"{path}: the header does not say where the training stood; {ANEW}")
    for name, value in known.items():
        # Counts are written as such, but a loss may be a whole number.
        kinds = (float, int) if isinstance(value, float) else (type(value),)
        if type(kept[name]) not in kinds:
            raise FileError(f"{path}: {name} is no {type(value).__name__}; {ANEW}")
        if isinstance(value, int) and not -1 <= kept[name] < 2**31:
            raise FileError(f"{path}: {name} is out of range; {ANEW}")
    return kept


def _parts(run: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    fields = {field.name: getattr(run, field.name) for field in dataclasses.fields(run)}
    numbers = {name: value for name, value in fields.items() if isinstance(value, int | float)}
    arrays = {name: value for name, value in fields.items() if name not in numbers}
    return eqx.filter(arrays, eqx.is_array_like), numbers
