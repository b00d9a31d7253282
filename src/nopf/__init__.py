"""nopf: particle filters that learn where to put their particles."""

from nopf import benchmarks as benchmarks
from nopf import metrics as metrics
from nopf.filters import AuxiliaryFilter as AuxiliaryFilter
from nopf.filters import EnsembleKalmanFilter as EnsembleKalmanFilter
from nopf.filters import Filter as Filter
from nopf.filters import FilterState as FilterState
from nopf.filters import Info as Info
from nopf.filters import KalmanFilter as KalmanFilter
from nopf.filters import Monitor as Monitor
from nopf.filters import ParticleFilter as ParticleFilter
from nopf.filters import Posterior as Posterior
from nopf.filters import Smoothed as Smoothed
from nopf.gaussian import Gaussian as Gaussian
from nopf.gaussian import GaussianMixture as GaussianMixture
from nopf.model import StateSpaceModel as StateSpaceModel
from nopf.model import Step as Step
from nopf.model import Trajectories as Trajectories
from nopf.model import simulate as simulate
from nopf.proposals import InnerSamplingProposal as InnerSamplingProposal
from nopf.proposals import LinearisedProposal as LinearisedProposal
from nopf.proposals import Move as Move
from nopf.proposals import NeuralProposal as NeuralProposal
from nopf.proposals import NudgedProposal as NudgedProposal
from nopf.proposals import OptimalProposal as OptimalProposal
from nopf.proposals import Proposal as Proposal
from nopf.proposals import Quality as Quality
from nopf.proposals import TransitionProposal as TransitionProposal
from nopf.proposals import UnscentedProposal as UnscentedProposal
from nopf.recipe import Recipe as Recipe
from nopf.resampling import effective_sample_size as effective_sample_size
from nopf.resampling import multinomial as multinomial
from nopf.resampling import residual as residual
from nopf.resampling import stratified as stratified
from nopf.resampling import systematic as systematic
from nopf.robust import Outliers as Outliers
from nopf.robust import StudentT as StudentT
from nopf.space import Space as Space
from nopf.training import train as train

__version__ = "0.1.0"
