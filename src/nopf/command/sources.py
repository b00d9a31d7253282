"""Which recordings `--data` names, where it names many, and what their estimates are called."""

import glob
import hashlib
import os
import urllib.parse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import typer

from nopf.model import StateSpaceModel
from nopf.recording import (
    DataError,
    Named,
    Recording,
    Run,
    content_of,
    read_recording,
    read_run,
    runs_of,
)

ENDINGS = (".csv", ".csv.gz", ".parquet", ".tsv", ".txt")
SUMMARY = "summary"


class Source(NamedTuple):
    """One of many recordings.

    Attributes:
        path: its file, or the Parquet data that it is a part of.
        name: what its estimates are called: a path in the folder of estimates, without an ending.
        column: the one that names the run, if it is a part.
        run: which one it is.
    """

    path: Path
    name: str
    column: str | None = None
    run: Run | None = None

    def __str__(self) -> str:
        return str(self.path) if self.run is None else f"{self.path}, run {self.run}"

    def read(self, model: StateSpaceModel, columns: Named) -> Recording:
        """The recording, for a model."""
        if self.column is None or self.run is None:
            return read_recording(self.path, model, columns)
        return read_run(self.path, self.column, self.run, model, columns)

    def digest(self) -> bytes:
        """Of all that it holds."""
        if self.column is None or self.run is None:
            return hashlib.sha256(self.path.read_bytes()).digest()
        return hashlib.sha256(content_of(self.path, self.column, self.run)).digest()


def several(data: str, column: str | None = None) -> list[Source] | None:
    """The recordings that a pattern, a folder or a column of runs names; None if there is but one.

    Args:
        data: what `--data` was given.
        column: the one that names the run of each row.

    Raises:
        typer.BadParameter: if there are none, or two have one name.
    """
    if column is not None:
        return _checked(data, _runs(data, column))
    if Path(data).is_dir():
        files = sorted(Path(data).iterdir())
        found = [path for path in files if path.name.lower().endswith(ENDINGS)]
    elif glob.has_magic(data) and not Path(data).exists():
        found = [Path(name) for name in sorted(glob.glob(data, recursive=True))]
    else:
        return None
    if not found:
        raise typer.BadParameter(
            f"{data}: there is no recording (names end in {', '.join(ENDINGS)}); if each recording "
            f"is in a folder of its own, write '{Path(data) / '*' / '*.csv'}'"
            if Path(data).is_dir()
            else f"{data}: there is no recording of that name",
            param_hint="--data",
        )
    # Where each lies in a folder of its own, the folder's name tells them apart.
    common = os.path.commonpath([path.parent for path in found])
    return _checked(data, [Source(path, _bare(path.relative_to(common))) for path in found])


def check_folder(out: Path, sources: Sequence[Source]) -> None:
    """Refuses a folder of estimates in which recordings lie."""
    if out.exists() and not out.is_dir():
        raise typer.BadParameter(f"{out}: expected a folder", param_hint="--out")
    for path in dict.fromkeys(source.path for source in sources):
        within = [path.resolve()] if path.is_dir() else []
        if out.resolve() in (*within, path.resolve().parent, *path.absolute().parents):
            raise typer.BadParameter(
                f"{out}: {path} is read from there; name another folder", param_hint="--out"
            )


def _runs(data: str, column: str) -> list[Source]:
    path = Path(data)
    if not path.exists():
        raise typer.BadParameter(
            f"{data}: no such file or folder; --run needs Parquet data", param_hint="--data"
        )
    try:
        runs = runs_of(path, column)
    except DataError as error:
        raise typer.BadParameter(str(error), param_hint="--run") from None
    # A run may be called anything; what it is called as a file is no path.
    return [
        Source(path, urllib.parse.quote(str(run), safe=" ").replace("..", "%2E%2E"), column, run)
        for run in runs
    ]


def _checked(data: str, sources: list[Source]) -> list[Source]:
    names: set[str] = set()
    for source in sources:
        if source.name in names:
            raise typer.BadParameter(
                f"{data}: several recordings are called {source.name}, so their estimates would "
                "have the same name; rename them, or run the command for each folder",
                param_hint="--data",
            )
        names.add(source.name)
    if SUMMARY in names:
        raise typer.BadParameter(
            f"{data}: the summary would overwrite the estimates of a recording called {SUMMARY}; "
            "rename the recording",
            param_hint="--data",
        )
    return sources


def _bare(path: Path) -> str:
    """A file's name without what tells its format."""
    name = path.as_posix()
    return next((name[: -len(end)] for end in ENDINGS if name.lower().endswith(end)), name)
