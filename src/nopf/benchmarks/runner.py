"""Runs benchmarks cell by cell. Each finished cell is on disk at once, so a killed run goes on."""

import contextlib
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
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import nopf
from nopf import metrics
from nopf.benchmarks.benchmark import Benchmark
from nopf.benchmarks.catalogue import BENCHMARKS
from nopf.benchmarks.filters import LEARNED, NAMES, make_filter
from nopf.files import read_arrays, write_arrays, write_whole
from nopf.filters import Filter, Posterior
from nopf.model import Trajectories
from nopf.proposals import InnerSamplingProposal, LinearisedProposal, NeuralProposal
from nopf.proposals.fingerprint import fingerprint
from nopf.recipe import Recipe
from nopf.resampling import systematic
from nopf.training.to_file import Series, Trained, train_to_file

METRICS = ("nmse", "pnll", "es", "ess", "wt", "made", "picp")
COLUMNS = ("benchmark", "filter", "seed", "particles", *METRICS, "log_evidence")
FORMAT = 1
TRAINING_SEED = 0

KIND = "nopf trace"
DRAWN = 300  # particles of a picture

Row = dict[str, Any]
Trace = dict[str, np.ndarray]
Outcome = tuple[Row, Trace | None] | Exception


class ResultsError(ValueError):
    """A results folder that cannot be used."""


@dataclasses.dataclass(frozen=True)
class Cell:
    """One filter on one seed of a benchmark."""

    benchmark: str
    filter: str
    particles: int
    seed: int

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
        return kept["row"] if kept and kept.get("settings") == settings else None

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
        names = [field.name for field in dataclasses.fields(Cell)]
        found = []
        for one in filter(None, kept):
            row = one.get("row", {})
            if any(name not in row for name in names) or row["filter"] not in NAMES:
                continue  # not ours
            cell = Cell(**{name: row[name] for name in names})
            if one.get("settings") == settings_of(cell):
                found.append(row)
        order = list(NAMES)
        return sorted(found, key=lambda r: (order.index(r["filter"]), r["particles"], r["seed"]))

    def benchmarks(self) -> list[str]:
        """Those of which there are results."""
        return [name for name in BENCHMARKS if (self.folder / name / "cells").is_dir()]

    def proposal_file(self, benchmark: str, short: str) -> Path:
        """Where the proposal of a learned filter belongs."""
        settings = proposal_settings(benchmark, short)
        return self.folder / "proposals" / f"{benchmark}-{short}-{_digest(settings)}.nopf"

    def training(self, benchmark: str, short: str) -> dict[str, Any] | None:
        """How a proposal was trained, if it was."""
        return _read_json(self.proposal_file(benchmark, short).with_suffix(".json"))

    def _file(self, cell: Cell) -> Path:
        name = f"{cell.filter}-{cell.particles}-{cell.seed}.json"
        return self.folder / cell.benchmark / "cells" / name


def plan(
    benchmarks: Sequence[str],
    filters: Sequence[str],
    seeds: int,
    particles: Sequence[int] | None = None,
) -> tuple[list[Cell], list[str]]:
    """The cells of a run, and why some filters have none.

    Args:
        benchmarks, filters: by name.
        seeds: from 0 on.
        particles: numbers of particles; the paper's if left out.
    """
    cells, skipped = [], []
    for name in benchmarks:
        case = BENCHMARKS[name]
        for short in filters:
            if short not in LEARNED:
                try:
                    make_filter(short, case)
                except ValueError as error:
                    skipped.append(f"{short} does not apply to {name}: {error}")
                    continue
            cells += [
                Cell(name, short, n, seed)
                for n in particles or [case.particles]
                for seed in range(seeds)
            ]
    return cells, skipped


