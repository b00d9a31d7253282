import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nopf import Space

PI = np.float32(np.pi)
space = Space(3, angles=[1])


@pytest.mark.parametrize(
    ("angle", "expected"),
    [(0.0, 0.0), (PI, PI), (-PI, PI), (PI + 0.5, -PI + 0.5), (-3.5, -3.5 + 2 * PI), (1e-20, 1e-20)],
)
def test_wraps_to_half_open_interval(angle, expected):
    wrapped = space.wrap(jnp.array([7.0, angle, -9.0]))
    np.testing.assert_allclose(wrapped, [7.0, expected, -9.0], rtol=3e-6)


def test_wrap_stays_inside_far_from_zero():
    angles = jnp.linspace(-1e6, 1e6, 100_001)
    wrapped = np.asarray(Space(1, [0]).wrap(angles[:, None]))
    assert wrapped.min() > -PI
    assert wrapped.max() <= PI


def test_wrap_keeps_what_is_inside_bit_for_bit():
    angles = jax.random.uniform(jax.random.key(0), (1000, 1), minval=-3.14, maxval=3.14)
    np.testing.assert_array_equal(Space(1, [0]).wrap(angles), angles)


def test_difference_and_distance_go_the_short_way():
    a, b = jnp.array([1.0, 3.0, 0.0]), jnp.array([0.0, -3.0, 2.0])
    np.testing.assert_allclose(space.difference(a, b), [1.0, 6 - 2 * np.pi, -2.0], rtol=1e-5)
    expected = np.sqrt(1 + (2 * np.pi - 6) ** 2 + 4)
    np.testing.assert_allclose(space.distance(a, b), expected, rtol=1e-6)


def test_mean_and_covariance_of_angles_across_the_cut():
    points = jnp.array([[1.0, 3.0, 0.0], [3.0, -3.0, 4.0]])
    weights = jnp.array([0.5, 0.5])
    mean = space.mean(points, weights)
    np.testing.assert_allclose(np.abs(mean), [2.0, np.pi, 2.0], rtol=1e-6)
    delta = np.pi - 3
    cov = space.covariance(points, weights, mean)
    expected = np.outer([-1, -delta, -2], [-1, -delta, -2])
    np.testing.assert_allclose(cov, expected, rtol=2e-5)


def test_weighted_mean_and_covariance_agree_with_numpy():
    points = np.random.default_rng(1).normal(size=(50, 3))
    weights = np.random.default_rng(2).dirichlet(np.ones(50))
    flat = Space(3)
    mean = flat.mean(jnp.asarray(points, jnp.float32), jnp.asarray(weights, jnp.float32))
    cov = flat.covariance(jnp.asarray(points, jnp.float32), jnp.asarray(weights, jnp.float32), mean)
    np.testing.assert_allclose(mean, weights @ points, atol=1e-6)
    np.testing.assert_allclose(cov, np.cov(points.T, aweights=weights, ddof=0), atol=1e-6)


@pytest.mark.parametrize("shape", ["normal", "two far modes", "skewed"])
def test_quantiles_agree_with_sorting(shape):
    key = jax.random.key(3)
    z = jax.random.normal(key, (20_000, 1))
    x = {"normal": z, "two far modes": z + 50 * jnp.sign(z), "skewed": jnp.exp(z)}[shape]
    weights = jax.nn.softmax(jax.random.normal(jax.random.key(4), (20_000,)))
    levels = (0.05, 0.3, 0.95)
    flat = Space(1)
    mean = flat.mean(x, weights)
    std = jnp.sqrt(jnp.diagonal(flat.covariance(x, weights, mean)))
    found = flat.quantiles(x, weights, levels, mean, std)[:, 0]
    order = np.argsort(np.asarray(x[:, 0]))
    cumulative = np.cumsum(np.asarray(weights)[order])
    exact = np.asarray(x)[order][np.searchsorted(cumulative, levels), 0]
    assert np.all(np.abs(found - exact) <= 0.0087 * float(std[0]))


def test_quantiles_of_an_angle_across_the_cut():
    circle = Space(1, [0])
    angles = circle.wrap(np.float32(np.pi) + 0.2 * jax.random.normal(jax.random.key(0), (5000, 1)))
    weights = jnp.full(5000, 1 / 5000)
    mean = circle.mean(angles, weights)
    std = jnp.sqrt(jnp.diagonal(circle.covariance(angles, weights, mean)))
    low, high = circle.quantiles(angles, weights, (0.05, 0.95), mean, std)[:, 0]
    np.testing.assert_allclose(low, np.pi - 1.645 * 0.2, atol=0.02)
    np.testing.assert_allclose(high, -np.pi + 1.645 * 0.2, atol=0.02)


def test_quantiles_of_equal_points_are_the_point():
    points = jnp.full((10, 3), 2.5)
    weights = jnp.full(10, 0.1)
    mean = space.mean(points, weights)
    found = space.quantiles(points, weights, (0.05, 0.95), mean, jnp.zeros(3))
    np.testing.assert_allclose(found, 2.5, rtol=1e-6)


def test_summaries_do_not_depend_on_the_order_of_points():
    points = jax.random.normal(jax.random.key(0), (1000, 3))
    weights = jax.nn.softmax(jax.random.normal(jax.random.key(1), (1000,)))
    order = jax.random.permutation(jax.random.key(2), 1000)

    def summaries(points, weights):
        mean = space.mean(points, weights)
        cov = space.covariance(points, weights, mean)
        std = jnp.sqrt(jnp.diagonal(cov))
        return mean, cov, space.quantiles(points, weights, (0.1, 0.9), mean, std)

    plain, permuted = summaries(points, weights), summaries(points[order], weights[order])
    for a, b in zip(plain, permuted, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5)


def test_an_extreme_level_does_not_spoil_the_others():
    x = jax.random.normal(jax.random.key(3), (20_000, 1))
    weights = jnp.full(20_000, 1 / 20_000)
    flat = Space(1)
    mean, std = flat.mean(x, weights), jnp.ones(1)
    alone = flat.quantiles(x, weights, (0.05,), mean, std)[0]
    together = flat.quantiles(x, weights, (0.0001, 0.05), mean, std)[1]
    np.testing.assert_allclose(alone, together, atol=0.0172)


def test_mean_far_from_zero_is_not_moved_by_rounded_weights():
    points = 1e4 + jnp.array([[-0.01, 1.0, 0.0], [0.01, 1.0, 0.0]])
    mean = Space(3).mean(points, jnp.array([0.5001, 0.5]))
    assert abs(mean[0] - 1e4) < 0.002


def test_integers_and_wrong_widths():
    circle = Space(1, [0])
    np.testing.assert_allclose(circle.wrap(jnp.array([4.0])), 4 - 2 * np.pi, rtol=1e-6)
    with pytest.raises(ValueError, match="expected 3 coordinates on the last axis"):
        space.wrap(jnp.ones((4, 1)))
    with pytest.raises(TypeError):
        Space(2.9)


@pytest.mark.parametrize(("size", "angles"), [(0, []), (2, [2]), (2, [-1])])
def test_refuses_what_does_not_exist(size, angles):
    with pytest.raises(ValueError, match="expected"):
        Space(size, angles)
