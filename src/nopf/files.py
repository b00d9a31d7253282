"""Files of arrays with a JSON header: written whole or not at all, read without running code."""

import contextlib
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import safetensors
import safetensors.numpy

VERSION = 1
PART = ".nopf-part-"  # begins the names of files that are being written
STALE = 24 * 3600  # seconds after which they were left behind


class FileError(ValueError):
    """A file that is not what it should be."""


def target_of(path: str | os.PathLike[str]) -> Path:
    """Where a file of this name is written: behind a symbolic link that is the file it leads to.

    Raises:
        FileError: if there is something that no file may replace.
        FileNotFoundError: if its folder does not exist.
    """
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise FileError(f"{path} is a folder; name a file")
    if not target.parent.is_dir():
        raise FileNotFoundError(
            f"{path}: the folder {Path(path).parent} does not exist; make it first"
        )
    if Path(path).is_symlink() and not target.exists():
        raise FileError(f"{path} is a symbolic link to nothing; delete it, or name another file")
    if target.exists() and not target.is_file():
        raise FileError(f"{path} is a device, a pipe or a socket; name a file")
    return target


def write_whole(path: str | os.PathLike[str], content: bytes) -> None:
    """Writes beside the target and moves it there, so that nobody ever sees half a file.

    The file keeps the mode that it had.
    """
    target = target_of(path)
    _sweep(target.parent)
    # A name that nobody can foresee, and that is never one of the user's.
    handle, part = tempfile.mkstemp(prefix=PART, dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(part, _mode_of(target))
        os.replace(part, target)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise


def _mode_of(target: Path) -> int:
    """The mode of a file, or that of a new one."""
    if target.exists():
        return target.stat().st_mode & 0o777
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask


def _sweep(folder: Path) -> None:
    """Deletes what a kill in the moment of writing has left, once nobody can be writing it."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(PART) and entry.is_file(follow_symlinks=False):
                age = time.time() - entry.stat(follow_symlinks=False).st_mtime
                if age > STALE:
                    os.unlink(entry.path)


def write_arrays(
    path: str | os.PathLike[str],
    kind: str,
    header: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
) -> None:
    """A safetensors file whose metadata hold `kind`, a format version, a checksum and `header`."""
    text = json.dumps(header)
    # Of an array that is not contiguous safetensors would write other numbers.
    arrays = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    metadata = {
        "kind": kind,
        "version": str(VERSION),
        "header": text,
        "checksum": _checksum(text, arrays),
    }
    write_whole(path, safetensors.numpy.save(arrays, metadata))


def read_arrays(
    path: str | os.PathLike[str], kind: str
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Header and arrays of a file that `write_arrays` wrote.

    Raises:
        FileError: if it is truncated, changed, of another kind or of a newer version.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path}: no such file")
    try:
        with safetensors.safe_open(path, framework="numpy") as source:
            metadata = source.metadata() or {}
            arrays = {name: source.get_tensor(name) for name in source.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, ValueError, TypeError) as error:
        raise FileError(
            f"{path}: expected a {kind}, but the file is damaged or of another kind ({error})"
        ) from None
    found = metadata.get("kind")
    if found != kind:
        raise FileError(f"{path}: expected a {kind}, found {found or 'a foreign safetensors file'}")
    version = metadata.get("version")
    if version != str(VERSION):
        raise FileError(
            f"{path}: written in format {version}, this nopf reads format {VERSION}; "
            "upgrade nopf, or make the file again"
        )
    text = metadata.get("header", "")
    if metadata.get("checksum") != _checksum(text, arrays):
        raise FileError(f"{path}: the content was changed after it was written; make it again")
    try:
        return _json_object(text), arrays
    except ValueError as error:
        raise FileError(f"{path}: the header is not readable ({error})") from None


def read_json(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        FileError: if it holds something else, or cannot be read.
    """
    try:
        return _json_object(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FileError(f"{path}: not readable ({error})") from None


def named_leaves(tree: Any) -> dict[str, np.ndarray]:
    """The arrays of a tree by their path in it."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


def fill(tree: Any, arrays: Mapping[str, np.ndarray], path: str | os.PathLike[str]) -> Any:
    """The tree with its leaves taken from `arrays`, which must have the same names and shapes."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    names = [jax.tree_util.keystr(where) for where, _ in leaves]
    if set(names) != set(arrays):
        odd = sorted(set(names) ^ set(arrays))
        raise FileError(f"{path}: the arrays do not fit the header: {', '.join(odd[:3])}")
    for name, (_, leaf) in zip(names, leaves, strict=True):
        if np.shape(leaf) != arrays[name].shape:
            raise FileError(
                f"{path}: {name} has shape {arrays[name].shape}, "
                f"the header asks for {np.shape(leaf)}"
            )
        expected = np.dtype(getattr(leaf, "dtype", type(leaf)))
        if expected.kind != arrays[name].dtype.kind:
            raise FileError(f"{path}: {name} is {arrays[name].dtype}, expected {expected}")
    return jax.tree_util.tree_unflatten(structure, [arrays[name] for name in names])


def _json_object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except RecursionError:
        raise ValueError("brackets within brackets, too many") from None
    if not isinstance(found, dict):
        raise ValueError(f"expected an object, found {type(found).__name__}")
    return found


def _checksum(text: str, arrays: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(arrays[name]).tobytes())
    return digest.hexdigest()
