"""TransitionProposal: the model's own motion, blind to the observation (the bootstrap filter)."""

from typing import Any

from jaxtyping import Array, Float, PRNGKeyArray

from nopf.model import StateSpaceModel, Step
from nopf.proposals.proposal import Move, Proposal


class TransitionProposal(Proposal):
    """q(x | ancestor, y) = p(x | ancestor), so that the weight is the likelihood alone."""

    def propose(
        self,
        key: PRNGKeyArray,
        model: StateSpaceModel,
        ancestor: Float[Array, " d"],
        y: Float[Array, " m"],
        step: Step,
        memory: Any = None,
    ) -> Move:
        state = model.sample_transition(key, ancestor, step)
        return Move(state, model.log_likelihood(y, state, step), memory)
