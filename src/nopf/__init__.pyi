from . import benchmarks as benchmarks
from . import metrics as metrics
from .filters import (
    AuxiliaryFilter as AuxiliaryFilter,
)
from .filters import (
    Calibration as Calibration,
)
from .filters import (
    EnsembleKalmanFilter as EnsembleKalmanFilter,
)
from .filters import (
    Filter as Filter,
)
from .filters import (
    FilterState as FilterState,
)
from .filters import (
    Info as Info,
)
from .filters import (
    KalmanFilter as KalmanFilter,
)
from .filters import (
    Monitor as Monitor,
)
from .filters import (
    ParticleFilter as ParticleFilter,
)
from .filters import (
    Posterior as Posterior,
)
from .filters import (
    Quality as Quality,
)
from .filters import (
    Smoothed as Smoothed,
)
from .filters import (
    Update as Update,
)
from .filters import (
    calibration as calibration,
)
from .filters import (
    quality as quality,
)
from .gaussian import (
    Gaussian as Gaussian,
)
from .gaussian import (
    GaussianMixture as GaussianMixture,
)
from .likelihood import (
    Likelihood as Likelihood,
)
from .marginal import (
    Marginal as Marginal,
)
from .marginal import (
    MarginalisedModel as MarginalisedModel,
)
from .marginal import (
    marginalise as marginalise,
)
from .model import (
    StateSpaceModel as StateSpaceModel,
)
from .proposals import (
    Factor as Factor,
)
from .proposals import (
    GaussianLaw as GaussianLaw,
)
from .proposals import (
    InnerSamplingProposal as InnerSamplingProposal,
)
from .proposals import (
    Law as Law,
)
from .proposals import (
    LinearisedProposal as LinearisedProposal,
)
from .proposals import (
    Mixture as Mixture,
)
from .proposals import (
    Move as Move,
)
from .proposals import (
    NeuralProposal as NeuralProposal,
)
from .proposals import (
    NudgedProposal as NudgedProposal,
)
from .proposals import (
    OptimalProposal as OptimalProposal,
)
from .proposals import (
    Proposal as Proposal,
)
from .proposals import (
    StandardNormal as StandardNormal,
)
from .proposals import (
    TransitionProposal as TransitionProposal,
)
from .proposals import (
    UnscentedProposal as UnscentedProposal,
)
from .recipe import (
    Recipe as Recipe,
)
from .resampling import (
    effective_sample_size as effective_sample_size,
)
from .resampling import (
    multinomial as multinomial,
)
from .resampling import (
    residual as residual,
)
from .resampling import (
    stratified as stratified,
)
from .resampling import (
    systematic as systematic,
)
from .robust import (
    Outliers as Outliers,
)
from .robust import (
    StudentT as StudentT,
)
from .simulate import (
    Trajectories as Trajectories,
)
from .simulate import (
    simulate as simulate,
)
from .space import (
    Space as Space,
)
from .steps import (
    Step as Step,
)
from .training import (
    adapt as adapt,
)
from .training import (
    train as train,
)

__version__: str
from .unordered import (
    UnorderedLikelihood as UnorderedLikelihood,
)
