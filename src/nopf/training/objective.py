"""What training minimises: the expected divergence of the proposal from p(x | ancestor, y)."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from nopf.compiling import run_once
from nopf.model import StateSpaceModel
from nopf.proposals.importance import expect, judge
from nopf.proposals.neural import NeuralProposal
from nopf.recipe import Recipe
from nopf.simulate import Trajectories, simulate_steps
from nopf.steps import Step

AXIS = "tuples"


class Tuples(NamedTuple):
    """One-step data: an ancestor, the observation that follows, and its step; all with M rows."""

    ancestors: Any
    observations: Float[Array, "n m"]
    steps: Step


class Conditions(eqx.Module):
    """Under which circumstances series are simulated: steps, of which each series takes `horizon`
    that follow each other, and what is missing then.

    Attributes:
        steps: `(L,)`, L ≥ horizon.
        missing: `(L, m)`, or None if nothing is.
        horizon: of a series.
    """

    steps: Step
    missing: Bool[Array, "l m"] | None
    horizon: int = eqx.field(static=True)

    def spread(self, key: PRNGKeyArray, count: int) -> tuple[Step, Bool[Array, "b t m"] | None]:
        """Steps and missing values of so many series, which begin all over the L steps."""
        starts = self.steps.index.shape[0] - self.horizon + 1
        places = (jnp.arange(count) + jax.random.uniform(key)) * (starts / count)
        first = jnp.minimum(places.astype(jnp.int32), starts - 1)
        rows = first[:, None] + np.arange(self.horizon)[None]
        return jax.tree.map(lambda leaf: jnp.asarray(leaf)[rows], (self.steps, self.missing))


class Scores(NamedTuple):
    """How a proposal does on tuples, one number each; without an observation 0 and NaN."""

    loss: Float[Array, " n"]
    ess_fraction: Float[Array, " n"]


def simulate_tuples(
    model: StateSpaceModel,
    conditions: Conditions,
    key: PRNGKeyArray,
    trajectories: int,
    missing_rate: float,
) -> Tuples:
    """All tuples of so many fresh trajectories."""
    data_key, key = jax.random.split(key)
    steps, missing = conditions.spread(jax.random.fold_in(key, 0), trajectories)
    paths = jax.vmap(lambda own, k: simulate_steps(model, own, k))(
        steps, jax.random.split(data_key, trajectories)
    )
    return as_tuples(paths, missing, key, missing_rate)


def as_tuples(
    paths: Trajectories,
    missing: Bool[Array, "b t m"] | None,
    key: PRNGKeyArray,
    missing_rate: float,
) -> Tuples:
    """The tuples of a batch of trajectories, at the same steps or each at its own, shuffled;
    coordinates go missing where `missing` says so, and at random."""
    order_key, missing_key = jax.random.split(key)
    before = jax.tree.map(
        lambda first, rest: jnp.concatenate([first[:, None], rest[:, :-1]], axis=1),
        paths.initial_state,
        paths.states,
    )
    shape, steps = paths.observations.shape[:2], paths.steps
    order = jax.random.permutation(order_key, shape[0] * shape[1])
    if steps.index.ndim == 1:
        steps = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (shape[0], *leaf.shape)), steps)

    def flat(values: Array) -> Array:
        return jnp.asarray(values).reshape(-1, *values.shape[2:])[order]

    ys = flat(paths.observations)
    if missing_rate > 0:
        ys = jnp.where(jax.random.bernoulli(missing_key, missing_rate, ys.shape), jnp.nan, ys)
    if missing is not None:
        ys = jnp.where(flat(missing), jnp.nan, ys)
    return Tuples(jax.tree.map(flat, before), ys, jax.tree.map(flat, steps))


def batch_loss(
    proposal: NeuralProposal, model: StateSpaceModel, tuples: Tuples, key: PRNGKeyArray
) -> tuple[Float[Array, ""], Any]:
    """Mean loss; and the running moments, with the share of samples without a likelihood."""
    recipe, count = proposal.recipe, tuples.observations.shape[0]
    if recipe.objective == "inclusive":
        return _inclusive_loss(proposal, model, tuples, key)
    whites = _whites(key, recipe, count, model.noise_size)

    def one(whites: Float[Array, "s k"], one_tuple: Tuples) -> Any:
        law, moments = proposal.law_and_moments(model, *one_tuple, AXIS)
        found = expect(model, law, *one_tuple, whites, recipe.closed_form)
        return jnp.where(_told(one_tuple), found.loss, 0), jax.lax.pmean(found.lost, AXIS), moments

    values, bad, moments = jax.vmap(one, axis_name=AXIS, out_axes=(0, None, None))(whites, tuples)
    return jnp.mean(values), (moments, bad)


def _inclusive_loss(
    proposal: NeuralProposal, model: StateSpaceModel, tuples: Tuples, key: PRNGKeyArray
) -> tuple[Float[Array, ""], Any]:
    """The same for the divergence of p(z | ancestor, y) from the law: by what was simulated.

    Noise z and the observation that follows are drawn together, so that z is a draw of
    p(z | ancestor, y), exactly. Nothing is asked of the likelihood.
    """
    keys = jax.random.split(key, tuples.observations.shape[0])

    def one(key: PRNGKeyArray, one_tuple: Tuples) -> Any:
        z, y = _drawn_together(model, one_tuple, key)
        law, moments = proposal.law_and_moments(
            model, one_tuple.ancestors, y, one_tuple.steps, AXIS
        )
        return jnp.where(_told(one_tuple), -law.log_ratio(z), 0), moments

    values, moments = jax.vmap(one, axis_name=AXIS, out_axes=(0, None))(keys, tuples)
    return jnp.mean(values), (moments, jnp.zeros(()))


def _drawn_together(
    model: StateSpaceModel, one_tuple: Tuples, key: PRNGKeyArray
) -> tuple[Float[Array, " k"], Float[Array, " m"]]:
    """Noise, and an observation of the state that it makes; missing where the tuple's own is."""
    noise_key, see_key = jax.random.split(key)
    z = jax.random.normal(noise_key, (model.noise_size,))
    x = model.move(one_tuple.ancestors, z, one_tuple.steps)
    y = model.sample_observation(see_key, x, one_tuple.steps)
    return z, jnp.where(jnp.isnan(one_tuple.observations), jnp.nan, y)