def run(
    results: Results,
    cells: Sequence[Cell],
    *,
    workers: int = 0,
    cluster: str | None = None,
    tell: Callable[[int, int], None] = lambda done, total: None,
    progress: bool | None = None,
) -> tuple[int, list[str]]:
    """Trains what is to be trained and runs the cells that are not finished yet.

    Args:
        results: where they belong.
        cells: from `plan`.
        workers: processes of a local Dask cluster; 0 to run here.
        cluster: address of a running Dask scheduler.
        tell: is told how many cells are done, of how many.
        progress: whether training shows a bar; on a terminal only if left out.

    Returns:
        how many cells were run now, and what went wrong in those that failed.
    """
    results.prepare()
    settings = {cell: settings_of(cell) for cell in cells}
    open_cells = [cell for cell in cells if results.read(cell, settings[cell]) is None]
    done, failures = len(cells) - len(open_cells), []
    if not open_cells:
        tell(done, len(cells))
        return 0, []
    # The cluster first: whoever has none shall not learn it after hours of training.
    with _mapper(workers, cluster) as run_all:
        for benchmark, short in dict.fromkeys((cell.benchmark, cell.filter) for cell in open_cells):
            if short in LEARNED:
                train_proposal(results, benchmark, short, progress)
        tell(done, len(cells))
        jobs = [(cell, _proposal_bytes(results, cell)) for cell in open_cells]
        for cell, outcome in run_all(jobs):
            if isinstance(outcome, Exception):
                failures.append(f"{cell} failed: {type(outcome).__name__}: {outcome}")
            else:
                results.write(cell, settings[cell], *outcome)
            done += 1
            tell(done, len(cells))
    return len(open_cells), failures


def train_proposal(
    results: Results, benchmark: str, short: str, progress: bool | None = None
) -> Path:
    """Trains the proposal of a learned filter, unless it is there; goes on if it was cut short."""
    target = results.proposal_file(benchmark, short)
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)

    def record(trained: Trained) -> None:
        proposal = trained.proposal
        content = {
            "benchmark": benchmark,
            "filter": short,
            "seconds": None if trained.resumed else trained.seconds,
            "base": proposal.recipe.base,
            "steps": int(proposal.history[-1, 0]),
        }
        write_whole(target.with_suffix(".json"), json.dumps(content).encode())

    case = BENCHMARKS[benchmark]
    train_to_file(
        case.model,
        Series(case.horizon),
        jax.random.key(TRAINING_SEED),
        recipe_of(benchmark, short),
        file=target,
        part=target.with_suffix(".part"),
        before_saving=record,
        progress=progress,
    )
    return target


def recipe_of(benchmark: str, short: str) -> Recipe:
    """How the proposal of a learned filter is trained."""
    return Recipe.paper(benchmark) if short == "nopf-paper" else Recipe.fast()


def proposal_settings(benchmark: str, short: str) -> dict[str, Any]:
    """What decides how a proposal comes out."""
    case = BENCHMARKS[benchmark]
    return {
        "model": _identity(benchmark),
        "horizon": case.horizon,
        "recipe": dataclasses.asdict(recipe_of(benchmark, short)),
        "seed": TRAINING_SEED,
        "precision": str(jnp.zeros(()).dtype),
    }


def run_cell(cell: Cell, proposal: bytes | None) -> tuple[Row, Trace | None]:
    """Filters the data of a seed and scores the result.

    Wall time is that of the whole run with every step's particles kept (the exact filter has none;
    those that it is scored by are drawn afterwards). The first cell of a filter runs twice, so that
    compilation is not in it.

    Args:
        cell: which.
        proposal: the file of the learned one.

    Returns:
        the row of the table; and for the first seed what it looks like over time.
    """
    case = BENCHMARKS[cell.benchmark]
    flt, warm = _filter(cell.benchmark, cell.filter, cell.particles, proposal)
    path = case.simulate(cell.seed)
    filter_key, metrics_key = jax.random.split(jax.random.fold_in(jax.random.key(cell.seed), 1))

    exact = cell.filter == "kf"

    def timed() -> tuple[Posterior, float]:
        started = time.perf_counter()
        keep = None if exact else "particles"
        posterior = flt.run(path.observations, key=filter_key, keep=keep)  # type: ignore[arg-type]
        jax.block_until_ready((posterior.mean, posterior.particles))
        return posterior, time.perf_counter() - started

    if not warm:
        warm.append(timed()[1])
    posterior, seconds = timed()
    if exact:
        posterior = flt.run(path.observations, key=filter_key, keep="particles")
    scores = metrics.evaluate(metrics_key, case.model, posterior, path)
    numbers = scores | {"wt": seconds} | ({"made": None} if exact else {})
    row = dataclasses.asdict(cell) | {
        name: value if value is not None and np.isfinite(value) else None
        for name, value in numbers.items()
    }
    more = {
        "compile_seconds": max(0.0, warm[0] - seconds),
        "ess_path": None if posterior.ess is None else _rounded(posterior.ess),
        "evidence_path": _rounded(posterior.log_evidence_increments),
    }
    trace = _trace(case, posterior, path) if cell.seed == 0 else None
    return {name: row[name] for name in COLUMNS} | more, trace


