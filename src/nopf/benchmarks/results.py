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
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import nopf
from nopf.benchmarks import BENCHMARKS
from nopf.catalogue import CATALOGUE, NAMES, RecipeName
from nopf.files import FileError, read_arrays, read_json, write_arrays, write_whole
from nopf.proposals.fingerprint import fingerprint
from nopf.recipe import Recipe

METRICS = ("nmse", "pnll", "es", "ess", "wt", "made", "picp")
SCORES = tuple(name for name in METRICS if name != "wt")  # averages over steps
COLUMNS = ("benchmark", "filter", "seed", "particles", *METRICS, "log_evidence")
WINDOWS = {"all": 0, "paper": 1}  # the first step that a metric counts
DRAWS = ("draws", "draws_worst")  # further columns, of runs that were repeated
POSITION = "position"  # a further column, of benchmarks with a place
FORMAT = 2
TRAINING_SEED = 0
KIND = "nopf trace"
DRAWN = 300  # particles of a picture
LARGEST = 1e100  # of a number: beyond it sums of squares overflow
SHORTEST = 1e-9  # seconds of a run: draws are divided by them

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
            self._check_links()
        except OSError as error:
            raise ResultsError(
                f"{folder}: cannot be read ({error.strerror}); name another folder"
            ) from None

    def _check_links(self) -> None:
        """Refuses links out of the folder, which may come from a stranger: files would be written
        where they lead."""
        inside = self.folder.resolve()
        for where, folders, files in os.walk(self.folder):
            for path in (Path(where, name) for name in (*folders, *files)):
                if path.is_symlink() and not path.resolve().is_relative_to(inside):
                    raise ResultsError(f"{path}: a symbolic link out of the folder; delete it")

    def _check_stamp(self) -> None:
        try:
            made = read_json(self._stamp)
        except FileError as error:
            raise ResultsError(f"{error}; name another folder") from None
        version, form = made.get("nopf"), made.get("format")
        told = made.get("made", {})
        plain = isinstance(told, dict) and all(
            value is None or isinstance(value, str | int) for value in told.values()
        )
        if not isinstance(version, str) or not isinstance(form, int) or not plain:
            raise ResultsError(
                f"{self._stamp}: not readable (it does not say which nopf made the folder, and on "
                "what); name another folder"
            )
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
        return read_json(self._stamp).get("made", {}) if self._stamp.exists() else {}

    def read(self, cell: Cell, settings: dict[str, Any]) -> Row | None:
        """The row of a finished cell; None if there is none, or none with these settings."""
        file = self._file(cell)
        try:
            kept = read_json(file) if file.exists() else {}
            if kept.get("settings") != settings:
                return None
            row = _checked_row(file, cell, kept.get("row"))
        except FileError:
            return None  # It is run again.
        return row if row.get("repeats", 1) >= cell.repeats else None

    def write(self, cell: Cell, settings: dict[str, Any], row: Row, trace: Trace | None) -> None:
        """Keeps a finished cell."""
        self._file(cell).parent.mkdir(parents=True, exist_ok=True)
        if trace is not None:
            write_arrays(self._file(cell).with_suffix(".trace"), KIND, {}, trace)
        content = json.dumps({"settings": settings, "row": row})
        write_whole(self._file(cell), content.encode())

    def trace(self, cell: Cell) -> Trace | None:
        """What a cell looked like over time, if that was kept.

        Raises:
            FileError: if the file is not what `write` has written.
        """
        file = self._file(cell).with_suffix(".trace")
        return _checked_trace(file, cell) if file.exists() else None

    def rows(self, benchmark: str, window: str = "all") -> list[Row]:
        """The finished cells of a benchmark, by filter, particles and seed.

        Those that were made with settings that no longer hold are left out.

        Args:
            benchmark: its name.
            window: of `WINDOWS`: which steps the metrics are averages of.

        Raises:
            FileError: if a file is not what `write` has written.
        """
        folder = self.folder / benchmark / "cells"
        names = ("benchmark", "filter", "particles", "seed")
        found = []
        for file in sorted(folder.glob("*.json")) if folder.is_dir() else []:
            kept = read_json(file)
            row = kept.get("row")
            if not isinstance(row, dict) or any(name not in row for name in names):
                continue  # not ours
            if isinstance(row["filter"], str) and row["filter"] not in CATALOGUE:
                continue  # of another version
            cell = Cell(**{name: row[name] for name in names})
            numbers = _is_count(cell.particles) and _is_count(cell.seed)
            named = cell.benchmark == benchmark and isinstance(cell.filter, str) and numbers
            if not named or file != self._file(cell):
                raise FileError(f"{file}: holds another cell than its name says; delete it")
            if kept.get("settings") == settings_of(cell):
                whole = _checked_row(file, cell, row)
                found.append(whole | (whole["paper_window"] if window == "paper" else {}))
        return sorted(found, key=lambda r: (NAMES.index(r["filter"]), r["particles"], r["seed"]))

    def benchmarks(self) -> list[str]:
        """Those of which there are results."""
        return [name for name in BENCHMARKS if (self.folder / name / "cells").is_dir()]

    def proposal_file(self, benchmark: str, recipe: RecipeName) -> Path:
        """Where the proposal that a recipe gives belongs."""
        settings = proposal_settings(benchmark, recipe)
        return self.folder / "proposals" / f"{benchmark}-{recipe}-{_digest(settings)}.nopf"

    def training(self, benchmark: str, recipe: RecipeName) -> dict[str, Any] | None:
        """How a proposal was trained, if it was.

        Raises:
            FileError: if the file says something else.
        """
        file = self.proposal_file(benchmark, recipe).with_suffix(".json")
        if not file.exists():
            return None
        record = read_json(file)
        seconds, steps = record.get("seconds"), record.get("steps")
        if not (
            (seconds is None or _is_number(seconds))
            and _is_count(steps)
            and isinstance(record.get("base"), str)
        ):
            raise FileError(f"{file}: does not say how a proposal was trained; delete it")
        return record

    def _file(self, cell: Cell) -> Path:
        name = f"{cell.filter}-{cell.particles}-{cell.seed}.json"
        return self.folder / cell.benchmark / "cells" / name


