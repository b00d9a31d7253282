"""UnscentedProposal: every particle runs its own unscented Kalman filter and draws from it."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from nopf.gaussian import LOG_2PI, Gaussian, Numbers
from nopf.linear import cholesky, solve_lower, solve_upper
from nopf.model import StateSpaceModel, Step
from nopf.proposals.proposal import Move, Proposal, why_not_additive


class UnscentedProposal(Proposal):
    """The unscented particle filter's proposal: N(m, P) of a particle's own unscented filter.

    Every particle carries a covariance, which starts as the prior's.

    The paper's sigma points (α = 10⁻³, β = 2, κ = 0, augmented by both noises) lie so close to the
    centre that their weighted sums are differences of nearly equal numbers with weights of a
    million, hopeless in single precision. To a relative 10⁻⁵ these sums are first and second
    derivatives along the columns of the augmented covariance's root: these are computed instead,
    exactly, by JAX. Noise that is additive needs no points of its own.

    Args:
        observation_noise: stands in for the observation noise of models that have another
            likelihood (standard deviations or a covariance); the importance weight is exact anyway.
        beta: weight of the squared second-order mean in the covariance; 2 suits normal states.
    """

    observation_noise: Any
    beta: float

    def __init__(self, observation_noise: Numbers = None, beta: float = 2.0):
        self.observation_noise = observation_noise
        self.beta = float(beta)

    def check(self, model: StateSpaceModel) -> None:
        if not hasattr(model.prior, "covariance"):
            raise ValueError(
                "proposal: UnscentedProposal starts from the prior's covariance, but "
                f"{type(model.prior).__name__} has none; use InnerSamplingProposal"
            )
        if self.observation_noise is not None:
            self._noise(model, None)
            if model.observation is not None:
                return
        reason = why_not_additive(model)
        if reason is not None:
            raise ValueError(
                f"proposal: UnscentedProposal needs additive observation noise, but {reason}; give "
                "it a stand-in with observation_noise= (the model needs an observation too), or "
                "use InnerSamplingProposal or NudgedProposal"
            )

    def initial_memory(self, model: StateSpaceModel) -> Float[Array, "d d"]:
        return jnp.asarray(model.prior.covariance, float)

    def propose(
        self,
        key: PRNGKeyArray,
        model: StateSpaceModel,
        ancestor: Float[Array, " d"],
        y: Float[Array, " m"],
        step: Step,
        memory: Any = None,
    ) -> Move:
        if memory is None:
            memory = self.initial_memory(model)
        observed = ~jnp.isnan(y)
        process = model.process_noise_at(step)
        noise = self._noise(model, step).marginal(observed).covariance
        forecast = model.skeleton(ancestor, step)

        # Deviations from the forecast, so that angles stay small numbers.
        def move(x: Float[Array, " d"]) -> Float[Array, " d"]:
            return model.space.difference(model.skeleton(x, step), forecast)

        def see(delta: Float[Array, " d"]) -> Float[Array, " m"]:
            return -model.innovation(y, forecast + delta, step)

        def both(x: Float[Array, " d"]) -> tuple[Array, Array]:
            delta = move(x)
            return delta, see(delta)

        roots = _root(memory).T  # one row a direction
        (dx, dy), (ddx, ddy) = jax.vmap(lambda c: _derivatives(both, ancestor, c))(roots)
        pushes = _columns(process)
        hy, hyy = jax.vmap(lambda c: _derivatives(see, jnp.zeros_like(forecast), c))(pushes)

        shift_x, shift_y = 0.5 * ddx.sum(0), 0.5 * (ddy.sum(0) + hyy.sum(0))
        dx, dy = jnp.concatenate([dx, pushes]), jnp.concatenate([dy, hy])
        cov = dx.T @ dx + self.beta * jnp.outer(shift_x, shift_x)
        cross = dx.T @ dy + self.beta * jnp.outer(shift_x, shift_y)
        spread = dy.T @ dy + self.beta * jnp.outer(shift_y, shift_y) + noise
        lower = [[spread[i, j] for j in range(i + 1)] for i in range(y.size)]
        factor = cholesky(lower)
        gain = jnp.stack(solve_upper(factor, solve_lower(factor, list(cross.T))), axis=1)
        innovation = jnp.where(observed, -see(jnp.zeros_like(forecast)) - shift_y, 0)
        mean = shift_x + gain @ innovation
        cov = cov - gain @ spread @ gain.T

        root = _root(cov)
        white = jax.random.normal(key, forecast.shape)
        delta = mean + root @ white
        state = model.space.wrap(forecast + delta)
        log_q = -0.5 * jnp.sum(white**2) - jnp.sum(jnp.log(jnp.diagonal(root)))
        log_q -= 0.5 * forecast.size * LOG_2PI
        log_weight = model.log_likelihood(y, state, step) - log_q
        log_weight += process.log_prob(model.space.difference(state, forecast))
        return Move(state, log_weight, root @ root.T)

    def _noise(self, model: StateSpaceModel, step: Step | None) -> Gaussian:
        if self.observation_noise is None:
            assert step is not None
            return model.observation_noise_at(step)
        zero = jnp.zeros(model.observation_space.size)
        return Gaussian(zero, self.observation_noise, name="observation_noise")


def _derivatives(function: Any, x: Array, direction: Array) -> tuple[Any, Any]:
    """First and second derivative of `function` at `x` along `direction`."""

    def first(x: Array) -> Any:
        return jax.jvp(function, (x,), (direction,))[1]

    return jax.jvp(first, (x,), (direction,))


def _columns(noise: Gaussian) -> Float[Array, "d d"]:
    """The columns of the noise's root, one a row."""
    factor = jnp.asarray(noise.factor)
    return jnp.diag(factor) if factor.ndim == 1 else factor.T


def _root(cov: Float[Array, "d d"]) -> Float[Array, "d d"]:
    """Cholesky factor; with jitter on the diagonal if rounding left the matrix indefinite."""
    size = cov.shape[0]
    deviation = jnp.sqrt(jnp.maximum(jnp.diagonal(cov), 1e-12))
    correlation = [
        [0.5 * (cov[i, j] + cov[j, i]) / (deviation[i] * deviation[j]) for j in range(i)]
        for i in range(size)
    ]
    for row in correlation:
        row.append(jnp.ones(()))
    # A pivot below this is rounding; what it stands for is then drawn with a little jitter.
    factor = cholesky(correlation, smallest_pivot=1e-6)
    zero = jnp.zeros(())
    return jnp.stack(
        [
            jnp.stack([deviation[i] * entry for entry in row] + [zero] * (size - 1 - i))
            for i, row in enumerate(factor)
        ]
    )
