"""cuthbert's filters, compiled as it recommends, with models in plain JAX.

As in its documentation, all particles of all steps are kept; that is part of its time. The mean of
each step is computed from them, as nopf gives it.
"""

import cuthbert
import jax
import jax.numpy as jnp
from cuthbert.ensemble_kalman import ensemble_kalman_filter
from cuthbert.gaussian import kalman
from cuthbert.smc import particle_filter
from cuthbertlib.resampling import systematic
from jax_models import MODELS
from numpy_models import Matrices
from serving import serve


def prepare(name, kind, particles, ys):
    """A function of a seed that gives evidence, mean ESS and the last mean."""
    inputs = (jnp.asarray(ys), jnp.arange(len(ys)))
    run = {"bootstrap": bootstrap, "kalman": exact, "enkf": ensemble}[kind]
    compiled = run(MODELS[name], particles, inputs)
    return lambda seed: jax.block_until_ready(compiled(jax.random.key(seed)))


def exact(model, particles, inputs):
    """The Kalman filter, from first to last step or in parallel over time, whichever is faster:
    on two cores the former."""
    F, H = jnp.asarray(Matrices.transition), jnp.asarray(Matrices.observation)
    Q, R, P = map(jnp.sqrt, (Matrices.noise, Matrices.observation_noise, Matrices.prior_cov))
    flt = kalman.build_filter(
        jnp.asarray(Matrices.prior_mean),
        P,
        lambda at: (F, jnp.zeros(3), Q),
        lambda at: (H, jnp.zeros(2), R, at[0]),
    )

    @jax.jit
    def run_compiled(key):
        states = cuthbert.filter(flt, inputs, flt.init_prepare(), parallel=False)
        return states.log_normalizing_constant[-1], jnp.nan, states.mean[-1]

    return run_compiled


def ensemble(model, particles, inputs):
    """The stochastic ensemble Kalman filter."""
    flt = ensemble_kalman_filter.build_filter(
        model.initial,
        lambda at: lambda x, key: model.move(key, x, at[1]),
        lambda at: (model.observation, jnp.diag(model.constants.observation_noise), at[0]),
        particles,
    )

    @jax.jit
    def run_compiled(key):
        init_key, run_key = jax.random.split(key)
        states = cuthbert.filter(flt, inputs, flt.init_prepare(key=init_key), key=run_key)
        return states.log_normalizing_constant[-1], jnp.nan, states.mean[-1]

    return run_compiled


def bootstrap(model, particles, inputs):
    """The bootstrap filter."""
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

    return run_compiled


serve(prepare)
