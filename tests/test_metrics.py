import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import nopf
from nopf import Space, metrics

circle = Space(2, angles=[1])
PARTICLES = jnp.array([[[0.0, 3.0], [2.0, -3.0]], [[1.0, 0.5], [3.0, 1.5]]])  # T = 2, N = 2
LOG_WEIGHTS = jnp.log(jnp.array([[0.5, 0.5], [0.75, 0.25]])) + 3.0
TRUTH = jnp.array([[1.0, 3.1], [2.0, 1.0]])


def test_nmse_by_hand():
    # Means: (1, π) and (1.5, circular mean of 0.5 and 1.5 with weights 3:1).
    angle = np.arctan2(
        0.75 * np.sin(0.5) + 0.25 * np.sin(1.5), 0.75 * np.cos(0.5) + 0.25 * np.cos(1.5)
    )
    error = ((np.pi - 3.1) ** 2 + 0.5**2 + (angle - 1) ** 2) / 4
    expected = error / ((1 + 3.1**2 + 4 + 1) / 4)
    found = metrics.nmse(circle, PARTICLES, LOG_WEIGHTS, TRUTH)
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_nmse_of_a_truth_at_zero_is_finite():
    zero = jnp.zeros((2, 2))
    found = metrics.nmse(circle, PARTICLES, LOG_WEIGHTS, zero)
    means = np.array([[1.0, np.pi], [1.5, 0.741]])
    expected = np.mean(means**2) / (1e3 * np.finfo(np.float32).eps)
    np.testing.assert_allclose(found, expected, rtol=1e-3)


def test_made_by_hand():
    first = np.hypot(1.0, 0.1)  # the other is √(1 + 0.183²) away
    second = np.hypot(1.0, 0.5)
    found = metrics.made(circle, PARTICLES, TRUTH)
    np.testing.assert_allclose(found, (first + second) / 2, rtol=1e-5)


def test_effective_sample_size_by_hand():
    found = metrics.effective_sample_size(LOG_WEIGHTS)
    np.testing.assert_allclose(found, (2 + 1 / (0.75**2 + 0.25**2)) / 2, rtol=1e-6)


def test_energy_score_by_hand():
    apart = [np.hypot(2.0, 2 * np.pi - 6), np.hypot(2.0, 1.0)]
    to_truth = [
        0.5 * np.hypot(1, 0.1) + 0.5 * np.hypot(1, 2 * np.pi - 6.1),
        np.hypot(1, 0.5),
    ]
    pair = [2 * 0.5 * 0.5 * apart[0], 2 * 0.75 * 0.25 * apart[1]]
    expected = np.mean([to_truth[t] - 0.5 * pair[t] for t in range(2)])
    # One step's pair term has standard deviation 0.5·apart·√(p(1−p)) / √pairs < 0.0006 here.
    found = metrics.energy_score(
        jax.random.key(0), circle, PARTICLES, LOG_WEIGHTS, TRUTH, pairs=1_000_000
    )
    np.testing.assert_allclose(found, expected, atol=0.003)


def test_energy_score_by_brute_force():
    key = jax.random.key(1)
    particles = jax.random.normal(key, (40, 60, 3)) * 2
    log_weights = jax.random.normal(jax.random.key(2), (40, 60))
    truth = jax.random.normal(jax.random.key(3), (40, 3))
    space = Space(3, angles=[0])
    x, w = np.asarray(particles), np.asarray(jax.nn.softmax(log_weights))

    def distance(a, b):
        delta = a - b
        delta[..., 0] = (delta[..., 0] + np.pi) % (2 * np.pi) - np.pi
        return np.sqrt((delta**2).sum(-1))

    near = np.einsum("tn,tn->t", w, distance(x, np.asarray(truth)[:, None]))
    spread = np.einsum("ti,tj,tij->t", w, w, distance(x[:, :, None], x[:, None]))
    expected = np.mean(near - 0.5 * spread)
    found = [
        metrics.energy_score(jax.random.key(k), space, particles, log_weights, truth)
        for k in range(20)
    ]
    # 2048 pairs × 40 steps: standard deviation about 0.003; it should also be about that.
    np.testing.assert_allclose(np.mean(found), expected, atol=5 * 0.003 / np.sqrt(20))
    assert 0.001 < np.std(found) < 0.006


@pytest.mark.parametrize("alpha", [0.1, 0.5])
def test_joint_picp_covers_as_it_should(alpha):
    """Gaussian particles, and truths drawn from the same law: coverage is 1 − alpha."""
    key, truth_key = jax.random.split(jax.random.key(5))
    mixing = jnp.array([[1.0, 0.0], [0.9, 0.2]])
    particles = (jax.random.normal(key, (2000, 400, 2)) @ mixing.T) + 3.1
    truth = jax.random.normal(truth_key, (2000, 2)) @ mixing.T + 3.1
    space = Space(2, angles=[1])  # the second coordinate straddles π
    particles, truth = space.wrap(particles), space.wrap(truth)
    found = metrics.joint_picp(space, particles, jnp.zeros((2000, 400)), truth, alpha)
    # Binomial, standard error at most 0.0112; four of them plus 0.005 for 400 particles.
    assert abs(found - (1 - alpha)) < 0.05


def test_joint_picp_uses_the_weights():
    particles = jnp.array([[[-1.0], [1.0], [50.0]]])
    truth = jnp.array([[10.0]])
    even = metrics.joint_picp(Space(1), particles, jnp.zeros((1, 3)), truth)
    light = metrics.joint_picp(Space(1), particles, jnp.array([[0.0, 0.0, -30.0]]), truth)
    assert (even, light) == (1, 0)


