import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nopf
from nopf.crowd import weigh_up
from nopf.resampling import should_resample

# Compiled as a whole: of single operations, one after the other, each is compiled alone.
SCHEMES = [jax.jit(s) for s in (nopf.systematic, nopf.stratified, nopf.residual, nopf.multinomial)]
by_scheme = pytest.mark.parametrize("scheme", SCHEMES, ids=lambda s: s.__name__)


@by_scheme
def test_offspring_is_unbiased_and_exact_in_count(scheme):
    n, runs = 37, 4000
    log_weights = 2 * jax.random.normal(jax.random.key(0), (n,)) + 5.0
    weights = np.asarray(jax.nn.softmax(log_weights))
    keys = jax.random.split(jax.random.key(1), runs)
    ancestors = np.asarray(jax.vmap(scheme, in_axes=(0, None))(keys, log_weights))
    assert ancestors.shape == (runs, n)
    assert ancestors.min() >= 0
    assert ancestors.max() < n
    assert np.all(np.diff(ancestors, axis=1) >= 0)
    offspring = np.stack([np.bincount(row, minlength=n) for row in ancestors])
    # Multinomial variance bounds that of the others. Five standard errors over 37 entries: a false
    # alarm has probability 2e-5.
    error = np.sqrt(n * weights * (1 - weights) / runs)
    assert np.all(np.abs(offspring.mean(0) - n * weights) <= 5 * error + 1e-6)


@by_scheme
def test_joint_law_of_offspring(scheme):
    """The second moment tells the schemes apart, and a wrong one from a right one."""
    weights = np.array([0.5, 0.2, 0.2, 0.1])
    expected = 4 * weights
    runs = 20_000
    keys = jax.random.split(jax.random.key(2), runs)
    ancestors = np.asarray(jax.vmap(scheme, in_axes=(0, None))(keys, jnp.log(weights)))
    offspring = np.stack([np.bincount(row, minlength=4) for row in ancestors])
    fraction = expected % 1
    variance = {
        # Each count is the floor or the ceiling.
        "systematic": fraction * (1 - fraction),
        # Strata [0,1), …: particle 0 fills two; 1 and 2 are split by the third and the fourth.
        "stratified": np.array([0, 0.8 * 0.2, 0.2 * 0.8 + 0.6 * 0.4, 0.4 * 0.6]),
        # Two of the four draws are left, over fractions (0, .8, .8, .4) / 2.
        "residual": 2 * (fraction / 2) * (1 - fraction / 2),
        "multinomial": 4 * weights * (1 - weights),
    }[scheme.__name__]
    # The variance of a count below 5 is known to 4 % from 20 000 runs; 0.03 is over 4 errors.
    np.testing.assert_allclose(offspring.var(0), variance, atol=0.03)


@by_scheme
def test_zero_weights_have_no_offspring(scheme):
    log_weights = jnp.log(jnp.array([0.0, 0.0, 0.4, 0.0, 0.6, 0.0, 0.0]))
    keys = jax.random.split(jax.random.key(3), 500)
    ancestors = jax.vmap(scheme, in_axes=(0, None))(keys, log_weights)
    assert set(np.unique(ancestors)) == {2, 4}


@by_scheme
def test_one_particle_and_one_survivor(scheme):
    assert scheme(jax.random.key(0), jnp.zeros(1)).tolist() == [0]
    log_weights = jnp.full(100, -jnp.inf).at[63].set(-1e4)
    assert set(np.asarray(scheme(jax.random.key(0), log_weights))) == {63}


@pytest.mark.parametrize("scheme", SCHEMES[:3], ids=lambda s: s.__name__)
def test_no_weight_at_all_counts_as_equal_weights(scheme):
    assert scheme(jax.random.key(0), jnp.full(6, -jnp.inf)).tolist() == list(range(6))


def test_refuses_a_matrix_of_weights():
    with pytest.raises(Exception, match="log_weights"):
        nopf.systematic(jax.random.key(0), jnp.zeros((3, 2)))


@pytest.mark.parametrize("scheme", SCHEMES[:3], ids=lambda s: s.__name__)
def test_equal_weights_are_left_alone(scheme):
    assert scheme(jax.random.key(0), jnp.zeros(512)).tolist() == list(range(512))


@pytest.mark.parametrize(
    "scheme",
    [SCHEMES[0], *(pytest.param(s, marks=pytest.mark.slow) for s in SCHEMES[1:])],
    ids=lambda s: s.__name__,
)
def test_millions_of_particles_are_told_apart(scheme):
    """A plain float32 cumulative sum gives one particle in 300 here a count that cannot be."""
    n, tail = 4_000_000, 500_000
    weights = jax.random.uniform(jax.random.key(4), (n,))
    ancestors = scheme(jax.random.key(5), jnp.log(weights))
    expected = np.asarray(weights, np.float64)
    expected = (n * expected / expected.sum())[-tail:]
    count = np.bincount(np.asarray(ancestors), minlength=n)[-tail:]
    for low in np.arange(0, 2, 0.25):
        group = (expected >= low) & (expected < low + 0.25)
        # 62 500 particles a group, variance at most 2 each: five standard errors.
        error = abs(count[group].mean() - expected[group].mean())
        assert error < 5 * np.sqrt(2 / group.sum())
    if scheme is SCHEMES[0]:
        assert np.all((count >= np.floor(expected - 1e-3)) & (count <= np.ceil(expected + 1e-3)))


def test_effective_sample_size():
    ess = jax.jit(nopf.effective_sample_size)
    np.testing.assert_allclose(ess(jnp.zeros(50)), 50, rtol=1e-6)
    np.testing.assert_allclose(ess(jnp.full(50, -1e5)), 50, rtol=1e-6)
    np.testing.assert_allclose(ess(jnp.log(jnp.array([0.5, 0.25, 0.25]))), 1 / 0.375, rtol=1e-6)
    np.testing.assert_allclose(ess(jnp.array([0.0, -jnp.inf, -jnp.inf])), 1, rtol=1e-6)
    assert ess(jnp.full(3, -jnp.inf)) == 0


def test_when_to_resample():
    equal, unequal = jnp.full(4, -1.4), jnp.log(jnp.array([0.4, 0.2, 0.2, 0.2]))  # ESS 3.57
    assert not should_resample(equal, 1.0)
    assert should_resample(unequal, 1.0)
    assert should_resample(unequal, 0.95)
    assert not should_resample(unequal, 0.85)


def test_sums_where_all_weights_are_zero_have_a_gradient():
    """A step at which all particles collapse shall not spoil the gradients of the others."""

    def log_whole(a):
        return weigh_up(jnp.where(jnp.arange(4) > 9, a, -jnp.inf), None).log_whole

    assert jax.grad(log_whole)(1.0) == 0
