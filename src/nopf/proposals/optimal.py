"""OptimalProposal: the exact p(x | ancestor, y), where it has a closed form."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from nopf.gaussian import is_traced
from nopf.linear import linearise, why_not_linear
from nopf.model import StateSpaceModel
from nopf.proposals.factor import Dense
from nopf.proposals.law import GaussianLaw
from nopf.proposals.proposal import Proposal
from nopf.steps import Step


class OptimalProposal(Proposal):
    """The locally optimal proposal of models with a linear observation and Gaussian noise.

    The transition may be nonlinear. The weight is the predictive likelihood p(y | ancestor), which
    does not depend on where the particle lands. Gain and covariance are the same for all particles,
    unless the process noise depends on the state.
    """

    def check(self, model: StateSpaceModel) -> None:
        reason = (
            model.likelihood.why_not_gaussian
            or ("the observation has angles" if model.observation_space.angles else None)
            or (model.why_no_density() if model.process_noise is None else None)
            or why_not_linear(model, names=("observation",))
            or ("the observation reads an angle" if _reads_angle(model) else None)
        )
        if reason is not None:
            raise ValueError(
                "proposal: OptimalProposal needs a linear observation with Gaussian noise, and "
                f"additive process noise, but {reason}; use LinearisedProposal (additive "
                "observation noise) or InnerSamplingProposal (any likelihood)"
            )

    def law(
        self,
        model: StateSpaceModel,
        ancestor: Float[Array, " d"],
        y: Float[Array, " m"],
        step: Step,
    ) -> GaussianLaw:
        observed = ~jnp.isnan(y)
        motion = model.motion(ancestor, step)
        process = model.process_noise_at(step, ancestor)
        noise = model.observation_noise_at(step).marginal(observed)
        origin = jnp.zeros(model.space.size)
        _, matrix = linearise(lambda x: model.predict_observation(x, step), origin)
        matrix = jnp.where(observed[:, None], matrix, 0)
        # In whitened coordinates: y − h(x̂) = J z + noise, both standard normal.
        jacobian = jax.vmap(lambda c: noise.whiten(matrix @ process.colour(c)), out_axes=1)(
            jnp.eye(model.noise_size)
        )
        gram = jnp.eye(y.size) + jacobian @ jacobian.T
        gain = jax.scipy.linalg.solve(gram, jacobian, assume_a="pos").T
        # Joseph's form stays positive definite under rounding.
        shrink = jnp.eye(model.noise_size) - gain @ jacobian
        factor = jnp.linalg.cholesky(shrink @ shrink.T + gain @ gain.T)
        mean = gain @ noise.whiten(model.innovation(y, motion(jnp.zeros(model.noise_size)), step))
        return GaussianLaw(mean, Dense(factor), lambda z: model.log_likelihood(y, motion(z), step))


def _reads_angle(model: StateSpaceModel) -> bool:
    if model.reads_control or not model.space.angles:
        return False
    draw = model.sample_prior(jax.random.key(0))
    _, matrix = linearise(lambda x: model.predict_observation(x, model.nominal_step()), draw)
    if is_traced(matrix):
        return False
    return bool(np.any(np.asarray(matrix)[:, list(model.space.angles)]))
