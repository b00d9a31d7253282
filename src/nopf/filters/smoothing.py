"""Smoothing: what the whole series says about each state, not only what came before it."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from nopf.arguments import check_key, positive_integer
from nopf.filters.posterior import Posterior
from nopf.filters.samples import tree
from nopf.gaussian import AnyArray, is_traced
from nopf.keys import quick
from nopf.linear import linear_motion
from nopf.model import StateSpaceModel
from nopf.resampling import indices_at
from nopf.space import Space
from nopf.steps import Step

PAIRS = 1_000_000  # of particles, whose densities are held at a time


class Smoothed(eqx.Module):
    """The smoothing distributions of a series; row k belongs to observation k (step k + 1).

    Attributes:
        mean: as in `Info`, given later observations too.
        cov: the same.
        quantiles: the same.
        trajectories: `(M, T, d)` draws of whole trajectories; None for a fixed lag, and for the
            exact smoother.
        times: `(T,)`.
        state_names: what the columns of means are.
        quantile_levels: what the rows of `quantiles` are.
    """

    mean: Float[AnyArray, "t d"]
    cov: Float[Array, "t d d"]
    quantiles: Float[AnyArray, "t q d"]
    trajectories: Float[AnyArray, "m t d"] | None
    times: Float[np.ndarray, " t"]
    state_names: tuple[str, ...] = eqx.field(static=True)
    quantile_levels: tuple[float, ...] = eqx.field(static=True)

    def __repr__(self) -> str:
        steps, states = np.shape(self.mean)
        drawn = "" if self.trajectories is None else f", {len(self.trajectories)} trajectories"
        return f"Smoothed: {steps} steps, {states} states{drawn}"

    def to_arviz(self) -> Any:
        """The trajectories as an `xarray.DataTree`, the form that ArviZ works on: a variable a
        state in `posterior`. ArviZ before 1.0 takes it with
        `arviz.InferenceData.from_datatree` (needs the `tables` extra)."""
        if self.trajectories is None:
            raise ValueError(
                "to_arviz: there are no trajectories to show: with a lag, and after a "
                "KalmanFilter, smoothing draws none"
            )
        return tree(np.asarray(self.trajectories), self.times, self.state_names)

    @property
    def std(self) -> Float[Array, "t d"]:
        """Standard deviations."""
        return jnp.sqrt(jnp.diagonal(self.cov, axis1=-2, axis2=-1))


class History(eqx.Module):
    """The weighted particles of a series, and the model and the steps that they moved by."""

    model: StateSpaceModel
    particles: Float[Array, "t n d"]
    log_weights: Float[Array, "t n"]
    steps: Step


@eqx.filter_jit
def backward_simulation(history: History, key: PRNGKeyArray, count: int) -> Float[Array, "m t d"]:
    """Draws of whole trajectories: the last state by its weight, then backwards, each by its weight
    times the density of the step that follows."""
    horizon = history.particles.shape[0]
    last_key, key = jax.random.split(key)
    drawn = indices_at(history.log_weights[-1], jax.random.uniform(last_key, (count,)))
    last = history.particles[-1][drawn]

    def back(following: Array, inputs: Any) -> Any:
        key, states, weights, step = inputs
        here = _step_back(history.model, key, following, states, weights, step)
        return here, here

    after = jax.tree.map(lambda leaf: jnp.asarray(leaf)[1:], history.steps)
    keys = jax.random.split(key, horizon)[1:]
    inputs = (keys, history.particles[:-1], history.log_weights[:-1], after)
    _, earlier = jax.lax.scan(back, last, inputs, reverse=True)
    return jnp.swapaxes(jnp.concatenate([earlier, last[None]]), 0, 1)


@eqx.filter_jit
def fixed_lag(history: History, key: PRNGKeyArray, count: int, lag: int) -> Float[Array, "m t d"]:
    """Draws of each state given the observations of at most `lag` steps after it; each on its own,
    so that they do not join to trajectories."""
    horizon = history.particles.shape[0]
    width = min(lag + 1, horizon)

    def one(inputs: Any) -> Array:
        time, key = inputs
        start = jnp.minimum(time, horizon - width)
        window = jax.tree.map(
            lambda leaf: jax.lax.dynamic_slice_in_dim(jnp.asarray(leaf), start, width),
            (history.particles, history.log_weights, history.steps),
        )
        return backward_simulation(History(history.model, *window), key, count)[:, time - start]

    keys = jax.random.split(key, horizon)
    return jnp.swapaxes(jax.lax.map(one, (jnp.arange(horizon), keys)), 0, 1)


@eqx.filter_jit
def rauch_tung_striebel(
    model: StateSpaceModel, means: Float[Array, "t d"], covs: Float[Array, "t d d"], steps: Step
) -> tuple[Float[Array, "t d"], Float[Array, "t d d"]]:
    """The exact smoother of a linear-Gaussian model, from the Kalman filter's means and
    covariances."""

    def back(following: Any, inputs: Any) -> Any:
        mean, cov, step = inputs
        later_mean, later_cov = following
        forecast, motion, noise = linear_motion(model, mean, step)
        forecast_cov = motion @ cov @ motion.T + noise
        gain = jnp.linalg.solve(forecast_cov, motion @ cov).T
        mean = mean + gain @ (later_mean - forecast)
        cov = cov + gain @ (later_cov - forecast_cov) @ gain.T
        return (mean, cov), (mean, cov)

    after = jax.tree.map(lambda leaf: jnp.asarray(leaf)[1:], steps)
    last = (means[-1], covs[-1])
    _, (earlier, earlier_covs) = jax.lax.scan(
        back, last, (means[:-1], covs[:-1], after), reverse=True
    )
    return jnp.concatenate([earlier, last[0][None]]), jnp.concatenate([earlier_covs, last[1][None]])


@eqx.filter_jit
def summaries(space: Space, drawn: Float[Array, "m t d"], levels: tuple[float, ...]) -> Any:
    """Means, covariances and quantiles of draws, step by step."""
    weights = jnp.full(drawn.shape[0], 1 / drawn.shape[0])

    def one(points: Float[Array, "m d"]) -> Any:
        mean, cov = space.moments(points, weights)
        std = jnp.sqrt(jnp.diagonal(cov))
        return mean, cov, space.quantiles(points, weights, levels, mean, std)

    return jax.lax.map(one, jnp.swapaxes(drawn, 0, 1))


def normal_quantiles(
    mean: Float[Array, " d"], cov: Float[Array, "d d"], levels: tuple[float, ...]
) -> Float[Array, "q d"]:
    """Quantiles of a normal distribution, coordinate by coordinate."""
    deviates = jax.scipy.stats.norm.ppf(jnp.asarray(levels))
    return mean[None] + deviates[:, None] * jnp.sqrt(jnp.diagonal(cov))[None]


def _step_back(
    model: StateSpaceModel, key: Any, following: Array, states: Array, log_weights: Array, step: Any
) -> Float[Array, "m d"]:
    """For each of the `following` states one that may have come before."""
    predicted = jax.vmap(lambda x: model.skeleton(x, step))(states)
    uniform = jax.random.uniform(key, (following.shape[0],))

    def log_density(following: Array, predicted: Array, x: Array) -> Array:
        noise = model.process_noise_at(step, x)
        apart = model.space.difference(following, predicted)
        # Without any noise (two observations at one time) nothing moves: 0/0 is no distance.
        moves = noise.diagonal > 0
        white = jnp.where(moves, noise.whiten(apart), jnp.where(apart == 0, 0, jnp.inf))
        scale = jnp.where(moves, noise.diagonal, 1)
        return -0.5 * jnp.sum(white**2) - jnp.sum(jnp.log(scale))

    def one(inputs: Any) -> Array:
        state, position = inputs
        backward = jax.vmap(log_density, in_axes=(None, 0, 0))(state, predicted, states)
        return indices_at(log_weights + backward, position)

    batch = max(1, min(following.shape[0], PAIRS // states.shape[0]))
    return states[jax.lax.map(one, (following, uniform), batch_size=batch)]


def draw_backwards(
    model: StateSpaceModel, posterior: Posterior, key: Any, trajectories: Any, lag: Any
) -> Smoothed:
    """Backward simulation on the particles of a posterior; with a lag, on a window of it.

    Args:
        model: the model.
        posterior: with its particles.
        key: random key.
        trajectories: how many to draw.
        lag: how many later observations may count; all if None.
    """
    reason = model.why_no_density()
    if reason is not None:
        raise ValueError(
            "smooth: backward simulation weighs particles by the density of the transition, and "
            f"this model has none, since {reason}; give such states a little noise of their own"
        )
    if posterior.particles is None or posterior.log_weights is None:
        raise ValueError('smooth: the particles are needed; run the filter with keep="particles"')
    particles = jnp.asarray(model.space.relative(posterior.particles), float)
    _check_noise(model, particles, posterior.steps)
    count, key = positive_integer(trajectories, "trajectories"), quick(check_key(key))
    log_weights = jnp.asarray(posterior.log_weights)
    history = History(model, particles, log_weights, posterior.steps)
    if lag is None:
        drawn = backward_simulation(history, key, count)
    else:
        drawn = fixed_lag(history, key, count, positive_integer(lag, "lag"))
    mean, cov, quantiles = summaries(model.space, drawn, posterior.quantile_levels)
    return smoothed_like(posterior, mean, cov, quantiles, drawn if lag is None else None)


def _check_noise(model: StateSpaceModel, particles: Array, steps: Step) -> None:
    """Refuses a series in which some states, but not all, are without noise at a step."""
    scales = jax.vmap(lambda x, step: model.process_noise_at(step, x).diagonal)(
        particles[:-1, 0],
        jax.tree.map(lambda leaf: jnp.asarray(leaf)[1:], steps),
    )
    if is_traced(scales):
        return
    silent = np.asarray(scales) == 0
    mixed = silent.any(axis=1) & ~silent.all(axis=1)
    if mixed.any():
        index = int(np.asarray(steps.index)[1:][np.argmax(mixed)])
        raise ValueError(
            f"smooth: at step {index} some states have no noise of their own, so the transition "
            "has no density there; give such states a little noise"
        )


def smoothed_like(
    posterior: Posterior, mean: Array, cov: Array, quantiles: Array, trajectories: Array | None
) -> Smoothed:
    """Smoothed estimates for the steps of a posterior, of what is counted from its origin."""
    absolute = posterior.space.absolute
    return Smoothed(
        mean=absolute(mean),
        cov=cov,
        quantiles=absolute(quantiles),
        trajectories=None if trajectories is None else absolute(trajectories),
        times=posterior.times,
        state_names=posterior.state_names,
        quantile_levels=posterior.quantile_levels,
    )