def test_pnll_by_hand():
    """With next to no process noise the predictive density is a mixture that can be written."""
    model = nopf.StateSpaceModel(
        prior=nopf.Gaussian([0.0], [1.0]),
        transition=lambda x, step: 2 * x + step.index,
        process_noise=[1e-7],
        observation=lambda x, step: x,
        observation_noise=[0.5],
    )
    path = nopf.simulate(model, 3, jax.random.key(0))
    particles = jnp.array([[[0.0], [1.0]], [[3.0], [4.0]], [[0.0], [0.0]]])
    log_weights = jnp.log(jnp.array([[0.3, 0.7], [0.5, 0.5], [0.5, 0.5]]))
    ys = jnp.array([[9.0], [3.5], [10.0]])
    density = scipy.stats.norm(0, 0.5).pdf
    expected = -0.5 * (
        np.log(0.3 * density(3.5 - 2) + 0.7 * density(3.5 - 4))  # index 2: 2x + 2
        + np.log(0.5 * density(10 - 9) + 0.5 * density(10 - 11))  # index 3: 2x + 3
    )
    found = metrics.pnll(jax.random.key(1), model, particles, log_weights, ys, path.steps)
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    missing = ys.at[2].set(jnp.nan)
    found = metrics.pnll(jax.random.key(1), model, particles, log_weights, missing, path.steps)
    first = -np.log(0.3 * density(3.5 - 2) + 0.7 * density(3.5 - 4))
    np.testing.assert_allclose(found, first, rtol=1e-4)


def test_pnll_of_a_kalman_posterior_is_its_evidence():
    """Averaged over the next step, −PNLL is the log-evidence that Kalman computes exactly."""
    model = nopf.benchmarks.sensor_bias.model
    path = nopf.simulate(model, 20, jax.random.key(3))
    posterior = nopf.KalmanFilter(model, particles=20_000).run(
        path.observations, key=jax.random.key(4), keep="particles"
    )
    found = metrics.pnll(
        jax.random.key(5),
        model,
        posterior.particles,
        posterior.log_weights,
        path.observations,
        path.steps,
    )
    expected = -np.mean(posterior.log_evidence_increments[1:])
    # A step's log-density has Monte Carlo error of about 2/√20000; 19 steps: 0.003, five of them.
    np.testing.assert_allclose(found, expected, atol=0.017)


def test_evaluate_gathers_them_all():
    model = nopf.benchmarks.sensor_bias.model
    path = nopf.benchmarks.sensor_bias.benchmark.simulate(0)
    flt = nopf.ParticleFilter(model, particles=500)
    posterior = flt.run(path.observations, key=jax.random.key(0), keep="particles")
    scores = metrics.evaluate(jax.random.key(1), model, posterior, path)
    x, w = posterior.particles, posterior.log_weights
    assert scores["nmse"] == metrics.nmse(model.space, x, w, path.states)
    assert scores["made"] == metrics.made(model.space, x, path.states)
    assert scores["picp"] == metrics.joint_picp(model.space, x, w, path.states)
    assert scores["ess"] == pytest.approx(float(metrics.effective_sample_size(w)), rel=1e-5)
    assert scores["log_evidence"] == posterior.log_evidence
    assert set(scores) == {"nmse", "pnll", "es", "ess", "made", "picp", "log_evidence"}
    later = metrics.evaluate(jax.random.key(1), model, posterior, path, first=3)
    rest = (x[3:], w[3:], path.states[3:])
    assert later["nmse"] == pytest.approx(float(metrics.nmse(model.space, *rest)), rel=1e-5)
    assert later["picp"] == pytest.approx(float(metrics.joint_picp(model.space, *rest)), rel=1e-5)
    assert later["ess"] == pytest.approx(float(np.mean(posterior.ess[3:])), rel=1e-5)
    # The last step has no next observation; the one before it has.
    steps = len(path.observations) - 1
    single = [
        metrics.evaluate(jax.random.key(1), model, posterior, path, first=steps - k)["pnll"]
        for k in (0, 1)
    ]
    assert single[0] is None
    assert np.isfinite(single[1])
    assert later["pnll"] != scores["pnll"]
    assert later["log_evidence"] == scores["log_evidence"]
    with pytest.raises(ValueError, match="first: expected a step from 0 to 58, got 59"):
        metrics.evaluate(jax.random.key(1), model, posterior, path, first=59)
    with pytest.raises(ValueError, match="keep="):
        metrics.evaluate(
            jax.random.key(1), model, flt.run(path.observations, key=jax.random.key(0)), path
        )


def test_refuses_a_truth_of_another_shape():
    for truth in (TRUTH[:, 0], TRUTH[:1]):
        with pytest.raises(Exception, match="truth"):
            metrics.nmse(circle, PARTICLES, LOG_WEIGHTS, truth)
        with pytest.raises(Exception, match="truth"):
            metrics.made(circle, PARTICLES, truth)
    with pytest.raises(ValueError, match="alpha: expected"):
        metrics.joint_picp(circle, PARTICLES, LOG_WEIGHTS, TRUTH, 90.0)


def test_metrics_do_not_depend_on_the_order_of_particles():
    key = jax.random.key(0)
    particles = jax.random.normal(key, (3, 100, 2))
    log_weights = jax.random.normal(jax.random.key(1), (3, 100))
    truth = jnp.zeros((3, 2))
    order = jax.random.permutation(jax.random.key(2), 100)
    for metric in (metrics.nmse, metrics.joint_picp):
        np.testing.assert_allclose(
            metric(circle, particles, log_weights, truth),
            metric(circle, particles[:, order], log_weights[:, order], truth),
            rtol=1e-4,
        )
    np.testing.assert_allclose(
        metrics.made(circle, particles, truth), metrics.made(circle, particles[:, order], truth)
    )
