import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from jax.extend.random import threefry_2x32

from nopf.keys import FEW, plain, quick

KEY = quick(jax.random.key(7))


def words(key):
    return np.asarray(jax.random.key_data(key))


def test_rounds_are_threefrys():
    # Known answers of the generator's authors: key and counter all zeros, and all ones.
    for word, answer in [(0, (0x6B200159, 0x99BA4EFE)), (2**32 - 1, (0x1CB996FC, 0xBB002BE7))]:
        both = jnp.full(2, word, jnp.uint32)
        assert tuple(np.asarray(threefry_2x32(both, both))) == answer
    zero = quick(jax.random.wrap_key_data(jnp.zeros(2, jnp.uint32)))
    assert jax.random.bits(zero) == 0x6B200159
    assert jax.random.bits(zero, (3, 5 * FEW))[0, 0] == 0x6B200159


@pytest.mark.parametrize("shape", [(), (FEW,), (FEW + 1,), (3, 50), (2, 3, 40)])
def test_numbers_are_a_function_of_key_and_place(shape):
    count = max(1, int(np.prod(shape)))
    rows = np.arange(count) // (shape[-1] if shape else 1)
    places = np.arange(count) % (shape[-1] if shape else 1)
    counters = jnp.asarray(np.concatenate([places, rows]), jnp.uint32)
    expected = threefry_2x32(jax.random.key_data(KEY), counters)[:count].reshape(shape)
    np.testing.assert_array_equal(jax.random.bits(KEY, shape), expected)


def test_many_numbers_are_normal_and_independent():
    z = np.asarray(jax.random.normal(KEY, (8, 200_000)), float)
    # Each of these falls for one key in ten thousand if the generator is right.
    assert scipy.stats.kstest(z.ravel()[::7], "norm").pvalue > 1e-4
    correlations = [*np.corrcoef(z)[np.triu_indices(8, 1)], np.corrcoef(z[0, 1:], z[0, :-1])[0, 1]]
    largest = np.max(np.abs(correlations)) * np.sqrt(z.shape[1])
    assert largest < scipy.stats.norm.isf(1e-4 / 2 / len(correlations))


def test_keys_of_keys_are_all_different():
    split, folded = jax.random.split(KEY, 100), [jax.random.fold_in(KEY, i) for i in range(100)]
    drawn = np.asarray(jax.random.bits(KEY, (100, 2)))
    found = np.concatenate([words(split), [words(key) for key in folded], drawn, [words(KEY)]])
    assert len({tuple(pair) for pair in found.tolist()}) == 301
    together = jax.vmap(lambda key: jax.random.bits(key, (3,)))(split)
    np.testing.assert_array_equal(together[5], jax.random.bits(split[5], (3,)))


def test_other_keys():
    np.testing.assert_array_equal(words(KEY), words(jax.random.key(7)))
    assert quick(KEY) is KEY
    old = quick(jax.random.PRNGKey(7))  # of two plain numbers
    np.testing.assert_array_equal(jax.random.bits(old, (9,)), jax.random.bits(KEY, (9,)))
    other = jax.random.key(7, impl="rbg")
    assert quick(other) is other
    assert plain(other) is other
    assert plain(KEY).dtype == jax.random.key(7).dtype
    np.testing.assert_array_equal(words(plain(KEY)), words(KEY))
    assert plain(jax.random.PRNGKey(7)).dtype == jnp.uint32
    assert jax.random.poisson(plain(KEY), 3.0, (4,)).shape == (4,)  # refuses other generators
