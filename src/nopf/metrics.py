"""The paper's metrics, as pure functions on weighted particles.

All take a whole series and average over its T steps:

    particles    (T, N, d)  after the weight update, before resampling
    log_weights  (T, N)     need not be normalised
    truth        (T, d)     the true states

`posterior = flt.run(ys, key=key, keep="particles")` has the first two. Wall time, the seventh
metric of the paper, is not a function of particles.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats
from jaxtyping import Array, Float, PRNGKeyArray

from nopf import resampling
from nopf.filters import Posterior
from nopf.model import StateSpaceModel
from nopf.simulate import Trajectories
from nopf.space import Space
from nopf.steps import Step


@eqx.filter_jit
def nmse(
    space: Space,
    particles: Float[Array, "t n d"],
    log_weights: Float[Array, "t n"],
    truth: Float[Array, "t d"],
) -> Float[Array, ""]:
    """Squared error of the posterior mean, relative to the mean square of the truth."""
    _check(space, particles, log_weights, truth)
    means = jax.vmap(space.mean)(particles, jax.nn.softmax(log_weights))
    error = jnp.mean(space.difference(means, truth) ** 2)
    return error / (jnp.mean(truth**2) + 1e3 * jnp.finfo(truth.dtype).eps)


@eqx.filter_jit
def pnll(
    key: PRNGKeyArray,
    model: StateSpaceModel,
    particles: Float[Array, "t n d"],
    log_weights: Float[Array, "t n"],
    observations: Float[Array, "t m"],
    steps: Step,
) -> Float[Array, ""]:
    """Negative log-density of the next observation under particles moved on by one step.

    The last step has no next observation and is left out, and so is a step whose next observation
    is missing altogether. `steps` are those of the observations (`Trajectories.steps`).
    """

    def one(
        key: PRNGKeyArray, states: Array, log_weights: Array, y: Array, step: Step
    ) -> Float[Array, ""]:
        keys = jax.random.split(key, states.shape[0])
        moved = jax.vmap(model.sample_transition, in_axes=(0, 0, None))(keys, states, step)
        likelihood = jax.vmap(model.log_likelihood, in_axes=(None, 0, None))(y, moved, step)
        return -jax.nn.logsumexp(jax.nn.log_softmax(log_weights) + likelihood)

    following = observations[1:]
    keys = jax.random.split(key, following.shape[0])
    scores = jax.lax.map(
        lambda inputs: one(*inputs),
        (keys, particles[:-1], log_weights[:-1], following, jax.tree.map(lambda s: s[1:], steps)),
    )
    return jnp.mean(scores, where=jnp.any(~jnp.isnan(following), axis=-1))


@eqx.filter_jit
def energy_score(
    key: PRNGKeyArray,
    space: Space,
    particles: Float[Array, "t n d"],
    log_weights: Float[Array, "t n"],
    truth: Float[Array, "t d"],
    pairs: int = 2048,
) -> Float[Array, ""]:
    """Mean distance to the truth minus half the mean distance between two particles.

    The second expectation is estimated from `pairs` pairs drawn with replacement at every step.
    """

    def one(key: PRNGKeyArray, states: Array, log_weights: Array, truth: Array) -> Float[Array, ""]:
        weights = jax.nn.softmax(log_weights)
        cumulative = jnp.cumsum(weights)
        draws = jax.random.uniform(key, (2, pairs), maxval=cumulative[-1])
        # side="right": a draw of exactly zero must not pick a leading particle of zero weight.
        first, second = states[jnp.searchsorted(cumulative, draws, side="right")]
        spread = jnp.mean(space.distance(first, second))
        return weights @ space.distance(states, truth[None]) - 0.5 * spread

    _check(space, particles, log_weights, truth)
    keys = jax.random.split(key, truth.shape[0])
    return jnp.mean(jax.lax.map(lambda i: one(*i), (keys, particles, log_weights, truth)))


@eqx.filter_jit
def effective_sample_size(log_weights: Float[Array, "t n"]) -> Float[Array, ""]:
    """1 / Σ w², averaged over time."""
    return jnp.mean(resampling.effective_sample_size(log_weights))


@eqx.filter_jit
def made(
    space: Space, particles: Float[Array, "t n d"], truth: Float[Array, "t d"]
) -> Float[Array, ""]:
    """Distance from the truth to the nearest particle, whatever its weight."""
    _check(space, particles, None, truth)
    return jnp.mean(jnp.min(space.distance(particles, truth[:, None]), axis=1))


@eqx.filter_jit
def joint_picp(
    space: Space,
    particles: Float[Array, "t n d"],
    log_weights: Float[Array, "t n"],
    truth: Float[Array, "t d"],
    alpha: float = 0.1,
) -> Float[Array, ""]:
    """How often the truth lies in the (1 − alpha) ellipsoid of the weighted mean and covariance."""
    _check(space, particles, log_weights, truth)
    if not 0 < alpha < 1:
        raise ValueError(f"alpha: expected a number between 0 and 1, got {alpha}")
    threshold = float(scipy.stats.chi2.ppf(1 - alpha, space.size))

    def inside(states: Array, log_weights: Array, truth: Array) -> Array:
        weights = jax.nn.softmax(log_weights)
        mean = space.mean(states, weights)
        cov = space.covariance(states, weights, mean) + 1e-8 * jnp.eye(space.size)
        error = space.difference(truth, mean)
        return error @ jnp.linalg.solve(cov, error) <= threshold

    return jnp.mean(jax.vmap(inside)(particles, log_weights, truth).astype(particles.dtype))


def evaluate(
    key: PRNGKeyArray, model: StateSpaceModel, posterior: Posterior, path: Trajectories
) -> dict[str, float | None]:
    """All metrics of one filtered series, and its log-evidence.

    Args:
        key: random key, for the sampled ones.
        model: the model.
        posterior: from `run` with `keep="particles"`.
        path: the simulated truth and data that were filtered.

    Returns:
        `nmse`, `pnll` (None for a single observation), `es`, `ess` (None for a filter without
        weights), `made`, `picp` and `log_evidence`. A Kalman filter is scored by samples of its
        posterior.
    """
    if posterior.particles is None or posterior.log_weights is None:
        raise ValueError('posterior: expected one with particles; pass keep="particles" to run')
    pnll_key, es_key = jax.random.split(key)
    space, w = model.space, posterior.log_weights
    x, truth, ys = (
        jnp.asarray(own.relative(values), float)
        for own, values in [
            (space, posterior.particles),
            (space, path.states),
            (model.observation_space, path.observations),
        ]
    )
    return {
        "nmse": float(nmse(space, x, w, truth)),
        "pnll": float(pnll(pnll_key, model, x, w, ys, path.steps)) if len(ys) > 1 else None,
        "es": float(energy_score(es_key, space, x, w, truth)),
        "ess": None if posterior.ess is None else float(jnp.mean(posterior.ess)),
        "made": float(made(space, x, truth)),
        "picp": float(joint_picp(space, x, w, truth)),
        "log_evidence": float(posterior.log_evidence),
    }


def _check(space: Space, particles: Array, log_weights: Array | None, truth: Array) -> None:
    if particles.ndim != 3 or particles.shape[2] != space.size:
        raise ValueError(
            f"particles: expected shape (time, particles, {space.size}), got {particles.shape}"
        )
    expected = (particles.shape[0], space.size)
    if truth.shape != expected:
        raise ValueError(f"truth: expected shape {expected}, got {truth.shape}")
    if log_weights is not None and log_weights.shape != particles.shape[:2]:
        raise ValueError(
            f"log_weights: expected shape {particles.shape[:2]}, got {log_weights.shape}"
        )


def draws(
    space: Space, means: Float[np.ndarray, "r t d"], stds: Float[np.ndarray, "r t d"]
) -> Float[np.ndarray, "t d"]:
    """How many independent draws of the posterior would give means as good as a filter's: the
    posterior variance over the variance of its mean between runs.

    Args:
        space: of the states.
        means, stds: posterior means and standard deviations of r runs on the same data.
    """
    near = space.relative(means)
    # About the first, so that angles near ±π have a mean.
    apart = np.asarray(space.difference(*map(jnp.asarray, (near, near[:1]))))
    apart = apart - apart.mean(axis=0)
    spread = np.sum(apart.astype(float) ** 2, axis=0) / (len(means) - 1)
    variance = np.mean(stds.astype(float) ** 2, axis=0)
    # Of an exact filter the means differ by rounding, if at all.
    return variance / np.maximum(spread, np.finfo(float).tiny)
