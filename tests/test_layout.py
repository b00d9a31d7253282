"""By column or by row, the numbers are the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nopf.layout import MANY, by_column, columns_at_once, one_by_one, square

ROWS = jnp.arange(12.0).reshape(4, 3)


def test_by_column_changes_no_number_compiled_or_not():
    def twice(x):
        return 2 * by_column(x)

    for function in (twice, jax.jit(twice), jax.vmap(twice), jax.jit(jax.vmap(twice))):
        x = jnp.stack([ROWS, ROWS + 1])
        np.testing.assert_array_equal(function(x), 2 * x)


def test_what_comes_out_can_be_given_to_compiled_functions():
    """JAX's own constraint, outside of compiled code, gives arrays that these misread."""
    first = jax.jit(lambda x: x[:, 0])
    np.testing.assert_array_equal(first(by_column(ROWS)), ROWS[:, 0])
    np.testing.assert_array_equal(first(jax.jit(by_column)(ROWS)), ROWS[:, 0])


def test_by_column_has_derivatives():
    def total(x):
        return jnp.sum(by_column(x) ** 2)

    np.testing.assert_allclose(jax.jit(jax.grad(total))(ROWS), 2 * ROWS)
    np.testing.assert_allclose(jax.jvp(total, (ROWS,), (ROWS,))[1], 2 * jnp.sum(ROWS**2))


@pytest.mark.parametrize("size", [3, MANY + 1])
def test_one_by_one_is_the_function_of_vectors(size):
    a, b = jnp.linspace(1, 2, size), jnp.linspace(3, 5, size)
    np.testing.assert_allclose(one_by_one(jnp.divide, a, b), a / b, rtol=1e-6)
    np.testing.assert_allclose(square(a), a @ a, rtol=1e-6)


@columns_at_once
def product(weight, *vectors):
    """Wᵀ v, added up; a vector that all share counts once for each."""
    products = [weight.T @ vector for vector in vectors]
    width = max(p.ndim for p in products)
    return sum(p if p.ndim == width else p[:, None] for p in products)


def test_columns_at_once_is_one_after_the_other():
    weight = jnp.linspace(-1, 1, 6).reshape(3, 2)
    shared = jnp.array([1.0, 2.0, 3.0])
    expected = np.stack([weight.T @ (row + shared) for row in ROWS])
    of_many = jax.vmap(product, in_axes=(None, 0, None))
    np.testing.assert_allclose(of_many(weight, ROWS, shared), expected, rtol=1e-5)
    np.testing.assert_allclose(jax.jit(of_many)(weight, ROWS, shared), expected, rtol=1e-5)
    slopes = jax.grad(lambda w: jnp.sum(of_many(w, ROWS, shared)))(weight)
    each = jnp.broadcast_to(jnp.sum(ROWS + shared[None], axis=0)[:, None], (3, 2))
    np.testing.assert_allclose(slopes, each, rtol=1e-5)


def test_columns_at_once_with_a_weight_each():
    weights = jnp.linspace(-1, 1, 24).reshape(4, 3, 2)
    expected = np.stack([w.T @ row for w, row in zip(weights, ROWS, strict=True)])
    np.testing.assert_allclose(jax.vmap(product)(weights, ROWS), expected, rtol=1e-5)
