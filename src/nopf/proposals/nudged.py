"""NudgedProposal: the transition, with a few particles pushed uphill in likelihood."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from nopf.arguments import finite_number, positive_integer
from nopf.model import StateSpaceModel
from nopf.proposals.importance import Move
from nopf.proposals.proposal import Proposal
from nopf.steps import Step


class NudgedProposal(Proposal):
    """Draws from the transition and adds η ∇ log p(y | x) with probability N^(−1/2).

    As in the paper, the weight is the likelihood where the particle ends up, with no correction for
    the push. The filter is therefore biased, and so is its evidence, by an amount that shrinks as N
    grows; `info.log_evidence` must not be used to compare models.

    Args:
        particles: N of the filter.
        eta: step size; as large as most particles still gain likelihood by it.
    """

    particles: int = eqx.field(static=True)
    eta: float

    def __init__(self, particles: int | float, eta: float = 2e-4):
        self.particles = positive_integer(particles, "particles")
        self.eta = finite_number(eta, "eta")
        if not self.eta > 0:
            raise ValueError(f"eta: expected a positive number, got {eta}")

    def check(self, model: StateSpaceModel) -> None:
        if model.whole is not model:
            raise ValueError(
                "proposal: NudgedProposal pushes states, but this model is marginalised; use the "
                "model as it was, or LinearisedProposal"
            )

    def propose(
        self,
        key: PRNGKeyArray,
        model: StateSpaceModel,
        ancestor: Float[Array, " d"],
        y: Float[Array, " m"],
        step: Step,
        memory: Any = None,
    ) -> Move:
        move_key, choice_key = jax.random.split(key)
        # The barriers keep XLA from drawing the noise anew for every use of the state.
        state = jax.lax.optimization_barrier(model.sample_transition(move_key, ancestor, step))
        gradient = jax.grad(model.log_likelihood, argnums=1)(y, state, step)
        gradient = jax.lax.optimization_barrier(gradient)
        chosen = jax.random.bernoulli(choice_key, self.particles**-0.5)
        push = jnp.where(chosen & jnp.isfinite(gradient), self.eta * gradient, 0)
        state = model.space.wrap(state + push)
        return Move(state, model.log_likelihood(y, state, step), memory)
