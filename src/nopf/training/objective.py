"""What training minimises: the expected divergence of the proposal from p(x | ancestor, y)."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from nopf.model import StateSpaceModel
from nopf.proposals.importance import expect
from nopf.proposals.law import GaussianLaw
from nopf.proposals.neural import NeuralProposal
from nopf.recipe import Recipe
from nopf.resampling import effective_sample_size
from nopf.simulate import Trajectories, simulate_steps
from nopf.steps import Step

AXIS = "tuples"


class Tuples(NamedTuple):
    """One-step data: an ancestor, the observation that follows, and its step; all with M rows."""

    ancestors: Any
    observations: Float[Array, "n m"]
    steps: Step


class Scores(NamedTuple):
    """How a proposal does on tuples, one number each; without an observation 0 and NaN."""

    loss: Float[Array, " n"]
    ess_fraction: Float[Array, " n"]


def simulate_tuples(
    model: StateSpaceModel,
    steps: Step,
    key: PRNGKeyArray,
    trajectories: int,
    missing_rate: float,
    missing: Bool[Array, "t m"] | None = None,
) -> Tuples:
    """All tuples of so many fresh trajectories."""
    data_key, key = jax.random.split(key)
    paths = jax.vmap(lambda k: simulate_steps(model, steps, k))(
        jax.random.split(data_key, trajectories)
    )
    return as_tuples(paths, steps, key, missing_rate, missing)


def as_tuples(
    paths: Trajectories,
    steps: Step,
    key: PRNGKeyArray,
    missing_rate: float,
    missing: Bool[Array, "t m"] | None = None,
) -> Tuples:
    """The tuples of a batch of trajectories, shuffled; coordinates go missing at random, and where
    `missing` says so."""
    order_key, missing_key = jax.random.split(key)
    before = jax.tree.map(
        lambda first, rest: jnp.concatenate([first[:, None], rest[:, :-1]], axis=1),
        paths.initial_state,
        paths.states,
    )
    trajectories, horizon = paths.observations.shape[:2]
    order = jax.random.permutation(order_key, trajectories * horizon)

    def flat(values: Array) -> Array:
        return values.reshape(-1, values.shape[-1])[order]

    ys = flat(paths.observations)
    if missing_rate > 0:
        ys = jnp.where(jax.random.bernoulli(missing_key, missing_rate, ys.shape), jnp.nan, ys)
    if missing is not None:
        ys = jnp.where(missing[order % horizon], jnp.nan, ys)
    own_steps = jax.tree.map(lambda leaf: jnp.asarray(leaf)[order % horizon], steps)
    return Tuples(jax.tree.map(flat, before), ys, own_steps)


def batch_loss(
    proposal: NeuralProposal, model: StateSpaceModel, tuples: Tuples, key: PRNGKeyArray
) -> tuple[Float[Array, ""], Any]:
    """Mean loss; and the running moments, with the share of samples without a likelihood."""
    recipe = proposal.recipe
    whites = _whites(key, recipe, tuples.observations.shape[0], model.noise_size)

    def one(whites: Float[Array, "s k"], one_tuple: Tuples) -> Any:
        law, moments = proposal.law_and_moments(model, *one_tuple, AXIS)
        found = expect(model, law, *one_tuple, whites, recipe.closed_form)
        # A law that gives way since its numbers are none has no loss, and that shall be seen.
        loss = found.loss + jnp.where(law.sound, 0, jnp.nan)
        return jnp.where(_told(law), loss, 0), jax.lax.pmean(found.lost, AXIS), moments

    values, bad, moments = jax.vmap(one, axis_name=AXIS, out_axes=(0, None, None))(whites, tuples)
    return jnp.mean(values), (moments, bad)


def score(
    proposal: NeuralProposal, model: StateSpaceModel, tuples: Tuples, key: PRNGKeyArray, draws: int
) -> Scores:
    """Loss and effective sample size of every tuple, by `draws` samples each."""
    keys = jax.random.split(key, tuples.observations.shape[0])

    def one(key: PRNGKeyArray, one_tuple: Tuples) -> Scores:
        whites = jax.random.normal(key, (draws, model.noise_size))
        law = proposal.law(model, *one_tuple)
        found = expect(model, law, *one_tuple, whites)
        share = effective_sample_size(found.log_weights) / draws
        loss = found.loss + jnp.where(law.sound, 0, jnp.nan)
        told = _told(law)
        return Scores(jnp.where(told, loss, 0), jnp.where(told & law.sound, share, jnp.nan))

    return jax.vmap(one)(keys, tuples)


def _told(law: GaussianLaw) -> Bool[Array, ""]:
    """Whether the law had anything to go by."""
    return jnp.ones((), bool) if law.informed is None else law.informed


def _whites(key: PRNGKeyArray, recipe: Recipe, count: int, size: int) -> Float[Array, "n s k"]:
    """Standard normal numbers, so many samples for each tuple."""
    samples = recipe.samples
    if not recipe.closed_form or samples % 2:
        return jax.random.normal(key, (count, samples, size))
    # Mirrored pairs: what is linear in the noise cancels, and with it most of the variance.
    half = jax.random.normal(key, (count, samples // 2, size))
    return jnp.concatenate([half, -half], axis=1)
