"""Noise with heavy tails: densities by quadrature, proposals that stay unbiased, and recovery."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.stats

import nopf
from tests import models
from tests.filters.test_particle import standard_errors_from_one

TAILS = [nopf.Outliers(0.1, 8.0), nopf.StudentT(3.0)]
STEP = nopf.Step(jnp.asarray(1), jnp.asarray(1.0), jnp.asarray(1.0))


@pytest.mark.parametrize("tails", TAILS)
def test_draws_follow_the_density(tails):
    """Kolmogorov and Smirnov; false alarm 1e-3 a case."""
    grid = np.concatenate([-np.geomspace(3000, 1e-3, 4000), np.geomspace(1e-3, 3000, 4000)])
    density = np.exp(np.asarray(tails.log_prob(jnp.asarray(grid)), np.float64))
    cumulated = scipy.integrate.cumulative_trapezoid(density, grid, initial=0)
    assert cumulated[-1] == pytest.approx(1, abs=2e-3)
    draws = tails.sample(jax.random.key(0), 5000)
    test = scipy.stats.kstest(np.asarray(draws), lambda z: np.interp(z, grid, cumulated))
    assert test.pvalue > 1e-3


@pytest.mark.parametrize("tails", TAILS)
def test_simulated_observations_have_the_tails(tails):
    """Those beyond four standard deviations, of 20 000; five standard errors: false alarm 6e-7."""
    model = models.linear(robust=tails)
    path = nopf.simulate(model, 10_000, jax.random.key(0))
    seen = jax.vmap(lambda x: model.predict_observation(x, STEP))(path.states)
    beyond = np.abs(np.asarray(path.observations - seen)) > 4 * np.array([0.7, 0.5])
    grid = np.linspace(4, 2000, 400_000)
    density = np.exp(np.asarray(tails.log_prob(jnp.asarray(grid)), np.float64))
    expected = 2 * scipy.integrate.trapezoid(density, grid)
    assert abs(beyond.mean() - expected) < 5 * np.sqrt(expected / 20_000)
    assert expected > 0.02  # the normal distribution has 6e-5


@pytest.mark.parametrize("tails", TAILS)
def test_trust_falls_with_distance(tails):
    near, far = np.asarray(tails.trust(jnp.array([0.0, 50.0])))
    assert 0.95 < near <= 4 / 3 + 1e-6
    assert far < 0.02


@pytest.mark.parametrize("tails", TAILS)
def test_coordinates_are_independent_and_may_be_missing(tails):
    model = models.linear(robust=tails)
    x, y = jnp.array([0.5, 0.2]), jnp.array([0.3, -6.0])
    whole = model.log_likelihood(y, x, STEP)
    parts = [model.log_likelihood(jnp.where(m, y, jnp.nan), x, STEP) for m in np.eye(2, dtype=bool)]
    np.testing.assert_allclose(whole, sum(parts), rtol=1e-5)
    innovation = np.asarray(y - model.predict_observation(x, STEP)) / np.array([0.7, 0.5])
    exact = np.asarray(tails.log_prob(jnp.asarray(innovation))) - np.log([0.7, 0.5])
    np.testing.assert_allclose(parts, exact, rtol=1e-5)
    assert model.log_likelihood(jnp.full(2, jnp.nan), x, STEP) == 0


@pytest.mark.parametrize("tails", TAILS)
@pytest.mark.parametrize("y", [0.5, 2.5, 8.0])
def test_linearised_weights_are_unbiased(tails, y):
    """Mean weight over 40 000 moves against quadrature; |z| < 4: false alarm 6e-5 a case."""
    model = nopf.StateSpaceModel(
        prior=nopf.Gaussian([0.0], [1.0]),
        transition=lambda x, step: x,
        process_noise=[0.8],
        observation=lambda x, step: jnp.sinh(x),
        observation_noise=[0.4],
        robust=tails,
    )
    grid = jnp.linspace(-6, 6, 20_001)
    likelihood = jax.vmap(lambda x: model.log_likelihood(jnp.array([y]), x[None], STEP))(grid)
    prior = scipy.stats.norm.pdf(np.asarray(grid), 0, 0.8)
    exact = scipy.integrate.trapezoid(np.exp(np.asarray(likelihood, np.float64)) * prior, grid)
    proposal = nopf.LinearisedProposal()
    x, y = jnp.zeros(1), jnp.array([y])
    move = models.move_copies(proposal, jax.random.key(1), model, x, y, STEP, 40_000)
    ratios = np.exp(np.asarray(move.log_weight, np.float64)) / exact
    assert abs(standard_errors_from_one(ratios)) < 4


def test_robust_noise_must_be_independent():
    with pytest.raises(ValueError, match="got a covariance matrix"):
        models.linear(full=True, robust=nopf.StudentT())


def test_robust_models_are_refused_where_noise_must_be_normal():
    model = models.linear(robust=nopf.StudentT())
    with pytest.raises(ValueError, match="robust=StudentT"):
        nopf.KalmanFilter(model)
    with pytest.raises(ValueError, match="robust=StudentT"):
        nopf.ParticleFilter(model, nopf.OptimalProposal())
    with pytest.raises(ValueError, match="its own"):
        models.linear(
            robust=nopf.StudentT(),
            observation_noise=None,
            observation_log_prob=lambda y, x, step: 0.0,
            observation_sample=lambda key, x, step: x,
        )
    with pytest.raises(ValueError, match="between 0 and 1"):
        nopf.Outliers(rate=0.0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nopf.StudentT(True), "freedom: expected a finite number, got True"),
        (lambda: nopf.StudentT(float("inf")), "freedom: expected a finite number, got inf"),
        (lambda: nopf.Outliers(True), "rate: expected a finite number, got True"),
        (lambda: nopf.Outliers(0.1, 10**400), "scale: expected a finite number, got one that is"),
    ],
)
def test_says_which_setting_is_no_number(make, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        make()
