"""KalmanFilter: the exact answer for linear-Gaussian models."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy.linalg
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from nopf.filters.filter import QUANTILES, Filter, check_quantiles
from nopf.filters.posterior import Info
from nopf.gaussian import Gaussian
from nopf.model import StateSpaceModel, Step, positive_integer


class GaussianBelief(NamedTuple):
    """Mean `(d,)` and covariance `(d, d)` of the state; `key` for drawing samples from it."""

    key: PRNGKeyArray | None
    mean: Float[Array, " d"]
    cov: Float[Array, "d d"]


class KalmanFilter(Filter):
    """The Kalman filter, exact in mean, covariance and log-evidence.

    The model's functions must be linear (affine) in the state, for every step, its prior and both
    noises Gaussian, and no coordinate an angle; anything else is refused.

    Args:
        model: the model.
        particles: how many samples of the posterior `keep="particles"` draws (which needs a key).
        quantiles: levels that `info` and the posterior report.
    """

    model: StateSpaceModel
    particles: int = eqx.field(static=True)
    quantiles: tuple[float, ...] = eqx.field(static=True)

    def __init__(
        self,
        model: StateSpaceModel,
        particles: int = 1000,
        *,
        quantiles: tuple[float, ...] = QUANTILES,
    ):
        self.model = model
        self.particles = positive_integer(particles, "particles")
        self.quantiles = check_quantiles(quantiles)
        _require_linear_gaussian(model)

    def _check_steps(self, steps: Step) -> None:
        if self.model.reads_control:
            _require_linear(self.model, jax.tree.map(lambda leaf: leaf[0], steps))

    def _initial_belief(self, key: PRNGKeyArray | None) -> GaussianBelief:
        prior = self.model.prior
        return GaussianBelief(key, jnp.asarray(prior.mean, float), prior.covariance)

    def _update(
        self, belief: GaussianBelief, y: Float[Array, " m"], step: Step
    ) -> tuple[GaussianBelief, Info]:
        model = self.model
        mean, motion = _linearise(lambda x: model.skeleton(x, step), belief.mean)
        cov = motion @ belief.cov @ motion.T + model.process_noise_at(step).covariance

        observed = ~jnp.isnan(y)
        _, matrix = _linearise(lambda x: model.predict_observation(x, step), mean)
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
        return belief, self._info(belief, log_evidence)

    def _info(self, belief: GaussianBelief, log_evidence: Array) -> Info:
        std = jnp.sqrt(jnp.diagonal(belief.cov))
        deviates = jax.scipy.stats.norm.ppf(jnp.asarray(self.quantiles))
        nan = jnp.any(jnp.isnan(belief.mean)).astype(jnp.int32)
        return Info(
            mean=belief.mean,
            cov=belief.cov,
            quantiles=belief.mean[None] + deviates[:, None] * std[None],
            log_evidence=log_evidence,
            ess=None,
            collapsed=jnp.zeros((), bool),
            nan_states=nan,
            nan_weights=jnp.isnan(log_evidence).astype(jnp.int32) * (1 - nan),
        )

    def _ensemble(self, belief: GaussianBelief) -> tuple[Float[Array, "n d"], Float[Array, " n"]]:
        if belief.key is None:
            raise TypeError("key: keep='particles' draws from the posterior; pass key=")
        n, d = self.particles, belief.mean.size
        noise = jax.random.normal(jax.random.split(belief.key)[1], (n, d))
        samples = belief.mean[None] + noise @ jnp.linalg.cholesky(belief.cov).T
        return samples, jnp.full(n, -np.log(n), float)


def _linearise(function: Callable[[Array], Array], x: Array) -> tuple[Array, Array]:
    """The value and the Jacobian at `x`."""

    def twice(x: Array) -> tuple[Array, Array]:
        value = function(x)
        return value, value

    jacobian, value = jax.jacfwd(twice, has_aux=True)(x)
    return value, jacobian


def _require_linear_gaussian(model: StateSpaceModel) -> None:
    if not isinstance(model.prior, Gaussian):
        _refuse(f"this prior is {type(model.prior).__name__}, not nopf.Gaussian")
    if model.custom_log_prob is not None:
        _refuse("this observation noise is not Gaussian (it has observation_log_prob)")
    if model.space.angles or model.observation_space.angles:
        _refuse("this one has angles, which wrap")
    if not model.reads_control:
        for index in (1, 2, 10):
            dt = jnp.asarray(model.dt, float)
            _require_linear(model, Step(jnp.asarray(index, jnp.int32), index * dt, dt))


def _require_linear(model: StateSpaceModel, step: Step) -> None:
    """Compares each function with its tangent at the prior mean, far away from it."""
    centre = jnp.asarray(model.prior.mean, float)
    far = centre[None] + 10 * model.prior.std[None] * jax.random.normal(
        jax.random.key(0), (8, centre.size)
    )
    for name, function in [
        ("transition", model.skeleton),
        ("observation", model.predict_observation),
    ]:
        at_step = functools.partial(function, step=step)
        value, jacobian = _linearise(at_step, centre)
        tangent = value[None] + (far - centre[None]) @ jacobian.T
        actual = jax.vmap(at_step)(far)
        size = np.max(np.abs(np.asarray(actual)), initial=1e-6)
        if not np.allclose(actual, tangent, rtol=0, atol=1e-4 * size):
            _refuse(f"this {name} is not linear in the state")


def _refuse(reason: str) -> None:
    raise ValueError(
        f"model: KalmanFilter is exact for linear-Gaussian models only, and {reason}; "
        "use nopf.ParticleFilter"
    )
