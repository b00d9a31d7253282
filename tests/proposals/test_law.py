"""Laws: each is the distribution that it says it is, in double precision."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import nopf
from nopf.proposals.factor import Dense, Diagonal, OfFewRows, OfPrecision, Product, Triangular
from nopf.proposals.linearised import tangent_fit

SIZE = 4
draw = np.random.default_rng(0)
MEAN, WHITE = draw.normal(size=SIZE), draw.normal(size=(5, SIZE))


def triangular():
    below = draw.normal(size=SIZE * (SIZE - 1) // 2)
    return Triangular(jnp.asarray(draw.uniform(0.3, 2, SIZE)), jnp.asarray(below))


def dense():
    return Dense(jnp.asarray(np.tril(draw.normal(size=(SIZE, SIZE))) + 2 * np.eye(SIZE)))


def tangent(rows):
    jacobian = jnp.asarray(draw.normal(size=(rows, SIZE)))
    return tangent_fit(lambda z: jacobian @ z + 1.0, jnp.zeros(SIZE))[1]


FACTORS = {
    Diagonal: lambda: Diagonal(jnp.asarray(draw.uniform(0.3, 2, SIZE))),
    Triangular: triangular,
    Dense: dense,
    OfPrecision: lambda: tangent(SIZE + 1),
    OfFewRows: lambda: tangent(2),
    Product: lambda: Product(tangent(2), triangular()),
}


def log_likelihood(z):
    """Normal, so that the promise of the right law is exact."""
    return -0.5 * jnp.sum((z - 1.0) ** 2)


def gaussian_law(kind):
    return nopf.GaussianLaw(jnp.asarray(MEAN), FACTORS[kind](), log_likelihood)


def mixture_law():
    laws = [nopf.GaussianLaw(jnp.asarray(MEAN + k), triangular(), log_likelihood) for k in range(3)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *laws)
    return nopf.Mixture(jnp.log(jnp.array([0.5, 0.2, 0.3])), stacked)


def density(law):
    """log q by SciPy, from the mean and the matrix of each Gaussian."""

    def normal(one):
        matrix = np.asarray(jax.vmap(one.factor.colour, in_axes=1, out_axes=1)(jnp.eye(SIZE)))
        return scipy.stats.multivariate_normal(np.asarray(one.mean), matrix @ matrix.T)

    if isinstance(law, nopf.GaussianLaw):
        return normal(law).logpdf
    parts = [normal(jax.tree.map(lambda leaf, k=k: leaf[k], law.components)) for k in range(3)]
    weights = np.exp(np.asarray(law.log_weights))
    return lambda z: np.log(sum(w * p.pdf(z) for w, p in zip(weights, parts, strict=True)))


@pytest.mark.parametrize("kind", [*FACTORS, "mixture"])
def test_place_and_log_ratio_are_one_density(kind):
    with jax.enable_x64(True):
        law = mixture_law() if kind == "mixture" else gaussian_law(kind)
        if kind != "mixture":
            assert isinstance(law.factor, kind)
        exact = density(law)
        for white in WHITE:
            numbers = jnp.asarray([*white, 0.3][: law.white_size])
            z, log_ratio = law.place(numbers)
            expected = exact(np.asarray(z)) - scipy.stats.norm.logpdf(np.asarray(z)).sum()
            np.testing.assert_allclose(log_ratio, expected, rtol=1e-9)
            np.testing.assert_allclose(law.log_ratio(z), expected, rtol=1e-9)


@pytest.mark.parametrize("kind", FACTORS)
def test_divergence_is_exact(kind):
    with jax.enable_x64(True):
        law = gaussian_law(kind)
        matrix = np.asarray(jax.vmap(law.factor.colour, in_axes=1, out_axes=1)(jnp.eye(SIZE)))
        cov = matrix @ matrix.T
        exact = 0.5 * (MEAN @ MEAN + np.trace(cov) - SIZE - np.linalg.slogdet(cov)[1])
        np.testing.assert_allclose(law.divergence(), exact, rtol=1e-9)


def test_mixture_draws_its_components_by_their_weights():
    """40 000 draws; means within five standard errors (eight of them: false alarm 5e-6)."""
    law = mixture_law()
    whites = jax.random.normal(jax.random.key(0), (40_000, law.white_size))
    z = np.asarray(jax.jit(jax.vmap(lambda w: law.place(w)[0]))(whites), np.float64)
    weights = np.exp(np.asarray(law.log_weights))
    exact = weights @ np.asarray(law.components.mean)
    assert np.all(np.abs(z.mean(0) - exact) < 5 * z.std(0) / 200)
    # The weights that make up for the law have mean one.
    ratios = np.exp(-np.asarray(jax.jit(jax.vmap(law.log_ratio))(jnp.asarray(z)), np.float64))
    assert abs(ratios.mean() - 1) < 5 * ratios.std() / 200


def test_promise_is_exact_for_the_exact_law():
    """A normal likelihood makes p(z | y) normal; Laplace's formula is then p(y | ancestor)."""
    with jax.enable_x64(True):
        half = Triangular(jnp.full(SIZE, np.sqrt(0.5)), jnp.zeros(SIZE * (SIZE - 1) // 2))
        law = nopf.GaussianLaw(jnp.full(SIZE, 0.5), half, log_likelihood)
        # ∫ exp(−(z−1)²/2) φ(z) dz = exp(−1/4) / √2 in each coordinate
        np.testing.assert_allclose(law.promise, SIZE * (-0.25 - 0.5 * np.log(2)), rtol=1e-9)


@pytest.mark.parametrize("broken", ["mean", "factor", "uninformed"])
def test_a_law_that_is_not_sound_gives_way_to_the_standard_normal(broken):
    mean = jnp.full(SIZE, jnp.nan if broken == "mean" else 0.5)
    diagonal = jnp.full(SIZE, jnp.nan if broken == "factor" else 0.5)
    factor = Triangular(diagonal, jnp.zeros(SIZE * (SIZE - 1) // 2))
    law = nopf.GaussianLaw(mean, factor, log_likelihood, jnp.asarray(broken != "uninformed"))
    white = jnp.asarray(WHITE[0], jnp.float32)
    z, log_ratio = law.place(white)
    np.testing.assert_array_equal(z, white)
    assert log_ratio == 0
    assert law.log_ratio(white) == 0
    assert law.divergence() == 0
    np.testing.assert_allclose(law.promise, log_likelihood(jnp.zeros(SIZE)), rtol=1e-6)
