import jax
import numpy as np
import pytest

import nopf
from nopf import metrics
from nopf.benchmarks import sensor_bias

benchmark, model = sensor_bias.benchmark, sensor_bias.model
STEP = nopf.Step(1, 0.1, 0.1)


def test_is_the_papers_model():
    x = jax.numpy.array([1.0, 2.0, 3.0])
    a = [[1, 0.1, 0], [0, 1, 0], [0, 0, 1]]
    h = [[1, 0, 0], [0, 1, 1]]
    np.testing.assert_allclose(jax.jacobian(model.skeleton)(x, STEP), a, atol=1e-7)
    np.testing.assert_allclose(jax.jacobian(model.predict_observation)(x, STEP), h, atol=1e-7)
    np.testing.assert_allclose(model.process_noise.covariance, 0.01 * np.eye(3), rtol=1e-6)
    np.testing.assert_allclose(model.observation_noise.covariance, 0.01 * np.eye(2), rtol=1e-6)
    np.testing.assert_allclose(model.prior.mean, [0.8, 0.2, -0.1])
    np.testing.assert_allclose(model.prior.covariance, 0.5 * np.eye(3), rtol=1e-6)
    path = benchmark.simulate(0)
    np.testing.assert_array_equal(path.initial_state, [1, 0, 0])
    assert path.observations.shape == (59, 2)
    assert (benchmark.name, benchmark.particles) == ("sensor-bias", 2000)


@pytest.fixture(scope="module")
def ten_seeds():
    """Ten trajectories of the bootstrap filter at the paper's N."""
    flt = nopf.ParticleFilter(model, particles=benchmark.particles)
    kalman = nopf.KalmanFilter(model)
    rows = []
    for seed in range(10):
        path = benchmark.simulate(seed)
        found = flt.run(path.observations, key=jax.random.key(1000 + seed), keep="particles")
        exact = kalman.run(path.observations)
        rows.append((path, found, exact))
    return rows


def test_effective_sample_size_and_made_are_the_published_ones(ten_seeds):
    """Published: ESS 598 ± 47 and MADE 0.0350 ± 0.0054; a prototype had 556 and 0.0335.

    The mean MADE of ten seeds has a standard error of 0.0017 by the published spread, and another
    of 0.0013 by the key of the filter: four of both together are 0.0086.
    """
    ess = np.mean([metrics.effective_sample_size(found.log_weights) for _, found, _ in ten_seeds])
    made = np.mean(
        [metrics.made(model.space, found.particles, path.states) for path, found, _ in ten_seeds]
    )
    assert 500 < ess < 620
    assert abs(made - 0.0350) < 0.0086


def test_agrees_with_kalman(ten_seeds):
    """Position is well observed; velocity and bias only through their sum."""
    squares = []
    for _, found, exact in ten_seeds:
        apart = np.asarray(found.mean - exact.mean) / np.asarray(exact.std)
        squares.append(np.mean(apart[:, 0] ** 2))
        assert abs(found.log_evidence - exact.log_evidence) < 5
    # Over 30 keys 0.089 ± 0.0064: a right filter fails once in a million keys. One seed alone is
    # beyond 0.15 for a quarter of the keys.
    assert np.sqrt(np.mean(squares)) < 0.12