@run_once
def gradients_that_tell(
    model: StateSpaceModel, tuples: Tuples, key: PRNGKeyArray
) -> Float[Array, ""]:
    """Share of simulated states at which the likelihood has a gradient: finite, and not zero."""

    def one(key: PRNGKeyArray, one_tuple: Tuples) -> Bool[Array, ""]:
        z, y = _drawn_together(model, one_tuple, key)
        ancestor, _, step = one_tuple

        def log_likelihood(z: Float[Array, " k"]) -> Float[Array, ""]:
            return model.log_likelihood(y, model.move(ancestor, z, step), step)

        gradient = jax.grad(log_likelihood)(z)
        silent = jnp.all(jnp.isnan(y))  # says nothing either way
        return silent | (jnp.all(jnp.isfinite(gradient)) & jnp.any(gradient != 0))

    keys = jax.random.split(key, tuples.observations.shape[0])
    return jnp.mean(jax.vmap(one)(keys, tuples))


def score(
    proposal: NeuralProposal, model: StateSpaceModel, tuples: Tuples, key: PRNGKeyArray, draws: int
) -> Scores:
    """Loss and effective sample size of every tuple, by `draws` samples each."""
    keys = jax.random.split(key, tuples.observations.shape[0])
    inclusive = proposal.recipe.objective == "inclusive"

    def one(key: PRNGKeyArray, one_tuple: Tuples) -> Scores:
        law = proposal.law(model, *one_tuple)
        whites = jax.random.normal(key, (draws, law.white_size))
        seen = judge(model, law, *one_tuple, whites, proposal.share)
        if inclusive:
            z, y = _drawn_together(model, one_tuple, jax.random.fold_in(key, 1))
            steps = one_tuple.steps
            loss = -proposal.law(model, one_tuple.ancestors, y, steps).log_ratio(z)
        else:
            loss = expect(model, law, *one_tuple, whites).loss
        told = _told(one_tuple)
        return Scores(jnp.where(told, loss, 0), jnp.where(told, seen.ess_fraction, jnp.nan))

    return jax.vmap(one)(keys, tuples)


def _told(one_tuple: Tuples) -> Bool[Array, ""]:
    """Whether anything was observed."""
    return ~jnp.all(jnp.isnan(one_tuple.observations))


def _whites(key: PRNGKeyArray, recipe: Recipe, count: int, size: int) -> Float[Array, "n s k"]:
    """Standard normal numbers, so many samples for each tuple."""
    samples = recipe.samples
    if not recipe.closed_form or samples % 2:
        return jax.random.normal(key, (count, samples, size))
    # Mirrored pairs: what is linear in the noise cancels, and with it most of the variance.
    half = jax.random.normal(key, (count, samples // 2, size))
    return jnp.concatenate([half, -half], axis=1)
