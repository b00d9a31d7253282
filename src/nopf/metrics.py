"""The paper's metrics, as pure functions on weighted particles.

All take a whole series and average over its T steps:

    particles    (T, N, d)  after the weight update, before resampling
    log_weights  (T, N)     need not be normalised
    truth        (T, d)     the true states

`posterior = flt.run(ys, key=key, keep="particles")` has the first two. Wall time, the seventh
metric of the paper, is not a function of particles.
"""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from nopf import resampling
from nopf.filters import Posterior
from nopf.model import StateSpaceModel
from nopf.simulate import Trajectories
from nopf.space import Space
from nopf.steps import Step


def nmse(
    space: Space,
    particles: Float[Array, "t n d"],
    log_weights: Float[Array, "t n"],
    truth: Float[Array, "t d"],
) -> Float[Array, ""]:
    """Squared error of the posterior mean, relative to the mean square of the truth."""
    return _relative(_square_errors(space, particles, log_weights, truth), truth)


@eqx.filter_jit
def _square_errors(
    space: Space, particles: Array, log_weights: Array, truth: Array
) -> Float[Array, " t"]:
    _check(space, particles, log_weights, truth)
    means = jax.vmap(space.mean)(particles, jax.nn.softmax(log_weights))
    return jnp.mean(space.difference(means, truth) ** 2, axis=1)


def _relative(square_errors: Float[Array, " t"], truth: Float[Array, "t d"]) -> Float[Array, ""]:
    tiny = 1e3 * jnp.finfo(truth.dtype).eps
    return jnp.mean(square_errors) / (jnp.mean(truth**2) + tiny)


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
    scores = _predictions(key, model, particles, log_weights, observations, steps)
    return jnp.mean(scores, where=_followed(observations))


@eqx.filter_jit
def _predictions(
    key: PRNGKeyArray,
    model: StateSpaceModel,
    particles: Array,
    log_weights: Array,
    observations: Array,
    steps: Step,
) -> Float[Array, " s"]:
    def one(
        key: PRNGKeyArray, states: Array, log_weights: Array, y: Array, step: Step
    ) -> Float[Array, ""]:
        keys = jax.random.split(key, states.shape[0])
        moved = jax.vmap(model.sample_transition, in_axes=(0, 0, None))(keys, states, step)
        likelihood = jax.vmap(model.log_likelihood, in_axes=(None, 0, None))(y, moved, step)
        return -jax.nn.logsumexp(jax.nn.log_softmax(log_weights) + likelihood)

    following = observations[1:]
    keys = jax.random.split(key, following.shape[0])
    return jax.lax.map(
        lambda inputs: one(*inputs),
        (keys, particles[:-1], log_weights[:-1], following, jax.tree.map(lambda s: s[1:], steps)),
    )


def _followed(observations: Float[Array, "t m"]) -> Bool[Array, " s"]:
    """Which steps have a next observation."""
    return jnp.any(~jnp.isnan(observations[1:]), axis=-1)


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
    return jnp.mean(_energy_scores(key, space, particles, log_weights, truth, pairs))


@eqx.filter_jit
def _energy_scores(
    key: PRNGKeyArray,
    space: Space,
    particles: Array,
    log_weights: Array,
    truth: Array,
    pairs: int = 2048,
) -> Float[Array, " t"]:
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
    return jax.lax.map(lambda i: one(*i), (keys, particles, log_weights, truth))


@eqx.filter_jit
def effective_sample_size(log_weights: Float[Array, "t n"]) -> Float[Array, ""]:
    """1 / Σ w², averaged over time."""
    return jnp.mean(resampling.effective_sample_size(log_weights))


def made(
    space: Space, particles: Float[Array, "t n d"], truth: Float[Array, "t d"]
) -> Float[Array, ""]:
    """Distance from the truth to the nearest particle, whatever its weight."""
    return jnp.mean(_nearest(space, particles, truth))


@eqx.filter_jit
def _nearest(space: Space, particles: Array, truth: Array) -> Float[Array, " t"]:
    _check(space, particles, None, truth)
    return jnp.min(space.distance(particles, truth[:, None]), axis=1)


