"""nopf: particle filters that learn where to put their particles."""

from nopf import benchmarks, metrics
from nopf.filters import (
    AuxiliaryFilter,
    EnsembleKalmanFilter,
    Filter,
    FilterState,
    Info,
    KalmanFilter,
    Monitor,
    ParticleFilter,
    Posterior,
    Quality,
    Smoothed,
    Update,
    quality,
)
from nopf.gaussian import Gaussian, GaussianMixture
from nopf.likelihood import Likelihood
from nopf.model import StateSpaceModel
from nopf.proposals import (
    Factor,
    GaussianLaw,
    InnerSamplingProposal,
    Law,
    LinearisedProposal,
    Mixture,
    Move,
    NeuralProposal,
    NudgedProposal,
    OptimalProposal,
    Proposal,
    StandardNormal,
    TransitionProposal,
    UnscentedProposal,
)
from nopf.recipe import Recipe
from nopf.resampling import effective_sample_size, multinomial, residual, stratified, systematic
from nopf.robust import Outliers, StudentT
from nopf.simulate import Trajectories, simulate
from nopf.space import Space
from nopf.steps import Step
from nopf.training import adapt, train

__version__ = "0.1.0"

__all__ = [
    "AuxiliaryFilter",
    "EnsembleKalmanFilter",
    "Factor",
    "Filter",
    "FilterState",
    "Gaussian",
    "GaussianLaw",
    "GaussianMixture",
    "Info",
    "InnerSamplingProposal",
    "KalmanFilter",
    "Law",
    "Likelihood",
    "LinearisedProposal",
    "Mixture",
    "Monitor",
    "Move",
    "NeuralProposal",
    "NudgedProposal",
    "OptimalProposal",
    "Outliers",
    "ParticleFilter",
    "Posterior",
    "Proposal",
    "Quality",
    "Recipe",
    "Smoothed",
    "Space",
    "StandardNormal",
    "StateSpaceModel",
    "Step",
    "StudentT",
    "Trajectories",
    "TransitionProposal",
    "UnscentedProposal",
    "Update",
    "adapt",
    "benchmarks",
    "effective_sample_size",
    "metrics",
    "multinomial",
    "quality",
    "residual",
    "simulate",
    "stratified",
    "systematic",
    "train",
]
