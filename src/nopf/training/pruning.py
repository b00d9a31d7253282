"""A trained proposal without what its network hardly says."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from nopf.compiling import run_once
from nopf.model import Particle, StateSpaceModel
from nopf.proposals.neural import NeuralProposal
from nopf.steps import Step
from nopf.training.objective import Tuples

NEGLIGIBLE = 2e-3  # of mean squares, together; the divergence from the posterior is about half


def pruned(proposal: NeuralProposal, model: StateSpaceModel, tuples: Tuples) -> NeuralProposal:
    """The same proposal without the entries of its factor that are next to nothing.

    In noise space most numbers stay nearly independent given an observation. What a network says of
    the others is small, and to write it down for each particle takes most of its time.

    Args:
        proposal: a trained one.
        model: its model.
        tuples: ancestors and observations to judge by.
    """
    squares = np.asarray(_mean_squares(proposal, model, tuples), np.float64)
    order = np.argsort(squares, kind="stable")
    kept = np.sort(order[np.cumsum(squares[order]) > NEGLIGIBLE])
    components = proposal.recipe.components or 1
    every = proposal.pairs_of(proposal.network.mean_head.bias.size // components)
    return proposal.with_pairs(tuple(every[i] for i in kept))


@run_once
def _mean_squares(
    proposal: NeuralProposal, model: StateSpaceModel, tuples: Tuples
) -> Float[Array, " e"]:
    """Of each entry below the diagonal; of several components the one in which it is largest."""
    components = proposal.recipe.components or 1

    def one(ancestor: Particle, y: Float[Array, " m"], step: Step) -> Float[Array, " e"]:
        (_, _, below, _), _ = proposal.heads(model, ancestor, y, step)
        return jnp.max(below.reshape(components, -1) ** 2, axis=0)

    return jnp.mean(jax.vmap(one)(tuples.ancestors, tuples.observations, tuples.steps), axis=0)
