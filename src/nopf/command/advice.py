"""What `nopf check` does: is a model sound, and which filter suits it?"""

import dataclasses
import time
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from nopf.catalogue import make_filter
from nopf.model import StateSpaceModel
from nopf.recipe import Recipe
from nopf.simulate import Trajectories, simulate
from nopf.steps import Step
from nopf.training import train

TRAJECTORIES = 20
TURN = 2 * np.pi
CANDIDATES = ("kf", "bpf", "lpf", "nopf")
ENOUGH = 0.5  # share of the particles that count from which on nothing better is needed
CLEARLY = 1.25  # how much better something less simple has to be


@dataclasses.dataclass
class Trial:
    """How a filter did on simulated data.

    Attributes:
        name: its short name.
        ess: mean effective sample size; None for the exact filter.
        milliseconds: of one step, without compilation.
        training: seconds, if it had to be trained.
    """

    name: str
    ess: float | None
    milliseconds: float
    training: float | None = None

    @property
    def rate(self) -> float:
        """Particles that count, for each millisecond."""
        return np.inf if self.ess is None else self.ess / self.milliseconds


@dataclasses.dataclass
class Report:
    """What was found.

    Attributes:
        findings: about the model, in words.
        problems: what should be mended first.
        particles: how many the trials used.
        trials: of filters that apply.
        advice: which filter to use, and why.
    """

    findings: list[str]
    problems: list[str]
    particles: int
    trials: list[Trial]
    advice: str


def check(
    model: StateSpaceModel,
    horizon: int,
    particles: int,
    seed: int,
    controls: Any = None,
    recipe: Recipe | None = None,
) -> tuple[Report, Trajectories]:
    """Simulates a model, looks for mistakes, tries filters.

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
    trials: list[Trial] = []
    for name in CANDIDATES:
        if name == "nopf" and trials and trials[0].ess is None:
            break  # Nothing is better than exact.
        try:
            trials.append(_try(model, name, paths, controls, particles, train_key, run_key, recipe))
        except FloatingPointError as error:
            problems.append(f"{name}: {error}")
        except ValueError as error:
            reason = str(error).removeprefix("model: ").removeprefix("proposal: ")
            findings.append(f"{name} does not apply: {reason}")
    return Report(findings, problems, particles, trials, advise(trials, particles)), paths


def advise(trials: list[Trial], particles: int) -> str:
    """Which filter to use, and why."""
    by_name = {trial.name: trial for trial in trials}
    if "kf" in by_name:
        return (
            "Use the Kalman filter (--filter kf): the model is linear with Gaussian noise, so it "
            "is exact, and no particles are needed."
        )
    if "bpf" not in by_name:
        return "Mend the problems first: not even the bootstrap filter runs."
    blind = by_name["bpf"]
    assert blind.ess is not None
    best = max(trials, key=lambda trial: trial.rate)
    if blind.ess >= ENOUGH * particles or best.rate < CLEARLY * blind.rate:
        rivals = ", ".join(f"{_ratio(t, blind)} for {t.name}" for t in trials if t is not blind)
        return (
            f"Use the bootstrap filter (--filter bpf): {100 * blind.ess / particles:.0f} % of its "
            "particles count, and none of the others gives clearly more for the time"
            + (f" ({rivals} times as many)." if rivals else ".")
        )
    learned, fitted = by_name.get("nopf"), by_name.get("lpf")
    if learned and fitted and best is learned and learned.rate < CLEARLY * fitted.rate:
        best = fitted  # it needs no training
    words = {"lpf": "linearised", "nopf": "learned"}[best.name]
    others = [t for t in trials if t not in (best, blind)]
    compared = "".join(f", {_ratio(best, t)} times as many as {t.name}" for t in others)
    return (
        f"Use the {words} proposal (--filter {best.name}): for the same time {_ratio(best, blind)} "
        f"times as many particles count as with the bootstrap filter{compared}."
    )


def _ratio(one: Trial, other: Trial) -> str:
    return f"{one.rate / other.rate:.2g}"


def _spread(names: tuple[str, ...], values: Any) -> str:
    flat = np.asarray(values).reshape(-1, len(names))
    low, high = flat.min(0), flat.max(0)
    parts = [f"{n} {a:.3g} to {b:.3g}" for n, a, b in zip(names, low, high, strict=True)]
    return "simulated: " + ", ".join(parts)


def _points(paths: Trajectories) -> tuple[Any, Any, Any]:
    """States, their observations and steps, as rows."""
    states = jnp.concatenate(list(paths.states))
    ys = jnp.concatenate(list(paths.observations))
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
        ("transition", "log-likelihood"), _gradient_table(model, *_points(paths)), strict=True
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
    states, ys, steps = jax.tree.map(lambda leaf: leaf[:200], _points(paths))
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
    states, _, steps = jax.tree.map(lambda leaf: leaf[:200], _points(paths))

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
    model: StateSpaceModel,
    name: str,
    paths: Trajectories,
    controls: Any,
    particles: int,
    train_key: Any,
    run_key: Any,
    recipe: Recipe | None,
) -> Trial:
    """Runs a filter on three of the trajectories."""
    proposal, seconds = None, None
    if name == "nopf":
        started = time.perf_counter()
        horizon = paths.states.shape[1]
        proposal = train(model, horizon, train_key, recipe=recipe, controls=controls)
        seconds = time.perf_counter() - started
    flt = make_filter(name, model, particles, proposal=proposal)
    flt.run(paths.observations[0], key=run_key, controls=controls)
    effective: list[float] = []
    times = []
    for ys in paths.observations[:3]:
        started = time.perf_counter()
        posterior = jax.block_until_ready(flt.run(ys, key=run_key, controls=controls))
        times.append(time.perf_counter() - started)
        if posterior.ess is not None:
            effective.append(float(posterior.ess.mean()))
    # The fastest of three: what disturbs a measurement makes it longer.
    milliseconds = 1e3 * min(times) / len(paths.observations[0])
    return Trial(name, float(np.mean(effective)) if effective else None, milliseconds, seconds)
