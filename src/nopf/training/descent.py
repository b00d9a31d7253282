"""Gradient steps of a network on given data."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from nopf.crowd import average
from nopf.model import StateSpaceModel
from nopf.proposals.network import Network
from nopf.proposals.neural import NeuralProposal
from nopf.recipe import Recipe
from nopf.training.objective import Tuples, batch_loss


def make_optimiser(recipe: Recipe) -> optax.GradientTransformation:
    """Adam, with the step size left to the caller."""
    adam = optax.scale_by_adam()
    if recipe.clip is None:
        return adam
    return optax.chain(optax.clip_by_global_norm(recipe.clip), adam)


def descend(
    blank: NeuralProposal,
    network: Network,
    optimiser: Any,
    model: StateSpaceModel,
    batches: Tuples,
    key: PRNGKeyArray,
    rates: Float[Array, " r"],
    axis: str | None = None,
) -> tuple[Network, Any, Array, Array]:
    """One gradient step for each rate and batch.

    Args:
        blank, network, optimiser, model: what is trained.
        batches: the data of each step; on several devices each has its own.
        key: random key, another one on each device.
        rates: step sizes.
        axis: of the devices, if there are several.

    Returns:
        the network, the optimiser's state, the mean loss, and the largest share of samples for
        which the model gave no likelihood.
    """
    transform = make_optimiser(blank.recipe)
    parameters, fixed = eqx.partition(network, eqx.is_inexact_array)

    def loss(parameters: Any, tuples: Tuples, key: Array) -> Any:
        proposal = eqx.tree_at(lambda p: p.network, blank, eqx.combine(parameters, fixed))
        return batch_loss(proposal, model, tuples, key)

    def step(state: Any, inputs: Any) -> Any:
        parameters, optimiser = state
        tuples, key, rate = inputs
        (value, (moments, bad)), gradient = jax.value_and_grad(loss, has_aux=True)(
            parameters, tuples, key
        )
        gradient, moments, value, bad = average((gradient, moments, value, bad), axis)
        update, optimiser = transform.update(gradient, optimiser, parameters)
        parameters = jax.tree.map(lambda p, u: p - rate * u, parameters, update)
        parameters = parameters.with_moments(moments)
        return (parameters, optimiser), (value, bad)

    inputs = (batches, jax.random.split(key, rates.shape[0]), rates)
    (parameters, optimiser), (values, bad) = jax.lax.scan(step, (parameters, optimiser), inputs)
    return eqx.combine(parameters, fixed), optimiser, jnp.mean(values), jnp.max(bad)
