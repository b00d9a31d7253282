"""What `nopf filter` does: a filter for a user's model, over a recording or a live stream."""

import dataclasses
import hashlib
import json
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

import nopf
from nopf.catalogue import make_filter
from nopf.filters import Filter, Monitor, Posterior
from nopf.model import StateSpaceModel
from nopf.proposals import NeuralProposal
from nopf.proposals.fingerprint import fingerprint
from nopf.proposals.proposal import why_not_additive
from nopf.recipe import Recipe
from nopf.recording import DataError, Recording, Row, estimate_rows
from nopf.training import TrainingInterrupted, train

LONGEST = 500  # steps of a recording that training imitates
LIVE_HORIZON, LIVE_MISSING = 100, 0.1  # where nothing is known of a stream yet


def start_time(model: StateSpaceModel, first: float | None) -> float | None:
    """The prior's time: one `dt` before the first observation."""
    return None if first is None else first - model.dt


def make_user_filter(
    model: StateSpaceModel, name: str, particles: int, proposal: NeuralProposal | None
) -> Filter:
    """A filter by its short name, for a user's model."""
    return make_filter(name, model, particles, proposal=proposal)


def proposal_for(
    model: StateSpaceModel,
    recording: Recording | None,
    seed: int,
    say: Callable[[str], None],
    folder: Path | None = None,
) -> NeuralProposal:
    """A proposal for a model and a recording: from the cache, or trained now.

    Training imitates the recording: its times, its controls, and what is missing in it.

    Args:
        model: the model.
        recording: what shall be filtered; None for a stream of which nothing is known yet.
        seed: of training.
        say: is told what happens.
        folder: the cache; the user's if left out.
    """
    if recording is None:
        if model.reads_control:
            raise DataError(
                "this model reads step.control, and how a live robot will be driven is not known "
                "yet: train on a recording first (nopf train MODEL --data run.csv --out FILE), "
                "then pass --proposal FILE"
            )
        settings: dict[str, Any] = {"horizon": LIVE_HORIZON}
        additive = why_not_additive(model) is None
        recipe = Recipe.fast(missing_rate=LIVE_MISSING if additive else 0.0)
    else:
        settings, recipe = imitation(model, recording), Recipe.fast()
    identity = {
        "nopf": nopf.__version__,
        "model": fingerprint(model, _controls(recording)),
        "recipe": dataclasses.asdict(recipe),
        "settings": {key: np.asarray(value).tolist() for key, value in settings.items()},
        "seed": seed,
        "precision": str(jax.numpy.zeros(()).dtype),
    }
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
    folder = cache_folder() if folder is None else folder
    file = folder / f"{digest}.nopf"
    if file.exists():
        try:
            proposal = NeuralProposal.load(file, model)
        except ValueError as error:
            say(f"the proposal that was kept cannot be used ({error})")
        else:
            say("using the proposal that was trained for this model and data before")
            return proposal
    kept = f"training a proposal on {settings['horizon']} simulated steps like yours; it is "
    part: Path | None = file.with_suffix(".part")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
        say(f"{kept}kept for the next time (--filter bpf or lpf need none)")
    except OSError as error:
        part = None
        say(
            f"{kept}not kept, since the cache {folder} cannot be written to ({error.strerror}); "
            "NOPF_CACHE names another"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("error", TrainingInterrupted)
        try:
            proposal = train(
                model, key=jax.random.key(seed), recipe=recipe, checkpoint=part, **settings
            )
        except TrainingInterrupted:  # Half a training is not kept as a whole one.
            raise KeyboardInterrupt from None
    if part is not None:
        proposal.save(file)
        part.unlink(missing_ok=True)
    return proposal


def imitation(model: StateSpaceModel, recording: Recording) -> dict[str, Any]:
    """Arguments of `train` that make its data like a recording (its first steps, if it is long)."""
    horizon = min(len(recording.observations), LONGEST)
    found: dict[str, Any] = {"horizon": horizon}
    if recording.times is not None:
        found["times"] = recording.times[:horizon]
        found["start"] = start_time(model, float(recording.times[0]))
    if recording.controls is not None:
        found["controls"] = recording.controls[:horizon]
    missing = np.isnan(recording.observations[:horizon])
    if missing.all():
        raise DataError(f"nothing is observed in the first {horizon} rows: nothing to train for")
    if missing.any():
        found["missing"] = missing
    return found


def cache_folder() -> Path:
    """Where proposals are kept: `$NOPF_CACHE`, or `nopf` in the user's cache folder."""
    if "NOPF_CACHE" in os.environ:
        return Path(os.environ["NOPF_CACHE"])
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "nopf"


def oddities(model: StateSpaceModel, recording: Recording) -> list[str]:
    """What looks as if the recording and the model did not mean the same."""
    found = []
    if recording.times is not None and len(recording.times) > 2:
        gap = float(np.median(np.diff(recording.times)))
        if gap and not 0.02 < gap / model.dt < 50:
            found.append(
                f"rows are about {gap:.3g} apart, and dt of the model is {model.dt:g}: do they "
                "have the same unit?"
            )
    turn = 2 * np.pi
    for k, (name, column) in enumerate(
        zip(model.observation_names, recording.observations.T, strict=True)
    ):
        seen = column[~np.isnan(column)]
        if len(seen) < 3:
            continue
        if k in model.observation_space.angles:
            if np.abs(seen).max() > 3 * turn:
                found.append(f"{name} is an angle, but goes to {np.abs(seen).max():.3g}: radians?")
            continue
        jumps = np.abs(np.diff(seen))
        if np.any(np.abs(jumps - turn) < 0.05 * turn) and np.median(jumps) < 0.1 * turn:
            found.append(
                f"{name} jumps by about 2π between rows; if it is an angle, declare it with "
                f"observation_angles=({name!r},)"
            )
    return found


def filter_recording(flt: Filter, recording: Recording, seed: int) -> Posterior:
    """The posterior of a whole recording."""
    times = recording.times
    return flt.run(
        recording.observations,
        key=jax.random.key(seed),
        times=times,
        controls=recording.controls,
        start=None if times is None else start_time(flt.model, float(times[0])),
    )


def filter_live(
    flt: Filter, rows: Iterator[Row], seed: int, warn: Callable[[str], None]
) -> Iterator[np.ndarray]:
    """Estimates, one for each row as it comes. Memory does not grow."""
    monitor, state = Monitor(), None
    for row in rows:
        if state is None:
            begin = start_time(flt.model, row.time)
            state = flt.init(jax.random.key(seed), time=0.0 if begin is None else begin)
        state, info = flt.step(state, row.observation, time=row.time, control=row.control)
        info = jax.device_get(info)
        for message in monitor.look(info, int(state.index), float(state.time)):
            warn(message)
        row = jax.tree.map(lambda leaf: np.asarray(leaf)[None], info)
        yield estimate_rows(np.array([state.time], np.float64), row)[0]


def _controls(recording: Recording | None) -> int | None:
    if recording is None or recording.controls is None:
        return None
    return recording.controls.shape[1]
