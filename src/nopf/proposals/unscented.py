"""UnscentedProposal: every particle runs its own unscented Kalman filter and draws from it."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from nopf.arguments import finite_number
from nopf.gaussian import Gaussian, Numbers
from nopf.linear import cholesky, solve_lower, solve_upper
from nopf.model import StateSpaceModel
from nopf.proposals.factor import Dense
from nopf.proposals.law import GaussianLaw, Law
from nopf.proposals.proposal import Proposal
from nopf.steps import Step


class UnscentedProposal(Proposal):
    """The unscented particle filter's proposal: N(m, P) of a particle's own unscented filter.

    Every particle carries a covariance, which starts as the prior's.

    The paper's sigma points (α = 10⁻³, β = 2, κ = 0, augmented by both noises) lie so close to the
    centre that their weighted sums are differences of nearly equal numbers with weights of a
    million, hopeless in single precision. To a relative 10⁻⁵ these sums are first and second
    derivatives along the columns of the augmented covariance's root: these are computed instead,
    exactly, by JAX. Observation noise that is additive needs no points of its own.

    Args:
        observation_noise: stands in for the observation noise of models that have another
            likelihood (standard deviations or a covariance); the importance weight is exact anyway.
        beta: weight of the squared second-order mean in the covariance; 2 suits normal states.
        jitter: is added to the diagonal of the covariance that a particle carries, at every step.
    """

    observation_noise: Any
    beta: float
    jitter: float

    def __init__(
        self, observation_noise: Numbers = None, beta: float = 2.0, *, jitter: float = 0.0
    ):
        self.observation_noise = observation_noise
        self.beta = finite_number(beta, "beta")
        self.jitter = finite_number(jitter, "jitter")
        if self.jitter < 0:
            raise ValueError(f"jitter: expected a number of at least 0, got {jitter}")

    def check(self, model: StateSpaceModel) -> None:
        if not hasattr(model.prior, "covariance"):
            raise ValueError(
                "proposal: UnscentedProposal starts from the prior's covariance, but "
                f"{type(model.prior).__name__} has none; use InnerSamplingProposal"
            )
        density = model.why_no_density()
        if density is not None:
            raise ValueError(
                f"proposal: UnscentedProposal needs a transition with a density, but {density}; "
                "use LinearisedProposal or InnerSamplingProposal"
            )
        if self.observation_noise is not None:
            self._noise(model, None)
            if model.likelihood.predicts:
                return
        reason = model.likelihood.why_not_additive
        if reason is not None:
            raise ValueError(
                f"proposal: UnscentedProposal needs additive observation noise, but {reason}; give "
                "it a stand-in with observation_noise= (the model needs an observation too), or "
                "use InnerSamplingProposal or NudgedProposal"
            )

    def initial_memory(self, model: StateSpaceModel) -> Float[Array, "d d"]:
        return jnp.asarray(model.prior.covariance, float)  # type: ignore[attr-defined]

    def fit(
        self,
        model: StateSpaceModel,
        ancestor: Float[Array, " d"],
        y: Float[Array, " m"],
        step: Step,
        memory: Any,
    ) -> tuple[Law, Any]:
        """The law, and the covariance that the particle carries from here."""
        observed = ~jnp.isnan(y)
        process = model.process_noise_at(step, ancestor)
        noise = self._noise(model, step).marginal(observed).covariance
        forecast = model.skeleton(ancestor, step)

        # Deviations from the forecast, so that angles stay small numbers.
        def both(x: Float[Array, " d"], z: Float[Array, " d"]) -> tuple[Array, Array]:
            delta = model.space.difference(model.motion(x, step)(z), forecast)
            return delta, -model.innovation(y, forecast + delta, step)

        zero = jnp.zeros(model.noise_size)
        carried = memory + self.jitter * jnp.eye(ancestor.size)
        roots, units = _root(carried).T, jnp.eye(model.noise_size)  # one row a direction
        of_state = jax.vmap(lambda c: _derivatives(lambda x: both(x, zero), ancestor, c))(roots)
        of_noise = jax.vmap(lambda c: _derivatives(lambda z: both(ancestor, z), zero, c))(units)
        (dx, dy), (ddx, ddy) = jax.tree.map(
            lambda a, b: jnp.concatenate([a, b]), of_state, of_noise
        )
        shift_x, shift_y = 0.5 * ddx.sum(0), 0.5 * ddy.sum(0)
        cov = dx.T @ dx + self.beta * jnp.outer(shift_x, shift_x)
        cross = dx.T @ dy + self.beta * jnp.outer(shift_x, shift_y)
        spread = dy.T @ dy + self.beta * jnp.outer(shift_y, shift_y) + noise
        lower = [[spread[i, j] for j in range(i + 1)] for i in range(y.size)]
        factor = cholesky(lower)
        gain = jnp.stack(solve_upper(factor, solve_lower(factor, list(cross.T))), axis=1)
        innovation = jnp.where(observed, -both(ancestor, zero)[1] - shift_y, 0)
        mean = shift_x + gain @ innovation
        cov = cov - gain @ spread @ gain.T
        # What is no number must not be carried on for good.
        root = _root(jnp.where(jnp.all(jnp.isfinite(cov)), cov, process.covariance))
        # The same law of the noise: x − forecast is the noise's factor times z.
        inner = jax.vmap(process.whiten, in_axes=1, out_axes=1)(root)
        motion = model.motion(ancestor, step)

        def log_likelihood(z: Float[Array, " d"]) -> Float[Array, ""]:
            return model.log_likelihood(y, motion(z), step)

        mean = process.whiten(mean)
        return GaussianLaw(mean, Dense(inner), log_likelihood, jnp.any(observed)), root @ root.T

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
