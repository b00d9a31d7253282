"""Draws of states as an `xarray.DataTree`, the form in which ArviZ takes them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float


def equally_weighted(
    particles: Float[np.ndarray, "t n d"], log_weights: Float[np.ndarray, "t n"], count: int
) -> Float[np.ndarray, "m t d"]:
    """At each step so many particles, each as often as its weight says, rounded."""
    places = (np.arange(count) + 0.5) / count
    weights = np.exp(np.asarray(log_weights, np.float64))
    ends = np.cumsum(weights, axis=1)
    chosen = [
        own[np.minimum(np.searchsorted(end / end[-1], places), len(own) - 1)]
        for own, end in zip(np.asarray(particles), ends, strict=True)
    ]
    return np.stack(chosen, axis=1)


def tree(
    drawn: Float[np.ndarray, "n t d"],
    times: Float[np.ndarray, " t"],
    names: Sequence[str],
    observations: Float[np.ndarray, "t m"] | None = None,
    observation_names: Sequence[str] = (),
) -> Any:
    """An `xarray.DataTree` with a variable a state in `posterior`, of dimensions chain, draw and
    time, and one an observation in `observed_data`."""
    try:
        import xarray
    except ImportError as error:
        raise ImportError(
            "to_arviz needs xarray; install it with: pip install 'nopf[tables]'"
        ) from error
    time = np.asarray(times)
    places = {"chain": [0], "draw": np.arange(len(drawn)), "time": time}
    states = {
        name: (("chain", "draw", "time"), np.asarray(drawn)[None, :, :, i])
        for i, name in enumerate(names)
    }
    groups = {"posterior": xarray.Dataset(states, coords=places)}
    if observations is not None:
        seen = {
            name: (("time",), np.asarray(observations)[:, i])
            for i, name in enumerate(observation_names)
        }
        groups["observed_data"] = xarray.Dataset(seen, coords={"time": time})
    return xarray.DataTree.from_dict(groups)