def joint_picp(
    space: Space,
    particles: Float[Array, "t n d"],
    log_weights: Float[Array, "t n"],
    truth: Float[Array, "t d"],
    alpha: float = 0.1,
) -> Float[Array, ""]:
    """How often the truth lies in the (1 − alpha) ellipsoid of the weighted mean and covariance."""
    return jnp.mean(_covered(space, particles, log_weights, truth, alpha))


@eqx.filter_jit
def _covered(
    space: Space, particles: Array, log_weights: Array, truth: Array, alpha: float = 0.1
) -> Float[Array, " t"]:
    _check(space, particles, log_weights, truth)
    if not 0 < alpha < 1:
        raise ValueError(f"alpha: expected a number between 0 and 1, got {alpha}")
    threshold = float(scipy.stats.chi2.ppf(1 - alpha, space.size))

    def inside(states: Array, log_weights: Array, truth: Array) -> Array:
        weights = jax.nn.softmax(log_weights)
        mean, cov = space.moments(states, weights)
        cov = cov + 1e-8 * jnp.eye(space.size)
        error = space.difference(truth, mean)
        return error @ jnp.linalg.solve(cov, error) <= threshold

    return jax.vmap(inside)(particles, log_weights, truth).astype(particles.dtype)


def evaluate(
    key: PRNGKeyArray,
    model: StateSpaceModel,
    posterior: Posterior,
    path: Trajectories,
    first: int = 0,
) -> dict[str, float | None]:
    """All metrics of one filtered series, and its log-evidence.

    Args:
        key: random key, for the sampled ones.
        model: the model.
        posterior: from `run` with `keep="particles"`.
        path: the simulated truth and data that were filtered.
        first: the first step that counts: 1 leaves out the one at which the prior meets the first
            observation. The log-evidence is that of all steps.

    Returns:
        `nmse`, `pnll` (None where no step that counts has a next observation), `es`, `ess` (None
        for a filter without weights), `made`, `picp` and `log_evidence`. A Kalman filter is scored
        by samples of its posterior.
    """
    return evaluate_from([first], key, model, posterior, path)[0]


def evaluate_from(
    firsts: Sequence[int],
    key: PRNGKeyArray,
    model: StateSpaceModel,
    posterior: Posterior,
    path: Trajectories,
) -> list[dict[str, float | None]]:
    """`evaluate` for several first steps at once: what is costly is computed once."""
    if posterior.particles is None or posterior.log_weights is None:
        raise ValueError('posterior: expected one with particles; pass keep="particles" to run')
    last = len(path.observations) - 1
    for first in firsts:
        if not 0 <= first <= last:
            raise ValueError(f"first: expected a step from 0 to {last}, got {first}")
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
    errors = _square_errors(space, x, w, truth)
    averaged = {
        "pnll": _predictions(pnll_key, model, x, w, ys, path.steps) if last else None,
        "es": _energy_scores(es_key, space, x, w, truth),
        "ess": posterior.ess,
        "made": _nearest(space, x, truth),
        "picp": _covered(space, x, w, truth),
    }

    def mean(name: str, first: int) -> float | None:
        values = averaged[name]
        if values is None:
            return None
        counts = _followed(ys)[first:] if name == "pnll" else None
        if counts is not None and not counts.any():
            return None
        return float(jnp.mean(values[first:], where=counts))

    return [
        {"nmse": float(_relative(errors[first:], truth[first:]))}
        | {name: mean(name, first) for name in averaged}
        | {"log_evidence": float(posterior.log_evidence)}
        for first in firsts
    ]


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
        means: posterior means of r runs on the same data.
        stds: their posterior standard deviations.
    """
    near = space.relative(means)
    # About the first, so that angles near ±π have a mean.
    apart = np.asarray(space.difference(*map(jnp.asarray, (near, near[:1]))))
    apart = apart - apart.mean(axis=0)
    spread = np.sum(apart.astype(float) ** 2, axis=0) / (len(means) - 1)
    variance = np.mean(stds.astype(float) ** 2, axis=0)
    # Of an exact filter the means differ by rounding, if at all.
    return variance / np.maximum(spread, np.finfo(float).tiny)
