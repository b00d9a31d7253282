"""cuthbert's particle filter, compiled as it recommends, with models in plain JAX.

As in its documentation, all particles of all steps are kept; that is part of its time. The mean of
each step is computed from them, as nopf gives it.
"""

import cuthbert
import jax
import jax.numpy as jnp
from cuthbert.smc import particle_filter
from cuthbertlib.resampling import systematic
from jax_models import MODELS
from serving import serve


def prepare(name, particles, ys):
    """A function of a seed that gives evidence, mean ESS and the last mean."""
    model = MODELS[name]
    inputs = (jnp.asarray(ys), jnp.arange(len(ys)))
    flt = particle_filter.build_filter(
        init_sample=model.initial,
        propagate_sample=lambda key, x, at: model.move(key, x, at[1]),
        log_potential=lambda old, new, at: model.log_likelihood(at[0], new),
        n_filter_particles=particles,
        resampling_fn=systematic.resampling,
    )

    @jax.jit
    def run_compiled(key):
        init_key, run_key = jax.random.split(key)
        states = cuthbert.filter(flt, inputs, flt.init_prepare(key=init_key), key=run_key)
        weights = jax.nn.softmax(states.log_weights[1:], axis=1)
        means = jnp.einsum("tn,tnd->td", weights, states.particles[1:])
        ess = 1 / jnp.sum(weights**2, axis=1)
        return states.log_normalizing_constant[-1], jnp.mean(ess), means[-1]

    return lambda seed: jax.block_until_ready(run_compiled(jax.random.key(seed)))


serve(prepare)
