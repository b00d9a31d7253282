"""What identifies a model, so that a proposal is not used with another one by mistake."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from nopf.compiling import run_once
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
        numbers: dict[str, Any] = _probe(model.whole, controls)
        # As it was given, where it is constant: in single precision 0.7 would read 0.69999999.
        for name, noise in [
            ("process_noise", model.whole.process_noise),
            ("observation_noise", getattr(model.whole.likelihood, "noise", None)),
        ]:
            if name in numbers and noise is not None and noise.constant is not None:
                numbers[name] = noise.constant.factor
        found = {name: np.asarray(value, np.float64).tolist() for name, value in numbers.items()}
    return shape_of(model) | {"dt": model.dt} | found


@run_once
def _probe(model: StateSpaceModel, controls: int | None) -> dict[str, Array]:
    """What the functions of a model give at a few states."""
    control = None if controls is None else jnp.zeros(controls)
    steps = [model.nominal_step(index, control) for index in STEPS]
    states = jax.vmap(model.sample_prior)(jax.random.split(jax.random.key(0), len(STEPS)))
    probes = list(zip(states, steps, strict=True))

    def each(function: Callable[..., Array]) -> Array:
        return jnp.stack([function(x, step) for x, step in probes])

    noise = model.process_noise
    if noise is not None and not noise.reads_state:
        process_noise = model.process_noise_at(steps[0]).factor
    else:  # what noise makes of the states
        white = jnp.linspace(-1.0, 1.0, model.noise_size)
        process_noise = each(lambda x, step: model.move(x, white, step))
    found = {
        "process_noise": process_noise,
        "prior": states,
        "transition": each(model.skeleton),
    }
    if model.likelihood.additive:
        found["observation_noise"] = model.observation_noise_at(steps[0]).factor
    if model.likelihood.predicts:
        found["observation"] = each(model.predict_observation)

    def likelihood(x: Array, step: Step) -> Array:
        y = model.sample_observation(jax.random.key(0), x, step)
        return model.log_likelihood(y, x, step)

    return found | {"likelihood": each(likelihood)}


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
