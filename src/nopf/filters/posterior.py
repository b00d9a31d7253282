"""Info and Posterior: what a filter says after one step, and after a series."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from nopf.filters.health import warnings_of
from nopf.filters.smoothing import (
    Kept,
    Smoothed,
    backward_simulation,
    fixed_lag,
    normal_quantiles,
    rauch_tung_striebel,
    summaries,
)
from nopf.gaussian import Numbers
from nopf.model import Step, check_key, positive_integer
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
        p_value: how probable an observation at least as far from the prediction is, if the model is
            right; NaN if nothing was observed.
        nominal_p_value: the same without the tails of a model's `robust=`: small for an outlier,
            even if the model is prepared for it. An ensemble Kalman filter gives `p_value` twice.
        drift: standard normal if the model is right, and large if the observations of the last
            twenty steps or so have surprised it too often. It depends on the model and the data,
            the ESS on the proposal too: so they tell which of the two is at fault.
        nan_states, nan_weights: how many particles came out as NaN (or infinite). `step` and `run`
            raise on these, except under your own `jax.jit`, where nothing can be raised.
    """

    mean: Float[Array, "*t d"]
    cov: Float[Array, "*t d d"]
    quantiles: Float[Array, "*t q d"]
    log_evidence: Float[Array, "*t"]
    ess: Float[Array, "*t"] | None
    collapsed: Bool[Array, "*t"]
    p_value: Float[Array, "*t"]
    nominal_p_value: Float[Array, "*t"]
    nan_states: Int[Array, "*t"]
    nan_weights: Int[Array, "*t"]
    drift: Float[Array, "*t"] | float = np.nan

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
        p_values: tuple[Float[Array, ""], Float[Array, ""]],
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
            p_value=p_values[0],
            nominal_p_value=p_values[1],
            nan_states=jnp.sum(jnp.any(~jnp.isfinite(states), axis=1)),
            nan_weights=jnp.sum(jnp.isnan(log_weights)),
        )


class Source:
    """A filter, where JAX shall not look for arrays in it."""

    def __init__(self, flt: Any):
        self.filter = flt

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Source) and self.filter is other.filter

    def __hash__(self) -> int:
        return id(self.filter)


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
        p_value, nominal_p_value, drift: `(T,)`, how well the model explains the data (see `Info`);
            `warnings()` says it in words.
        particles: `(T, N, d)` before resampling; only with `keep="particles"`.
        log_weights: `(T, N)`, normalised; only with `keep="particles"`.
        times: `(T,)`.
        observations: `(T, m)`, as they came in.
        steps: index, time, dt and control of each.
        source: the filter that made it.
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
    p_value: Float[Array, "*b t"]
    nominal_p_value: Float[Array, "*b t"]
    drift: Float[Array, "*b t"]
    particles: Float[Array, "*b t n d"] | None
    log_weights: Float[Array, "*b t n"] | None
    times: Float[np.ndarray, " t"]
    observations: Float[Array | np.ndarray, "*b t m"]
    steps: Step
    state: Any
    source: Source = eqx.field(static=True)
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

    def warnings(self) -> list[str]:
        """When and why these estimates should not be trusted, in plain words (see `Monitor`)."""
        self._one_series("warnings")
        return warnings_of(self, np.asarray(self.steps.index), self.times)

    def forecast(
        self, steps: int, *, times: Numbers | None = None, controls: Numbers | None = None
    ) -> "Posterior":
        """What comes after the last observation, as far as the model knows.

        Args:
            steps: how many.
            times: `(steps,)`, not before the last observation; every `model.dt` if left out.
            controls: `(steps, u)` control inputs.
        """
        self._one_series("forecast")
        nothing = np.full(
            (positive_integer(steps, "steps"), self.source.filter.model.observation_space.size),
            np.nan,
        )
        return self.source.filter.resume(self.state, nothing, times=times, controls=controls)

    def smooth(
        self, *, key: Any = None, trajectories: int = 500, lag: int | None = None
    ) -> Smoothed:
        """Estimates of each state given later observations too.

        After a `KalmanFilter` this is exact (Rauch, Tung and Striebel). After the others it is
        backward simulation, which needs `keep="particles"`; its time goes with trajectories × N,
        and with a lag also with that.

        Args:
            key: random key; the exact smoother needs none.
            trajectories: how many to draw.
            lag: how many later observations may count; all if left out.
        """
        self._one_series("smooth")
        model, levels = self.source.filter.model, self.quantile_levels
        exact = self.source.filter._exact_smoother()
        if exact and lag is not None:
            raise ValueError("lag: the exact smoother of a KalmanFilter uses all observations")
        if exact:
            mean, cov = rauch_tung_striebel(model, self.mean, self.cov, self.steps)
            quantiles = jax.vmap(lambda m, c: normal_quantiles(m, c, levels))(mean, cov)
            return self._smoothed(mean, cov, quantiles, None)
        if self.particles is None:
            raise ValueError(
                'smooth: the particles are needed; run the filter with keep="particles"'
            )
        assert self.log_weights is not None
        count, key = positive_integer(trajectories, "trajectories"), check_key(key)
        kept = Kept(model, self.particles, self.log_weights, self.steps)
        if lag is None:
            drawn = backward_simulation(kept, key, count)
        else:
            drawn = fixed_lag(kept, key, count, positive_integer(lag, "lag"))
        mean, cov, quantiles = summaries(model.space, drawn, levels)
        return self._smoothed(mean, cov, quantiles, drawn if lag is None else None)

    def _smoothed(self, mean: Any, cov: Any, quantiles: Any, trajectories: Any) -> Smoothed:
        names, levels = self.state_names, self.quantile_levels
        return Smoothed(mean, cov, quantiles, trajectories, self.times, names, levels)

    def _one_series(self, name: str) -> None:
        if self.mean.ndim != 2:
            raise ValueError(f"{name}: expected the posterior of one series, not that of run_batch")

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
            "p_value": ("time",),
            "nominal_p_value": ("time",),
            "drift": ("time",),
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
