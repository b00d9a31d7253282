"""Proposals: one file each."""

from nopf.proposals.factor import Factor as Factor
from nopf.proposals.importance import Move as Move
from nopf.proposals.inner_sampling import InnerSamplingProposal as InnerSamplingProposal
from nopf.proposals.law import GaussianLaw as GaussianLaw
from nopf.proposals.law import Law as Law
from nopf.proposals.law import Mixture as Mixture
from nopf.proposals.law import StandardNormal as StandardNormal
from nopf.proposals.linearised import LinearisedProposal as LinearisedProposal
from nopf.proposals.neural import NeuralProposal as NeuralProposal
from nopf.proposals.nudged import NudgedProposal as NudgedProposal
from nopf.proposals.optimal import OptimalProposal as OptimalProposal
from nopf.proposals.proposal import Proposal as Proposal
from nopf.proposals.transition import TransitionProposal as TransitionProposal
from nopf.proposals.unscented import UnscentedProposal as UnscentedProposal
