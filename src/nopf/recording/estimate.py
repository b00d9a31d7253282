"""Filters a recording; and what looks as if it did not fit its model."""

import jax
import numpy as np

from nopf.filters import Filter, Posterior
from nopf.model import StateSpaceModel
from nopf.recording.reading import Recording


def start_time(model: StateSpaceModel, first: float | None) -> float | None:
    """The prior's time: one `dt` before the first observation."""
    return None if first is None else first - model.dt


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
