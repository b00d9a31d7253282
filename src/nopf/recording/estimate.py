"""Filters a recording; and what looks as if it did not fit its model."""

import dataclasses
from typing import NamedTuple

import jax
import numpy as np

from nopf.filters import Filter, KalmanFilter, Posterior, Smoothed
from nopf.filters.posterior import estimate_names, estimate_rows
from nopf.model import StateSpaceModel
from nopf.recording.columns import DataError
from nopf.recording.reading import Recording
from nopf.words import listed

PARTS = ("mean", "std")  # of smoothed estimates, in files


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


class Beside(NamedTuple):
    """What is wanted beside the filtered estimates.

    Attributes:
        smooth: whether to smooth.
        lag: how many later observations may count then; all if None.
        forecast: how many rows to add after the last.
    """

    smooth: bool = False
    lag: int | None = None
    forecast: int = 0


ALONE = Beside()


class Estimates(NamedTuple):
    """What is estimated of a recording.

    Attributes:
        posterior: the filtered states, row by row.
        smoothed: the same given later observations too, if that was asked for.
        ahead: the forecast, if that was asked for.
    """

    posterior: Posterior
    smoothed: Smoothed | None = None
    ahead: Posterior | None = None

    def smoothed_posterior(self) -> Posterior | None:
        """The posterior with smoothed means, covariances and quantiles in place of its own."""
        if self.smoothed is None:
            return None
        better = self.smoothed
        info = self.posterior.info._replace(
            mean=better.mean, cov=better.cov, quantiles=better.quantiles
        )
        return dataclasses.replace(self.posterior, info=info)

    def table(self) -> tuple[list[str], np.ndarray, list[str] | None]:
        """Names of columns, numbers, and what kind each row is of (None if all are of one): those
        of `nopf filter --out`."""
        found = self.posterior
        names = estimate_names(found.state_names, found.quantile_levels)
        rows, kinds = estimate_rows(np.asarray(found.times), found), None
        if self.smoothed is not None:
            names += [f"{name}_smoothed_{part}" for name in found.state_names for part in PARTS]
            parts = [np.asarray(getattr(self.smoothed, part), np.float64) for part in PARTS]
            by_state = np.stack(parts, axis=2).reshape(len(rows), -1)
            rows = np.concatenate([rows, by_state], axis=1)
        if self.ahead is not None:
            later = estimate_rows(np.asarray(self.ahead.times), self.ahead)
            empty = np.full((len(later), rows.shape[1] - later.shape[1]), np.nan)
            rows = np.concatenate([rows, np.concatenate([later, empty], axis=1)])
            kinds = ["estimate"] * len(found.times) + ["forecast"] * len(later)
        return names, rows, kinds


def estimate(flt: Filter, recording: Recording, seed: int, beside: Beside = ALONE) -> Estimates:
    """Estimates of a whole recording.

    Args:
        flt: the filter.
        recording: what was measured.
        seed: of everything random.
        beside: what else is wanted. A forecast goes on with the recording's median time between
            rows, and with its last control.

    Raises:
        ValueError: if this filter or model cannot be smoothed; the message begins with "smooth:".
    """
    if beside.smooth:
        _check_smooth(flt, beside.lag)
    posterior = filter_recording(flt, recording, seed, keep=beside.smooth)
    smoothed = ahead = None
    if beside.smooth:
        key = jax.random.fold_in(jax.random.key(seed), 1)
        try:
            smoothed = flt.smooth(posterior, key=key, lag=beside.lag)
        except ValueError as error:
            raise ValueError(f"smooth: {str(error).removeprefix('smooth: ')}") from None
    if beside.forecast:
        ahead = _forecast(flt, recording, posterior, beside.forecast)
    if posterior.particles is not None:  # They take memory, and nobody needs them any more.
        posterior = dataclasses.replace(posterior, particles=None, log_weights=None)
    return Estimates(posterior, smoothed, ahead)


def filter_recording(flt: Filter, recording: Recording, seed: int, keep: bool = False) -> Posterior:
    """The posterior of a whole recording; with its particles if they are to be kept."""
    times = recording.times
    first = None if times is None else float(times[0])
    return flt.run(
        recording.observations,
        key=jax.random.key(seed),
        times=times,
        controls=recording.controls,
        start=start_time(flt.model, first, recording.start),
        keep="particles" if keep and not isinstance(flt, KalmanFilter) else None,
    )


def _check_smooth(flt: Filter, lag: int | None) -> None:
    """Refuses what cannot be smoothed before the filter runs."""
    if isinstance(flt, KalmanFilter):
        if lag is not None:
            raise ValueError(
                "smooth: the exact smoother of kf uses all observations; give --smooth without a "
                "number"
            )
        return
    reason = flt.model.whole.why_no_density()
    if reason is not None:
        raise ValueError(
            "smooth: it weighs particles by the density of the transition, and this model has "
            f"none, since {reason}; give such states a little noise of their own"
        )


def _forecast(flt: Filter, recording: Recording, posterior: Posterior, rows: int) -> Posterior:
    """What comes after the last row: as often as rows came, with the last control."""
    times, controls = recording.times, recording.controls
    gap = 0.0 if times is None or len(times) < 2 else float(np.median(np.diff(times)))
    gap = gap if gap > 0 else flt.model.dt
    last = float(np.asarray(posterior.times)[-1])
    later = last + gap * np.arange(1, rows + 1)
    digits = 6 - int(np.floor(np.log10(gap)))  # 20.3, not 20.299999999999997
    return flt.forecast(
        posterior,
        rows,
        times=np.maximum(last, np.round(later, digits)),
        controls=None if controls is None else np.repeat(controls[-1:], rows, axis=0),
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
        found.append(f"{listed(names)}: empty in every row")
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
