"""dynamax's Kalman filter, compiled."""

import jax
import jax.numpy as jnp
from dynamax.linear_gaussian_ssm import lgssm_filter
from dynamax.linear_gaussian_ssm.inference import make_lgssm_params
from numpy_models import Matrices
from serving import serve


def prepare(name, kind, particles, ys):
    """A function of a seed that gives evidence, no ESS, and the last mean."""
    parameters = make_lgssm_params(
        jnp.asarray(Matrices.first_mean),
        jnp.asarray(Matrices.first_cov),
        jnp.asarray(Matrices.transition),
        jnp.asarray(Matrices.noise),
        jnp.asarray(Matrices.observation),
        jnp.asarray(Matrices.observation_noise),
    )
    compiled = jax.jit(lgssm_filter)
    emissions = jnp.asarray(ys)

    def run(seed):
        posterior = jax.block_until_ready(compiled(parameters, emissions))
        return posterior.marginal_loglik, jnp.nan, posterior.filtered_means[-1]

    return run


serve(prepare)
