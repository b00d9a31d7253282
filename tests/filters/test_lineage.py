"""The error that a run tells of its means is the one that repeated runs show."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nopf
from nopf.filters.lineage import FAMILIES, Families, errors, new_families
from tests import models


def told_and_true(flt, ys, runs, seed=0):
    """For each step and state: the median error that runs tell, and the spread of their means."""
    keys = jax.random.split(jax.random.key(seed), runs)
    found = [flt.run(ys, key=key) for key in keys]
    means = np.stack([np.asarray(p.mean) for p in found])
    told = np.stack([np.asarray(p.error) for p in found])
    return np.median(told, axis=0), means.std(axis=0, ddof=1)


FILTERS = {
    "bootstrap": lambda m, n: nopf.ParticleFilter(m, particles=n, health=False),
    "some steps": lambda m, n: nopf.ParticleFilter(m, particles=n, ess_threshold=0.5),
    "multinomial": lambda m, n: nopf.ParticleFilter(
        m, particles=n, resampling=nopf.multinomial, health=False
    ),
    "looks ahead": lambda m, n: nopf.AuxiliaryFilter(m, nopf.LinearisedProposal(), n, health=False),
    "marginalised": lambda m, n: nopf.ParticleFilter(
        nopf.marginalise(m, ("x1",)), particles=n, health=False
    ),
}


@pytest.mark.parametrize("name", FILTERS)
def test_errors_are_those_of_repeated_runs(name):
    model = models.linear(True)
    ys = nopf.simulate(model, 12, jax.random.key(2)).observations
    told, true = told_and_true(FILTERS[name](model, 500), ys, 60)
    # A standard deviation of 60 runs is good to 9 %; of 24 that hang together the median to 5 %.
    assert 0.8 < np.median(told / true) < 1.25
    assert np.all(told / true > 0.5)
    assert np.all(told / true < 2)


def test_errors_in_a_long_series():
    # Of 100 particles all descend from one after some hundred steps: families are begun anew.
    model = models.linear()
    ys = nopf.simulate(model, 1500, jax.random.key(2)).observations
    told, true = told_and_true(FILTERS["bootstrap"](model, 100), ys, 30)
    late = (told / true)[500:]
    assert 0.8 < np.median(late) < 1.25


def test_exact_filters_have_no_error():
    model = models.linear()
    ys = nopf.simulate(model, 4, jax.random.key(2)).observations
    exact = nopf.KalmanFilter(model).run(ys)
    assert np.all(exact.error == 0)
    assert np.all(np.isinf(exact.draws))
    solved = nopf.ParticleFilter(nopf.marginalise(model), particles=8).run(
        ys, key=jax.random.key(0)
    )
    assert np.all(solved.error < 1e-6 * solved.std)


def test_draws_of_an_ensemble_are_its_members():
    model = models.linear()
    ys = nopf.simulate(model, 4, jax.random.key(2)).observations
    found = nopf.EnsembleKalmanFilter(model, 200).run(ys, key=jax.random.key(0))
    np.testing.assert_allclose(found.draws, 200, rtol=1e-4)


def test_families_are_those_of_the_ancestors():
    ancestors = np.sort(np.random.default_rng(0).integers(0, 1000, 1000))
    families = new_families(1000)
    numbers = np.repeat(np.arange(FAMILIES), np.diff(families.old))
    after = families.after(jnp.asarray(ancestors))
    expected = numbers[ancestors]
    found = np.repeat(np.arange(FAMILIES), np.diff(after.old))
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(after.old, after.young)


def test_families_are_those_of_a_search_also_in_double_precision():
    for count in (1, 2, 7, 100, 1000):
        drawn = np.sort(np.random.default_rng(count).integers(0, count, count)).astype(np.int32)
        families = new_families(count)
        found = families.after(jnp.asarray(drawn))
        np.testing.assert_array_equal(found.old, np.searchsorted(drawn, families.old))
        with jax.enable_x64(True):
            assert families.after(jnp.asarray(drawn)).old.dtype == jnp.int32


def test_sums_over_families():
    # As many particles as there are blocks, so that nothing is rounded.
    generator = np.random.default_rng(0)
    weights = generator.dirichlet(np.ones(256))
    x = generator.normal(size=(256, 2))
    apart = x - weights @ x
    families = new_families(256)
    shares = np.stack(
        [
            (weights[a:b, None] * apart[a:b]).sum(0)
            for a, b in zip(families.old[:-1], families.old[1:], strict=True)
        ]
    )
    error, _ = errors(families, jnp.asarray(weights), jnp.asarray(apart.T), jnp.full(2, 100.0))
    # But for the corrections of few per cent for 64 families.
    np.testing.assert_allclose(error, np.sqrt((shares**2).sum(0)), rtol=0.03)


def test_the_last_of_a_kind_is_worth_one_draw():
    # All weight on neighbours of one family: nothing is left to compare.
    weights = jnp.where(jnp.arange(640) < 10, 0.1, 0.0)
    apart = jnp.asarray(np.random.default_rng(0).normal(size=(1, 640)))
    error, families = errors(new_families(640), weights, apart, jnp.full(1, 0.04))
    np.testing.assert_allclose(error, 0.2, rtol=1e-6)
    # The younger numbering is begun anew, the older one waits for it to grow up.
    np.testing.assert_array_equal(families.old, new_families(640).old)
    dead = Families(jnp.full(FAMILIES + 1, 640).at[0].set(0), families.young)
    _, after = errors(dead, jnp.full(640, 1 / 640), apart, jnp.full(1, 1.0))
    np.testing.assert_array_equal(after.young, new_families(640).young)
