"""Proposals: one file each."""

from nopf.proposals.proposal import Move as Move
from nopf.proposals.proposal import Proposal as Proposal
from nopf.proposals.transition import TransitionProposal as TransitionProposal
