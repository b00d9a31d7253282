"""What filters are given: observations and settings that all of them share, checked."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nopf.gaussian import as_float_array, is_traced, shown
from nopf.model import StateSpaceModel
from nopf.space import EXTREME_LEVEL

QUANTILES = (0.05, 0.5, 0.95)


def check_observations(model: StateSpaceModel, ys: Any, *axes: str) -> Any:
    """Observations as a float array of the right width, counted from the model's origin; with
    leading `axes`."""
    width = model.observation_space.size
    if isinstance(ys, np.ma.MaskedArray):
        ys = np.ma.filled(ys.astype(float), np.nan)
    name = "ys" if axes else "y"
    if not is_traced(ys):
        try:
            ys = np.asarray(ys)
        except (TypeError, ValueError):
            raise TypeError(f"{name}: expected numbers, got {shown(ys)}") from None
    shape = f"({', '.join([*axes, str(width)])})" if axes else f"({width},)"
    if ys.ndim != len(axes) + 1 or ys.shape[-1] != width:
        raise ValueError(
            f"{name}: expected shape {shape} (the model's observation has {width} numbers), "
            f"got {ys.shape}"
        )
    if ys.size == 0:
        raise ValueError(f"{name}: expected at least one observation, got shape {ys.shape}")
    if not jnp.issubdtype(ys.dtype, jnp.floating):
        raise TypeError(
            f"{name}: expected floating-point numbers, got {ys.dtype}; integers cannot hold "
            "the NaN that marks a missing value: if none is missing, pass "
            f"np.asarray({name}, float)"
        )
    with np.errstate(over="ignore"):  # what overflows is reported below
        relative = model.observation_space.relative(ys)
        series = relative.astype(jax.dtypes.canonicalize_dtype(float))
    if isinstance(series, np.ndarray) and np.any(np.isinf(series)):
        at = np.argwhere(np.isinf(series))[0]
        raise ValueError(
            f"{name}: expected finite numbers or NaN for missing, "
            f"got {ys[tuple(at)]} at position {tuple(int(i) for i in at)}"
        )
    return series


def check_quantiles(levels: Any) -> tuple[float, ...]:
    """The levels, if there are quantiles at them."""
    given = np.atleast_1d(as_float_array(levels, "quantiles"))
    if given.ndim != 1:
        raise ValueError(f"quantiles: expected a tuple of levels, got shape {given.shape}")
    levels = tuple(given.tolist())
    if not all(EXTREME_LEVEL <= level <= 1 - EXTREME_LEVEL for level in levels):
        raise ValueError(
            f"quantiles: expected levels from {EXTREME_LEVEL} to {1 - EXTREME_LEVEL}, got {levels}"
        )
    return levels
