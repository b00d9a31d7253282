"""Filters a recording; and what looks as if it did not fit its model."""

import jax
import numpy as np

from nopf.filters import Filter, Posterior
from nopf.model import StateSpaceModel
from nopf.recording.columns import DataError
from nopf.recording.reading import Recording


def start_time(
    model: StateSpaceModel, first: float | None, given: float | None = None
) -> float | None:
    """The prior's time: what was `given`, or one `dt` before the first observation.

    Raises:
        DataError: if that is later than the first observation, or there are no times.
    """
    if given is None:
        return None if first is None else first - model.dt
    if first is None:
        raise DataError("start: needs a column of times")
    if not given <= first:
        raise DataError(f"start: expected a time no later than the first row's ({first:.12g})")
    return given


def filter_recording(flt: Filter, recording: Recording, seed: int) -> Posterior:
    """The posterior of a whole recording."""
    times = recording.times
    first = None if times is None else float(times[0])
    return flt.run(
        recording.observations,
        key=jax.random.key(seed),
        times=times,
        controls=recording.controls,
        start=start_time(flt.model, first, recording.start),
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
    silent = np.isnan(recording.observations).all(axis=0)
    if silent.all():
        found.append("no row has an observation: the estimates are the model's predictions alone")
    elif silent.any():
        names = [n for n, empty in zip(model.observation_names, silent, strict=True) if empty]
        found.append(f"{', '.join(names)}: empty in every row")
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
