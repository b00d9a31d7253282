"""AuxiliaryFilter: looks at the observation before it chooses ancestors."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from nopf.filters.filter import QUANTILES, check_model, check_quantiles
from nopf.filters.particle import (
    ParticleEngine,
    Particles,
    Selection,
    check_proposal,
    check_resampling,
)
from nopf.model import StateSpaceModel, Step, positive_integer
from nopf.proposals import Proposal
from nopf.resampling import Resampling, systematic


class AuxiliaryFilter(ParticleEngine):
    """The auxiliary particle filter.

    Ancestors are drawn with their weight times the likelihood of the observation at their
    noise-free successor; the second-stage weight divides that likelihood out again.

    Args:
        model: the model.
        proposal: how the chosen ancestors move; the transition if left out.
        particles: how many, N.
        resampling: how ancestors are drawn; at every step.
        quantiles: levels that `info` and the posterior report; `()` saves the time.
    """

    model: StateSpaceModel
    proposal: Proposal
    particles: int = eqx.field(static=True)
    resampling: Resampling = eqx.field(static=True)
    quantiles: tuple[float, ...] = eqx.field(static=True)

    def __init__(
        self,
        model: StateSpaceModel,
        proposal: Proposal | None = None,
        particles: int = 1000,
        *,
        resampling: Resampling = systematic,
        quantiles: tuple[float, ...] = QUANTILES,
    ):
        self.model = check_model(model)
        self.proposal = check_proposal(proposal, model)
        self.particles = positive_integer(particles, "particles")
        self.resampling = check_resampling(resampling)
        self.quantiles = check_quantiles(quantiles)

    def _select(
        self, key: PRNGKeyArray, belief: Particles, y: Float[Array, " m"], step: Step
    ) -> Selection:
        def look_ahead(x: Float[Array, " d"]) -> Float[Array, ""]:
            return self.model.log_likelihood(y, self.model.skeleton(x, step), step)

        promise = jax.vmap(look_ahead)(belief.states)
        total = jax.nn.logsumexp(belief.log_weights + promise)
        # Where no ancestor promises anything, all are as good as before.
        promise = jnp.where(total == -jnp.inf, 0, promise)
        total = jnp.where(total == -jnp.inf, 0, total)
        first_stage = belief.log_weights + promise
        ancestors, states, memory = self._resample(key, belief, first_stage)
        carried: Array = self._equal_weights() - promise[ancestors]
        return Selection(states, carried, memory, total)
