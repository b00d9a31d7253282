import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import nopf
from tests import models

A = np.array([[1, 0.5], [0, 0.9]])
H = np.array([[1.0, 0], [-1, 1]])


def joint_answer(model, ys):
    """Mean and covariance of the last state, and log p(ys), from the joint normal of everything."""
    steps, q, r = len(ys), model.process_noise.covariance, model.observation_noise.covariance
    mean, cov = np.asarray(model.prior.mean), np.asarray(model.prior.covariance, np.float64)
    # States stacked over time as a linear map of (x0, v1 … vT).
    source = np.zeros((2 * (steps + 1), 2 * (steps + 1)))
    source[:2, :2] = cov
    maps, rows = [], np.eye(2, 2 * (steps + 1))
    for t in range(steps):
        source[2 * t + 2 : 2 * t + 4, 2 * t + 2 : 2 * t + 4] = q
        rows = A @ rows + np.eye(2, 2 * (steps + 1), k=2 * t + 2)
        maps.append(rows)
    states = np.concatenate(maps)
    h = np.kron(np.eye(steps), H)
    x_mean = states @ np.concatenate([mean, np.zeros(2 * steps)])
    x_cov = states @ source @ states.T
    y_cov = h @ x_cov @ h.T + np.kron(np.eye(steps), r)
    seen = ~np.isnan(ys.ravel())
    y_mean, y_cov, h = (h @ x_mean)[seen], y_cov[np.ix_(seen, seen)], h[seen]
    residual = ys.ravel()[seen] - y_mean
    gain = x_cov @ h.T @ np.linalg.inv(y_cov)
    log_evidence = scipy.stats.multivariate_normal(y_mean, y_cov).logpdf(ys.ravel()[seen])
    last = (x_mean + gain @ residual)[-2:]
    return last, (x_cov - gain @ h @ x_cov)[-2:, -2:], log_evidence


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("full", [False, True])
def test_agrees_with_the_joint_normal(full, missing):
    model = models.linear(full)
    ys = np.array(nopf.simulate(model, 6, jax.random.key(0)).observations)
    if missing:
        ys[1, 0] = ys[3] = ys[5, 1] = np.nan
    posterior = nopf.KalmanFilter(model).run(ys)
    mean, cov, log_evidence = joint_answer(model, ys)
    np.testing.assert_allclose(posterior.mean[-1], mean, atol=1e-5)
    np.testing.assert_allclose(posterior.cov[-1], cov, atol=1e-5)
    np.testing.assert_allclose(posterior.log_evidence, log_evidence, rtol=1e-5)
    if missing:
        np.testing.assert_allclose(posterior.log_evidence_increments[3], 0, atol=1e-6)


def test_is_calibrated():
    """Over simulated truths the 90 % interval of each state covers 90 % of them."""
    model = models.linear(full=True)
    paths = nopf.simulate(model, 4, jax.random.key(1), batch=4000)
    posterior = nopf.KalmanFilter(model).run_batch(paths.observations)
    low, high = posterior.quantiles[:, -1, 0], posterior.quantiles[:, -1, 2]
    inside = (paths.states[:, -1] > low) & (paths.states[:, -1] < high)
    # Standard error 0.0047; four of them: false alarm 1e-4.
    np.testing.assert_allclose(np.mean(inside, axis=0), 0.9, atol=0.019)


