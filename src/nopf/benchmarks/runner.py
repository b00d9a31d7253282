"""Runs benchmarks cell by cell. Each finished cell is on disk at once, so a killed run goes on."""

import contextlib
import dataclasses
import functools
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from nopf import metrics
from nopf.benchmarks import BENCHMARKS
from nopf.benchmarks.benchmark import Benchmark
from nopf.benchmarks.cluster import Job, Outcome, RunAll, on_cluster
from nopf.benchmarks.results import (
    COLUMNS,
    DRAWN,
    POSITION,
    SCORES,
    TRAINING_SEED,
    WINDOWS,
    Cell,
    Results,
    Row,
    Trace,
    recipe_of,
    settings_of,
)
from nopf.catalogue import CATALOGUE, RecipeName
from nopf.files import write_whole
from nopf.filters import Filter, KalmanFilter, Posterior
from nopf.proposals import NeuralProposal
from nopf.resampling import systematic
from nopf.simulate import Trajectories
from nopf.training.to_file import Series, Trained, train_to_file

EXACT = 1e10  # draws: more are rounding errors


def plan(
    benchmarks: Sequence[str],
    filters: Sequence[str],
    seeds: int,
    particles: Sequence[int] | None = None,
    repeats: int = 1,
) -> tuple[list[Cell], list[str]]:
    """The cells of a run, and why some filters have none.

    Args:
        benchmarks, filters: by name.
        seeds: from 0 on.
        particles: numbers of particles; the paper's if left out.
        repeats: how often each runs on the same data.
    """
    cells, skipped = [], []
    for name in benchmarks:
        case = BENCHMARKS[name]
        for short in filters:
            if CATALOGUE[short].recipe is None or CATALOGUE[short].marginal:
                try:
                    if CATALOGUE[short].recipe is None:
                        case.make_filter(short)
                    else:
                        case.model_of(short)
                except ValueError as error:
                    skipped.append(f"{short} does not apply to {name}: {error}")
                    continue
            cells += [
                Cell(name, short, n, seed, repeats)
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
        recipes = [(cell.benchmark, CATALOGUE[cell.filter].recipe) for cell in open_cells]
        for benchmark, recipe in dict.fromkeys(recipes):
            if recipe is not None:
                train_proposal(results, benchmark, recipe, progress)
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
    results: Results, benchmark: str, recipe: RecipeName, progress: bool | None = None
) -> Path:
    """Trains a proposal by a recipe, unless it is there; goes on if it was cut short."""
    target = results.proposal_file(benchmark, recipe)
    if target.exists():
        NeuralProposal.load(target)  # A damaged one is named now, and not once for each cell.
        return target
    target.parent.mkdir(parents=True, exist_ok=True)

    def record(trained: Trained) -> None:
        proposal = trained.proposal
        content = {
            "benchmark": benchmark,
            "recipe": recipe,
            "seconds": None if trained.resumed else trained.seconds,
            "base": proposal.recipe.base,
            "steps": int(proposal.history[-1, 0]),
        }
        write_whole(target.with_suffix(".json"), json.dumps(content).encode())

    case = BENCHMARKS[benchmark]
    train_to_file(
        case.model_of("mnopf") if recipe == "marginal" else case.model,
        Series(case.horizon),
        jax.random.key(TRAINING_SEED),
        recipe_of(benchmark, recipe),
        file=target,
        part=target.with_suffix(".part"),
        before_saving=record,
        progress=progress,
    )
    return target


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

    exact = isinstance(flt, KalmanFilter)

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
    # The exact filter has no particles: how near the drawn ones are says nothing of it.
    whole, paper = (
        {name: None if exact and name == "made" else _finite(value) for name, value in own.items()}
        for own in metrics.evaluate_from(
            list(WINDOWS.values()), metrics_key, case.model, posterior, path
        )
    )
    row = dataclasses.asdict(cell) | whole | {"wt": seconds}
    more = {
        "paper_window": {name: paper[name] for name in SCORES},
        "compile_seconds": max(0.0, warm[0] - seconds),
        "ess_path": None if posterior.ess is None else _rounded(posterior.ess),
        "evidence_path": _rounded(posterior.log_evidence_increment),
    }
    if case.has_place:
        more[POSITION] = _position_error(case, posterior, path)
    if cell.repeats > 1 and not exact:
        more |= _draws(flt, path.observations, filter_key, cell.repeats)
    trace = _trace(case, posterior, path) if cell.seed == 0 else None
    return {name: row[name] for name in COLUMNS} | more, trace


