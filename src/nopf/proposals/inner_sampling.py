"""InnerSamplingProposal: the best of many tries for every particle. Slow, and nearly optimal."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from nopf.arguments import positive_integer
from nopf.model import Particle, StateSpaceModel
from nopf.proposals.importance import Move
from nopf.proposals.proposal import Proposal
from nopf.steps import Step


class InnerSamplingProposal(Proposal):
    """Draws candidates from the transition and keeps one with probability ∝ its likelihood.

    The weight is the mean likelihood of the candidates, an unbiased estimate of p(y | ancestor), so
    evidence stays unbiased. Works with any likelihood. Candidates are seen one after the other
    and only the one in hand is kept, so memory does not grow with their number.

    Args:
        candidates: how many for every particle.
    """

    candidates: int = eqx.field(static=True)

    def __init__(self, candidates: int | float = 200):
        self.candidates = positive_integer(candidates, "candidates")

    def propose(
        self,
        key: PRNGKeyArray,
        model: StateSpaceModel,
        ancestor: Particle,
        y: Float[Array, " m"],
        step: Step,
        memory: Any = None,
    ) -> Move:
        motion = model.motion(ancestor, step)

        def try_one(i: Array, kept: tuple[Any, Array]) -> tuple[Any, Array]:
            state, total = kept
            draw_key, swap_key = jax.random.split(jax.random.fold_in(key, i))
            white = jax.random.normal(draw_key, (model.noise_size,))
            candidate = model.wrap(motion(white))
            log_likelihood = model.log_likelihood(y, candidate, step)
            total = jnp.logaddexp(total, log_likelihood)
            # The newcomer's share of all seen so far is the chance that it takes the place.
            swap = jnp.log(jax.random.uniform(swap_key)) < log_likelihood - total
            chosen = jax.tree.map(lambda a, b: jnp.where(swap, a, b), candidate, state)
            return chosen, total

        start = (ancestor, jnp.full((), -jnp.inf))
        state, total = jax.lax.fori_loop(0, self.candidates, try_one, start)
        return Move(state, total - jnp.log(float(self.candidates)), memory)