def _trace(case: Benchmark, posterior: Posterior, path: Trajectories) -> Trace:
    """Truth, estimates, and a sample of the particles in the benchmark's plane."""
    assert posterior.particles is not None
    assert posterior.log_weights is not None
    plane = [case.model.state_names.index(name) for name in case.plane]
    particles = np.asarray(posterior.particles)[..., plane]
    count = particles.shape[1]
    keys = jax.random.split(jax.random.key(0), len(particles))
    spaced = np.linspace(0, count - 1, min(DRAWN, count)).astype(int)
    drawn = jax.vmap(systematic)(keys, posterior.log_weights)[:, spaced]
    low, high = (posterior.quantile_levels.index(level) for level in (0.05, 0.95))
    return {
        "time": np.asarray(posterior.times),
        "truth": np.asarray(path.states),
        "mean": np.asarray(posterior.mean),
        "low": np.asarray(posterior.quantiles[:, low]),
        "high": np.asarray(posterior.quantiles[:, high]),
        "cov": np.asarray(posterior.cov)[:, plane][:, :, plane],
        "proposed": particles[:, spaced],
        "kept": np.take_along_axis(particles, np.asarray(drawn)[..., None], axis=1),
    }


def _rounded(values: Any) -> list[float | None]:
    """Six digits; None for what JSON cannot hold."""
    return [float(f"{v:.6g}") if np.isfinite(v) else None for v in np.asarray(values).tolist()]


def write_csv(file: Path, rows: Iterable[Row]) -> None:
    """Rows with the columns of `COLUMNS`; an empty field where there is no number."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_whole(file, text.getvalue().encode())


@functools.lru_cache(maxsize=1)
def _filter(
    benchmark: str, short: str, particles: int, proposal: bytes | None
) -> tuple[Filter, list[float]]:
    """A filter, and the seconds of its first run once there was one."""
    loaded = None
    if proposal is not None:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "proposal.nopf"
            file.write_bytes(proposal)
            loaded = NeuralProposal.load(file, BENCHMARKS[benchmark].model)
    return make_filter(short, BENCHMARKS[benchmark], particles, loaded), []


@contextlib.contextmanager
def _mapper(workers: int, cluster: str | None) -> Iterator[Callable[[list], Iterator]]:
    """A function that runs jobs and gives cells with their rows as they are done."""
    if not workers and cluster is None:

        def here(jobs: list) -> Iterator[tuple[Cell, Outcome]]:
            for cell, proposal in jobs:
                try:
                    outcome: Outcome = run_cell(cell, proposal)
                except Exception as error:
                    outcome = error
                yield cell, outcome

        yield here
        return
    from nopf.benchmarks.cluster import on_cluster

    with on_cluster(workers, cluster) as there:
        yield there


def _proposal_bytes(results: Results, cell: Cell) -> bytes | None:
    if cell.filter not in LEARNED:
        return None
    return results.proposal_file(cell.benchmark, cell.filter).read_bytes()


def settings_of(cell: Cell) -> dict[str, Any]:
    """What a row depends on, beside the cell itself."""
    case = BENCHMARKS[cell.benchmark]
    found: dict[str, Any] = {
        "model": _identity(cell.benchmark),
        "horizon": case.horizon,
        "initial_state": case.initial_state,
        "precision": str(jnp.zeros(()).dtype),
    }
    if cell.filter == "nupf":
        found["eta"] = case.eta
    if cell.filter == "upf":
        found["stand_in_noise"] = case.stand_in_noise
    if cell.filter == "ispf":
        found["candidates"] = InnerSamplingProposal().candidates
    if cell.filter == "lpf":
        found["iterations"] = LinearisedProposal().iterations
    if cell.filter in LEARNED:
        found["proposal"] = _digest(proposal_settings(cell.benchmark, cell.filter))
    return json.loads(json.dumps(found))


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
