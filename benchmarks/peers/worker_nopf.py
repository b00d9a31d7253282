"""nopf's bootstrap filter, as its README has it."""

import jax
from serving import serve

import nopf
from nopf.benchmarks import BENCHMARKS


def prepare(name, particles, ys):
    """A function of a seed that gives evidence, mean ESS and the last mean."""
    flt = nopf.ParticleFilter(BENCHMARKS[name].model, particles=particles)

    def run(seed):
        posterior = jax.block_until_ready(flt.run(ys, key=jax.random.key(seed)))
        return posterior.log_evidence, posterior.ess.mean(), posterior.mean[-1]

    return run


serve(prepare)