def test_time_varying_models_and_controls():
    """A model whose matrices depend on the step equals the same numbers put in by hand."""
    model = models.linear(
        transition=lambda x, step: step.dt * x + step.control,
        observation=lambda x, step: step.index * x,
        process_noise=lambda step: jnp.sqrt(step.dt) * jnp.ones(2),
    )
    posterior = nopf.KalmanFilter(model).run(
        [[1.0, 2.0], [3.0, 4.0]], times=[0.5, 2.5], controls=[[1.0, 0.0], [0.0, 1.0]]
    )
    mean, cov = np.array([0.5, -0.2]), np.diag([1.0, 0.49])
    r = np.diag([0.49, 0.25])
    for t, (dt, control, y) in enumerate(
        [(0.5, [1.0, 0.0], [1.0, 2.0]), (2.0, [0.0, 1.0], [3.0, 4.0])], start=1
    ):
        mean, cov = dt * mean + control, dt**2 * cov + dt * np.eye(2)
        gain = cov * t @ np.linalg.inv(t**2 * cov + r)
        mean, cov = mean + gain @ (np.array(y) - t * mean), cov - gain @ (t * cov)
        np.testing.assert_allclose(posterior.mean[t - 1], mean, rtol=1e-5)
        np.testing.assert_allclose(posterior.cov[t - 1], cov, atol=1e-5)


def test_samples_stand_for_the_posterior():
    model = models.linear(full=True)
    ys = nopf.simulate(model, 3, jax.random.key(0)).observations
    flt = nopf.KalmanFilter(model, particles=50_000)
    posterior = flt.run(ys, key=jax.random.key(1), keep="particles")
    x = np.asarray(posterior.particles[-1])
    np.testing.assert_allclose(x.mean(0), posterior.mean[-1], atol=0.02)
    np.testing.assert_allclose(np.cov(x.T), posterior.cov[-1], atol=0.02)
    with pytest.raises(TypeError, match="key: keep='particles' draws"):
        flt.run(ys, keep="particles")


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (lambda: models.linear(transition=lambda x, s: jnp.sin(x)), "transition is not linear"),
        (lambda: models.linear(observation=lambda x, s: x**2), "observation is not linear"),
        (lambda: models.unicycle(), "angles"),
        (
            lambda: models.linear(prior=nopf.GaussianMixture([1.0], [[0.0, 0.0]], [1.0, 1.0])),
            "prior is GaussianMixture",
        ),
        (
            lambda: models.linear(
                observation_noise=None,
                observation_log_prob=lambda y, x, s: 0.0,
                observation_sample=lambda k, x, s: x,
            ),
            "observation noise is not Gaussian",
        ),
    ],
)
def test_refuses_what_it_cannot_do_exactly(model, reason):
    with pytest.raises(ValueError, match=f"{reason}.*use nopf.ParticleFilter"):
        nopf.KalmanFilter(model())


def test_a_nearly_singular_posterior_still_has_samples():
    model = nopf.StateSpaceModel(
        prior=nopf.Gaussian([0.0, 0.0], [1e3, 1e3]),
        transition=lambda x, step: [x[0] + step.dt * x[1], x[1]],
        process_noise=[1e-5, 1e-5],
        observation=lambda x, step: [x[0]],
        observation_noise=[1e-3],
    )
    posterior = nopf.KalmanFilter(model).run(
        np.zeros((20, 1)), key=jax.random.key(0), keep="particles"
    )
    assert np.all(np.isfinite(posterior.particles))


def test_refuses_a_model_that_is_nonlinear_in_a_small_coordinate_or_at_one_step():
    small = models.linear(
        prior=nopf.Gaussian([1e6, 0.0], [1e4, 0.3]),
        transition=lambda x, step: jnp.stack([x[0], 3 * jnp.sin(x[1])]),
    )
    with pytest.raises(ValueError, match="transition is not linear"):
        nopf.KalmanFilter(small)
    late = models.linear(transition=lambda x, step: jnp.where(step.index == 5, x**2, x))
    with pytest.raises(ValueError, match=r"transition is not linear in the state \(at step 5\)"):
        nopf.KalmanFilter(late).run(np.zeros((6, 2)))


def test_refuses_a_model_that_its_controls_make_nonlinear():
    model = models.linear(transition=lambda x, s: x + s.control[0] * x**2)
    with pytest.raises(ValueError, match="transition is not linear"):
        nopf.KalmanFilter(model).run(np.zeros((2, 2)), controls=np.ones((2, 1)))
