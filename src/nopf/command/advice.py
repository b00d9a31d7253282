"""What `nopf check` does: is a model sound, and which filter suits it?"""

import contextlib
import dataclasses
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from nopf import metrics
from nopf.cache import NoCacheError, own_folder
from nopf.catalogue import CATALOGUE, make_filter
from nopf.files import write_whole
from nopf.filters import Filter, Info, KalmanFilter
from nopf.marginal import MarginalisedModel
from nopf.model import StateSpaceModel
from nopf.recipe import Recipe
from nopf.recording import Recording, digest
from nopf.simulate import Trajectories, simulate
from nopf.steps import Step
from nopf.training import train
from nopf.training.to_file import Series

TRAJECTORIES = 20
TURN = 2 * np.pi
UNTRAINED = ("kf", "bpf", "lpf", "mlpf")
AHEAD = {"lpf": "alpf", "mlpf": "malpf"}  # the same filter, looking ahead
TRAINED = ("nopf",)
ROWS, LEAST_ROWS = 100, 5  # of a series that filters are tried on
MOST_PARTICLES = 1000  # of these filters
POOR = 0.5  # share of the particles that count
REPEATS = 24  # runs on the same data, to see how means vary
CLEARLY = 1.5  # how much better something less simple has to be


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
    horizon: int,
    particles: int,
    seed: int,
    controls: Any = None,
    recipe: Recipe | None = None,
) -> tuple[Report, Trajectories, Filter | None]:
    """Simulates a model, looks for mistakes, tries filters; hands back the one that it advises.

    Args:
        model: the model.
        horizon: steps of a simulated trajectory.
        particles: of the filters.
        seed: of everything random.
        controls: `(horizon, u)` for models that read them.
        recipe: of the brief training.
    """
    data_key, train_key, run_key = jax.random.split(jax.random.key(seed), 3)
    paths = simulate(model, horizon, data_key, controls=controls, batch=TRAJECTORIES)
    findings = [
        _spread(model.state_names, paths.states),
        _spread(model.observation_names, paths.observations),
    ]
    problems = [*_gradients(model, paths), *_angles(model, paths)]
    findings += _noise(model, paths)
    linear, solvable = _linear(model)
    findings.append(linear)
    series = Tryout(paths.observations[0], None, controls, None)

    def make(name: str) -> Filter:
        return set_up(model, name, particles, horizon, train_key, controls, recipe)

    names = [name for name in UNTRAINED if solvable or not CATALOGUE[name].marginal]
    tried = try_all([*names, *TRAINED], make, series, run_key)
    findings += [f"{name} does not apply: {reason}" for name, reason in tried.refused.items()]
    problems += tried.failed
    best = best_of(tried.trials)
    advised = None if best is None else best.name
    report = Report(findings, problems, particles, tried.trials, advise(tried.trials), advised)
    return report, paths, tried.filters.get(advised or "")


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


def pick(
    model: StateSpaceModel,
    recording: Recording | None,
    names: Sequence[str],
    particles: int,
    seed: int,
    say: Callable[[str], None],
) -> str:
    """The filter without training that gives the best means for the time: tried on a simulated
    series like the first rows of a recording, and kept for the next time.

    Args:
        model: the model.
        recording: what shall be filtered; None for a stream of which nothing is known yet.
        names: of the filters to try.
        particles: how many it will have.
        seed: of everything random.
        say: is told which, and why.
    """
    series = _beginning(model, recording)
    particles = min(particles, MOST_PARTICLES)
    try:
        name = digest(model, series, seed, {"particles": particles, "names": list(names)})
        file = own_folder("choices") / f"{name}.json"
    except NoCacheError:
        file = None
    if file is not None and file.exists():
        kept = _kept(file, model)
        if kept is not None:
            say(f"--filter {kept}, as chosen for this model and data before")
            return kept
    say("trying filters on simulated data like yours; --filter NAME takes one without trying")
    tried = _try_like(model, series, names, particles, seed)
    best = best_of(tried.trials)
    if best is None:
        reasons = [*tried.failed, *tried.refused.values()]
        raise ValueError(f"no filter applies to this model: {'; '.join(reasons)}")
    say(advise(tried.trials))
    if best.name == "bpf" and best.ess is not None and best.ess < POOR * particles:
        say("a learned proposal may do better: --filter nopf trains one")
    if file is not None:
        with contextlib.suppress(
            OSError
        ):  # It is there to save time; a full disk shall not cost any.
            write_whole(file, json.dumps({"filter": best.name}).encode())
    return best.name


def _beginning(model: StateSpaceModel, recording: Recording | None) -> Series:
    """What the first rows of a recording are like."""
    if recording is None:
        controls = np.zeros((ROWS, len(model.control_names))) if model.reads_control else None
        return Series(ROWS, controls=controls)
    rows = slice(ROWS)
    missing = np.isnan(recording.observations[rows])
    if len(missing) < LEAST_ROWS:  # too short for a comparison
        return _beginning(model, None)
    return Series(
        len(missing),
        times=None if recording.times is None else recording.times[rows],
        controls=None if recording.controls is None else recording.controls[rows],
        start=recording.start,
        missing=None if missing.all() else missing,
    )


