"""Which noise numbers show in which part of an observation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nopf
from nopf.benchmarks import BENCHMARKS
from nopf.linear import apart
from nopf.proposals.seen import pair_count, pairs_in, pattern_of, seen_in
from tests import models


def test_pattern_of_range_bearing():
    """Ranges see the position, bearings the heading too, odometry a speed and its bias."""
    ranges_and_bearings, bearings = tuple(range(8)), (1, 3, 5, 7)
    expected = (ranges_and_bearings, ranges_and_bearings, bearings, (8,), (9,), (8,), (9,))
    pattern = pattern_of(BENCHMARKS["range-bearing"].model)
    assert pattern == expected
    assert len(apart(pattern)) == 3  # pushes, instead of seven
    assert pair_count(pattern, 7) == 5
    assert pairs_in(pattern, 7) == ((1, 0), (2, 0), (2, 1), (5, 3), (6, 4))


def test_a_number_that_shows_nowhere_is_left_out():
    pattern = pattern_of(BENCHMARKS["range-only"].model)
    assert seen_in(pattern) == (0, 1, 3, 4, 5, 6, 7)  # not the heading


def model_with(observation=None, **likelihood):
    return nopf.StateSpaceModel(
        prior=nopf.Gaussian(np.zeros(4), np.ones(4)),
        transition=lambda x, step: x,
        process_noise=np.full(4, 0.5),
        observation=observation,
        **likelihood,
    )


def test_terms_of_a_likelihood_of_ones_own():
    """log p = f(x0, x1) + g(x2): two terms, and the last state in neither."""

    def log_prob(y, x, step):
        return -((y[0] - x[0] * x[1]) ** 2) - (y[1] - jnp.sin(x[2])) ** 2

    def sample(key, x, step):
        return jnp.stack([x[0] * x[1], jnp.sin(x[2])]) + jax.random.normal(key, (2,))

    model = model_with(observation_log_prob=log_prob, observation_sample=sample)
    pattern = pattern_of(model)
    assert pattern == ((0,), (0,), (1,), ())
    assert pairs_in(pattern, 4) == ((1, 0),)


def test_a_likelihood_without_gradient_is_one_term():
    """Looked up in a table: nothing can be said of what depends on what."""
    table = jnp.linspace(0.0, 3.0, 50)

    def log_prob(y, x, step):
        at = jnp.clip((5 * (x[0] + x[2]) + 25).astype(jnp.int32), 0, 49)
        return -((y[0] - table[at]) ** 2)

    def sample(key, x, step):
        return jax.random.normal(key, (1,))

    model = model_with(observation_log_prob=log_prob, observation_sample=sample)
    assert pattern_of(model) == ((0,), (), (0,), ())


def test_a_number_behind_a_comparison_shows():
    """NaN is not above zero: the other try finds it."""
    model = model_with(
        lambda x, step: jnp.stack([jnp.where(x[0] > 0, x[0], 0.0), x[3]]), observation_noise=0.1
    )
    assert pattern_of(model) == ((0,), (), (), (1,))


def test_a_full_covariance_mixes_all():
    pattern = pattern_of(models.linear(full=True))
    assert seen_in(pattern) == (0, 1)


def test_nothing_is_tried_while_tracing():
    def traced(scale):
        model = model_with(lambda x, step: scale * x, observation_noise=0.1)
        assert pattern_of(model) is None
        return scale

    jax.eval_shape(traced, jnp.ones(()))


@pytest.mark.parametrize("name", ["sensor-bias", "range-bearing", "range-only"])
def test_the_fit_is_the_same_with_and_without_the_pattern(name):
    """The same mean, and the same covariance, as from all noise numbers at once; up to rounding."""
    model = BENCHMARKS[name].model
    path = nopf.simulate(model, 3, jax.random.key(1))
    x, y, step = path.states[1], path.observations[2], model.nominal_step(3)
    sparse = nopf.LinearisedProposal().settled(model)
    k = model.noise_size
    full = nopf.LinearisedProposal(pattern=(tuple(range(model.observation_space.size)),) * k)

    def moments(proposal):
        law = proposal.law(model, x, y, step)
        root = jax.vmap(law.factor.colour)(jnp.eye(k)).T
        return law.mean, root @ root.T, law.promise

    for found, expected in zip(moments(sparse), moments(full), strict=True):
        np.testing.assert_allclose(found, expected, rtol=2e-3, atol=2e-4)
