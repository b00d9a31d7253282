"""Is a model sound? What simulations of it show, and mistakes that are often made."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from nopf.catalogue import CATALOGUE
from nopf.marginal import MarginalisedModel
from nopf.model import StateSpaceModel
from nopf.simulate import Trajectories
from nopf.steps import Step
from nopf.words import in_groups

TURN = 2 * np.pi


def looked_over(model: StateSpaceModel, paths: Trajectories) -> tuple[list[str], list[str]]:
    """What is to be said of a model, and what should be mended first.

    Args:
        model: the model.
        paths: simulated with it.
    """
    findings = [
        _spread(model.state_names, paths.states),
        _spread(model.observation_names, paths.observations),
        *_noise(model, paths),
        linear_part(model)[0],
    ]
    return findings, [*_gradients(model, paths), *_angles(model, paths)]


def linear_part(model: StateSpaceModel) -> tuple[str, bool]:
    """What can be solved exactly, and what is left; and whether there is anything."""
    try:
        found = CATALOGUE["mlpf"].of(model)
    except (TypeError, ValueError) as error:
        return f"nothing can be solved exactly: {str(error).removeprefix('marginalise: ')}", False
    assert isinstance(found, MarginalisedModel)
    return found.summary(), True


def _spread(names: tuple[str, ...], values: Any) -> str:
    flat = np.asarray(values).reshape(-1, len(names))
    parts = [
        f"{name} {flat[:, own].min():.3g} to {flat[:, own].max():.3g}"
        for name, own in in_groups(names)
    ]
    return "simulated: " + ", ".join(parts)


def _points(model: StateSpaceModel, paths: Trajectories) -> tuple[Any, Any, Any]:
    """States, their observations and steps, as rows."""
    seen = model.observation_space.relative(paths.observations)
    # By NumPy: what JAX does outside of a compiled function is compiled, too, piece by piece.
    states = np.concatenate(list(_floats(model.space.relative(paths.states))))
    ys = np.concatenate(list(_floats(seen)))
    count = len(paths.states)
    steps = jax.tree.map(lambda leaf: np.concatenate([_plain(leaf)] * count), paths.steps)
    return states, ys, steps


def _floats(values: Any) -> np.ndarray:
    return np.asarray(values, jax.dtypes.canonicalize_dtype(float))


def _plain(values: Any) -> np.ndarray:
    """As JAX would have it."""
    found = np.asarray(values)
    return found.astype(jax.dtypes.canonicalize_dtype(found.dtype))


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


@eqx.filter_jit
def _slopes(model: StateSpaceModel, x: Any, step: Step) -> Any:
    """How a step's noise moves the state."""
    return jax.jacfwd(model.motion(x, step))(jnp.zeros(model.noise_size))


def _angles(model: StateSpaceModel, paths: Trajectories) -> list[str]:
    """Angles that are not declared, or that are no angles."""
    states, ys, steps = jax.tree.map(lambda leaf: leaf[:200], _points(model, paths))
    first = jax.tree.map(lambda leaf: np.asarray(leaf)[0], (states, steps))
    spread = np.linalg.norm(np.asarray(_slopes(model, *first)), axis=1)
    scale = np.where(spread > 0, spread, 1)  # of one step's noise
    found = []
    for i, name in enumerate(model.state_names):

        def response(size: float, i: int = i) -> float:
            shift = size * np.eye(len(model.state_names), dtype=np.asarray(states).dtype)[i]
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


def _range_of(name: str, values: np.ndarray) -> str:
    low, high = f"{values.min():.2g}", f"{values.max():.2g}"
    return f"{name} {low}" if low == high else f"{name} {low} to {high}"


@eqx.filter_jit
def _noise_ratios(model: StateSpaceModel, states: Any, steps: Step) -> Any:
    def one(x: Any, step: Step) -> Any:
        motion = model.motion(x, step)
        jacobian = jax.jacfwd(lambda z: model.predict_observation(motion(z), step))
        slopes = jacobian(jnp.zeros(model.noise_size))
        return jnp.linalg.norm(slopes, axis=1) / model.observation_noise_at(step).std

    return jax.vmap(one)(states, steps)


def _noise(model: StateSpaceModel, paths: Trajectories) -> list[str]:
    """How much a step's process noise moves each observation, in units of its own noise."""
    if not model.likelihood.additive:
        return []
    states, _, steps = jax.tree.map(lambda leaf: leaf[:200], _points(model, paths))

    typical = np.median(np.asarray(_noise_ratios(model, states, steps)), axis=0)
    parts = [_range_of(name, typical[own]) for name, own in in_groups(model.observation_names)]
    found = ["process noise of one step, divided by the sensor's noise: " + ", ".join(parts)]
    if typical.max() < 0.05:
        found.append(
            "one measurement adds little to the prediction by the motion; any proposal will do"
        )
    if typical.max() > 3:
        found.append("measurements are much more precise than the motion: a good proposal matters")
    return found