def _try_like(
    model: StateSpaceModel, series: Series, names: Sequence[str], particles: int, seed: int
) -> Tried:
    """Tries filters without training on a simulated series."""
    data_key, run_key = jax.random.split(jax.random.key(seed))
    path = simulate(
        model,
        series.horizon,
        data_key,
        times=series.times,
        controls=series.controls,
        start=series.start,
    )
    ys = np.array(path.observations, float)
    if series.missing is not None:
        ys[np.asarray(series.missing)] = np.nan
    conditions = Tryout(ys, series.times, series.controls, series.start)
    return try_all(names, lambda name: make_filter(name, model, particles), conditions, run_key)


def _kept(file: Path, model: StateSpaceModel) -> str | None:
    """The filter that was chosen before; None if the file does not name one for this model."""
    try:
        found = json.loads(file.read_text())["filter"]
        if found not in (*UNTRAINED, *AHEAD.values()):
            return None
        make_filter(found, model, 2)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return str(found)


def best_of(trials: list[Trial]) -> Trial | None:
    """The filter whose means are worth the most draws for the time; an exact one if there is."""
    by_name = {trial.name: trial for trial in trials}
    best = by_name.get("kf") or by_name.get("bpf")
    if best is None or best.name == "kf":
        return best
    # From the simplest to the least simple; each has to be clearly better than those before it.
    for name in ("lpf", "alpf", "mlpf", "malpf", "nopf"):
        if name in by_name and by_name[name].rate > CLEARLY * best.rate:
            best = by_name[name]
    return best


def set_up(
    model: StateSpaceModel,
    name: str,
    particles: int,
    horizon: int,
    key: Any,
    controls: Any = None,
    recipe: Recipe | None = None,
) -> Filter:
    """A filter by its short name; its proposal is trained now if it needs one.

    Args:
        model: the model.
        name: of the filter.
        particles: how many.
        horizon: steps of a trajectory that training simulates.
        key: of training.
        controls: `(horizon, u)` for models that read them.
        recipe: of training.
    """
    listing, proposal = CATALOGUE[name], None
    if listing.recipe is not None:
        proposal = train(listing.of(model), horizon, key, recipe=recipe, controls=controls)
    return make_filter(name, model, particles, proposal=proposal)


def advise(trials: list[Trial]) -> str:
    """Which filter to use, and why, in words."""
    best = best_of(trials)
    if best is None:
        return "Fix the problems first: not even the bootstrap filter runs."
    if best.name == "kf":
        return (
            "Use the Kalman filter (--filter kf): the model is linear with Gaussian noise, so it "
            "is exact, and no particles are needed."
        )
    others = [trial for trial in trials if trial is not best]
    if best.name == "bpf":
        rivals = ", ".join(f"{_ratio(t, best)} for {t.name}" for t in others)
        return (
            "Use the bootstrap filter (--filter bpf): none of the others gives means that are "
            "clearly better for the time"
            + (f" (draws a second, relative to it: {rivals})." if rivals else ".")
        )
    words = {
        "lpf": "the linearised proposal",
        "alpf": "the linearised proposal, looking ahead",
        "mlpf": "the linearised proposal, with what is linear solved exactly",
        "malpf": "the linearised proposal, looking ahead, with what is linear solved exactly",
        "nopf": "the learned proposal",
    }[best.name]
    behind = [t for t in others if best.rate > CLEARLY * t.rate]
    near = [t.name for t in others if t not in behind]
    compared = ", ".join(f"{_ratio(best, t)} times that of {t.name}" for t in behind)
    return (
        f"Use {words} (--filter {best.name}): in the same time its means are worth more "
        f"independent draws of the posterior, {compared}."
        + (f" Not clearly better: {', '.join(near)}." if near else "")
    )


def _linear(model: StateSpaceModel) -> tuple[str, bool]:
    """What can be solved exactly, and what is left; and whether there is anything."""
    try:
        found = CATALOGUE["mlpf"].of(model)
    except (TypeError, ValueError) as error:
        return f"nothing can be solved exactly: {str(error).removeprefix('marginalise: ')}", False
    assert isinstance(found, MarginalisedModel)
    return found.summary(), True


def _ratio(one: Trial, other: Trial) -> str:
    return f"{one.rate / other.rate:.2g}"


def _spread(names: tuple[str, ...], values: Any) -> str:
    flat = np.asarray(values).reshape(-1, len(names))
    low, high = flat.min(0), flat.max(0)
    parts = [f"{n} {a:.3g} to {b:.3g}" for n, a, b in zip(names, low, high, strict=True)]
    return "simulated: " + ", ".join(parts)


