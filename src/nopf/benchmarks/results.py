"""A folder of results: its files, and what tells whether they still hold."""

import csv
import dataclasses
import datetime
import functools
import hashlib
import io
import json
import os
import platform
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import nopf
from nopf.benchmarks import BENCHMARKS
from nopf.catalogue import CATALOGUE, NAMES, RecipeName
from nopf.files import read_arrays, write_arrays, write_whole
from nopf.proposals.fingerprint import fingerprint
from nopf.recipe import Recipe

METRICS = ("nmse", "pnll", "es", "ess", "wt", "made", "picp")
COLUMNS = ("benchmark", "filter", "seed", "particles", *METRICS, "log_evidence")
DRAWS = ("draws", "draws_worst")  # further columns, of runs that were repeated
FORMAT = 1
TRAINING_SEED = 0
KIND = "nopf trace"

Row = dict[str, Any]
Trace = dict[str, np.ndarray]


class ResultsError(ValueError):
    """A results folder that cannot be used."""


@dataclasses.dataclass(frozen=True)
class Cell:
    """One filter on one seed of a benchmark; run `repeats` times, to see how its means vary."""

    benchmark: str
    filter: str
    particles: int
    seed: int
    repeats: int = dataclasses.field(default=1, compare=False)

    def __str__(self) -> str:
        return f"{self.filter} on {self.benchmark}, {self.particles} particles, seed {self.seed}"


