"""nopf's filters, as its README has them."""

import jax
from serving import serve

import nopf
from nopf.benchmarks import BENCHMARKS


def prepare(name, kind, particles, ys):
    """A function of a seed that gives evidence, mean ESS and the last mean."""
    model = BENCHMARKS[name].model
    flt = {
        "bootstrap": lambda: nopf.ParticleFilter(model, particles=particles),
        "enkf": lambda: nopf.EnsembleKalmanFilter(model, particles=particles),
        "kalman": lambda: nopf.KalmanFilter(model),
    }[kind]()

    def run(seed):
        posterior = jax.block_until_ready(flt.run(ys, key=jax.random.key(seed)))
        ess = jax.numpy.nan if posterior.ess is None else posterior.ess.mean()
        return posterior.log_evidence, ess, posterior.mean[-1]

    return run


serve(prepare)
