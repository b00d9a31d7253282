import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from nopf import Gaussian, GaussianMixture

COV = np.array([[2.0, 0.6, 0.0], [0.6, 1.0, -0.3], [0.0, -0.3, 0.5]])
MEAN = np.array([1.0, -2.0, 0.5])


@pytest.mark.parametrize("std", [COV, np.sqrt(np.diag(COV)), 0.7], ids=["full", "diagonal", "one"])
def test_log_prob_agrees_with_scipy(std):
    cov = np.asarray(std) if np.ndim(std) == 2 else np.diag(np.broadcast_to(std, 3) ** 2)
    gaussian = Gaussian(MEAN, std)
    x = np.array([0.3, 0.1, -0.4])
    expected = scipy.stats.multivariate_normal(MEAN, cov).logpdf(x)
    np.testing.assert_allclose(gaussian.log_prob(jnp.asarray(x, float)), expected, rtol=1e-5)
    np.testing.assert_allclose(gaussian.covariance, cov, atol=1e-6)
    np.testing.assert_allclose(gaussian.std, np.sqrt(np.diag(cov)), rtol=1e-6)


@pytest.mark.parametrize("std", [COV, np.sqrt(np.diag(COV))], ids=["full", "diagonal"])
def test_samples_have_the_moments(std):
    gaussian = Gaussian(MEAN, std)
    x = np.asarray(jax.vmap(gaussian.sample)(jax.random.split(jax.random.key(0), 20_000)))
    # Five standard errors: false alarm below 1e-5 over all entries.
    np.testing.assert_allclose(x.mean(0), MEAN, atol=5 * np.sqrt(2 / 20_000))
    np.testing.assert_allclose(np.cov(x.T), gaussian.covariance, atol=5 * 2 * np.sqrt(2 / 20_000))


@pytest.mark.parametrize("std", [COV, np.sqrt(np.diag(COV))], ids=["full", "diagonal"])
def test_marginal_leaves_a_coordinate_out(std):
    gaussian = Gaussian(MEAN, std).marginal(jnp.array([True, False, True]))
    cov = np.asarray(std) if np.ndim(std) == 2 else np.diag(np.asarray(std) ** 2)
    x = np.array([0.3, MEAN[1], -0.4])
    kept = np.ix_([0, 2], [0, 2])
    expected = scipy.stats.multivariate_normal(MEAN[[0, 2]], cov[kept]).logpdf(x[[0, 2]])
    np.testing.assert_allclose(gaussian.log_prob(jnp.asarray(x, float)), expected, rtol=1e-5)


@pytest.mark.parametrize("full", [False, True])
def test_mixture_agrees_with_its_parts(full):
    means = np.array([[0.0, 1.0], [4.0, -1.0]])
    covs = np.array([[[1.0, 0.5], [0.5, 2.0]], [[0.3, 0.0], [0.0, 0.2]]])
    if not full:
        covs = covs * np.eye(2)
    stds = covs if full else np.sqrt(np.diagonal(covs, axis1=1, axis2=2))
    mixture = GaussianMixture([0.3, 0.7], means, stds)
    x = np.array([1.0, 0.0])
    parts = [scipy.stats.multivariate_normal(m, c).pdf(x) for m, c in zip(means, covs, strict=True)]
    expected = np.log(0.3 * parts[0] + 0.7 * parts[1])
    np.testing.assert_allclose(mixture.log_prob(jnp.asarray(x, float)), expected, rtol=1e-5)

    draws = np.asarray(jax.vmap(mixture.sample)(jax.random.split(jax.random.key(1), 20_000)))
    first = draws[:, 0] < 2.5
    # Standard errors are below 0.011; five of them.
    np.testing.assert_allclose(draws.mean(0), 0.3 * means[0] + 0.7 * means[1], atol=0.07)
    np.testing.assert_allclose(first.mean(), 0.3, atol=0.02)


def test_shared_standard_deviations():
    shared = GaussianMixture([0.5, 0.5], [[0.0], [1.0]], [0.2])
    separate = GaussianMixture([0.5, 0.5], [[0.0], [1.0]], [[0.2], [0.2]])
    np.testing.assert_allclose(shared.log_prob(jnp.ones(1)), separate.log_prob(jnp.ones(1)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Gaussian([0.0, 0.0], [1.0, 0.0]), "std: expected positive"),
        (lambda: Gaussian([0.0, 0.0], [1.0, -1.0]), "std: expected positive"),
        (lambda: Gaussian([0.0, 0.0], [1.0, 1.0, 1.0]), r"got shape \(3,\)"),
        (lambda: Gaussian([0.0, 0.0], [[1.0, 2.0], [2.0, 1.0]]), "positive definite"),
        (lambda: Gaussian([0.0, 0.0], [[1.0, 0.5], [0.0, 1.0]]), "symmetric"),
        (lambda: Gaussian([0.0, np.nan], [1.0, 1.0]), "mean: expected finite"),
        (lambda: Gaussian([[0.0]], [1.0]), "mean: expected a vector"),
        (lambda: Gaussian(jnp.array([jnp.inf]), 1.0), "mean: expected finite"),
        (lambda: GaussianMixture([0.5, 0.5], np.eye(2), [[1, 0.5], [0.5, 1]]), "say which"),
        (lambda: GaussianMixture([0.5, 0.6], [[0.0], [1.0]], [[1.0], [1.0]]), "sum to one"),
        (lambda: GaussianMixture([1.0], [[0.0], [1.0]], [[1.0], [1.0]]), "weights, means"),
        (lambda: GaussianMixture([0.5, 0.5], [[0.0], [1.0]], [[1.0, 1.0]]), "stds: expected"),
    ],
)
def test_refuses_bad_parameters(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_full_noise_with_nothing_missing_keeps_its_digits():
    near = 1 - 2e-9
    gaussian = Gaussian([0.0, 0.0], [[1, near], [near, 1]])
    whole = gaussian.marginal(jnp.array([True, True]))
    np.testing.assert_array_equal(whole.factor, gaussian.factor.astype(np.float32))


def test_mixture_moments():
    mixture = GaussianMixture([0.3, 0.7], [[0.0, 1.0], [4.0, -1.0]], [[1.0, 2.0], [0.5, 0.1]])
    draws = np.asarray(jax.vmap(mixture.sample)(jax.random.split(jax.random.key(2), 50_000)))
    np.testing.assert_allclose(mixture.mean, draws.mean(0), atol=0.05)
    np.testing.assert_allclose(mixture.covariance, np.cov(draws.T), atol=0.1)


def test_refuses_words():
    with pytest.raises(TypeError, match="mean: expected numbers"):
        Gaussian(["here"], [1.0])
