"""Smoothing and forecasts against the exact smoother and against closed forms."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nopf
from nopf.benchmarks import sensor_bias
from nopf.filters.smoothing import History, backward_simulation, fixed_lag
from tests import models


def exactly(model, ys, **series):
    flt = nopf.KalmanFilter(model)
    return flt.smooth(flt.run(ys, **series))


def test_exact_smoother_is_the_conditional_of_the_joint_normal():
    """All states and observations are jointly normal: condition by linear algebra, in double."""
    with jax.enable_x64(True):
        model, horizon = models.linear(full=True), 5
        ys = np.array(nopf.simulate(model, horizon, jax.random.key(0)).observations)
        ys[1, 0] = ys[3] = np.nan
        smoothed = exactly(model, ys)
        step = model.nominal_step()
        motion, sight = (
            np.asarray(jax.jacfwd(lambda x, f=f: f(x, step))(jnp.zeros(2)))
            for f in (model.skeleton, model.predict_observation)
        )
        noises = (model.process_noise_at(step), model.observation_noise_at(step))
        process, noise = (np.asarray(g.covariance) for g in noises)
        # x_0 … x_T as a linear map of independent parts.
        mean, cov = [np.asarray(model.prior.mean)], [[np.asarray(model.prior.covariance)]]
        for t in range(horizon):
            mean.append(motion @ mean[-1])
            row = [motion @ block for block in cov[t]]
            cov.append([*row, motion @ cov[t][t] @ motion.T + process])
    blocks = [[cov[max(i, j)][min(i, j)] for j in range(horizon + 1)] for i in range(horizon + 1)]
    blocks = [[b if i >= j else b.T for j, b in enumerate(r)] for i, r in enumerate(blocks)]
    joint, centre = np.block(blocks)[2:, 2:], np.concatenate(mean[1:])
    matrix = np.kron(np.eye(horizon), sight)
    keep = ~np.isnan(ys.ravel())
    matrix, seen = matrix[keep], ys.ravel()[keep]
    spread = matrix @ joint @ matrix.T + np.kron(np.eye(horizon), noise)[np.ix_(keep, keep)]
    gain = np.linalg.solve(spread, matrix @ joint).T
    exact = (centre + gain @ (seen - matrix @ centre)).reshape(horizon, 2)
    exact_cov = joint - gain @ matrix @ joint
    np.testing.assert_allclose(smoothed.mean, exact, rtol=1e-9)
    for t in range(horizon):
        at = slice(2 * t, 2 * t + 2)
        np.testing.assert_allclose(smoothed.cov[t], exact_cov[at, at], rtol=1e-8)


@pytest.mark.slow
def test_backward_simulation_agrees_with_the_exact_smoother():
    """On sensor-bias: ten runs of 1000 particles and 1000 trajectories.

    Means within 7 standard errors over the runs (90 of them, Student's t with 9 degrees of
    freedom: a false alarm of 0.6 % at most), variances within 15 %.
    """
    model = sensor_bias.model
    ys = nopf.simulate(model, 30, jax.random.key(1)).observations
    exact = exactly(model, ys)
    flt = nopf.ParticleFilter(model, nopf.OptimalProposal(), 1000)
    runs = []
    for seed in range(10):
        posterior = flt.run(ys, key=jax.random.key(seed), keep="particles")
        runs.append(flt.smooth(posterior, key=jax.random.key(100 + seed), trajectories=1000))
    means = np.stack([run.mean for run in runs])
    error = means.std(0, ddof=1) / np.sqrt(10)
    assert np.abs((means.mean(0) - exact.mean) / error).max() < 7
    assert np.abs(means.mean(0) - exact.mean).max() < 0.1 * np.asarray(exact.std).max()
    variances = np.mean([run.std**2 for run in runs], axis=0)
    np.testing.assert_allclose(variances, exact.std**2, rtol=0.15)
    quantiles = np.mean([run.quantiles for run in runs], axis=0)
    np.testing.assert_allclose(quantiles, exact.quantiles, atol=0.3 * np.asarray(exact.std).max())


@pytest.mark.slow
def test_fixed_lag_lies_between_filter_and_smoother():
    model = models.linear()
    ys = nopf.simulate(model, 10, jax.random.key(1)).observations
    flt = nopf.ParticleFilter(model, nopf.OptimalProposal(), 1000)
    posterior = flt.run(ys, key=jax.random.key(0), keep="particles")
    found = flt.smooth(posterior, key=jax.random.key(3), trajectories=1000, lag=2)
    assert found.trajectories is None
    for t in (0, 5, 9):
        # The exact answer for a lag is that of a shorter series.
        part = exactly(model, ys[: t + 3])
        # Five standard errors of 1000 draws, and as much for the particles themselves.
        slack = 10 * np.asarray(part.std[t]) / np.sqrt(1000)
        assert np.all(np.abs(found.mean[t] - part.mean[t]) < slack)
        np.testing.assert_allclose(found.std[t], part.std[t], rtol=0.15)


def test_two_observations_at_one_time():
    """Nothing moves between them: the smoother gives both the same states."""
    model = models.linear(
        process_noise=lambda step: 0.5 * jnp.sqrt(step.dt) * jnp.ones(2),
        transition=lambda x, step: x,
    )
    ys = nopf.simulate(models.linear(), 6, jax.random.key(0)).observations
    flt = nopf.ParticleFilter(model, None, 200)
    posterior = flt.run(ys, key=jax.random.key(1), times=[1, 2, 3, 3, 4, 5], keep="particles")
    drawn = flt.smooth(posterior, key=jax.random.key(2), trajectories=100).trajectories
    np.testing.assert_array_equal(drawn[:, 2], drawn[:, 3])
    exact = exactly(model, ys, times=[1, 2, 3, 3, 4, 5])
    np.testing.assert_allclose(exact.mean[2], exact.mean[3], atol=1e-5)
    assert np.abs(exact.mean[1] - exact.mean[2]).max() > 1e-2
    assert len(np.unique(drawn[:, 2, 0])) > 5  # of 200, after two observations without a move


def test_smoothing_knows_angles():
    """Shifted by whole turns the draws are the same; across ±π means are circular."""
    model = models.unicycle()
    path = nopf.simulate(model, 15, jax.random.key(0))
    flt = nopf.ParticleFilter(model, nopf.LinearisedProposal(), 300)
    posterior = flt.run(path.observations, key=jax.random.key(0), keep="particles")
    smoothed = flt.smooth(posterior, key=jax.random.key(1), trajectories=200)
    assert smoothed.trajectories.shape == (200, 15, 3)
    turns = 2 * np.pi * (np.arange(15) % 2)[:, None]
    turned = eqx.tree_at(
        lambda p: p.particles, posterior, posterior.particles.at[..., 2].add(turns)
    )
    turned = flt.smooth(turned, key=jax.random.key(1), trajectories=200)
    again = model.space.difference(turned.trajectories, smoothed.trajectories)
    assert np.mean(np.abs(np.asarray(again)).max(axis=(1, 2)) < 1e-3) > 0.9  # rounding moves few
    error = model.space.difference(smoothed.mean, path.states)
    assert np.abs(np.asarray(error) / np.asarray(smoothed.std)).max() < 5


@pytest.mark.slow
def test_forecast_is_the_exact_one_without_data():
    model = models.linear()
    ys = nopf.simulate(model, 10, jax.random.key(0)).observations
    kalman = nopf.KalmanFilter(model)
    exact = kalman.forecast(kalman.run(ys), 6)
    np.testing.assert_array_equal(exact.times, np.arange(11, 17))
    nothing = np.full((6, 2), np.nan)
    together = nopf.KalmanFilter(model).run(np.concatenate([ys, nothing]))
    np.testing.assert_allclose(exact.mean, together.mean[10:], rtol=1e-5)
    np.testing.assert_allclose(exact.std, together.std[10:], rtol=1e-5)
    flt = nopf.ParticleFilter(model, nopf.OptimalProposal(), 20_000)
    ahead = flt.forecast(flt.run(ys, key=jax.random.key(1)), 6)
    # Five standard errors of 20 000 draws, and the filter's own error.
    assert np.all(np.abs(ahead.mean - exact.mean) < 10 * exact.std / np.sqrt(20_000) * np.sqrt(2))
    np.testing.assert_allclose(ahead.std, exact.std, rtol=0.05)


def test_resuming_equals_one_run():
    model = models.linear()
    ys = nopf.simulate(model, 10, jax.random.key(0)).observations
    flt = nopf.ParticleFilter(model, None, 100)
    whole = flt.run(ys, key=jax.random.key(1))
    part = flt.run(ys[:4], key=jax.random.key(1))
    rest = flt.resume(part.state, ys[4:])
    np.testing.assert_array_equal(rest.mean, whole.mean[4:])
    np.testing.assert_array_equal(rest.drift, whole.drift[4:])
    np.testing.assert_array_equal(rest.times, whole.times[4:])
    assert rest.state.index == 10


def test_smoothing_says_what_it_needs():
    model = models.linear()
    ys = np.zeros((3, 2))
    flt = nopf.ParticleFilter(model, None, 20)
    with pytest.raises(ValueError, match='keep="particles"'):
        flt.smooth(flt.run(ys, key=jax.random.key(0)), key=jax.random.key(1))
    posterior = flt.run(ys, key=jax.random.key(0), keep="particles")
    with pytest.raises(TypeError, match="key: expected a random key"):
        flt.smooth(posterior)
    with pytest.raises(ValueError, match="lag: expected at least 1"):
        flt.smooth(posterior, key=jax.random.key(0), lag=0)
    batch = flt.run_batch(ys[None], key=jax.random.key(0), keep="particles")
    with pytest.raises(ValueError, match="one series"):
        flt.smooth(batch, key=jax.random.key(0))
    with pytest.raises(ValueError, match="one series"):
        flt.forecast(batch, 2)


@pytest.mark.parametrize("lag", [None, 1, 3, 50])
def test_each_state_comes_from_its_own_step(lag):
    """One particle a step: what is drawn for a step can only be that, also beyond the end."""
    model = models.linear()
    path = nopf.simulate(model, 6, jax.random.key(0))
    kept = History(model, path.states[:, None], jnp.zeros((6, 1)), path.steps)
    key = jax.random.key(1)
    drawn = backward_simulation(kept, key, 2) if lag is None else fixed_lag(kept, key, 2, lag)
    np.testing.assert_array_equal(drawn, np.stack([path.states] * 2))
