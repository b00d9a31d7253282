"""The first step: a wide prior is met, weights stay exact, and every way to run agrees."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

import nopf
from nopf.filters.first import _fits
from nopf.filters.moving import Ancestors
from nopf.filters.particle import ParticleEngine
from tests import models
from tests.filters.test_evidence import RUNS, ratios, standard_errors_from_one

STD = 20.0  # against measurements of 0.6: less than 1 % of the prior's draws count


class Custom:
    """A prior of which nopf knows nothing but how to draw and how likely a state is."""

    def __init__(self, gaussian):
        self.gaussian = gaussian

    def sample(self, key):
        return self.gaussian.sample(key)

    def log_prob(self, x):
        return self.gaussian.log_prob(x)


MEANS = np.array([[8.0, -3.0], [-9.0, 4.0]])
PRIORS = {
    "gaussian": nopf.Gaussian([0.5, -0.2], [STD, STD]),
    "correlated": nopf.Gaussian([0.5, -0.2], [[STD**2, 200.0], [200.0, 300.0]]),
    "mixture": nopf.GaussianMixture([0.3, 0.7], MEANS, [6.0, 4.0]),
    "custom": Custom(nopf.Gaussian([0.5, -0.2], [6.0, 5.0])),
}


def exact_evidence(model, ys):
    """By Kalman; of a mixture by one Kalman filter each."""
    prior = model.prior
    if isinstance(prior, nopf.GaussianMixture):
        each = [
            nopf.KalmanFilter(models.linear(prior=nopf.Gaussian(mean, [6.0, 4.0]))).run(ys)
            for mean in MEANS
        ]
        return scipy.special.logsumexp([p.log_evidence for p in each], b=[0.3, 0.7])
    gaussian = getattr(prior, "gaussian", prior)
    return nopf.KalmanFilter(models.linear(prior=gaussian)).run(ys).log_evidence


@pytest.mark.parametrize(
    ("prior", "missing"),
    [
        ("gaussian", "nothing"),
        ("correlated", "part of the first"),
        ("mixture", "the first two"),
        ("custom", "nothing"),
        pytest.param("gaussian", "the first two", marks=pytest.mark.slow),
        pytest.param("mixture", "nothing", marks=pytest.mark.slow),
        pytest.param("custom", "the first two", marks=pytest.mark.slow),
    ],
)
def test_evidence_is_unbiased_and_no_particle_is_wasted(prior, missing):
    model = models.linear(prior=PRIORS[prior])
    ys = np.array(nopf.simulate(model, 5, jax.random.key(1)).observations)
    first = 0
    if missing == "part of the first":
        ys[0, 1] = np.nan
    elif missing == "the first two":
        ys[:2], first = np.nan, 2
    flt = nopf.ParticleFilter(model, nopf.LinearisedProposal(), 200, quantiles=(), health=False)
    copies = np.broadcast_to(ys, (RUNS, *ys.shape))
    runs = flt.run_batch(copies, key=jax.random.key(5))
    found = np.exp(np.asarray(runs.log_evidence, np.float64) - float(exact_evidence(model, ys)))
    assert found.std() < 1  # so that a bias of 20 % would be seen
    assert abs(standard_errors_from_one(found)) < 4  # false alarm: once in 16 000
    assert np.median(runs.ess[:, first]) > 200 / 3


def test_steps_run_resume_and_batch_agree():
    model = models.linear(prior=PRIORS["mixture"])
    ys = np.array(nopf.simulate(model, 6, jax.random.key(1)).observations)
    ys[:2] = np.nan
    proposal = nopf.LinearisedProposal()
    flt = nopf.AuxiliaryFilter(model, proposal, 300, quantiles=(), health=False)
    whole = flt.run(ys, key=jax.random.key(5))
    state = flt.init(jax.random.key(5))
    for t, y in enumerate(ys):
        state, info = flt.step(state, y)
        np.testing.assert_allclose(info.mean, whole.mean[t], rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(info.ess, whole.ess[t], rtol=1e-4)
    begun = flt.run(ys[:1], key=jax.random.key(5))
    assert len(begun.state.before) == 1
    rest = flt.resume(begun.state, ys[1:])
    np.testing.assert_allclose(rest.mean, whole.mean[1:], rtol=1e-4, atol=1e-4)
    # Of two series the other one is observed from the first step on.
    both = np.stack([ys, np.where(np.isnan(ys), 0.5, ys)])
    batch = flt.run_batch(both, key=jax.random.key(7))
    for series, key, mean in zip(
        both, jax.random.split(jax.random.key(7), 2), batch.mean, strict=True
    ):
        np.testing.assert_allclose(flt.run(series, key=key).mean, mean, rtol=1e-3, atol=1e-3)


def test_both_sides_of_a_parabola_are_found():
    model = nopf.StateSpaceModel(
        prior=nopf.Gaussian([0.3], [3.0]),
        transition=lambda x, step: x,
        process_noise=[0.1],
        observation=lambda x, step: x**2,
        observation_noise=[0.2],
    )
    ys = np.array([[4.0]])
    grid = np.linspace(-8, 8, 20_001)
    wide = np.hypot(3.0, 0.1)
    density = np.exp(-0.5 * ((grid - 0.3) / wide) ** 2) / wide
    density *= np.exp(-0.5 * ((4.0 - grid**2) / 0.2) ** 2) / 0.2 / (2 * np.pi)
    exact = np.log(density.sum() * (grid[1] - grid[0]))
    flt = nopf.ParticleFilter(model, nopf.LinearisedProposal(), 200, health=False)
    posterior = flt.run(ys, key=jax.random.key(0), keep="particles")
    assert posterior.ess[0] > 200 / 3
    right = np.sum(np.exp(posterior.log_weights[0])[np.asarray(posterior.particles[0, :, 0]) > 0])
    share = density[grid > 0].sum() / density.sum()
    assert abs(right - share) < 4 * np.sqrt(share * (1 - share) / (200 / 3))
    found = ratios(flt, ys, exact)
    assert abs(standard_errors_from_one(found)) < 4


def test_a_likelihood_without_residuals_gets_more_draws():
    model = models.linear(
        prior=nopf.Gaussian([0.0, 0.0], [6.0, 6.0]),
        observation=None,
        observation_noise=None,
        observation_log_prob=lambda y, x, step: (
            -0.5 * jnp.sum((y - models.linear_observation(x, step)) ** 2) - np.log(2 * np.pi)
        ),
        observation_sample=lambda key, x, step: (
            models.linear_observation(x, step) + jax.random.normal(key, (2,))
        ),
    )
    ys = np.array([[1.0, -2.0], [0.5, 0.3]])
    exact = nopf.KalmanFilter(
        models.linear(prior=nopf.Gaussian([0.0, 0.0], [6.0, 6.0]), observation_noise=[1.0, 1.0])
    ).run(ys)
    plain, met = (
        nopf.ParticleFilter(model, None, 300, quantiles=(), health=False, first_step=first)
        for first in (False, True)
    )
    assert plain.run(ys, key=jax.random.key(0)).ess[0] < 60
    assert met.run(ys, key=jax.random.key(0)).ess[0] > 200
    assert abs(standard_errors_from_one(ratios(met, ys, exact.log_evidence))) < 4


def test_few_particles_and_a_wide_prior_of_which_nothing_is_known():
    # A hundred blocks would be needed, and there are ten particles.
    model = models.linear(prior=Custom(nopf.Gaussian([0.5, -0.2], [STD, STD])))
    ys = np.array(nopf.simulate(model, 1, jax.random.key(1)).observations)
    flt = nopf.ParticleFilter(model, nopf.LinearisedProposal(), 10, quantiles=(), health=False)
    found = ratios(flt, ys, exact_evidence(model, ys), 2000)
    assert abs(standard_errors_from_one(found)) < 4


def test_where_nothing_can_be_fitted_the_prior_is_drawn_from():
    model = nopf.StateSpaceModel(
        prior=nopf.Gaussian([-40.0], [1.0]),
        transition=lambda x, step: x,
        process_noise=[0.1],
        observation=lambda x, step: jnp.sqrt(x),  # no number for any of these
        observation_noise=[0.2],
    )
    fits = _fits(model, jnp.ones(1), model.nominal_step(), None)
    shares = np.exp(fits.log_share)
    np.testing.assert_allclose(shares.sum(), 1, rtol=1e-5)
    np.testing.assert_allclose(shares[-1], 1, rtol=1e-5)


def test_an_impossible_first_observation_counts_as_none():
    model = models.linear(
        observation=None,
        observation_noise=None,
        observation_log_prob=lambda y, x, step: jnp.where(y[0] > 50, -jnp.inf, 0.0),
        observation_sample=lambda key, x, step: x,
    )
    flt = nopf.ParticleFilter(model, None, 50, first_step=True)
    posterior = flt.run(np.array([[99.0, 0.0], [1.0, 0.0]]), key=jax.random.key(0))
    assert posterior.collapsed.tolist() == [True, False]
    assert np.all(np.isfinite(posterior.mean))


def test_who_has_a_first_step_of_its_own():
    model = models.linear()
    assert not nopf.ParticleFilter(model).first_step
    assert not nopf.ParticleFilter(model, nopf.OptimalProposal()).first_step
    assert not nopf.AuxiliaryFilter(model).first_step
    assert nopf.ParticleFilter(model, nopf.LinearisedProposal()).first_step
    assert nopf.AuxiliaryFilter(model, nopf.LinearisedProposal()).first_step


def test_a_state_that_was_stepped_under_jit_does_not_begin_again():
    model = models.linear(prior=PRIORS["gaussian"])
    ys = np.array(nopf.simulate(model, 3, jax.random.key(1)).observations)
    # Under jit the first step is like any other, and needs many draws of a wide prior.
    flt = nopf.ParticleFilter(model, nopf.LinearisedProposal(), 5000)
    step = jax.jit(lambda state, y: flt.step(state, y))
    state, first = step(flt.init(jax.random.key(0)), ys[0])
    state, second = flt.step(state, np.full(2, np.nan))
    # What the first observation said is still known: without one, little is forgotten.
    assert np.all(second.std < 3 * first.std)
    assert np.all(flt.resume(state, np.full((1, 2), np.nan)).std[0] < 4 * first.std)
    assert state.index == 2


def test_a_run_under_jit_over_its_key_alone():
    model = models.linear(prior=PRIORS["gaussian"])
    ys = np.array(nopf.simulate(model, 3, jax.random.key(1)).observations)
    flt = nopf.ParticleFilter(model, nopf.LinearisedProposal(), 64)
    own = jax.jit(lambda key: flt.run(ys, key=key).info.mean)(jax.random.key(0))
    np.testing.assert_allclose(own, flt.run(ys, key=jax.random.key(0)).mean, atol=1e-4)


def test_likelihoods_whose_digits_end_above_the_decimal_point():
    huge = 3e7
    model = models.linear(
        prior=PRIORS["gaussian"],
        observation=None,
        observation_noise=None,
        observation_log_prob=lambda y, x, step: huge - 0.5 * jnp.sum((y - x) ** 2),
        observation_sample=lambda key, x, step: x,
    )
    plain = models.linear(
        prior=PRIORS["gaussian"],
        observation=None,
        observation_noise=None,
        observation_log_prob=lambda y, x, step: -0.5 * jnp.sum((y - x) ** 2),
        observation_sample=lambda key, x, step: x,
    )
    ys = np.array([[3.0, -2.0]])
    one, other = (
        nopf.ParticleFilter(m, None, 400, first_step=True).run(ys, key=jax.random.key(0))
        for m in (model, plain)
    )
    np.testing.assert_allclose(one.log_evidence, huge, rtol=1e-6)
    # Where digits end, weights are in steps of two; the number of draws is hardly another.
    assert 0.3 < one.ess[0] / other.ess[0] < 3


class OwnChoice(ParticleEngine):
    """As the documentation has it: says `choose`, and no more."""

    model: nopf.StateSpaceModel
    proposal: nopf.Proposal
    particles: int = eqx.field(static=True)
    resampling: object = eqx.field(static=True)
    quantiles: tuple = eqx.field(static=True)
    health: bool = eqx.field(static=True)
    mesh: object = eqx.field(static=True)

    def choose(self, key, belief, y, step):
        chosen, log_weights = self.resample(key, belief.log_weights)
        return Ancestors(belief.states[chosen], log_weights, belief.memory)


def test_a_filter_that_says_only_how_it_chooses():
    model = models.linear()
    ys = nopf.simulate(model, 4, jax.random.key(1)).observations
    flt = OwnChoice(model, nopf.LinearisedProposal(), 300, nopf.systematic, (), False, None)
    found = flt.run(ys, key=jax.random.key(0))
    exact = nopf.KalmanFilter(model).run(ys)
    assert np.max(np.abs(found.mean - exact.mean) / exact.std) < 0.5
    assert np.all(np.isnan(found.error))
