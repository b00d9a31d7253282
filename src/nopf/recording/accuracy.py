"""How near estimates are to the truth, where a recording has it."""

from typing import NamedTuple

import numpy as np

from nopf.filters import Posterior


class Accuracy(NamedTuple):
    """Of one state.

    Attributes:
        rmse: root mean square of the errors of the mean.
        coverage: share of the rows whose truth is between the outer quantiles.
        nominal: what that share should be.
        error_over_variance: mean of the squared error over the posterior's variance: 1 if the
            filter is as sure as it should be, more if it is too sure. None if some variance is
            zero.
        rows: how many have a truth.
    """

    rmse: float
    coverage: float | None
    nominal: float | None
    error_over_variance: float | None
    rows: int


def accuracy(posterior: Posterior, truth: dict[str, np.ndarray]) -> dict[str, Accuracy]:
    """Of each state whose truth is known, by its name.

    Args:
        posterior: the estimates.
        truth: `(T,)` true values by state; NaN where there is none.
    """
    found = {}
    for name, values in truth.items():
        i = posterior.state_names.index(name)
        known = np.isfinite(values)
        if not known.any():
            continue
        turn = 2 * np.pi if i in posterior.space.angles else np.inf

        def apart(from_mean: np.ndarray, turn: float = turn) -> np.ndarray:
            return from_mean if np.isinf(turn) else from_mean - turn * np.round(from_mean / turn)

        mean = np.asarray(posterior.mean, np.float64)[known, i]
        error = apart(values[known] - mean)
        variance = np.square(np.asarray(posterior.std, np.float64)[known, i])
        levels, share, nominal = posterior.quantile_levels, None, None
        if len(levels) > 1:
            edges = np.asarray(posterior.quantiles, np.float64)[known, :, i]
            low, high = (apart(edges[:, levels.index(pick(levels))] - mean) for pick in (min, max))
            share = float(np.mean((low <= error) & (error <= high)))
            nominal = max(levels) - min(levels)
        with np.errstate(divide="ignore", invalid="ignore"):
            mean_ratio = float(np.mean(error**2 / variance))
        ratio = mean_ratio if np.isfinite(mean_ratio) else None
        rmse = float(np.sqrt(np.mean(error**2)))
        found[name] = Accuracy(rmse, share, nominal, ratio, int(known.sum()))
    return found
