import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nopf
from tests import models
from tests.test_resampling import SCHEMES

RUNS = 200


def evidence_ratios(model, ys, proposal=None, particles=300, seed=0, **settings):
    """exp(log-evidence − Kalman's) of 200 independent runs on the same data."""
    flt = nopf.ParticleFilter(model, proposal, particles, quantiles=(), **settings)
    copies = np.broadcast_to(np.asarray(ys), (RUNS, *ys.shape))
    estimates = flt.run_batch(copies, key=jax.random.key(seed)).log_evidence
    return np.exp(np.asarray(estimates - nopf.KalmanFilter(model).run(ys).log_evidence, np.float64))


def standard_errors_from_one(ratios):
    return (ratios.mean() - 1) / (ratios.std(ddof=1) / np.sqrt(ratios.size))


def short_series(model, missing=False):
    ys = np.array(nopf.simulate(model, 6, jax.random.key(42)).observations)
    if missing:
        ys[1, 0] = ys[3] = np.nan
    return ys


@pytest.mark.parametrize(
    "threshold",
    [pytest.param(1.0, marks=pytest.mark.slow), 0.5, pytest.param(0.0, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize(
    "scheme",
    [
        nopf.systematic,
        *(pytest.param(s, marks=pytest.mark.slow) for s in SCHEMES if s is not nopf.systematic),
    ],
    ids=lambda s: s.__name__,
)
def test_evidence_is_unbiased(scheme, threshold):
    """Three standard errors: each of the twelve has a false alarm of 0.3 %, and a fixed key."""
    model = models.linear(full=True)
    ratios = evidence_ratios(model, short_series(model), resampling=scheme, ess_threshold=threshold)
    assert ratios.std() < 0.5  # so that a bias of 11 % would be seen
    assert abs(standard_errors_from_one(ratios)) < 3


@pytest.mark.parametrize("threshold", [pytest.param(1.0, marks=pytest.mark.slow), 0.5])
def test_evidence_is_unbiased_with_missing_observations(threshold):
    model = models.linear(full=True)
    ratios = evidence_ratios(model, short_series(model, missing=True), ess_threshold=threshold)
    assert abs(standard_errors_from_one(ratios)) < 3


class Shifted(nopf.Proposal):
    """Draws off the transition's centre; weighs by the likelihood and, if `whole`, by p / q."""

    whole: bool

    def propose(self, key, model, ancestor, y, step, memory=None):
        centre = model.skeleton(ancestor, step) + 0.2
        state = centre + model.process_noise_at(step).sample(key)
        log_weight = model.log_likelihood(y, state, step)
        if self.whole:
            log_weight += model.log_transition(state, ancestor, step)
            log_weight -= model.process_noise_at(step).log_prob(state - centre)
        return nopf.Move(state, log_weight, memory)


def test_a_dropped_term_is_noticed():
    """The test above has power: without p / q it fails by a mile, with it it passes."""
    model = models.linear(full=True)
    ys = short_series(model)
    assert abs(standard_errors_from_one(evidence_ratios(model, ys, Shifted(True)))) < 3
    assert abs(standard_errors_from_one(evidence_ratios(model, ys, Shifted(False)))) > 6


@pytest.mark.slow
def test_error_against_kalman_falls_with_the_root_of_n():
    model = models.linear()
    ys = short_series(model)
    exact = nopf.KalmanFilter(model).run(ys).mean
    sizes, errors = [100, 1000, 10_000, 100_000], []
    for n in sizes:
        copies = np.broadcast_to(ys, (16, *ys.shape))
        flt = nopf.ParticleFilter(model, particles=n, quantiles=())
        means = flt.run_batch(copies, key=jax.random.key(n)).mean
        errors.append(np.sqrt(np.mean((means - exact[None]) ** 2)))
    slope = np.polyfit(np.log(sizes), np.log(errors), 1)[0]
    assert -0.6 < slope < -0.4


def test_posterior_agrees_with_kalman():
    model = models.linear(full=True)
    ys = short_series(model)
    exact = nopf.KalmanFilter(model).run(ys)
    found = nopf.ParticleFilter(model, particles=100_000).run(ys, key=jax.random.key(0))
    # Posterior standard deviations are about 0.5, ESS above 30 000: five errors are 0.015.
    np.testing.assert_allclose(found.mean, exact.mean, atol=0.015)
    np.testing.assert_allclose(found.std, exact.std, atol=0.015)
    np.testing.assert_allclose(found.cov, exact.cov, atol=0.015)
    np.testing.assert_allclose(found.quantiles, exact.quantiles, atol=0.03)


def test_same_key_same_answer_other_key_another():
    model = models.linear()
    ys = short_series(model)
    flt = nopf.ParticleFilter(model, particles=50)
    a, b, c = (flt.run(ys, key=jax.random.key(k)).mean for k in (0, 0, 1))
    np.testing.assert_array_equal(a, b)
    assert not np.allclose(a, c)


@pytest.mark.slow
def test_turning_every_angle_by_two_pi_changes_nothing():
    """In double precision, so that a rounding error does not move a resampling point."""
    with jax.enable_x64(True):
        model = models.unicycle(heading=3.0)
        ys = np.array(nopf.simulate(model, 15, jax.random.key(0)).observations)
        turned = ys + np.array([[0.0, 2 * np.pi]])

        def transition(x, step):
            return models.unicycle_transition(x, step) + jnp.array([0, 0, 2 * np.pi])

        def observation(x, step):
            return models.unicycle_observation(x, step) - jnp.array([0, 2 * np.pi])

        plain = nopf.ParticleFilter(model, particles=500).run(ys, key=jax.random.key(1))
        other = models.unicycle(3.0 - 2 * np.pi, transition=transition, observation=observation)
        again = nopf.ParticleFilter(other, particles=500).run(turned, key=jax.random.key(1))
        for name in ("mean", "cov", "quantiles", "ess", "log_evidence"):
            np.testing.assert_allclose(getattr(plain, name), getattr(again, name), atol=1e-9)
        assert np.ptp(plain.mean[:, 2]) > 4  # it did turn through the cut


def test_particles_are_kept_only_when_asked():
    model = models.linear()
    ys = short_series(model)
    flt = nopf.ParticleFilter(model, particles=40)
    plain = flt.run(ys, key=jax.random.key(0))
    kept = flt.run(ys, key=jax.random.key(0), keep="particles")
    assert plain.particles is None
    assert plain.log_weights is None
    assert kept.particles.shape == (6, 40, 2)
    weights = np.exp(kept.log_weights)
    np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(
        np.einsum("tn,tnd->td", weights, kept.particles), kept.mean, atol=1e-5
    )
    np.testing.assert_allclose(1 / (weights**2).sum(axis=1), kept.ess, rtol=1e-4)


def test_a_step_without_observation_only_propagates():
    model = models.linear()
    flt = nopf.ParticleFilter(model, particles=20_000)
    state = flt.init(jax.random.key(0))
    state, info = flt.step(state, [np.nan, np.nan])
    assert info.ess == pytest.approx(20_000, rel=1e-4)
    assert info.log_evidence == pytest.approx(0, abs=1e-5)
    exact = nopf.KalmanFilter(model).run([[np.nan, np.nan]])
    np.testing.assert_allclose(info.mean, exact.mean[0], atol=0.05)
    np.testing.assert_allclose(info.cov, exact.cov[0], atol=0.1)


def box(width):
    """A likelihood that is exactly zero beyond a distance."""
    return models.linear(
        observation_noise=None,
        observation_log_prob=lambda y, x, step: jnp.where(
            jnp.max(jnp.abs(y - x)) < width, -2 * jnp.log(2 * width), -jnp.inf
        ),
        observation_sample=lambda key, x, step: (
            x + jax.random.uniform(key, (2,), minval=-width, maxval=width)
        ),
    )


@pytest.mark.parametrize("threshold", [1.0, 0.0])
def test_when_every_weight_vanishes_the_filter_says_so_and_goes_on(threshold):
    model = box(3.0)
    ys = np.array([[0.5, 0.0], [500.0, 0.0], [0.5, 0.0]])
    flt = nopf.ParticleFilter(model, particles=2000, ess_threshold=threshold)
    posterior = flt.run(ys, key=jax.random.key(0))
    assert posterior.collapsed.tolist() == [False, True, False]
    assert posterior.ess[1] == 0
    assert posterior.log_evidence == -np.inf
    assert posterior.log_evidence_increments[1] == -np.inf
    for values in (posterior.mean, posterior.cov, posterior.quantiles, posterior.ess):
        assert np.all(np.isfinite(values))
    # The documented rule: as if nothing had been observed at that step.
    skipped = flt.run(np.where(ys > 100, np.nan, ys) * [[1, 1], [np.nan, np.nan], [1, 1]],
                      key=jax.random.key(0))  # fmt: skip
    np.testing.assert_allclose(posterior.mean, skipped.mean, atol=1e-5)


def test_nan_from_the_transition_is_named_with_its_step():
    def transition(x, step):
        return jnp.where(step.index == 3, jnp.nan, x)

    model = models.linear(transition=transition, dt=0.5)
    flt = nopf.ParticleFilter(model, particles=10)
    with pytest.raises(FloatingPointError, match=r"infinite at step 3 \(time 1.5\) in 10 new .*tr"):
        flt.run(np.zeros((5, 2)), key=jax.random.key(0))
    state = flt.init(jax.random.key(0))
    state, _ = flt.step(state, np.zeros(2))
    state, _ = flt.step(state, np.zeros(2))
    with pytest.raises(FloatingPointError, match="infinite at step 3"):
        flt.step(state, np.zeros(2))
    with pytest.raises(FloatingPointError, match="infinite at step 3 of series 0"):
        flt.run_batch(np.zeros((2, 5, 2)), key=jax.random.key(0))


def test_nan_from_the_likelihood_is_named_with_its_step():
    model = models.linear(observation=lambda x, step: x + jnp.where(step.index == 2, jnp.nan, 0.0))
    flt = nopf.ParticleFilter(model, particles=10)
    with pytest.raises(FloatingPointError, match=r"at step 2 .*weights.*observation functions"):
        flt.run(np.zeros((5, 2)), key=jax.random.key(0))


def test_large_log_likelihoods_and_far_states_do_not_round_the_mean():
    """A constant in the likelihood, and an offset of the state, change nothing but themselves."""

    def flt(offset, constant):
        model = models.linear(
            prior=nopf.Gaussian([offset, 0.0], [1.0, 1.0]),
            transition=lambda x, step: x,
            observation_noise=None,
            observation_log_prob=lambda y, x, step: constant - 5 * jnp.sum((y - x) ** 2),
            observation_sample=lambda key, x, step: x,
        )
        ys = np.array([[offset, 0.0]] * 4)
        posterior = nopf.ParticleFilter(model, particles=500).run(
            ys, key=jax.random.key(0), keep="particles"
        )
        weights = np.exp(np.asarray(posterior.log_weights, np.float64))
        np.testing.assert_allclose(weights.sum(axis=1), 1, atol=1e-5)
        return posterior

    plain, far = flt(0.0, 0.0), flt(1000.0, -20_000.0)
    assert np.all(np.abs(far.mean[:, 0] - 1000 - plain.mean[:, 0]) < 0.1)
    np.testing.assert_allclose(far.std, plain.std, rtol=0.15)


def test_collapse_undoes_what_the_proposal_did():
    def likelihood(y, x, step):
        return jnp.where(step.index == 2, -jnp.inf, -0.5 * jnp.sum((y - x) ** 2))

    model = models.linear(
        transition=lambda x, step: x,
        observation_noise=None,
        observation_log_prob=likelihood,
        observation_sample=lambda key, x, step: x,
    )
    for proposal in (None, Shifted(True)):
        flt = nopf.ParticleFilter(model, proposal, particles=20_000)
        posterior = flt.run(np.zeros((2, 2)), key=jax.random.key(0))
        assert posterior.collapsed.tolist() == [False, True]
        np.testing.assert_allclose(posterior.mean[1], posterior.mean[0], atol=0.03)


@pytest.mark.parametrize(
    ("move", "message"),
    [
        (lambda x, ll: nopf.Move(x[:1], ll), r"a state of shape \(2,\), got \(1,\)"),
        (lambda x, ll: nopf.Move(x, ll[None]), r"a log_weight of shape \(\), got \(1,\)"),
        (lambda x, ll: nopf.Move(x, ll, x), "memory like that of initial_memory, None"),
    ],
)
def test_a_proposal_that_returns_the_wrong_shape_is_named(move, message):
    class Odd(nopf.Proposal):
        def propose(self, key, model, ancestor, y, step, memory=None):
            return move(ancestor, jnp.zeros(()))

    with pytest.raises(ValueError, match=f"proposal: expected Odd.propose to return {message}"):
        nopf.ParticleFilter(models.linear(), Odd())


def test_an_infinite_state_is_no_silent_nan():
    model = models.linear(transition=lambda x, step: jnp.where(x > 1, jnp.inf, x))
    with pytest.raises(FloatingPointError, match="infinite at step 1"):
        nopf.ParticleFilter(model, particles=200).run(np.zeros((3, 2)), key=jax.random.key(0))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"particles": 0}, "particles: expected at least 1, got 0"),
        ({"particles": -5}, "particles: expected at least 1, got -5"),
        ({"ess_threshold": 1.5}, "ess_threshold: expected a number from 0 to 1"),
        ({"quantiles": (0.0, 0.5)}, "quantiles: expected levels from"),
    ],
)
def test_refuses_bad_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        nopf.ParticleFilter(models.linear(), **settings)
