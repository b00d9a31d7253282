"""ParticleFilter: weighted particles, moved by any proposal."""

import abc
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from nopf.filters.filter import QUANTILES, Filter, check_model, check_quantiles
from nopf.filters.health import DRAWS, predictive_p_values
from nopf.filters.posterior import Info, Posterior
from nopf.model import StateSpaceModel, Step, check_key, positive_integer
from nopf.proposals import Move, NeuralProposal, Proposal, TransitionProposal
from nopf.resampling import (
    Resampling,
    effective_sample_size,
    indices_at,
    should_resample,
    systematic,
)


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


class Selection(NamedTuple):
    """Ancestors of a step, before they move.

    Attributes:
        states: `(N, d)`.
        log_weights: `(N,)` what they carry over from the selection.
        memory: what the proposal carries per particle.
        log_evidence: the share of the evidence that the selection itself has earned.
    """

    states: Float[Array, "n d"]
    log_weights: Float[Array, " n"]
    memory: Any
    log_evidence: Float[Array, ""]


class ParticleEngine(Filter):
    """What all filters with weighted particles share: moving, weighing and summing up.

    A filter of this kind says how it selects the ancestors of a step.
    """

    model: eqx.AbstractVar[StateSpaceModel]
    proposal: eqx.AbstractVar[Proposal]
    particles: eqx.AbstractVar[int]
    resampling: eqx.AbstractVar[Resampling]
    quantiles: eqx.AbstractVar[tuple[float, ...]]

    @abc.abstractmethod
    def _select(
        self, key: PRNGKeyArray, belief: Particles, y: Float[Array, " m"], step: Step
    ) -> Selection:
        """The ancestors of this step."""

    def adapt(self, seen: Posterior, *, key: PRNGKeyArray, steps: int = 500) -> "ParticleEngine":
        """A filter like this one, whose learned proposal has gone on learning.

        For a stream that is not what the proposal was trained for: the noise has grown, the robot
        moves otherwise, and the model of this filter says so. Weights are right either way; what
        adapting restores is the effective sample size.

        Args:
            seen: what this filter made of a recent part of the stream, with `keep="particles"`.
            key: random key.
            steps: gradient steps; rounded up to a multiple of 50.
        """
        from nopf.training.adaptation import adapt, check_seen

        if not isinstance(self.proposal, NeuralProposal):
            raise TypeError(
                f"adapt: only a learned proposal can learn, this filter has {self.proposal!r}"
            )
        steps = check_seen(self.model, seen, steps)
        adapted = adapt(self.proposal, self.model, seen, key, steps)
        return eqx.tree_at(lambda flt: flt.proposal, self, adapted)

    def _initial_belief(self, key: PRNGKeyArray | None) -> Particles:
        key, prior_key = jax.random.split(check_key(key))
        n = self.particles
        states = jax.vmap(self.model.sample_prior)(jax.random.split(prior_key, n))
        memory = jax.tree.map(
            lambda leaf: jnp.broadcast_to(leaf, (n, *leaf.shape)),
            _as_arrays(self.proposal.initial_memory(self.model)),
        )
        return Particles(key, states, self._equal_weights(), memory)

    def _update(
        self, belief: Particles, y: Float[Array, " m"], step: Step
    ) -> tuple[Particles, Info]:
        key, resample_key, move_key = jax.random.split(belief.key, 3)
        ancestors = self._select(resample_key, belief, y, step)
        move = self.proposal.propose_all(
            move_key, self.model, ancestors.states, y, step, ancestors.memory
        )
        before = self._sample(resample_key, belief, ancestors)
        p_values = predictive_p_values(
            jax.random.fold_in(resample_key, 1), self.model, before, y, step
        )
        updated = ancestors.log_weights + move.log_weight
        top = jnp.max(updated)
        collapsed = top == -jnp.inf

        def blind() -> Array:
            # As if nothing had been observed: what the proposal made of y does not count.
            keys = jax.random.split(move_key, self.particles)
            step_on = jax.vmap(self.model.sample_transition, in_axes=(0, 0, None))
            return step_on(keys, ancestors.states, step)

        states = self.model.space.wrap(jax.lax.cond(collapsed, blind, lambda: move.state))
        # The largest is taken off first: log-likelihoods can be so large that their digits end
        # above the decimal point.
        relative = jnp.where(collapsed, ancestors.log_weights, updated - top)
        total = jax.nn.logsumexp(relative)
        belief = Particles(key, states, relative - total, move.memory)
        log_evidence = jnp.where(collapsed, -jnp.inf, ancestors.log_evidence + top + total)
        return belief, self._info(belief, log_evidence, collapsed, p_values)

    def _sample(
        self, key: PRNGKeyArray, belief: Particles, ancestors: Selection
    ) -> Float[Array, "k d"]:
        """Some draws of the posterior before this step."""
        positions = jax.random.uniform(jax.random.fold_in(key, 0), (DRAWS,))
        return belief.states[indices_at(belief.log_weights, positions)]

    def _moved_by(self) -> str:
        if isinstance(self.proposal, TransitionProposal):
            return super()._moved_by()
        return f"prior, transition, process_noise or {type(self.proposal).__name__}"

    def _resample(self, key: PRNGKeyArray, belief: Particles, log_weights: Array) -> Any:
        """Indices drawn with these weights, and the states and memory that go with them."""
        ancestors = self.resampling(key, log_weights)
        return ancestors, *jax.tree.map(
            lambda leaf: leaf[ancestors], (belief.states, belief.memory)
        )

    def _info(
        self,
        belief: Particles,
        log_evidence: Array,
        collapsed: Array,
        p_values: tuple[Array, Array],
    ) -> Info:
        ess = effective_sample_size(belief.log_weights)
        return Info.of_particles(
            self.model.space,
            belief.states,
            belief.log_weights,
            self.quantiles,
            log_evidence=log_evidence,
            ess=jnp.where(collapsed, 0, ess),
            collapsed=collapsed,
            p_values=p_values,
        )

    def _equal_weights(self) -> Float[Array, " n"]:
        return jnp.full(self.particles, -np.log(self.particles), float)

    def _ensemble(self, belief: Particles) -> tuple[Float[Array, "n d"], Float[Array, " n"]]:
        return belief.states, belief.log_weights


