"""particles' SMC as a bootstrap filter, with models in NumPy and moments collected; its Kalman."""

import numpy as np
import particles
from numpy_models import MODELS, Matrices
from particles import kalman
from particles.collectors import Moments
from serving import serve


class Bootstrap(particles.FeynmanKac):
    """The prior is at time zero, the first observation a step later."""

    def __init__(self, model, ys, random):
        super().__init__(T=len(ys))
        self.model, self.ys, self.random = model, ys, random

    def M0(self, N):
        """Prior, and the first step."""
        return self.model.move(self.model.initial(self.random, N), 0, self.random)

    def M(self, t, xp):
        """One step."""
        return self.model.move(xp, t, self.random)

    def logG(self, t, xp, x):
        """The likelihood."""
        return self.model.log_likelihood(self.ys[t], x)


def exact(ys):
    """The Kalman filter."""
    model = kalman.MVLinearGauss(
        F=Matrices.transition,
        G=Matrices.observation,
        covX=Matrices.noise,
        covY=Matrices.observation_noise,
        mu0=Matrices.first_mean,
        cov0=Matrices.first_cov,
    )

    def run(seed):
        flt = kalman.Kalman(ssm=model, data=ys)
        flt.filter()
        return np.sum(flt.logpyt), np.nan, flt.filt[-1].mean

    return run


def prepare(name, kind, count, ys):
    """A function of a seed that gives evidence, mean ESS and the last mean."""
    if kind == "kalman":
        return exact(ys)
    model = MODELS[name]()

    def run(seed):
        np.random.seed(seed)  # noqa: NPY002, what the library draws from
        kernel = Bootstrap(model, ys, np.random.default_rng(seed))
        smc = particles.SMC(
            fk=kernel, N=count, resampling="systematic", ESSrmin=1.0, collect=[Moments()]
        )
        smc.run()
        return smc.logLt, np.mean(smc.summaries.ESSs), smc.summaries.moments[-1]["mean"]

    return run


serve(prepare)