def _draws(flt: Filter, ys: Any, key: Any, repeats: int) -> dict[str, Any]:
    """What the posterior means are worth, by repeated runs on the same data, and their time."""
    jax.block_until_ready(flt.run(ys, key=key).mean)  # compiles what keeps no particles
    started, runs = time.perf_counter(), []
    for one in jax.random.split(key, repeats):
        runs.append(flt.run(ys, key=one).info)
        jax.block_until_ready(runs[-1].mean)
    seconds = (time.perf_counter() - started) / repeats
    means, stds = (np.stack([getattr(run, name) for run in runs]) for name in ("mean", "std"))
    draws = metrics.draws(flt.model.space, means, stds)[1:]
    by_state = np.median(draws, axis=0)
    return {
        "draws": _unless_exact(np.median(draws)),
        "draws_worst": _unless_exact(np.min(by_state)),
        "run_seconds": seconds,
        "repeats": repeats,
    }


def _position_error(case: Benchmark, posterior: Posterior, path: Trajectories) -> float:
    """Root mean square distance of the posterior mean from the true place, over all steps."""
    apart = (np.asarray(posterior.mean) - np.asarray(path.states))[:, case.shown_indices]
    return float(np.sqrt(np.mean(np.sum(np.square(apart, dtype=np.float64), axis=1))))


def _finite(value: float | None) -> float | None:
    """None for what JSON cannot hold."""
    return value if value is not None and np.isfinite(value) else None


def _unless_exact(draws: Any) -> float | None:
    """None where means differ between runs by rounding only."""
    return float(draws) if draws < EXACT else None


def _trace(case: Benchmark, posterior: Posterior, path: Trajectories) -> Trace:
    """Truth, estimates, and a sample of the particles in the coordinates that are shown."""
    assert posterior.particles is not None
    assert posterior.log_weights is not None
    shown = case.shown_indices
    particles = np.asarray(posterior.particles)[..., shown]
    count = particles.shape[1]
    keys = jax.random.split(jax.random.key(0), len(particles))
    spaced = np.linspace(0, count - 1, min(DRAWN, count)).astype(int)
    drawn = jax.vmap(systematic)(keys, posterior.log_weights)[:, spaced]
    priors = jax.vmap(case.model.prior.sample)(jax.random.split(jax.random.key(0), DRAWN))
    low, high = (posterior.quantile_levels.index(level) for level in (0.05, 0.95))
    return {
        "time": np.asarray(posterior.times),
        "truth": np.asarray(path.states),
        "mean": np.asarray(posterior.mean),
        "low": np.asarray(posterior.quantiles[:, low]),
        "high": np.asarray(posterior.quantiles[:, high]),
        "cov": np.asarray(posterior.cov)[:, shown][:, :, shown],
        "start": np.asarray(path.initial_state),
        "prior": np.asarray(priors)[:, shown],
        "proposed": particles[:, spaced],
        "kept": np.take_along_axis(particles, np.asarray(drawn)[..., None], axis=1),
    }


def _rounded(values: Any) -> list[float | None]:
    """Six digits; None for what JSON cannot hold."""
    return [float(f"{v:.6g}") if np.isfinite(v) else None for v in np.asarray(values).tolist()]


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
            loaded = NeuralProposal.load(file, BENCHMARKS[benchmark].model_of(short))
    return BENCHMARKS[benchmark].make_filter(short, particles, loaded), []


@contextlib.contextmanager
def _mapper(workers: int, cluster: str | None) -> Iterator[RunAll]:
    """A function that runs jobs and gives cells with their rows as they are done."""
    if workers or cluster is not None:
        with on_cluster(run_cell, workers, cluster) as there:
            yield there
        return

    def here(jobs: Sequence[Job]) -> Iterator[tuple[Cell, Outcome]]:
        for cell, proposal in jobs:
            try:
                outcome: Outcome = run_cell(cell, proposal)
            except Exception as error:
                outcome = error
            yield cell, outcome

    yield here


def _proposal_bytes(results: Results, cell: Cell) -> bytes | None:
    recipe = CATALOGUE[cell.filter].recipe
    return None if recipe is None else results.proposal_file(cell.benchmark, recipe).read_bytes()
