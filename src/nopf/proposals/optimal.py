"""OptimalProposal: the exact p(x | ancestor, y), where it has a closed form."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from nopf.gaussian import Gaussian
from nopf.linear import linearise, why_not_linear
from nopf.model import StateSpaceModel, Step
from nopf.proposals.proposal import Move, Proposal, why_not_gaussian


class OptimalProposal(Proposal):
    """The locally optimal proposal of models with a linear observation and Gaussian noise.

    The transition may be nonlinear. The weight is the predictive likelihood p(y | ancestor), which
    does not depend on where the particle lands. Gain and covariance are the same for all particles.
    """

    def check(self, model: StateSpaceModel) -> None:
        reason = (
            why_not_gaussian(model)
            or ("the observation has angles" if model.observation_space.angles else None)
            or why_not_linear(model, "observation")
            or ("the observation reads an angle" if _reads_angle(model) else None)
        )
        if reason is not None:
            raise ValueError(
                "proposal: OptimalProposal needs a linear observation with Gaussian noise, but "
                f"{reason}; use LinearisedProposal or UnscentedProposal (Gaussian noise), or "
                "InnerSamplingProposal (any likelihood)"
            )

    def propose(
        self,
        key: PRNGKeyArray,
        model: StateSpaceModel,
        ancestor: Float[Array, " d"],
        y: Float[Array, " m"],
        step: Step,
        memory: Any = None,
    ) -> Move:
        gain, proposal, predictive = _kalman_update(model, y, step)
        mean = model.skeleton(ancestor, step)
        innovation = model.innovation(y, mean, step)
        state = model.space.wrap(mean + gain @ innovation + proposal.sample(key))
        return Move(state, predictive.log_prob(innovation), memory)


def _kalman_update(
    model: StateSpaceModel, y: Float[Array, " m"], step: Step
) -> tuple[Float[Array, "d m"], Gaussian, Gaussian]:
    """Gain, zero-mean proposal and zero-mean predictive law: functions of the step alone."""
    observed = ~jnp.isnan(y)
    origin = jnp.zeros(model.space.size)
    _, matrix = linearise(lambda x: model.predict_observation(x, step), origin)
    matrix = jnp.where(observed[:, None], matrix, 0)
    process = model.process_noise_at(step).covariance
    noise = model.observation_noise_at(step).marginal(observed).covariance
    predictive = matrix @ process @ matrix.T + noise
    gain = jax.scipy.linalg.solve(predictive, matrix @ process, assume_a="pos").T
    # Joseph's form stays positive definite under rounding.
    shrink = jnp.eye(model.space.size) - gain @ matrix
    posterior = shrink @ process @ shrink.T + gain @ noise @ gain.T
    zero_x, zero_y = origin, jnp.zeros(y.size)
    return gain, Gaussian(zero_x, posterior), Gaussian(zero_y, predictive)


def _reads_angle(model: StateSpaceModel) -> bool:
    if model.reads_control or not model.space.angles:
        return False
    draw = model.sample_prior(jax.random.key(0))
    _, matrix = linearise(lambda x: model.predict_observation(x, model.nominal_step()), draw)
    return bool(np.any(np.asarray(matrix)[:, list(model.space.angles)]))
