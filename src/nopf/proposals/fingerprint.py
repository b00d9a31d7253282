"""What identifies a model, so that a proposal is not used with another one by mistake."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from nopf.marginal import MarginalisedModel
from nopf.model import StateSpaceModel
from nopf.steps import Step

TOLERANCE = 1e-3  # the same functions on another machine differ by rounding
STEPS = (1, 2, 10)  # one a probe: commands that change over time show


def fingerprint(model: StateSpaceModel, controls: int | None) -> dict[str, Any]:
    """Dimensions, names, angles, noise scales, and the functions' values at a few states.

    Args:
        model: the model.
        controls: how many controls it reads, None if it is run without.
    """
    # In single precision always: in double the same key draws other states.
    with jax.enable_x64(False):
        given, model = model, model.whole
        control = None if controls is None else jnp.zeros(controls)
        steps = [model.nominal_step(index, control) for index in STEPS]
        step = steps[0]
        states = jax.vmap(model.sample_prior)(jax.random.split(jax.random.key(0), len(STEPS)))
        probes = list(zip(states, steps, strict=True))
        found = shape_of(given) | {
            "dt": model.dt,
            "process_noise": _process_noise(model, probes),
            "prior": _numbers(states),
            "transition": _numbers([model.skeleton(x, at) for x, at in probes]),
        }
        if model.likelihood.additive:
            found["observation_noise"] = _numbers(model.observation_noise_at(step).factor)
        if model.likelihood.predicts:
            found["observation"] = _numbers([model.predict_observation(x, at) for x, at in probes])
        ys = [model.sample_observation(jax.random.key(0), x, at) for x, at in probes]
        found["likelihood"] = _numbers(
            [model.log_likelihood(y, x, at) for y, (x, at) in zip(ys, probes, strict=True)]
        )
    return found


def _process_noise(model: StateSpaceModel, probes: list[tuple[Array, Step]]) -> Any:
    """The noise's factor at the first step; what noise makes of the states, if it is no such."""
    if model.process_noise is not None and not model.process_noise.reads_state:
        return _numbers(model.process_noise_at(probes[0][1]).factor)
    white = jnp.linspace(-1.0, 1.0, model.noise_size)
    return _numbers([model.move(x, white, step) for x, step in probes])


def shape_of(model: StateSpaceModel) -> dict[str, Any]:
    """Names, angles and dimensions: what a proposal cannot do without."""
    found = {
        "state_names": list(model.state_names),
        "state_angles": list(model.space.angles),
        "observations": model.observation_space.size,
        "observation_angles": list(model.observation_space.angles),
    }
    # Left out where it is the number of states, as in the files of 0.1.0.
    own: dict[str, Any] = (
        {} if model.noise_size == model.space.size else {"noise_size": model.noise_size}
    )
    if isinstance(model, MarginalisedModel):
        own["linear_states"] = list(model.linear_states)
    return found | own


def differences(wanted: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """What differs, in words."""
    said = []
    for key in dict.fromkeys([*wanted, *found]):
        a, b = wanted.get(key), found.get(key)
        if _same(a, b, 0.0 if key.endswith("noise") else TOLERANCE):
            continue
        if key in ("prior", "transition", "observation", "likelihood"):
            said.append(f"{key} gives other numbers at the same test points")
        else:
            said.append(f"{key} was {a}, is {b}")
    return said


def _numbers(values: Any) -> Any:
    return np.asarray(values, np.float64).tolist()


def _same(a: Any, b: Any, slack: float) -> bool:
    """Whether numbers agree up to rounding; `slack` is relative to the largest of them."""
    if a is None or b is None or isinstance(a, str) or isinstance(b, str):
        return bool(a == b)
    try:
        first, second = np.asarray(a, np.float64), np.asarray(b, np.float64)
    except (TypeError, ValueError):
        return bool(a == b)
    if first.shape != second.shape:
        return False
    largest = np.max(np.abs(first), initial=0, where=np.isfinite(first))
    return np.allclose(first, second, TOLERANCE, slack * float(largest), equal_nan=True)
