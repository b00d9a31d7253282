"""Which filter suits a model and a recording: what `nopf check` and `--filter auto` say, by one
choice."""

import contextlib
import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from nopf.cache import NoCacheError, own_folder
from nopf.catalogue import CATALOGUE, make_filter
from nopf.command.soundness import looked_over
from nopf.command.trials import (
    AHEAD,
    TRAINED,
    UNTRAINED,
    Trial,
    Tried,
    Tryout,
    advise,
    best_of,
    learning_may_pay,
    set_up,
    try_all,
)
from nopf.command.voice import tell
from nopf.files import write_whole
from nopf.filters import Filter
from nopf.model import StateSpaceModel
from nopf.recipe import Recipe
from nopf.recording import Recording, digest
from nopf.simulate import Trajectories, simulate
from nopf.training.to_file import Series

TRAJECTORIES = 20
ROWS, LEAST_ROWS = 100, 5  # of a series that filters are tried on
MOST_PARTICLES = 1000  # of these filters


@dataclasses.dataclass
class Report:
    """What was found.

    Attributes:
        findings: about the model, in words.
        problems: what should be mended first.
        particles: how many the trials used.
        trials: of filters that apply.
        advice: which filter to use, and why.
        advised: its short name; None if none can be used.
    """

    findings: list[str]
    problems: list[str]
    particles: int
    trials: list[Trial]
    advice: str
    advised: str | None


def check(
    model: StateSpaceModel,
    series: Series,
    particles: int,
    seed: int,
    learn: bool = False,
    recipe: Recipe | None = None,
    progress: bool | None = None,
) -> tuple[Report, Trajectories, Filter | None]:
    """Simulates a model, looks for mistakes, tries filters; hands back the one that it advises.

    Args:
        model: the model.
        series: what is simulated: from `series_like` for a recording.
        particles: of the filters; they are tried with at most `MOST_PARTICLES`.
        seed: of everything random.
        learn: whether a proposal is trained, too.
        recipe: of that training.
        progress: whether it shows a bar; on a terminal only if left out.
    """
    key, particles = jax.random.key(seed), min(particles, MOST_PARTICLES)
    paths = _simulated(model, series, jax.random.fold_in(key, 2), TRAJECTORIES)
    tell("simulated")
    findings, problems = looked_over(model, paths)
    tell("looked over")
    names = (*UNTRAINED, *TRAINED) if learn else UNTRAINED
    tried = _choose(model, series, names, particles, seed, recipe, progress)
    findings += [
        f"{name} does not apply: {reason}"
        for name, reason in tried.refused.items()
        if not CATALOGUE[name].marginal  # That has been said.
    ]
    problems += tried.failed
    best = best_of(tried.trials)
    advised = None if best is None else best.name
    if advised is not None:
        _keep(_file(model, series, UNTRAINED, particles, seed), advised)
    said = advise(tried.trials)
    if not learn and learning_may_pay(tried.trials, particles):
        said += " A learned proposal may be better: --train tries one."
    report = Report(findings, problems, particles, tried.trials, said, advised)
    return report, paths, tried.filters.get(advised or "")


def pick(
    model: StateSpaceModel,
    recording: Recording | None,
    particles: int,
    seed: int,
    say: Callable[[str], None],
    names: Sequence[str] = UNTRAINED,
) -> str:
    """The filter that gives the best means for the time: tried on a simulated series like the first
    rows of a recording, and kept for the next time. What `check` has advised for the same is taken.

    Args:
        model: the model.
        recording: what shall be filtered; None for a stream of which nothing is known yet.
        particles: how many it will have.
        seed: of everything random.
        say: is told which, and why.
        names: of the filters to try.
    """
    series, particles = series_like(model, recording), min(particles, MOST_PARTICLES)
    file = _file(model, series, names, particles, seed)
    kept = _kept(file, model)
    if kept is not None:
        say(f"using --filter {kept}, which was chosen for this model and data before")
        return kept
    say("trying filters on simulated data like yours; --filter NAME uses one without trying any")
    tried = _choose(model, series, names, particles, seed)
    best = best_of(tried.trials)
    if best is None:
        reasons = [*tried.failed, *tried.refused.values()]
        raise ValueError(f"no filter applies to this model: {'; '.join(reasons)}")
    say(advise(tried.trials))
    if learning_may_pay(tried.trials, particles):
        say("a learned proposal may be better: --filter nopf trains one")
    _keep(file, best.name)
    return best.name


def series_like(model: StateSpaceModel, recording: Recording | None) -> Series:
    """What the first rows of a recording are like."""
    if recording is None:
        controls = np.zeros((ROWS, len(model.control_names))) if model.reads_control else None
        return Series(ROWS, controls=controls)
    rows = slice(ROWS)
    missing = np.isnan(recording.observations[rows])
    if len(missing) < LEAST_ROWS:  # too short for a comparison
        return series_like(model, None)
    return Series(
        len(missing),
        times=None if recording.times is None else recording.times[rows],
        controls=None if recording.controls is None else recording.controls[rows],
        start=recording.start,
        missing=None if missing.all() or not missing.any() else missing,
    )


def _simulated(
    model: StateSpaceModel, series: Series, key: Any, batch: int | None = None
) -> Trajectories:
    return simulate(
        model,
        series.horizon,
        key,
        times=series.times,
        controls=series.controls,
        start=series.start,
        batch=batch,
    )


def _choose(
    model: StateSpaceModel,
    series: Series,
    names: Sequence[str],
    particles: int,
    seed: int,
    recipe: Recipe | None = None,
    progress: bool | None = None,
) -> Tried:
    """Tries filters on a simulated series."""
    data_key, run_key = jax.random.split(jax.random.key(seed))
    ys = np.array(_simulated(model, series, data_key).observations, float)
    if series.missing is not None:
        ys[np.asarray(series.missing)] = np.nan

    def make(name: str) -> Filter:
        train_key = jax.random.fold_in(jax.random.key(seed), 3)
        return set_up(model, name, particles, series, train_key, recipe, progress)

    tryout = Tryout(ys, series.times, series.controls, series.start)
    return try_all(names, make, tryout, run_key)


def _file(
    model: StateSpaceModel, series: Series, names: Sequence[str], particles: int, seed: int
) -> Path | None:
    """Where the choice is kept; None if nothing can be."""
    try:
        name = digest(model, series, seed, {"particles": particles, "names": list(names)})
        return own_folder("choices") / f"{name}.json"
    except NoCacheError:
        return None


def _keep(file: Path | None, name: str) -> None:
    if file is not None:
        # It is there to save time; a full disk shall not cost any.
        with contextlib.suppress(OSError):
            write_whole(file, json.dumps({"filter": name}).encode())


def _kept(file: Path | None, model: StateSpaceModel) -> str | None:
    """The filter that was chosen before; None if the file does not name one for this model."""
    if file is None or not file.exists():
        return None
    try:
        found = json.loads(file.read_text())["filter"]
        if found not in (*UNTRAINED, *AHEAD.values(), *TRAINED):
            return None
        if found not in TRAINED:
            make_filter(found, model, 2)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return str(found)