class ParticleFilter(ParticleEngine):
    """A particle filter. With the default proposal it is the bootstrap filter.

    Args:
        model: the model.
        proposal: how particles move; the transition if left out.
        particles: how many, N.
        resampling: `systematic`, `stratified`, `residual` or `multinomial`.
        ess_threshold: resample when the effective sample size is below this share of N: 1 at every
            step (as the paper does), 0 never.
        quantiles: levels that `info` and the posterior report; `()` saves the time.

    Gradients through `run` leave out how resampling depends on parameters; those of the evidence
    are therefore biased.
    """

    model: StateSpaceModel
    proposal: Proposal
    particles: int = eqx.field(static=True)
    resampling: Resampling = eqx.field(static=True)
    quantiles: tuple[float, ...] = eqx.field(static=True)
    ess_threshold: float = eqx.field(static=True)

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
        self.model = check_model(model)
        self.proposal = check_proposal(proposal, model)
        self.particles = positive_integer(particles, "particles")
        self.resampling = check_resampling(resampling)
        self.quantiles = check_quantiles(quantiles)
        self.ess_threshold = float(ess_threshold)
        if not 0 <= self.ess_threshold <= 1:
            raise ValueError(f"ess_threshold: expected a number from 0 to 1, got {ess_threshold}")

    def _select(
        self, key: PRNGKeyArray, belief: Particles, y: Float[Array, " m"], step: Step
    ) -> Selection:
        current = Selection(belief.states, belief.log_weights, belief.memory, jnp.zeros(()))
        if self.ess_threshold == 0:
            return current

        def resampled() -> Selection:
            _, states, memory = self._resample(key, belief, belief.log_weights)
            return current._replace(states=states, log_weights=self._equal_weights(), memory=memory)

        due = should_resample(belief.log_weights, self.ess_threshold)
        return jax.lax.cond(due, resampled, lambda: current)

    def _sample(
        self, key: PRNGKeyArray, belief: Particles, ancestors: Selection
    ) -> Float[Array, "k d"]:
        if self.ess_threshold < 1:
            return super()._sample(key, belief, ancestors)
        # Resampled just now: any of them will do.
        n = self.particles
        return ancestors.states[np.arange(DRAWS) * n // DRAWS]


def check_proposal(proposal: Proposal | None, model: StateSpaceModel) -> Proposal:
    """The proposal (the transition if None), if it fits the model and moves one particle."""
    if proposal is None:
        return TransitionProposal()
    if not isinstance(proposal, Proposal):
        raise TypeError(f"proposal: expected a nopf.Proposal, got {proposal!r}")
    proposal.check(model)
    if model.reads_control:
        return proposal
    name = type(proposal).__name__
    memory = _as_arrays(proposal.initial_memory(model))
    d, m = model.space.size, model.observation_space.size
    move = eqx.filter_eval_shape(
        proposal.propose,
        jax.random.key(0),
        model,
        jnp.zeros(d),
        jnp.zeros(m),
        model.nominal_step(),
        memory,
    )
    if not isinstance(move, Move):
        raise TypeError(f"proposal: expected {name}.propose to return a nopf.Move, got {move!r}")
    for part, shape in [("state", (d,)), ("log_weight", ())]:
        got = jnp.shape(getattr(move, part))
        if got != shape:
            raise ValueError(
                f"proposal: expected {name}.propose to return a {part} of shape {shape}, got {got}"
            )
    kept, carried = (jax.tree.map(jnp.shape, value) for value in (memory, move.memory))
    if kept != carried:
        raise ValueError(
            f"proposal: expected {name}.propose to return memory like that of initial_memory, "
            f"{kept}, got {carried}"
        )
    return proposal


def _as_arrays(memory: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(leaf)), memory)


def check_resampling(resampling: Resampling) -> Resampling:
    """The resampling scheme, if it is one."""
    if not callable(resampling):
        raise TypeError(
            "resampling: expected nopf.systematic, stratified, residual, multinomial or a "
            f"function (key, log_weights) -> ancestors, got {resampling!r}"
        )
    return resampling
