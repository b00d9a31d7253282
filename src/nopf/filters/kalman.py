"""KalmanFilter: the exact answer for linear-Gaussian models."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy.linalg
import jax.scipy.special
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from nopf.arguments import positive_integer, yes_or_no
from nopf.filters.filter import Filter, Update
from nopf.filters.health import Judged
from nopf.filters.inputs import QUANTILES, check_quantiles
from nopf.filters.posterior import Info, Posterior, check_one_series
from nopf.filters.smoothing import Smoothed, normal_quantiles, rauch_tung_striebel, smoothed_like
from nopf.gaussian import Gaussian
from nopf.linear import linear_motion, linearise, why_not_linear
from nopf.model import StateSpaceModel, check_model
from nopf.steps import Step


class GaussianBelief(NamedTuple):
    """Mean `(d,)` and covariance `(d, d)` of the state; `key` for drawing samples from it."""

    key: PRNGKeyArray | None
    mean: Float[Array, " d"]
    cov: Float[Array, "d d"]


class KalmanFilter(Filter[GaussianBelief]):
    """The Kalman filter, exact in mean, covariance and log-evidence.

    The model's functions must be linear (affine) in the state, and in the noise if the transition
    takes it as an argument, for every step; its prior and observation noise must be Gaussian, and
    no coordinate an angle. Anything else is refused.

    Args:
        model: the model.
        particles: how many samples of the posterior `keep="particles"` draws (which needs a key).
        quantiles: levels that `info` and the posterior report.
        health: whether to judge each observation by its p-value, for warnings.
    """

    model: StateSpaceModel
    particles: int = eqx.field(static=True)
    quantiles: tuple[float, ...] = eqx.field(static=True)
    health: bool = eqx.field(static=True)

    def __init__(
        self,
        model: StateSpaceModel,
        particles: int | float = 1000,
        *,
        quantiles: tuple[float, ...] = QUANTILES,
        health: bool = True,
    ):
        self.model = check_model(model).whole
        self.particles = positive_integer(particles, "particles")
        self.quantiles = check_quantiles(quantiles)
        self.health = yes_or_no(health, "health")
        _refuse(_why_not_linear_gaussian(self.model))

    def check_steps(self, steps: Step) -> None:
        _refuse(why_not_linear(self.model, steps))

    def begin(self, key: PRNGKeyArray | None) -> GaussianBelief:
        prior = self.model.prior
        assert isinstance(prior, Gaussian)
        return GaussianBelief(key, jnp.asarray(prior.mean, float), prior.covariance)

    def update(
        self, belief: GaussianBelief, y: Float[Array, " m"], step: Step
    ) -> Update[GaussianBelief]:
        model = self.model
        mean, motion, process = linear_motion(model, belief.mean, step)
        cov = motion @ belief.cov @ motion.T + process

        observed = ~jnp.isnan(y)
        _, matrix = linearise(lambda x: model.predict_observation(x, step), mean)
        matrix = jnp.where(observed[:, None], matrix, 0)
        noise = model.observation_noise_at(step).marginal(observed).covariance
        innovation = model.innovation(y, mean, step)
        innovation_cov = matrix @ cov @ matrix.T + noise
        factor = jnp.linalg.cholesky(innovation_cov)
        gain = jax.scipy.linalg.cho_solve((factor, True), matrix @ cov).T
        white = jax.scipy.linalg.solve_triangular(factor, innovation, lower=True)
        log_evidence = -0.5 * (white @ white + innovation.size * jnp.log(2 * jnp.pi))
        log_evidence -= jnp.sum(jnp.log(jnp.diagonal(factor)))

        mean = mean + gain @ innovation
        # Joseph's form: stays symmetric and positive definite under rounding.
        shrink = jnp.eye(mean.size) - gain @ matrix
        cov = shrink @ cov @ shrink.T + gain @ noise @ gain.T
        key = None if belief.key is None else jax.random.split(belief.key)[0]
        belief = GaussianBelief(key, mean, cov)
        standardised = innovation / jnp.sqrt(jnp.diagonal(innovation_cov))
        prediction = white @ white, jnp.where(observed, standardised, jnp.nan)
        return Update(belief, self._info(belief, log_evidence), prediction)

    def p_values(
        self,
        prediction: tuple[Float[Array, ""], Float[Array, " m"]],
        y: Float[Array, " m"],
        step: Step,
    ) -> Judged:
        square, innovation = prediction
        p_value = _beyond(square, jnp.sum(~jnp.isnan(y)))
        return Judged(p_value, p_value, innovation)

    def smooth(
        self,
        posterior: Posterior,
        *,
        key: PRNGKeyArray | None = None,
        trajectories: int | float = 500,
        lag: int | float | None = None,
    ) -> Smoothed:
        """Estimates of each state given later observations too, exactly.

        Args:
            posterior: of this filter.
            key: not needed.
            trajectories: not needed.
            lag: cannot be had.
        """
        check_one_series(posterior, "smooth")
        if lag is not None:
            raise ValueError("lag: the exact smoother of a KalmanFilter uses all observations")
        means = jnp.asarray(self.model.space.relative(posterior.mean), float)
        mean, cov = rauch_tung_striebel(self.model, means, posterior.cov, posterior.steps)
        levels = posterior.quantile_levels
        quantiles = jax.vmap(lambda m, c: normal_quantiles(m, c, levels))(mean, cov)
        return smoothed_like(posterior, mean, cov, quantiles, None)

    def _info(self, belief: GaussianBelief, log_evidence: Array) -> Info:
        nan = jnp.any(jnp.isnan(belief.mean)).astype(jnp.int32)
        return Info(
            mean=belief.mean,
            cov=belief.cov,
            quantiles=normal_quantiles(belief.mean, belief.cov, self.quantiles),
            log_evidence_increment=log_evidence,
            ess=None,
            collapsed=jnp.zeros((), bool),
            nan_states=nan,
            nan_weights=jnp.isnan(log_evidence).astype(jnp.int32) * (1 - nan),
            error=jnp.zeros_like(belief.mean),
        )

    def ensemble(self, belief: GaussianBelief) -> tuple[Float[Array, "n d"], Float[Array, " n"]]:
        if belief.key is None:
            raise TypeError("key: keep='particles' draws from the posterior; pass key=")
        n, d = self.particles, belief.mean.size
        noise = jax.random.normal(jax.random.split(belief.key)[1], (n, d))
        # By eigenvalues: a covariance that rounding has left singular still has samples.
        values, vectors = jnp.linalg.eigh(belief.cov)
        samples = belief.mean[None] + noise @ (vectors * jnp.sqrt(jnp.maximum(values, 0))[None]).T
        return samples, jnp.full(n, -np.log(n), float)


def _beyond(square: Float[Array, ""], freedom: Array) -> Float[Array, ""]:
    """The chance of a larger χ²; NaN without any freedom."""
    half = jnp.maximum(freedom, 1) / 2
    return jnp.where(freedom > 0, jax.scipy.special.gammaincc(half, square / 2), jnp.nan)


def _why_not_linear_gaussian(model: StateSpaceModel) -> str | None:
    if not isinstance(model.prior, Gaussian):
        return f"the prior is {type(model.prior).__name__}, not nopf.Gaussian"
    reason = model.likelihood.why_not_gaussian
    if reason is not None:
        return f"the observation noise is not Gaussian ({reason})"
    if model.space.angles or model.observation_space.angles:
        return "it has angles, which wrap"
    return why_not_linear(model)


def _refuse(reason: str | None) -> None:
    if reason is not None:
        raise ValueError(
            f"model: KalmanFilter is exact for linear-Gaussian models only, but {reason}; "
            "use nopf.ParticleFilter or nopf.EnsembleKalmanFilter"
        )