def write_csv(file: Path, rows: Iterable[Row]) -> None:
    """Rows with the columns of `COLUMNS`, and `POSITION` and those of `DRAWS` if there are any; an
    empty field where there is no number."""
    text = io.StringIO()
    rows = list(rows)
    further = (name for name in (POSITION, *DRAWS) if any(name in row for row in rows))
    columns = [*COLUMNS, *further]
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
        "windows": WINDOWS,
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
        "processor": _processor(),
        "cores": os.cpu_count(),
    }


def _processor() -> str | None:
    """What it calls itself, where the system says so."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or None
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else None


@functools.cache
def _identity(benchmark: str) -> str:
    return _digest(fingerprint(BENCHMARKS[benchmark].model, None))


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def _is_number(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and abs(value) <= LARGEST


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and _is_number(value) and value >= 0


def _is_score(scores: dict[str, Any], name: str) -> bool:
    """Whether it is there, as a number or as None."""
    return name in scores and (scores[name] is None or _is_number(scores[name]))


def _is_path(value: Any, length: int) -> bool:
    """Whether it is a number, or None, for each step."""
    if not isinstance(value, list) or len(value) != length:
        return False
    return all(number is None or _is_number(number) for number in value)


def _checked_row(file: Path, cell: Cell, row: Any) -> Row:
    """The row, if it has all that a row has."""
    if not isinstance(row, dict):
        row = {}
    horizon = BENCHMARKS[cell.benchmark].horizon
    right = {name: row.get(name) == getattr(cell, name) for name in ("benchmark", "filter")}
    right |= {name: _is_count(row.get(name)) for name in ("particles", "seed")}
    right |= {name: _is_number(row.get(name)) for name in ("wt", "compile_seconds")}
    for name in ("log_evidence", *SCORES):
        right[name] = _is_score(row, name)
    paper = row.get("paper_window")
    right["paper_window"] = (
        isinstance(paper, dict)
        and set(paper) == set(SCORES)
        and all(_is_score(paper, name) for name in SCORES)
    )
    right["evidence_path"] = _is_path(row.get("evidence_path"), horizon)
    right["ess_path"] = "ess_path" in row and (
        row["ess_path"] is None or _is_path(row["ess_path"], horizon)
    )
    if POSITION in row:
        right[POSITION] = _is_number(row[POSITION])
    if "repeats" in row or any(name in row for name in DRAWS):
        right["repeats"] = _is_count(row.get("repeats"))
        seconds = row.get("run_seconds")
        right["run_seconds"] = _is_number(seconds) and seconds > SHORTEST
        right |= {name: row.get(name) is None or _is_number(row[name]) for name in DRAWS}
    wrong = [name for name, fits in right.items() if not fits]
    if wrong:
        raise FileError(
            f"{file}: not a cell of results ({', '.join(wrong)} missing or of another kind); "
            "delete it and run nopf bench again"
        )
    return row


def _checked_trace(file: Path, cell: Cell) -> Trace:
    """The arrays of a trace, if they are those of this benchmark."""
    _, trace = read_arrays(file, KIND)
    case = BENCHMARKS[cell.benchmark]
    steps, states, shown = case.horizon, case.model.space.size, len(case.shown)
    drawn = trace["kept"].shape[1:2] if "kept" in trace else ()
    expected: Mapping[str, tuple[int, ...]] = {
        "time": (steps,),
        **dict.fromkeys(("truth", "mean", "low", "high"), (steps, states)),
        "cov": (steps, shown, shown),
        **dict.fromkeys(("proposed", "kept"), (steps, *drawn, shown)),
        "start": (states,),
        "prior": (DRAWN, shown),
    }
    wrong = [
        name
        for name, shape in expected.items()
        if name not in trace
        or trace[name].shape != shape
        or trace[name].dtype.kind != "f"
        or not np.isfinite(trace[name]).all()
    ]
    if wrong:
        raise FileError(
            f"{file}: not a trace of {cell} ({', '.join(wrong)} missing or of another kind); "
            "delete it and run nopf bench again"
        )
    return trace
