"""particles' SMC as a bootstrap filter, with models in NumPy and moments collected."""

import numpy as np
import particles
from numpy_models import MODELS
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


def prepare(name, count, ys):
    """A function of a seed that gives evidence, mean ESS and the last mean."""
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