class Results:
    """A folder of results: one small file a finished cell, and the proposals that were trained.

    Args:
        folder: where; made on the first write.

    Raises:
        ResultsError: if it holds results of another version, or something else, or cannot be
            written to.
    """

    def __init__(self, folder: str | os.PathLike[str]):
        self.folder = Path(folder)
        self._stamp = self.folder / "nopf.json"
        try:
            if self.folder.exists() and not self.folder.is_dir():
                raise ResultsError(f"{folder}: expected a folder for results, found a file")
            if self._stamp.exists():
                self._check_stamp()
            # A hidden file is what a kill in the moment of writing may leave.
            elif self.folder.is_dir() and any(f.name[0] != "." for f in self.folder.iterdir()):
                raise ResultsError(
                    f"{folder}: holds something else than results of nopf; name an empty or new "
                    "folder"
                )
        except OSError as error:
            raise ResultsError(
                f"{folder}: cannot be read ({error.strerror}); name another folder"
            ) from None

    def _check_stamp(self) -> None:
        try:
            made = json.loads(self._stamp.read_text())
            version, form = made["nopf"], made["format"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ResultsError(
                f"{self._stamp}: not readable ({error}); name another folder"
            ) from None
        if (version, form) != (nopf.__version__, FORMAT):
            raise ResultsError(
                f"{self.folder}: made by nopf {version} (results format {form}), this is nopf "
                f"{nopf.__version__} (format {FORMAT}); name another folder, or delete this one"
            )

    def prepare(self) -> None:
        """Makes the folder."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if not self._stamp.exists():
                stamp = {"nopf": nopf.__version__, "format": FORMAT, "made": _surroundings()}
                write_whole(self._stamp, json.dumps(stamp, indent=2).encode())
            with tempfile.TemporaryFile(dir=self.folder):
                pass
        except OSError as error:
            raise ResultsError(
                f"{self.folder}: cannot be written to ({error.strerror}); name another folder"
            ) from None

    def made(self) -> dict[str, Any]:
        """When and on what the folder was begun."""
        return (_read_json(self._stamp) or {}).get("made", {})

    def read(self, cell: Cell, settings: dict[str, Any]) -> Row | None:
        """The row of a finished cell; None if there is none, or none with these settings."""
        kept = _read_json(self._file(cell))
        if not kept or kept.get("settings") != settings:
            return None
        return kept["row"] if kept["row"].get("repeats", 1) >= cell.repeats else None

    def write(self, cell: Cell, settings: dict[str, Any], row: Row, trace: Trace | None) -> None:
        """Keeps a finished cell."""
        self._file(cell).parent.mkdir(parents=True, exist_ok=True)
        if trace is not None:
            write_arrays(self._file(cell).with_suffix(".trace"), KIND, {}, trace)
        content = json.dumps({"settings": settings, "row": row})
        write_whole(self._file(cell), content.encode())

    def trace(self, cell: Cell) -> Trace | None:
        """What a cell looked like over time, if that was kept."""
        file = self._file(cell).with_suffix(".trace")
        return read_arrays(file, KIND)[1] if file.exists() else None

    def rows(self, benchmark: str) -> list[Row]:
        """The finished cells of a benchmark, by filter, particles and seed.

        Those that were made with settings that no longer hold are left out.
        """
        folder = self.folder / benchmark / "cells"
        kept = [_read_json(file) for file in folder.glob("*.json")] if folder.is_dir() else []
        names = ("benchmark", "filter", "particles", "seed")
        found = []
        for one in filter(None, kept):
            row = one.get("row", {})
            if any(name not in row for name in names) or row["filter"] not in CATALOGUE:
                continue  # not ours
            cell = Cell(**{name: row[name] for name in names})
            if one.get("settings") == settings_of(cell):
                found.append(row)
        return sorted(found, key=lambda r: (NAMES.index(r["filter"]), r["particles"], r["seed"]))

    def benchmarks(self) -> list[str]:
        """Those of which there are results."""
        return [name for name in BENCHMARKS if (self.folder / name / "cells").is_dir()]

    def proposal_file(self, benchmark: str, recipe: RecipeName) -> Path:
        """Where the proposal that a recipe gives belongs."""
        settings = proposal_settings(benchmark, recipe)
        return self.folder / "proposals" / f"{benchmark}-{recipe}-{_digest(settings)}.nopf"

    def training(self, benchmark: str, recipe: RecipeName) -> dict[str, Any] | None:
        """How a proposal was trained, if it was."""
        return _read_json(self.proposal_file(benchmark, recipe).with_suffix(".json"))

    def _file(self, cell: Cell) -> Path:
        name = f"{cell.filter}-{cell.particles}-{cell.seed}.json"
        return self.folder / cell.benchmark / "cells" / name


def write_csv(file: Path, rows: Iterable[Row]) -> None:
    """Rows with the columns of `COLUMNS`, and those of `DRAWS` if there are any; an empty field
    where there is no number."""
    text = io.StringIO()
    rows = list(rows)
    columns = [*COLUMNS, *(name for name in DRAWS if any(name in row for row in rows))]
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_whole(file, text.getvalue().encode())


def settings_of(cell: Cell) -> dict[str, Any]:
    """What a row depends on, beside the cell itself."""
    case, listing = BENCHMARKS[cell.benchmark], CATALOGUE[cell.filter]
    found: dict[str, Any] = {
        "model": _identity(cell.benchmark),
        "horizon": case.horizon,
        "initial_state": case.initial_state,
        "precision": str(jnp.zeros(()).dtype),
    } | listing.settings(case.tuning)
    if listing.recipe is not None:
        found["proposal"] = _digest(proposal_settings(cell.benchmark, listing.recipe))
    return json.loads(json.dumps(found))


def proposal_settings(benchmark: str, recipe: RecipeName) -> dict[str, Any]:
    """What decides how a proposal comes out."""
    case = BENCHMARKS[benchmark]
    own = {"marginal": True} if recipe == "marginal" else {}
    return own | {
        "model": _identity(benchmark),
        "horizon": case.horizon,
        "recipe": dataclasses.asdict(recipe_of(benchmark, recipe)),
        "seed": TRAINING_SEED,
        "precision": str(jnp.zeros(()).dtype),
    }


def recipe_of(benchmark: str, recipe: RecipeName) -> Recipe:
    """How a proposal is trained for a benchmark."""
    return Recipe.paper(benchmark) if recipe == "paper" else Recipe.fast()


def _surroundings() -> dict[str, Any]:
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "device": jax.devices()[0].platform,
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
    }


@functools.cache
def _identity(benchmark: str) -> str:
    return _digest(fingerprint(BENCHMARKS[benchmark].model, None))


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def _read_json(file: Path) -> dict[str, Any] | None:
    """What is in the file, or None if there is none, or not a whole one."""
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
