"""What `nopf check` does: is a model sound, and which filter suits it?"""

import dataclasses
import time
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from nopf import metrics
from nopf.catalogue import CATALOGUE, make_filter
from nopf.filters import Filter, KalmanFilter
from nopf.marginal import MarginalisedModel
from nopf.model import StateSpaceModel
from nopf.recipe import Recipe
from nopf.simulate import Trajectories, simulate
from nopf.steps import Step
from nopf.training import train

TRAJECTORIES = 20
TURN = 2 * np.pi
CANDIDATES = ("kf", "bpf", "lpf", "mlpf", "nopf")
REPEATS = 8  # runs on the same data, to see how means vary
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
    trials: list[Trial] = []
    filters: dict[str, Filter] = {}
    for name in CANDIDATES:
        if CATALOGUE[name].marginal and not solvable:
            continue  # as said already
        if name == "nopf" and trials and trials[0].ess is None:
            break  # Nothing is better than exact.
        try:
            started = time.perf_counter()
            flt = set_up(model, name, particles, horizon, train_key, controls, recipe)
            learned = CATALOGUE[name].recipe is not None
            seconds = time.perf_counter() - started if learned else None
            trials.append(_try(flt, name, paths, controls, run_key, seconds))
            filters[name] = flt
        except FloatingPointError as error:
            problems.append(f"{name}: {error}")
        except ValueError as error:
            reason = str(error).removeprefix("model: ").removeprefix("proposal: ")
            findings.append(f"{name} does not apply: {reason}")
    best = best_of(trials)
    advised = None if best is None else best.name
    report = Report(findings, problems, particles, trials, advise(trials), advised)
    return report, paths, filters.get(advised or "")


def best_of(trials: list[Trial]) -> Trial | None:
    """The filter whose means are worth the most draws for the time; an exact one if there is."""
    by_name = {trial.name: trial for trial in trials}
    best = by_name.get("kf") or by_name.get("bpf")
    if best is None or best.name == "kf":
        return best
    # From the simplest to the least simple; each has to be clearly better than those before it.
    for name in ("lpf", "mlpf", "nopf"):
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
        "mlpf": "the linearised proposal, with what is linear solved exactly",
        "nopf": "the learned proposal",
    }[best.name]
    compared = ", ".join(f"{_ratio(best, t)} times that of {t.name}" for t in others)
    return (
        f"Use {words} (--filter {best.name}): in the same time its means are worth the most "
        f"independent draws of the posterior, {compared}."
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


def _try(
    flt: Filter,
    name: str,
    paths: Trajectories,
    controls: Any,
    run_key: Any,
    training: float | None,
) -> Trial:
    """Runs a filter again and again on one of the trajectories."""
    ys = paths.observations[0]
    jax.block_until_ready(flt.run(ys, key=run_key, controls=controls).mean)
    runs, times = [], []
    for key in jax.random.split(run_key, 1 if isinstance(flt, KalmanFilter) else REPEATS):
        started = time.perf_counter()
        runs.append(jax.block_until_ready(flt.run(ys, key=key, controls=controls).info))
        times.append(time.perf_counter() - started)
    # The fastest: what disturbs a measurement makes it longer.
    milliseconds = 1e3 * min(times) / len(ys)
    if runs[0].ess is None:
        return Trial(name, None, None, milliseconds, training)
    means, stds = (np.stack([getattr(run, part) for run in runs]) for part in ("mean", "std"))
    worth = float(np.median(metrics.draws(flt.model.space, means, stds)[1:]))
    ess = float(np.mean([run.ess.mean() for run in runs]))
    return Trial(name, ess, worth, milliseconds, training)