def _points(model: StateSpaceModel, paths: Trajectories) -> tuple[Any, Any, Any]:
    """States, their observations and steps, as rows."""
    seen = model.observation_space.relative(paths.observations)
    states = jnp.concatenate(list(jnp.asarray(model.space.relative(paths.states), float)))
    ys = jnp.concatenate(list(jnp.asarray(seen, float)))
    count = len(paths.states)
    steps = jax.tree.map(lambda leaf: jnp.concatenate([jnp.asarray(leaf)] * count), paths.steps)
    return states, ys, steps


@eqx.filter_jit
def _gradient_table(model: StateSpaceModel, states: Any, ys: Any, steps: Step) -> Any:
    motion = jax.vmap(jax.jacfwd(model.skeleton), in_axes=(0, 0))(states, steps)
    likelihood = jax.vmap(jax.grad(model.log_likelihood, argnums=1))(ys, states, steps)
    return jnp.isfinite(motion).all((1, 2)), jnp.isfinite(likelihood).all(1)


def _gradients(model: StateSpaceModel, paths: Trajectories) -> list[str]:
    found = []
    for what, good in zip(
        ("transition", "log-likelihood"),
        _gradient_table(model, *_points(model, paths)),
        strict=True,
    ):
        share = 1 - float(np.mean(good))
        if share > 0:
            found.append(
                f"the gradient of the {what} is not finite at {100 * share:.2g} % of the simulated "
                "points; look for square roots, logarithms or divisions at zero"
            )
    return found


@eqx.filter_jit
def _turned(model: StateSpaceModel, states: Any, ys: Any, steps: Step, shift: Any) -> Any:
    """By how much the functions change if the states are shifted, less the shift itself."""

    def one(x: Any, y: Any, step: Step) -> Any:
        still = jnp.zeros(model.noise_size)
        after, before = (model.motion(at, step)(still) for at in (x + shift, x))
        there, here = (model.log_likelihood(y, at, step) for at in (x + shift, x))
        return model.space.difference(after, before + shift), there - here

    return jax.vmap(one)(states, ys, steps)


def _angles(model: StateSpaceModel, paths: Trajectories) -> list[str]:
    """Angles that are not declared, or that are no angles."""
    states, ys, steps = jax.tree.map(lambda leaf: leaf[:200], _points(model, paths))
    first = jax.tree.map(lambda leaf: leaf[0], (states, steps))
    slopes = jax.jacfwd(model.motion(*first))(jnp.zeros(model.noise_size))
    spread = np.linalg.norm(np.asarray(slopes), axis=1)
    scale = np.where(spread > 0, spread, 1)  # of one step's noise
    found = []
    for i, name in enumerate(model.state_names):

        def response(size: float, i: int = i) -> float:
            shift = size * jnp.eye(len(model.state_names))[i]
            moved, seen = _turned(model, states, ys, steps, shift)
            largest = np.nanmax(np.abs(np.asarray(moved)) / scale[None])
            return float(max(largest, np.nanmax(np.abs(np.asarray(seen)))))

        whole, part = response(TURN), response(1.0)
        declared = i in model.space.angles
        if declared and whole > 0.1:
            found.append(
                f"{name} is declared an angle, but the model changes if it is turned by 2π"
            )
        if not declared and whole < 1e-2 * part and part > 1:
            found.append(
                f"{name} looks like an angle: turning it by 2π changes nothing; declare it with "
                f'state_angles=("{name}",), or means across ±π will be wrong'
            )
    jumps = np.abs(np.diff(np.asarray(paths.observations), axis=1))
    for k, name in enumerate(model.observation_names):
        near = np.abs(jumps[..., k] - TURN) < 0.05 * TURN
        usual = np.median(jumps[..., k])
        if k not in model.observation_space.angles and near.any() and usual < 0.1 * TURN:
            found.append(
                f"{name} jumps by about 2π between steps; if it is an angle, declare it with "
                f"observation_angles=({k},)"
            )
    return found


def _noise(model: StateSpaceModel, paths: Trajectories) -> list[str]:
    """How much a step's process noise moves each observation, in units of its own noise."""
    if not model.likelihood.additive:
        return []
    states, _, steps = jax.tree.map(lambda leaf: leaf[:200], _points(model, paths))

    @jax.vmap
    def ratios(x: Any, step: Step) -> Any:
        motion = model.motion(x, step)
        jacobian = jax.jacfwd(lambda z: model.predict_observation(motion(z), step))
        slopes = jacobian(jnp.zeros(model.noise_size))
        return jnp.linalg.norm(slopes, axis=1) / model.observation_noise_at(step).std

    typical = np.median(np.asarray(ratios(states, steps)), axis=0)
    parts = [f"{n} {r:.2g}" for n, r in zip(model.observation_names, typical, strict=True)]
    found = ["a step's process noise over the sensor's noise: " + ", ".join(parts)]
    if typical.max() < 0.05:
        found.append("one measurement says little that the motion did not; any proposal will do")
    if typical.max() > 3:
        found.append("measurements are much sharper than the motion: where particles go matters")
    return found


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
