"""How all particles of a step move: fit a law to each, draw, weigh, take the observation in."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from nopf.filters.lineage import Families
from nopf.keys import plain
from nopf.layout import by_column
from nopf.model import StateSpaceModel
from nopf.proposals import Law, Move, Proposal
from nopf.proposals.importance import draw, weigh
from nopf.proposals.proposal import WeighsItself, fit_all
from nopf.resampling import indices_at
from nopf.steps import Step


class Ancestors(NamedTuple):
    """Those chosen to make a step.

    Attributes:
        states: as in `Particles`.
        log_weights: `(N,)` what they carry over; their sum is an estimate of one.
        memory: what the proposal carries per particle.
        laws: how each will move, if the choice has looked ahead; otherwise None.
        families: which of them are of one family (see `lineage`); None if that is not known.
    """

    states: Any
    log_weights: Float[Array, " n"]
    memory: Any
    laws: Law | None = None
    families: Families | None = None


def taken(ancestors: Ancestors, chosen: Int[Array, " n"]) -> Ancestors:
    """Those chosen, in ascending order."""
    families = ancestors.families
    gathered = jax.tree.map(lambda leaf: leaf[chosen], ancestors._replace(families=None))
    return gathered._replace(families=None if families is None else families.after(chosen))


def fitted(
    proposal: Proposal,
    model: StateSpaceModel,
    ancestors: Ancestors,
    y: Float[Array, " m"],
    step: Step,
) -> Ancestors:
    """With a law for each of them, unless there is one or the proposal has none."""
    if ancestors.laws is not None or isinstance(proposal, WeighsItself):
        return ancestors
    laws, memory = fit_all(proposal, model, ancestors.states, y, step, ancestors.memory)
    return ancestors._replace(laws=laws, memory=memory)


def move_all(
    proposal: Proposal,
    model: StateSpaceModel,
    key: PRNGKeyArray,
    ancestors: Ancestors,
    y: Float[Array, " m"],
    step: Step,
    share: float | None = None,
) -> Move:
    """Moves all particles: fits a law to each, draws, and weighs.

    Args:
        proposal, model: what moves them.
        key: random key.
        ancestors: where they are.
        y, step: the observation.
        share: the defensive share; the proposal's if left out.
    """
    share = proposal.share if share is None else share
    ancestors = ancestors._replace(states=by_column(ancestors.states))
    states, _, memory, laws, _ = fitted(proposal, model, ancestors, y, step)
    n = ancestors.log_weights.shape[0]
    if isinstance(proposal, WeighsItself):
        propose = jax.vmap(proposal.propose, in_axes=(0, None, 0, None, None, 0))
        return propose(plain(jax.random.split(key, n)), model, states, y, step, memory)
    assert laws is not None
    place = jax.random.uniform(jax.random.fold_in(key, 0))
    z, log_ratio = draw(laws, white_numbers(key, n, laws.white_size), share, place)
    moved = jax.vmap(weigh, in_axes=(None, 0, 0, 0, None, None))(
        model, states, by_column(z), log_ratio, y, step
    )
    return Move(by_column(moved.state), moved.log_weight, memory)


def assimilate_all(
    model: StateSpaceModel, key: PRNGKeyArray, states: Any, y: Float[Array, " m"], step: Step
) -> Any:
    """All particles after they have been weighed by an observation."""
    count = jax.tree.leaves(states)[0].shape[0]
    white = white_numbers(jax.random.fold_in(key, 1), count, model.assimilation_size)
    assimilate = jax.vmap(model.assimilate, in_axes=(0, None, None, 0))
    return by_column(assimilate(states, y, step, white))


def white_numbers(key: PRNGKeyArray, count: int, size: int) -> Float[Array, "n w"]:
    """All the standard normal numbers of a step at once: a key a particle takes longer."""
    if size == 0:
        return jnp.zeros((count, 0))
    return by_column(jax.random.normal(key, (size, count)).T)


def draw_prior(model: StateSpaceModel, key: PRNGKeyArray, count: int) -> Any:
    """So many independent particles at time zero."""
    prior_parts = model.prior_parts
    if prior_parts is None:
        return jax.vmap(model.sample_prior)(jax.random.split(key, count))
    log_chances, parts = prior_parts
    origin = jnp.zeros(count, jnp.int32)
    if log_chances.size > 1:
        places = jax.random.uniform(jax.random.fold_in(key, 0), (count,))
        origin = indices_at(log_chances, places)
    return started(model, parts, origin, white_numbers(key, count, model.start_size))


def started(
    model: StateSpaceModel, parts: Any, origin: Int[Array, " n"], white: Float[Array, "n s"]
) -> Any:
    """The particles at time zero that standard normal numbers make of the Gaussians of a prior.

    Args:
        model: the model.
        parts: the Gaussians, with a leading axis (see `model.prior_parts`).
        origin: which of them each particle comes from.
        white: standard normal numbers.
    """
    starts = jax.vmap(model.start, in_axes=(None, 0))
    first = starts(jax.tree.map(lambda leaf: leaf[0], parts), white)
    count = jax.tree.leaves(parts)[0].shape[0]
    if count == 1:
        return first

    def one(states: Any, inputs: Any) -> Any:
        number, part = inputs
        own = origin == number
        return jax.tree.map(
            lambda new, old: jnp.where(own.reshape(-1, *[1] * (old.ndim - 1)), new, old),
            starts(part, white),
            states,
        ), None

    empty = jax.tree.map(jnp.zeros_like, first)
    return jax.lax.scan(one, empty, (jnp.arange(count), parts))[0]


def as_arrays(memory: Any) -> Any:
    """What a proposal carries, as arrays."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(leaf)), memory)
