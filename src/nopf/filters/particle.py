"""ParticleFilter: weighted particles, moved by any proposal."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from nopf.filters.filter import QUANTILES, Filter, check_quantiles
from nopf.filters.posterior import Info
from nopf.model import StateSpaceModel, Step, positive_integer
from nopf.proposals import Proposal, TransitionProposal
from nopf.resampling import Resampling, effective_sample_size, should_resample, systematic


class Particles(NamedTuple):
    """Weighted particles, after the weight update and before resampling.

    Attributes:
        key: random key for the steps to come.
        states: `(N, d)`.
        log_weights: `(N,)`, normalised.
        memory: what the proposal carries per particle.
    """

    key: PRNGKeyArray
    states: Float[Array, "n d"]
    log_weights: Float[Array, " n"]
    memory: Any


class ParticleFilter(Filter):
    """A particle filter. With the default proposal it is the bootstrap filter.

    Args:
        model: the model.
        proposal: how particles move; the transition if left out.
        particles: how many, N.
        resampling: `systematic`, `stratified`, `residual` or `multinomial`.
        ess_threshold: resample when the effective sample size is below this share of N: 1 at every
            step (as the paper does), 0 never.
        quantiles: levels that `info` and the posterior report; `()` saves the time.
    """

    model: StateSpaceModel
    proposal: Proposal
    particles: int = eqx.field(static=True)
    resampling: Resampling = eqx.field(static=True)
    ess_threshold: float = eqx.field(static=True)
    quantiles: tuple[float, ...] = eqx.field(static=True)

    def __init__(
        self,
        model: StateSpaceModel,
        proposal: Proposal | None = None,
        particles: int = 1000,
        *,
        resampling: Resampling = systematic,
        ess_threshold: float = 1.0,
        quantiles: tuple[float, ...] = QUANTILES,
    ):
        self.model = model
        self.proposal = TransitionProposal() if proposal is None else proposal
        if not isinstance(self.proposal, Proposal):
            raise TypeError(f"proposal: expected a nopf.Proposal, got {proposal!r}")
        self.particles = positive_integer(particles, "particles")
        if not callable(resampling):
            raise TypeError(
                "resampling: expected nopf.systematic, stratified, residual, multinomial or a "
                f"function (key, log_weights) -> ancestors, got {resampling!r}"
            )
        self.resampling = resampling
        self.ess_threshold = float(ess_threshold)
        if not 0 <= self.ess_threshold <= 1:
            raise ValueError(f"ess_threshold: expected a number from 0 to 1, got {ess_threshold}")
        self.quantiles = check_quantiles(quantiles)

    def _initial_belief(self, key: PRNGKeyArray | None) -> Particles:
        if key is None:
            raise TypeError("key: expected a random key, for example jax.random.key(0), got None")
        key, prior_key = jax.random.split(key)
        n = self.particles
        states = jax.vmap(self.model.sample_prior)(jax.random.split(prior_key, n))
        memory = jax.tree.map(
            lambda leaf: jnp.broadcast_to(leaf, (n, *leaf.shape)),
            self.proposal.initial_memory(self.model),
        )
        return Particles(key, states, self._equal_weights(), memory)

    def _update(
        self, belief: Particles, y: Float[Array, " m"], step: Step
    ) -> tuple[Particles, Info]:
        key, resample_key, move_key = jax.random.split(belief.key, 3)
        states, log_weights, memory = self._resample(resample_key, belief)
        keys = jax.random.split(move_key, self.particles)
        move = jax.vmap(self.proposal.propose, in_axes=(0, None, 0, None, None, 0))(
            keys, self.model, states, y, step, memory
        )
        updated = log_weights + move.log_weight
        log_evidence = jax.nn.logsumexp(updated)
        collapsed = log_evidence == -jnp.inf
        updated = jnp.where(collapsed, log_weights, updated - log_evidence)
        belief = Particles(key, move.state, updated, move.memory)
        return belief, self._info(belief, log_evidence, collapsed)

    def _resample(self, key: PRNGKeyArray, belief: Particles) -> tuple[Array, Array, Any]:
        current = (belief.states, belief.log_weights, belief.memory)
        if self.ess_threshold == 0:
            return current

        def resampled(belief: Particles) -> tuple[Array, Array, Any]:
            ancestors = self.resampling(key, belief.log_weights)
            states, memory = jax.tree.map(
                lambda leaf: leaf[ancestors], (belief.states, belief.memory)
            )
            return states, self._equal_weights(), memory

        due = should_resample(belief.log_weights, self.ess_threshold)
        return jax.lax.cond(due, resampled, lambda _: current, belief)

    def _info(self, belief: Particles, log_evidence: Array, collapsed: Array) -> Info:
        space, weights = self.model.space, jnp.exp(belief.log_weights)
        mean = space.mean(belief.states, weights)
        cov = space.covariance(belief.states, weights, mean)
        std = jnp.sqrt(jnp.diagonal(cov))
        ess = effective_sample_size(belief.log_weights)
        return Info(
            mean=mean,
            cov=cov,
            quantiles=space.quantiles(belief.states, weights, self.quantiles, mean, std),
            log_evidence=log_evidence,
            ess=jnp.where(collapsed, 0, ess),
            collapsed=collapsed,
            nan_states=jnp.sum(jnp.any(jnp.isnan(belief.states), axis=1)),
            nan_weights=jnp.sum(jnp.isnan(belief.log_weights)),
        )

    def _equal_weights(self) -> Float[Array, " n"]:
        return jnp.full(self.particles, -np.log(self.particles), float)

    def _ensemble(self, belief: Particles) -> tuple[Float[Array, "n d"], Float[Array, " n"]]:
        return belief.states, belief.log_weights
