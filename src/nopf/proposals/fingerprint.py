"""What identifies a model, so that a proposal is not used with another one by mistake."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nopf.model import StateSpaceModel

TOLERANCE = 1e-3  # the same functions on another machine differ by rounding
PROBES = 3


def fingerprint(model: StateSpaceModel, controls: int | None) -> dict[str, Any]:
    """Dimensions, names, angles, noise scales, and the functions' values at a few states.

    Args:
        model: the model.
        controls: how many controls it reads, None if it is run without.
    """
    # In single precision always: in double the same key draws other states.
    with jax.enable_x64(False):
        step = model.nominal_step(control=None if controls is None else jnp.zeros(controls))
        states = jax.vmap(model.sample_prior)(jax.random.split(jax.random.key(0), PROBES))
        found = shape_of(model) | {
            "dt": model.dt,
            "process_noise": _rounded(model.process_noise_at(step).factor),
            "prior": _rounded(states),
            "transition": _rounded([model.skeleton(x, step) for x in states]),
        }
        if model.custom_log_prob is None:
            found["observation_noise"] = _rounded(model.observation_noise_at(step).factor)
        if model.observation is not None:
            found["observation"] = _rounded([model.predict_observation(x, step) for x in states])
    return found


def shape_of(model: StateSpaceModel) -> dict[str, Any]:
    """Names, angles and dimensions: what a proposal cannot do without."""
    return {
        "state_names": list(model.state_names),
        "state_angles": list(model.space.angles),
        "observations": model.observation_space.size,
        "observation_angles": list(model.observation_space.angles),
    }


def differences(wanted: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """What differs, in words."""
    said = []
    for key in dict.fromkeys([*wanted, *found]):
        a, b = wanted.get(key), found.get(key)
        if _same(a, b):
            continue
        if key in ("prior", "transition", "observation"):
            said.append(f"{key} gives other numbers at the same test points")
        else:
            said.append(f"{key} was {a}, is {b}")
    return said


def _rounded(values: Any) -> Any:
    return np.round(np.asarray(values, np.float64), 9).tolist()


def _same(a: Any, b: Any) -> bool:
    if a is None or b is None or isinstance(a, str) or isinstance(b, str):
        return bool(a == b)
    try:
        first, second = np.asarray(a, np.float64), np.asarray(b, np.float64)
    except (TypeError, ValueError):
        return bool(a == b)
    return first.shape == second.shape and np.allclose(first, second, rtol=TOLERANCE, atol=1e-6)
