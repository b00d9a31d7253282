"""Info and Posterior: what a filter says after one step, and after a series."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from nopf.space import Space


class Info(NamedTuple):
    """What a filter says about one step.

    Attributes:
        mean: `(d,)` posterior mean, circular for angles.
        cov: `(d, d)` posterior covariance.
        quantiles: `(q, d)`, one row a level of the filter's `quantiles`.
        log_evidence: log p(y_t | y_1 … y_{t−1}), this step's share of the evidence.
        ess: effective sample size before resampling, 0 if every weight was zero; None for filters
            without weights.
        collapsed: whether every weight was zero. The step then counts as one without observation:
            particles move on with the weights they had, and its log-evidence is −∞.
        nan_states, nan_weights: how many particles came out as NaN (or infinite). `step` and `run`
            raise on these, except under your own `jax.jit`, where nothing can be raised.
    """

    mean: Float[Array, "*t d"]
    cov: Float[Array, "*t d d"]
    quantiles: Float[Array, "*t q d"]
    log_evidence: Float[Array, "*t"]
    ess: Float[Array, "*t"] | None
    collapsed: Bool[Array, "*t"]
    nan_states: Int[Array, "*t"]
    nan_weights: Int[Array, "*t"]

    @property
    def std(self) -> Float[Array, "*t d"]:
        """Posterior standard deviations."""
        return jnp.sqrt(jnp.diagonal(self.cov, axis1=-2, axis2=-1))

    @staticmethod
    def of_particles(
        space: Space,
        states: Float[Array, "n d"],
        log_weights: Float[Array, " n"],
        levels: tuple[float, ...],
        *,
        log_evidence: Float[Array, ""],
        ess: Float[Array, ""] | None,
        collapsed: Bool[Array, ""],
    ) -> "Info":
        """Sums up particles with normalised log-weights."""
        weights = jax.nn.softmax(log_weights)
        mean = space.mean(states, weights)
        cov = space.covariance(states, weights, mean)
        std = jnp.sqrt(jnp.diagonal(cov))
        return Info(
            mean=mean,
            cov=cov,
            quantiles=space.quantiles(states, weights, levels, mean, std),
            log_evidence=log_evidence,
            ess=ess,
            collapsed=collapsed,
            nan_states=jnp.sum(jnp.any(~jnp.isfinite(states), axis=1)),
            nan_weights=jnp.sum(jnp.isnan(log_weights)),
        )


class Posterior(eqx.Module):
    """The filtering distributions of a series; row k belongs to observation k (step k + 1).

    After `run_batch` every array has a leading axis, one entry a series.

    Attributes:
        mean: `(T, d)` posterior means, circular for angles.
        cov: `(T, d, d)` posterior covariances.
        quantiles: `(T, q, d)` quantiles at `quantile_levels`.
        ess: `(T,)` effective sample sizes before resampling; None for filters without weights.
        log_evidence_increments: `(T,)`, log p(y_t | y_1 … y_{t−1}).
        collapsed: `(T,)`, whether every weight was zero at that step (see `Info`).
        particles: `(T, N, d)` before resampling; only with `keep="particles"`.
        log_weights: `(T, N)`, normalised; only with `keep="particles"`.
        times: `(T,)`.
        state: where the filter stands after the last observation; go on with `flt.step(state, y)`
            (after `run_batch` it has a leading axis too).
        state_names, quantile_levels: what the columns of the above mean.
    """

    mean: Float[Array, "*b t d"]
    cov: Float[Array, "*b t d d"]
    quantiles: Float[Array, "*b t q d"]
    ess: Float[Array, "*b t"] | None
    log_evidence_increments: Float[Array, "*b t"]
    collapsed: Bool[Array, "*b t"]
    particles: Float[Array, "*b t n d"] | None
    log_weights: Float[Array, "*b t n"] | None
    times: Float[np.ndarray, " t"]
    state: Any
    state_names: tuple[str, ...] = eqx.field(static=True)
    quantile_levels: tuple[float, ...] = eqx.field(static=True)

    @property
    def std(self) -> Float[Array, "*b t d"]:
        """Posterior standard deviations."""
        return jnp.sqrt(jnp.diagonal(self.cov, axis1=-2, axis2=-1))

    @property
    def log_evidence(self) -> Float[Array, "*b"]:
        """log p(y_1 … y_T)."""
        return jnp.sum(self.log_evidence_increments, axis=-1)

    def to_xarray(self) -> Any:
        """An `xarray.Dataset` with named dimensions (needs the `tables` extra)."""
        try:
            import xarray
        except ImportError as error:
            raise ImportError(
                "to_xarray needs xarray; install it with: pip install 'nopf[tables]'"
            ) from error
        series = ("series",) * (self.mean.ndim - 2)
        dims: dict[str, tuple[str, ...]] = {
            "mean": ("time", "state"),
            "std": ("time", "state"),
            "cov": ("time", "state", "state_2"),
            "quantiles": ("time", "quantile", "state"),
            "ess": ("time",),
            "log_evidence_increments": ("time",),
            "log_evidence": (),
            "collapsed": ("time",),
            "particles": ("time", "particle", "state"),
            "log_weights": ("time", "particle"),
        }
        names = list(self.state_names)
        return xarray.Dataset(
            {
                name: (series + dim, np.asarray(getattr(self, name)))
                for name, dim in dims.items()
                if getattr(self, name) is not None
            },
            coords={
                "time": np.asarray(self.times),
                "state": names,
                "state_2": names,
                "quantile": list(self.quantile_levels),
            },
        )
