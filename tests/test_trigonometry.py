"""Sine, cosine and arctangent: the same as the C library's, and in the place of jnp's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nopf.steps import Step
from nopf.trigonometry import arctan2, cos, sin, vectorised

EDGES = np.array([0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 1e-30, -1e-30, 1e30], np.float32)


@pytest.mark.parametrize(("ours", "exact"), [(sin, np.sin), (cos, np.cos)])
def test_waves(ours, exact):
    x = np.random.default_rng(0).uniform(-1, 1, 100_000) * 10.0 ** np.linspace(-6, 5, 100_000)
    x = x.astype(np.float32)
    # In double precision, at the very numbers that went in.
    assert np.max(np.abs(np.asarray(ours(jnp.asarray(x))) - exact(x.astype(float)))) < 2e-6
    near = np.abs(x) < 1e4
    assert np.max(np.abs(np.asarray(ours(jnp.asarray(x))) - exact(x.astype(float)))[near]) < 2e-7
    far = np.asarray(ours(jnp.asarray([1e8, -3e38, np.inf, np.nan], np.float32)))
    assert np.all(np.abs(far[:2]) <= 1)
    assert np.all(np.isnan(far[2:]))


def test_arctan2():
    draw = np.random.default_rng(1)
    y, x = (draw.normal(size=(2, 100_000)) * 10.0 ** draw.uniform(-9, 9, (2, 100_000))).astype(
        np.float32
    )
    found = np.asarray(arctan2(jnp.asarray(y), jnp.asarray(x)))
    assert np.max(np.abs(found - np.arctan2(y.astype(float), x.astype(float)))) < 4e-7
    y, x = np.meshgrid(EDGES, EDGES)
    found, exact = np.asarray(arctan2(jnp.asarray(y), jnp.asarray(x))), np.arctan2(y, x)
    np.testing.assert_allclose(found, exact, rtol=0, atol=4e-7)
    np.testing.assert_array_equal(
        np.signbit(found[~np.isnan(exact)]), np.signbit(exact)[~np.isnan(exact)]
    )


def example(point, step):
    angle = jnp.arctan2(point["y"], point["x"])
    return [jnp.sin(3 * angle) + step, jnp.where(angle > 0, jnp.cos(angle), jnp.tan(angle))]


def test_functions_are_rewritten_and_stay_the_same():
    point = {"x": jnp.asarray(0.3), "y": jnp.asarray(-1.2)}
    ours = vectorised(example)
    text = str(jax.make_jaxpr(ours)(point, jnp.asarray(2.0)))
    assert " atan2 " not in text
    assert " cos " not in text
    assert " tan " in text  # what has no replacement stays
    for transform in (lambda f: f, jax.jacfwd, jax.jacrev):
        found, wanted = (transform(f)(point, jnp.asarray(2.0)) for f in (ours, example))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6), found, wanted)
    points = jax.tree.map(lambda leaf: leaf * jnp.arange(1.0, 5.0), point)
    many = jax.vmap(ours, in_axes=(0, None))(points, jnp.asarray(2.0))
    assert many[0].shape == (4,)


@pytest.mark.parametrize("axes", [(None, 0), (0, None), (0, 0)])
def test_arctan2_of_a_batch_and_of_what_is_the_same_for_all(axes):
    shapes = {None: (), 0: (3,)}
    y, x = (
        jnp.asarray(np.random.default_rng(i).normal(size=shapes[axis]), jnp.float32)
        for i, axis in enumerate(axes)
    )
    for transform in (lambda f: f, lambda f: jax.jacfwd(f, argnums=1), jax.jacrev):
        found, wanted = (jax.vmap(transform(f), in_axes=axes)(y, x) for f in (arctan2, jnp.arctan2))
        np.testing.assert_allclose(found, wanted, atol=2e-5)


def test_what_is_the_same_for_all_particles_is_left_alone():
    def transition(x, step):
        return x + jnp.sin(step.time) + jnp.cos(x)

    text = str(jax.make_jaxpr(vectorised(transition))(jnp.zeros(2), Step(1, 2.0, 0.1)))
    assert " sin " in text
    assert " cos " not in text


def test_double_precision_keeps_its_digits():
    with jax.enable_x64(True):
        assert abs(float(sin(jnp.asarray(0.5))) - np.sin(0.5)) < 1e-15
        point = {"x": jnp.asarray(0.3), "y": jnp.asarray(-1.2)}
        assert " atan2 " in str(jax.make_jaxpr(vectorised(example))(point, jnp.asarray(2.0)))
