"""What is found to be linear: all of it, and nothing else."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nopf
from nopf.benchmarks import BENCHMARKS
from nopf.marginal.structure import largest_independent

FOUND = {
    "sensor-bias": ("position", "velocity", "bias"),
    "range-bearing": ("speed", "turn", "speed_bias", "turn_bias"),
    "range-only": ("speed", "turn", "range_bias", "speed_bias", "turn_bias"),
    "unordered-range": (
        *("yaw_rate", "pitch_rate", "speed_bias", "yaw_rate_bias", "pitch_rate_bias"),
        *("range_bias_1", "range_bias_2", "range_bias_3", "range_bias_4"),
        *("drift_x", "drift_y", "drift_z", "speed_scale", "range_scale"),
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_benchmarks(name):
    part = nopf.marginalise(BENCHMARKS[name].model)
    assert part.linear_states == FOUND[name]
    said = part.summary()
    for state in part.nonlinear_states:
        assert f"{state} (" in said
    if name == "sensor-bias":
        assert "Kalman filter" in said
    if name == "unordered-range":
        assert "speed (it is multiplied with speed_scale)" in said


@pytest.mark.parametrize(
    ("linear", "message"),
    [
        (("x",), r"x is not linear: the observation y\d is not linear in it \(its second"),
        (("heading",), "heading is not linear: it is an angle"),
        ((), "expected different states, one at least"),
        (("speed", "speed"), "expected different states"),
        (("sped",), "no state is called 'sped'; there are x, y"),
        ((9,), "from 0 to 6, got 9"),
    ],
)
def test_a_wrong_wish_is_refused(linear, message):
    with pytest.raises(ValueError, match=message):
        nopf.marginalise(BENCHMARKS["range-bearing"].model, linear)


def test_two_that_are_multiplied():
    with pytest.raises(ValueError, match="speed and speed_scale are not linear together: the obs"):
        nopf.marginalise(BENCHMARKS["unordered-range"].model, ("speed", "speed_scale"))


def model(observation=lambda x, step: x, transition=lambda x, step: 0.9 * x, **changes):
    settings = {
        "prior": nopf.Gaussian([0.0, 0.0], [1.0, 1.0]),
        "transition": transition,
        "process_noise": [0.3, 0.3],
        "observation": observation,
        "observation_noise": [0.5, 0.5],
    }
    return nopf.StateSpaceModel(**(settings | changes))


BENT = {
    "absolute value": lambda v: jnp.abs(v),
    "clipped": lambda v: jnp.clip(v, -4, 4),
    "rounded": lambda v: jnp.round(v),
    "where": lambda v: jnp.where(v > 1.0, v, 1.0),
    "square": lambda v: v**2,
    "almost straight": lambda v: v + 0.01 * v**2,
}


@pytest.mark.parametrize("kind", BENT)
def test_kinks_and_curves_are_noticed(kind):
    found = nopf.marginalise(model(lambda x, step: jnp.stack([BENT[kind](x[0]), x[1]])))
    assert found.linear_states == ("x1",)


def test_noise_that_depends_on_a_state():
    found = nopf.marginalise(
        model(process_noise=lambda x, step: jnp.stack([1.0 + 0.1 * x[1], jnp.asarray(0.3)]))
    )
    assert found.linear_states == ("x0",)
    assert "x1 (the noise depends on it)" in found.summary()


def test_noise_that_is_not_linear():
    bent = nopf.StateSpaceModel(
        prior=nopf.Gaussian([0.0], [1.0]),
        transition=lambda x, step, noise: x + noise**2,
        noise_size=1,
        observation=lambda x, step: x,
        observation_noise=[0.5],
    )
    with pytest.raises(ValueError, match="the transition is not linear in its noise"):
        nopf.marginalise(bent)


def test_student_noise_leaves_what_it_shows_to_particles():
    heavy = model(lambda x, step: x[:1], observation_noise=[0.5], robust=nopf.StudentT(4.0))
    found = nopf.marginalise(heavy)
    assert found.linear_states == ("x1",)
    assert "measurements with StudentT noise depend on it" in found.summary()


def test_what_cannot_be_marginalised_says_why():
    custom = model(
        observation_noise=None,
        observation_log_prob=lambda y, x, step: -jnp.sum(jnp.abs(y - x)),
        observation_sample=lambda key, x, step: x + jax.random.laplace(key, (2,)),
    )
    with pytest.raises(ValueError, match="needs Gaussian observation noise, but this model has ob"):
        nopf.marginalise(custom)
    part = nopf.marginalise(model())
    with pytest.raises(TypeError, match="marginalised already"):
        nopf.marginalise(part)
    for proposal in (nopf.OptimalProposal(), nopf.NudgedProposal(10, 1e-3)):
        with pytest.raises(ValueError, match="marginalised"):
            nopf.ParticleFilter(part, proposal, 10)


def test_largest_independent_set():
    draw = np.random.default_rng(0)
    for size in range(1, 9):
        pairs = draw.random((size, size)) < 0.3
        pairs = (pairs | pairs.T) & ~np.eye(size, dtype=bool)
        sets = [
            chosen
            for number in range(2**size)
            if not pairs[
                np.ix_(chosen := [i for i in range(size) if number >> i & 1], chosen)
            ].any()
        ]
        best = largest_independent(range(size), pairs, draw.random(size))
        assert list(best) in sets
        assert len(best) == max(map(len, sets))


def test_of_two_the_slower_is_solved():
    """x0 · x1 is seen: either may be linear."""
    for slow in (0, 1):
        noise = [0.5, 0.5]
        noise[slow] = 0.01
        found = nopf.marginalise(
            model(
                lambda x, step: jnp.stack([x[0] * x[1], x[0]]),
                process_noise=noise,
                observation_noise=[0.5, 0.5],
            )
        )
        assert found.linear_states == (f"x{slow}",)
