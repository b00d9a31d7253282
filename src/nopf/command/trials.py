"""Filters tried on a simulated series: how good their means are for the time, and which to take."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from nopf import metrics
from nopf.catalogue import CATALOGUE, make_filter
from nopf.command.voice import tell
from nopf.filters import Filter, Info, KalmanFilter
from nopf.model import StateSpaceModel
from nopf.recipe import Recipe
from nopf.training import train
from nopf.training.to_file import Series

UNTRAINED = ("kf", "bpf", "lpf", "mlpf")
AHEAD = {"lpf": "alpf", "mlpf": "malpf"}  # the same filter, looking ahead
TRAINED = ("nopf",)
REPEATS = 24  # runs on the same data, to see how means vary
CLEARLY = 1.5  # how much better something less simple has to be
POOR = 0.5  # share of the particles that count


@dataclasses.dataclass
class Trial:
    """How a filter did on simulated data.

    Attributes:
        name: its short name.
        ess: mean effective sample size; None for the exact filter.
        draws: how many independent draws of the posterior would give means as good, median over
            steps and states; None for the exact filter.
        milliseconds: of one step, without compilation.
        training: seconds, if it had to be trained.
    """

    name: str
    ess: float | None
    draws: float | None
    milliseconds: float
    training: float | None = None

    @property
    def rate(self) -> float:
        """Draws, for each millisecond of a step."""
        return np.inf if self.draws is None else self.draws / self.milliseconds


class Tryout(NamedTuple):
    """A series that filters are tried on: arguments of `Filter.run`."""

    ys: Any
    times: Any
    controls: Any
    start: float | None


class Tried(NamedTuple):
    """What came of trying filters: how each did, itself, why others do not apply, what failed."""

    trials: list[Trial]
    filters: dict[str, Filter]
    refused: dict[str, str]
    failed: list[str]


def try_all(names: Sequence[str], make: Callable[[str], Filter], series: Tryout, key: Any) -> Tried:
    """Tries filters on a series; and the one that looks ahead, of the best of those without
    training. Where one is exact, nothing is trained."""
    tried = Tried([], {}, {}, [])

    def attempt(name: str) -> None:
        try:
            started = time.perf_counter()
            flt = make(name)
            learned = CATALOGUE[name].recipe is not None
            seconds = time.perf_counter() - started if learned else None
            tried.trials.append(_try(flt, name, series, key, seconds))
            tried.filters[name] = flt
            tell(f"tried {name}")
        except FloatingPointError as error:
            tried.failed.append(f"{name}: {error}")
        except (ValueError, TypeError, NotImplementedError) as error:  # the last two are JAX's
            reason = str(error).partition("\n")[0]
            tried.refused[name] = reason.removeprefix("model: ").removeprefix("proposal: ")

    for name in names:
        if name in TRAINED:
            continue
        attempt(name)
        if tried.trials and tried.trials[0].ess is None:
            return tried  # Nothing is better than exact.
    best = best_of(tried.trials)
    if best is not None and best.name in AHEAD:
        attempt(AHEAD[best.name])
    for name in names:
        if name in TRAINED:
            attempt(name)
    return tried


def best_of(trials: list[Trial]) -> Trial | None:
    """The filter whose means are worth the most draws for the time; an exact one if there is."""
    by_name = {trial.name: trial for trial in trials}
    best = by_name.get("kf")
    if best is not None:
        return best
    # From the simplest to the least simple; each has to be clearly better than those before it.
    for name in ("bpf", "lpf", "alpf", "mlpf", "malpf", "nopf"):
        if name in by_name and (best is None or by_name[name].rate > CLEARLY * best.rate):
            best = by_name[name]
    return best


def learning_may_pay(trials: list[Trial], particles: int) -> bool:
    """Whether the best filter is the bootstrap filter, and most of its particles do not count."""
    best = best_of(trials)
    return best is not None and best.name == "bpf" and (best.ess or 0) < POOR * particles


def set_up(
    model: StateSpaceModel,
    name: str,
    particles: int,
    series: Series,
    key: Any,
    recipe: Recipe | None = None,
    progress: bool | None = None,
) -> Filter:
    """A filter by its short name; its proposal is trained now if it needs one.

    Args:
        model: the model.
        name: of the filter.
        particles: how many.
        series: what training simulates.
        key: of training.
        recipe: of training.
        progress: whether training shows a bar; on a terminal only if left out.
    """
    listing, proposal = CATALOGUE[name], None
    if listing.recipe is not None:
        proposal = train(
            listing.of(model),
            series.horizon,
            key,
            recipe=recipe,
            times=series.times,
            controls=series.controls,
            start=series.start,
            missing=series.missing,
            progress=progress,
        )
    return make_filter(name, model, particles, proposal=proposal)


def advise(trials: list[Trial]) -> str:
    """Which filter to use, and why, in words."""
    best = best_of(trials)
    if best is None:
        return "Correct the problems first: not even the bootstrap filter runs."
    if best.name == "kf":
        return (
            "Use the Kalman filter (--filter kf): the model is linear with Gaussian noise, so this "
            "filter is exact and needs no particles."
        )
    others = [trial for trial in trials if trial is not best]
    if best.name == "bpf":
        rivals = ", ".join(f"{_ratio(t, best)} for {t.name}" for t in others)
        return (
            "Use the bootstrap filter (--filter bpf): none of the others gives clearly more "
            "accurate means in the same time"
            + (f" (draws per second, relative to bpf: {rivals})." if rivals else ".")
        )
    words = {
        "lpf": "the linearised proposal",
        "alpf": "the linearised proposal with look-ahead",
        "mlpf": "the linearised proposal, with linear states solved exactly",
        "malpf": "the linearised proposal with look-ahead, with linear states solved exactly",
        "nopf": "the learned proposal",
    }[best.name]
    behind = [t for t in others if best.rate > CLEARLY * t.rate]
    near = [t.name for t in others if t not in behind]
    compared = ", ".join(f"{_ratio(best, t)} times as many as {t.name}" for t in behind)
    return (
        f"Use {words} (--filter {best.name}): in the same time, its means are worth more "
        f"independent draws of the posterior: {compared}."
        + (f" It is not clearly better than {', '.join(near)}." if near else "")
    )


def _ratio(one: Trial, other: Trial) -> str:
    return f"{one.rate / other.rate:.2g}"


def _try(flt: Filter, name: str, series: Tryout, run_key: Any, training: float | None) -> Trial:
    """Runs a filter again and again on a series."""

    def run(key: Any) -> Info:
        ys, times, controls, start = series
        return flt.run(ys, key=key, times=times, controls=controls, start=start).info

    jax.block_until_ready(run(run_key).mean)
    runs, times = [], []
    for key in jax.random.split(run_key, 1 if isinstance(flt, KalmanFilter) else REPEATS):
        started = time.perf_counter()
        runs.append(jax.block_until_ready(run(key)))
        times.append(time.perf_counter() - started)
    # The fastest: what disturbs a measurement makes it longer.
    milliseconds = 1e3 * min(times) / len(series.ys)
    if runs[0].ess is None:
        return Trial(name, None, None, milliseconds, training)
    means, stds = (np.stack([getattr(run, part) for run in runs]) for part in ("mean", "std"))
    worth = float(np.median(metrics.draws(flt.model.space, means, stds)[1:]))
    ess = float(np.mean([run.ess.mean() for run in runs]))
    return Trial(name, ess, worth, milliseconds, training)
