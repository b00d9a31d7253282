"""ParticleFilter: weighted particles, moved by any proposal."""

import abc
import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from nopf.arguments import check_key, positive_integer, share_of_one, yes_or_no
from nopf.crowd import axis_of, check_mesh, exchange, gathered, log_total, own_key, weigh_up
from nopf.filters.checks import check_proposal, check_recover, check_resampling
from nopf.filters.filter import Filter, Update
from nopf.filters.first import Opening, meet
from nopf.filters.health import DRAWS, Judged, judge
from nopf.filters.inputs import QUANTILES, check_quantiles
from nopf.filters.lineage import Families, errors, new_families
from nopf.filters.moving import (
    Ancestors,
    as_arrays,
    assimilate_all,
    draw_prior,
    move_all,
    taken,
    white_numbers,
)
from nopf.filters.posterior import Info
from nopf.keys import plain, quick
from nopf.layout import by_column
from nopf.model import StateSpaceModel, check_model
from nopf.proposals import Move, Proposal, TransitionProposal
from nopf.resampling import (
    Resampling,
    indices_at,
    should_resample,
    systematic,
)
from nopf.steps import Step

EVEN = 0.95  # of the devices: from there on particles are not exchanged, which takes time


class Particles(NamedTuple):
    """Weighted particles, after the weight update and before resampling.

    Attributes:
        key: random key for the steps to come.
        states: what the model makes of a particle, with a leading axis N; `(N, d)` for most.
        log_weights: `(N,)`, normalised.
        memory: what the proposal carries per particle.
        families: which of them are of one family (see `lineage`); None if they are spread over
            devices, where that is not known.
    """

    key: PRNGKeyArray
    states: Any
    log_weights: Float[Array, " n"]
    memory: Any
    families: Families | None


class Forecast(NamedTuple):
    """Some draws of the posterior before a step, and a key to move them with."""

    key: PRNGKeyArray
    before: Any


class Weighed(NamedTuple):
    """Particles that an observation has given weights.

    Attributes:
        ancestors: of these particles.
        moved: the particles, with weights whose sum is an estimate of p(y), but for `level`.
        ess: the effective sample size; NaN if it is that of the weights.
        level: the log of a factor that all weights are without.
    """

    ancestors: Ancestors
    moved: Move
    ess: Float[Array, ""]
    level: Float[Array, ""]


