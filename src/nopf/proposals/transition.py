"""TransitionProposal: the model's own motion, blind to the observation (the bootstrap filter)."""

from jaxtyping import Array, Float

from nopf.model import Particle, StateSpaceModel
from nopf.proposals.law import StandardNormal
from nopf.proposals.proposal import Proposal, blind_promise
from nopf.steps import Step


class TransitionProposal(Proposal):
    """q(x | ancestor, y) = p(x | ancestor), so that the weight is the likelihood alone."""

    def law(
        self,
        model: StateSpaceModel,
        ancestor: Particle,
        y: Float[Array, " m"],
        step: Step,
    ) -> StandardNormal:
        return StandardNormal(blind_promise(model, ancestor, y, step), model.noise_size)
