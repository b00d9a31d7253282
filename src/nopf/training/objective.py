"""What training minimises: the expected divergence of the proposal from p(x | ancestor, y)."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from nopf.model import StateSpaceModel, Step, Trajectories, simulate_steps
from nopf.proposals.neural import NeuralProposal

AXIS = "tuples"
FLOOR = -1e4  # stands for the log-likelihood where the model gives none


class Tuples(NamedTuple):
    """One-step data: an ancestor, the observation that follows, and its step; all with M rows."""

    ancestors: Float[Array, "n d"]
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
    before = jnp.concatenate([paths.initial_state[:, None], paths.states[:, :-1]], axis=1)
    trajectories, horizon = before.shape[:2]
    order = jax.random.permutation(order_key, trajectories * horizon)

    def flat(values: Array) -> Array:
        return values.reshape(-1, values.shape[-1])[order]

    ys = flat(paths.observations)
    if missing_rate > 0:
        ys = jnp.where(jax.random.bernoulli(missing_key, missing_rate, ys.shape), jnp.nan, ys)
    if missing is not None:
        ys = jnp.where(missing[order % horizon], jnp.nan, ys)
    own_steps = jax.tree.map(lambda leaf: jnp.asarray(leaf)[order % horizon], steps)
    return Tuples(flat(before), ys, own_steps)


def batch_loss(
    proposal: NeuralProposal, model: StateSpaceModel, tuples: Tuples, key: PRNGKeyArray
) -> tuple[Float[Array, ""], Any]:
    """Mean loss; and the running moments, with the share of samples without a likelihood."""
    keys = jax.random.split(key, tuples.ancestors.shape[0])

    def one(key: PRNGKeyArray, one_tuple: Tuples) -> Any:
        whites = _draw(key, proposal, model.space.size)
        value, moments, bad = _loss(proposal, model, one_tuple, whites)
        return value, jax.lax.pmean(bad, AXIS), moments

    values, bad, moments = jax.vmap(one, axis_name=AXIS, out_axes=(0, None, None))(keys, tuples)
    return jnp.mean(values), (moments, bad)


def score(
    proposal: NeuralProposal, model: StateSpaceModel, tuples: Tuples, key: PRNGKeyArray, draws: int
) -> Scores:
    """Loss and effective sample size of every tuple, by `draws` samples each."""
    keys = jax.random.split(key, tuples.ancestors.shape[0])

    def one(key: PRNGKeyArray, one_tuple: Tuples) -> Scores:
        whites = jax.random.normal(key, (draws, model.space.size))
        local, z, log_likelihood, informed, _ = _weigh(proposal, model, one_tuple, whites, None)
        loss = jnp.where(informed, local.divergence() - jnp.mean(log_likelihood), 0)
        log_ratio = 0.5 * (jnp.sum(whites**2, 1) - jnp.sum(z**2, 1))
        weights = jax.nn.softmax(log_likelihood + log_ratio)
        return Scores(loss, jnp.where(informed, 1 / (draws * jnp.sum(weights**2)), jnp.nan))

    return jax.vmap(one)(keys, tuples)


def _loss(
    proposal: NeuralProposal,
    model: StateSpaceModel,
    one_tuple: Tuples,
    whites: Float[Array, "s d"],
) -> tuple[Array, Any, Array]:
    local, z, log_likelihood, informed, moments = _weigh(proposal, model, one_tuple, whites, AXIS)
    if proposal.recipe.closed_form:
        divergence = local.divergence()
    else:
        squares = jnp.sum(z**2, axis=1) - jnp.sum(whites**2, axis=1)
        divergence = 0.5 * jnp.mean(squares) - local.log_det
    value = jnp.where(informed, divergence - jnp.mean(log_likelihood), 0)
    return value, moments, jnp.mean(log_likelihood == FLOOR)


def _weigh(
    proposal: NeuralProposal,
    model: StateSpaceModel,
    one_tuple: Tuples,
    whites: Float[Array, "s d"],
    axis: str | None,
) -> Any:
    """The proposal at a tuple, its samples, and their log-likelihoods."""
    ancestor, y, step = one_tuple
    predicted = model.skeleton(ancestor, step)
    process = model.process_noise_at(step)
    local, informed, moments = proposal.local(model, predicted, y, step, axis)

    def log_likelihood(z: Array) -> Array:
        state = model.space.wrap(_finite_gradient(predicted + process.colour(z)))
        value = model.log_likelihood(y, state, step)
        return jnp.where(jnp.isfinite(value), value, FLOOR)

    z = jax.vmap(local.place)(whites)
    return local, z, jax.vmap(log_likelihood)(z), informed, moments


def _draw(key: PRNGKeyArray, proposal: NeuralProposal, size: int) -> Float[Array, "s d"]:
    count = proposal.recipe.samples
    if not proposal.recipe.closed_form or count % 2:
        return jax.random.normal(key, (count, size))
    # Mirrored pairs: what is linear in the noise cancels, and with it most of the variance.
    half = jax.random.normal(key, (count // 2, size))
    return jnp.concatenate([half, -half])


@jax.custom_vjp
def _finite_gradient(x: Array) -> Array:
    """x, through which no gradient flows back that is not finite."""
    return x


_finite_gradient.defvjp(lambda x: (x, None), lambda _, g: (jnp.where(jnp.isfinite(g), g, 0.0),))
