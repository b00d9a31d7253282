"""AuxiliaryFilter: looks at the observation before it chooses ancestors."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float, PRNGKeyArray

from nopf.arguments import positive_integer, share_of_one, yes_or_no
from nopf.crowd import check_mesh, log_total
from nopf.filters.checks import check_proposal, check_recover, check_resampling
from nopf.filters.inputs import QUANTILES, check_quantiles
from nopf.filters.moving import Ancestors, fitted, taken
from nopf.filters.particle import ParticleEngine, Particles
from nopf.model import StateSpaceModel, check_model
from nopf.proposals import Proposal, TransitionProposal
from nopf.proposals.importance import defend
from nopf.proposals.proposal import WeighsItself, blind_promise
from nopf.resampling import Resampling, systematic
from nopf.steps import Step

FITTED_SHARE, BLIND_SHARE = 0.01, 0.1


class AuxiliaryFilter(ParticleEngine):
    """The auxiliary particle filter.

    Ancestors are drawn with their weight times what their law promises of the observation, an
    estimate of p(y | ancestor); the weight after the move divides it out again. With the transition
    the promise is the likelihood at the noise-free successor, as in the paper; with a linearised or
    learned proposal it is that of the fit itself, which is taken along, so that nothing is fitted
    twice.

    Args:
        model: the model.
        proposal: how the chosen ancestors move; the transition if left out.
        particles: how many, N.
        resampling: how ancestors are drawn; at every step.
        defensive: share of the ancestors that are drawn by their weight alone, whatever is
            promised: so that none whose promise is wrong is left out for good. If left out, 0.01
            where laws are fitted to the observation, and 0.1 where the promise is that of the
            noise-free successor. The paper has 0.
        quantiles: levels that `info` and the posterior report; `()` saves the time.
        health: whether to judge each observation by its p-value, for warnings.
        mesh: as for `ParticleFilter`.
        first_step: as for `ParticleFilter`.
        recover: as for `ParticleFilter`.
    """

    model: StateSpaceModel
    proposal: Proposal
    particles: int = eqx.field(static=True)
    resampling: Resampling = eqx.field(static=True)
    defensive: float | None = eqx.field(static=True)
    quantiles: tuple[float, ...] = eqx.field(static=True)
    health: bool = eqx.field(static=True)
    mesh: Mesh | None = eqx.field(static=True)
    first_step: bool = eqx.field(static=True)
    recover: float = eqx.field(static=True)

    def __init__(
        self,
        model: StateSpaceModel,
        proposal: Proposal | None = None,
        particles: int | float = 1000,
        *,
        resampling: Resampling = systematic,
        defensive: float | None = None,
        quantiles: tuple[float, ...] = QUANTILES,
        health: bool = True,
        mesh: Mesh | None = None,
        first_step: bool | None = None,
        recover: float = 0.0,
    ):
        self.model = check_model(model)
        self.proposal = check_proposal(proposal, model)
        self.particles = positive_integer(particles, "particles")
        self.resampling = check_resampling(resampling)
        self.defensive = None if defensive is None else share_of_one(defensive, "defensive")
        self.quantiles = check_quantiles(quantiles)
        self.health = yes_or_no(health, "health")
        self.mesh = check_mesh(mesh, self.particles)
        self.first_step = (
            self.proposal.meets_prior if first_step is None else yes_or_no(first_step, "first_step")
        )
        self.recover = check_recover(recover, self.health, self.mesh)

    def choose(
        self, key: PRNGKeyArray, belief: Particles, y: Float[Array, " m"], step: Step
    ) -> Ancestors:
        """The ancestors of this step: by what their laws promise of the observation."""
        belief = self.dealt(belief)
        current = fitted(self.proposal, self.model, self.ancestors(belief), y, step)
        if current.laws is None:
            look = jax.vmap(blind_promise, in_axes=(None, 0, None, None))
            promise = look(self.model, belief.states, y, step)
        else:
            promise = current.laws.promise
        odds = self._odds(belief.log_weights, promise)
        chosen, log_weights = self.resample(key, belief.log_weights + odds)
        return taken(current, chosen)._replace(log_weights=log_weights - odds[chosen])

    def _odds(
        self, log_weights: Float[Array, " n"], promise: Float[Array, " n"]
    ) -> Float[Array, " n"]:
        """log of the chance of each ancestor over its weight; the weighted mean of it is one."""
        promise = jnp.where(jnp.isnan(promise), -jnp.inf, promise)
        total = log_total(log_weights + promise, self.axis)
        # Where no ancestor promises anything, all are as good as before.
        odds = jnp.where(total == -jnp.inf, 0, promise - total)
        if self.defensive is not None:
            return defend(odds, self.defensive)
        blind = isinstance(self.proposal, TransitionProposal | WeighsItself)
        return defend(odds, BLIND_SHARE if blind else FITTED_SHARE)