class ParticleEngine(Filter[Particles]):
    """What all filters with weighted particles share. One step of any of them: choose ancestors,
    fit a law to each, draw, weigh, sum up.

    A filter of this kind says how it chooses the ancestors of a step.
    """

    model: eqx.AbstractVar[StateSpaceModel]
    proposal: eqx.AbstractVar[Proposal]
    particles: eqx.AbstractVar[int]
    resampling: eqx.AbstractVar[Resampling]
    quantiles: eqx.AbstractVar[tuple[float, ...]]
    health: eqx.AbstractVar[bool]
    mesh: eqx.AbstractVar[Mesh | None]

    @abc.abstractmethod
    def choose(
        self, key: PRNGKeyArray, belief: Particles, y: Float[Array, " m"], step: Step
    ) -> Ancestors:
        """The ancestors of this step."""

    def parts(self) -> list[str]:
        return [f"{self.particles} particles", type(self.proposal).__name__]

    def begin(self, key: PRNGKeyArray | None) -> Particles:
        key, prior_key = jax.random.split(quick(check_key(key)))
        prior_key, n = own_key(prior_key, self.axis), self.here
        states = draw_prior(self.model, prior_key, n)
        memory = jax.tree.map(
            lambda leaf: jnp.broadcast_to(leaf, (n, *leaf.shape)),
            as_arrays(self.proposal.initial_memory(self.model)),
        )
        families = new_families(n) if self.axis is None else None
        return Particles(key, states, self._equal_weights(), memory, families)

    def update(
        self,
        belief: Particles,
        y: Float[Array, " m"],
        step: Step,
        met: Opening | None = None,
        now: Bool[Array, ""] | bool = False,
        lost: Bool[Array, ""] | None = None,
    ) -> Update[Particles]:
        """Takes in one observation; `met` is what it has made of the prior, if it is the first one
        and that is so `now`. Where the filter is `lost`, some particles are drawn anew."""
        key, choose_key, draw_key, health_key = jax.random.split(belief.key, 4)
        choose_key, draw_key = own_key(choose_key, self.axis), own_key(draw_key, self.axis)
        if met is None:
            weighed = self._move(choose_key, draw_key, belief, y, step)
        elif now is True:
            weighed = self._met(belief, met, families=True)
        else:
            follows = []  # whether the choice of ancestors says of which family they are

            def move() -> Weighed:
                moved = self._move(choose_key, draw_key, belief, y, step)
                follows.append(moved.ancestors.families is not None)
                return moved

            # Looked at here, so that what follows is compiled once.
            weighed = jax.lax.cond(~now, move, lambda: self._met(belief, met, follows[0]))
        if lost is not None:
            anew = functools.partial(self._anew, jax.random.fold_in(draw_key, 1), weighed, y, step)
            weighed = jax.lax.cond(lost, anew, lambda: weighed)
        before = self._before(health_key, belief, weighed.ancestors)
        after, info = self._conclude(draw_key, weighed, y, step)
        return Update(after._replace(key=key), info, Forecast(health_key, before))

    def _move(
        self,
        choose_key: PRNGKeyArray,
        draw_key: PRNGKeyArray,
        belief: Particles,
        y: Float[Array, " m"],
        step: Step,
    ) -> Weighed:
        """What a step makes of a belief."""
        ancestors = self.choose(choose_key, belief, y, step)
        moved = move_all(self.proposal, self.model, draw_key, ancestors, y, step)
        moved = moved._replace(log_weight=ancestors.log_weights + moved.log_weight)
        nothing = jnp.zeros((), moved.log_weight.dtype)
        return Weighed(ancestors._replace(laws=None), moved, nothing * jnp.nan, nothing)

    def _met(self, belief: Particles, met: Opening, families: bool) -> Weighed:
        """What the first observation has made of the prior. None of the particles has an ancestor
        among those of the belief."""
        new = new_families(self.here) if families and self.axis is None else None
        moved = Move(met.states, met.log_weights, belief.memory)
        return Weighed(self.ancestors(belief)._replace(families=new), moved, met.ess, met.level)

    def meet(
        self, belief: Particles, y: Float[Array, " m"], step: Step, before: Step | None
    ) -> Opening:
        """What the first observation makes of the prior.

        Args:
            belief: at the step before.
            y, step: the observation.
            before: the steps without an observation since the prior, stacked, if there are any.
        """
        draw_key = own_key(jax.random.split(belief.key, 4)[2], self.axis)
        return meet(self.model, draw_key, self.here, y, step, before, self.axis)

    def _anew(
        self, key: PRNGKeyArray, weighed: Weighed, y: Float[Array, " m"], step: Step
    ) -> Weighed:
        """The same particles, but for a share that comes from the prior: as if the state had been
        drawn anew at the step before, with a probability of that share."""
        meet_key, keep_key = jax.random.split(key)
        moved, ancestors, n = weighed.moved, weighed.ancestors, self.particles
        new = min(n - 1, max(1, round((self.drawn_anew or 0) * n))) if n > 1 else 0
        if not new:
            return weighed
        met = meet(self.model, meet_key, new, y, step, None)
        # Each is kept with the same probability, and neighbours are alike: evenly spread.
        kept = jnp.arange(n - new) + jax.random.uniform(keep_key)
        kept = jnp.clip((kept * (n / (n - new))).astype(jnp.int32), 0, n - 1)
        memory = as_arrays(self.proposal.initial_memory(self.model))
        memory = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (new, *leaf.shape)), memory)

        def joined(old: Any, fresh: Any) -> Any:
            return jax.tree.map(lambda a, b: jnp.concatenate([a[kept], b]), old, fresh)

        # A kept particle counts for n / (n − new) particles, with the probability (n − new) / n of
        # not having been drawn anew: its weight stays as it is.
        log_weight = met.log_weights + met.level + np.log(new / n) - weighed.level
        moved = Move(
            joined(moved.state, met.states),
            joined(moved.log_weight, log_weight.astype(moved.log_weight.dtype)),
            joined(moved.memory, memory),
        )
        families = ancestors.families and ancestors.families.with_new(kept, n)
        return Weighed(ancestors._replace(families=families), moved, weighed.ess, weighed.level)

    def nothing_met(self, belief: Particles) -> Opening | None:
        if not self.has_first_step:
            return None
        nothing = np.zeros((), belief.log_weights.dtype)
        return Opening(belief.states, belief.log_weights, nothing, nothing)  # type: ignore[arg-type]

    def _conclude(
        self, key: PRNGKeyArray, weighed: Weighed, y: Float[Array, " m"], step: Step
    ) -> tuple[Particles, Info]:
        """Takes the observation in, and sums up."""
        axis, ancestors, moved = self.axis, weighed.ancestors, weighed.moved
        found = weigh_up(moved.log_weight, axis)
        collapsed = found.largest == -jnp.inf

        def blind() -> tuple[Any, Any, Any]:
            # As if nothing had been observed: what the proposal made of y does not count.
            white = white_numbers(key, self.here, self.model.noise_size)
            move = jax.vmap(self.model.move, in_axes=(0, 0, None))
            log_weights = ancestors.log_weights - log_total(ancestors.log_weights, axis)
            return move(ancestors.states, white, step), ancestors.memory, log_weights

        def seen() -> tuple[Any, Any, Any]:
            log_weights = moved.log_weight - found.largest - found.log_whole
            states = assimilate_all(self.model, key, moved.state, y, step)
            return states, moved.memory, log_weights

        states, memory, log_weights = jax.lax.cond(collapsed, blind, seen)
        log_evidence = found.log_total + weighed.level
        ess = jnp.where(jnp.isnan(weighed.ess), found.ess, weighed.ess)
        info = Info.of_particles(
            self.model,
            states,
            log_weights,
            self.quantiles,
            log_evidence_increment=jnp.where(collapsed, -jnp.inf, log_evidence),
            ess=jnp.where(collapsed, 0, ess),
            collapsed=collapsed,
            axis=axis,
        )
        families = ancestors.families
        if families is None and axis is None:  # of a filter whose choice does not say
            families = new_families(self.here)
        elif families is not None:
            points = by_column(jax.vmap(self.model.expectation)(states))
            apart = self.model.space.columns_apart(points.T, info.mean)
            weights, variance = jnp.exp(log_weights), jnp.diagonal(info.cov)
            error, families = errors(families, weights, apart, variance)
            info = info._replace(error=error)
        return Particles(key, states, log_weights, memory, families), info

    def p_values(self, prediction: Forecast, y: Float[Array, " m"], step: Step) -> Judged:
        return judge(prediction.key, self.model, prediction.before, y, step)

    def ensemble(self, belief: Particles) -> tuple[Float[Array, "n d"], Float[Array, " n"]]:
        white = white_numbers(
            own_key(jax.random.fold_in(belief.key, 0), self.axis),
            self.here,
            self.model.completion_size,
        )
        return jax.vmap(self.model.complete)(belief.states, white), belief.log_weights

    def culprits(self) -> str:
        if isinstance(self.proposal, TransitionProposal):
            return super().culprits()
        return f"prior, transition, process_noise or {type(self.proposal).__name__}"

    def _before(self, key: PRNGKeyArray, belief: Particles, ancestors: Ancestors) -> Any:
        """Some draws of the posterior before this step."""
        positions = jax.random.uniform(jax.random.fold_in(key, 0), (DRAWS,))
        chosen = indices_at(belief.log_weights, positions)
        drawn = jax.tree.map(lambda leaf: leaf[chosen], belief.states)
        return self._of_all(key, drawn, belief.log_weights)

    def _of_all(self, key: PRNGKeyArray, drawn: Any, log_weights: Float[Array, " n"]) -> Any:
        """Of draws that each device has made of its own particles, which have these weights, as
        many draws of all particles."""
        if self.axis is None:
            return drawn
        mass, drawn = gathered((jax.nn.logsumexp(log_weights), drawn), self.axis)
        device = indices_at(mass, jax.random.uniform(jax.random.fold_in(key, 2), (DRAWS,)))
        return jax.tree.map(lambda leaf: leaf[device, np.arange(DRAWS)], drawn)

    @staticmethod
    def ancestors(belief: Particles) -> Ancestors:
        """All particles as they are."""
        return Ancestors(belief.states, belief.log_weights, belief.memory, families=belief.families)

    @property
    def axis(self) -> str | None:
        """The mesh's name for its devices, if particles are spread over one."""
        return axis_of(self.mesh)

    @property
    def here(self) -> int:
        """How many particles a device holds."""
        return self.particles if self.mesh is None else self.particles // self.mesh.size

    @property
    def over(self) -> tuple[Mesh, Any, Any] | None:
        if self.mesh is None:
            return None
        spread, same = PartitionSpec(self.axis), PartitionSpec()
        belief = Particles(same, spread, spread, spread, None)  # type: ignore[arg-type]
        return self.mesh, belief, Opening(spread, spread, same, same)  # type: ignore[arg-type]

    def resample(
        self, key: PRNGKeyArray, log_weights: Float[Array, " n"]
    ) -> tuple[Int[Array, " n"], Float[Array, " n"]]:
        """Ancestors, and the weight that each has from now on: all the same on a device, and
        together as much as the device held before."""
        chosen = self.resampling(plain(key), log_weights)
        equal = self._equal_weights()
        if self.mesh is not None:
            equal = equal + (jax.nn.logsumexp(log_weights) + np.log(self.mesh.size))
        return chosen, equal

    def dealt(self, belief: Particles) -> Particles:
        """The same belief, the particles of each device dealt out to all, if some devices hold
        much more of the weight than others."""
        axis = self.axis
        if axis is None:
            return belief
        held = {name: getattr(belief, name) for name in ("states", "log_weights", "memory")}
        masses = jax.nn.softmax(gathered(jax.nn.logsumexp(belief.log_weights), axis))
        # As many devices as there are if all hold the same; one if one holds everything.
        even = 1 / jnp.sum(masses**2)
        due = even < EVEN * self.particles / self.here
        return belief._replace(**jax.lax.cond(due, lambda: exchange(held, axis), lambda: held))

    def _spread_evenly(self) -> np.ndarray:
        return np.arange(DRAWS) * self.here // DRAWS

    def _equal_weights(self) -> Float[Array, " n"]:
        return jnp.full(self.here, -np.log(self.particles), float)


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
        health: whether to judge each observation by its p-value, for warnings.
        mesh: a `jax.sharding.Mesh` of one axis, to spread the particles over its devices. N is then
            a multiple of the square of their number.
        first_step: whether the first observation is met by a step of its own, with a law for the
            prior too and as many draws as it takes, instead of by N draws of the prior. If left
            out, that is done with linearised and learned proposals. Under your own `jax.jit`, only
            `run` does it. What a proposal carries with each particle does not know of it.
        recover: share of the particles that is drawn anew from the prior, given the observation,
            when the filter is lost: when the drift (see `Info`) has gone beyond 5. From then on
            weights are those of a model in which the state has been drawn anew with this
            probability, as that of a robot that was carried to another place. 0.1 does; 0 never.
            In `run_batch`, which decides for all series at once, every step then takes the time of
            a recovery.

    Gradients through `run` need `first_step=False` and `recover=0`. They leave out how resampling
    depends on parameters; those of the evidence are therefore biased.
    """

    model: StateSpaceModel
    proposal: Proposal
    particles: int = eqx.field(static=True)
    resampling: Resampling = eqx.field(static=True)
    quantiles: tuple[float, ...] = eqx.field(static=True)
    ess_threshold: float = eqx.field(static=True)
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
        ess_threshold: float = 1.0,
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
        self.quantiles = check_quantiles(quantiles)
        self.ess_threshold = share_of_one(ess_threshold, "ess_threshold")
        self.health = yes_or_no(health, "health")
        self.mesh = check_mesh(mesh, self.particles)
        self.first_step = (
            self.proposal.meets_prior if first_step is None else yes_or_no(first_step, "first_step")
        )
        self.recover = check_recover(recover, self.health, self.mesh)

    def choose(
        self, key: PRNGKeyArray, belief: Particles, y: Float[Array, " m"], step: Step
    ) -> Ancestors:
        """The ancestors of this step: drawn anew where too few particles count, else all."""
        if self.ess_threshold == 0:
            return self.ancestors(belief)
        belief = self.dealt(belief)
        current = self.ancestors(belief)

        def resampled() -> Ancestors:
            chosen, log_weights = self.resample(key, belief.log_weights)
            return taken(current, chosen)._replace(log_weights=log_weights)

        due = should_resample(belief.log_weights, self.ess_threshold, self.axis)
        return jax.lax.cond(due, resampled, lambda: current)

    def _before(self, key: PRNGKeyArray, belief: Particles, ancestors: Ancestors) -> Any:
        if self.ess_threshold < 1:
            return super()._before(key, belief, ancestors)
        # Resampled just now: any of them will do.
        drawn = jax.tree.map(lambda leaf: leaf[self._spread_evenly()], ancestors.states)
        return self._of_all(key, drawn, ancestors.log_weights)
