"""Filters: one file each."""

from nopf.filters.auxiliary import AuxiliaryFilter as AuxiliaryFilter
from nopf.filters.calibration import Calibration as Calibration
from nopf.filters.calibration import calibration as calibration
from nopf.filters.ensemble_kalman import EnsembleKalmanFilter as EnsembleKalmanFilter
from nopf.filters.filter import Filter as Filter
from nopf.filters.filter import FilterState as FilterState
from nopf.filters.filter import Update as Update
from nopf.filters.kalman import KalmanFilter as KalmanFilter
from nopf.filters.monitor import Monitor as Monitor
from nopf.filters.particle import ParticleFilter as ParticleFilter
from nopf.filters.posterior import Info as Info
from nopf.filters.posterior import Posterior as Posterior
from nopf.filters.quality import Quality as Quality
from nopf.filters.quality import quality as quality
from nopf.filters.smoothing import Smoothed as Smoothed
