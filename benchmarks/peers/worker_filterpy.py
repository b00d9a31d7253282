"""filterpy's Kalman and ensemble Kalman filters."""

import numpy as np
from filterpy.kalman import EnsembleKalmanFilter, KalmanFilter
from numpy_models import Matrices
from serving import serve


def exact(ys):
    """The Kalman filter and its log-evidence."""
    flt = KalmanFilter(dim_x=3, dim_z=2)
    flt.x, flt.P = Matrices.prior_mean, Matrices.prior_cov
    flt.F, flt.H = Matrices.transition, Matrices.observation
    flt.Q, flt.R = Matrices.noise, Matrices.observation_noise
    evidence = 0.0
    for y in ys:
        flt.predict()
        flt.update(y)
        evidence += flt.log_likelihood
    return evidence, np.nan, flt.x


def ensemble(ys, particles):
    """The ensemble Kalman filter, which has no evidence."""
    flt = EnsembleKalmanFilter(
        x=Matrices.prior_mean,
        P=Matrices.prior_cov,
        dim_z=2,
        dt=0.1,
        N=particles,
        hx=lambda x: Matrices.observation @ x,
        fx=lambda x, dt: Matrices.transition @ x,
    )
    flt.Q, flt.R = Matrices.noise, Matrices.observation_noise
    for y in ys:
        flt.predict()
        flt.update(y)
    return np.nan, np.nan, flt.x


def prepare(name, kind, particles, ys):
    """A function of a seed that gives evidence if there is one, no ESS, and the last mean."""

    def run(seed):
        np.random.seed(seed)  # noqa: NPY002, what the library draws from
        return exact(ys) if kind == "kalman" else ensemble(ys, particles)

    return run


serve(prepare)
