import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import nopf
from nopf.arguments import check_angles, check_names, finite_number, share_of_one
from tests import models

STEP = nopf.Step(jnp.asarray(1), jnp.asarray(1.0), jnp.asarray(1.0))


def step(**changes):
    values = {"index": jnp.asarray(1), "time": jnp.asarray(1.0), "dt": jnp.asarray(1.0)}
    return nopf.Step(**(values | changes))


@pytest.mark.parametrize("full", [False, True])
def test_densities_agree_with_scipy(full):
    model = models.linear(full)
    x, new, y = jnp.array([0.3, -0.1]), jnp.array([0.1, 0.4]), jnp.array([0.2, -0.7])
    mean, cov = models.linear_transition(x, None), model.process_noise.covariance
    expected = scipy.stats.multivariate_normal(mean, cov).logpdf(new)
    np.testing.assert_allclose(model.log_transition(new, x, step()), expected, rtol=1e-5)
    mean, cov = models.linear_observation(x, None), model.observation_noise.covariance
    expected = scipy.stats.multivariate_normal(mean, cov).logpdf(y)
    np.testing.assert_allclose(model.log_likelihood(y, x, step()), expected, rtol=1e-5)


@pytest.mark.parametrize("full", [False, True])
def test_a_missing_coordinate_is_left_out_of_the_likelihood(full):
    model = models.linear(full)
    x = jnp.array([0.3, -0.1])
    mean, cov = models.linear_observation(x, None), model.observation_noise.covariance
    found = model.log_likelihood(jnp.array([jnp.nan, -0.7]), x, step())
    expected = scipy.stats.norm(mean[1], np.sqrt(cov[1, 1])).logpdf(-0.7)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    nothing = jnp.full(2, jnp.nan)
    np.testing.assert_allclose(model.log_likelihood(nothing, x, step()), 0, atol=1e-6)
    gradient = jax.grad(model.log_likelihood, argnums=1)(jnp.array([0.5, jnp.nan]), x, step())
    assert np.all(np.isfinite(gradient))


def test_angles_wrap_in_both_densities():
    model = models.unicycle()
    turn = jnp.array([0.0, 0.0, 2 * jnp.pi])
    x, new, y = jnp.array([0.1, 0.2, 3.0]), jnp.array([0.0, 0.3, -2.9]), jnp.array([2.0, -2.0])
    for shifted in (new + turn, new - turn):
        a, b = model.log_transition(new, x, step()), model.log_transition(shifted, x, step())
        np.testing.assert_allclose(a, b, rtol=1e-4)
    a = model.log_likelihood(y, x, step())
    np.testing.assert_allclose(a, model.log_likelihood(y + turn[1:], x, step()), rtol=1e-4)
    np.testing.assert_allclose(a, model.log_likelihood(y, x + turn, step()), rtol=1e-4)


def test_simulated_moments():
    model = models.linear(full=True)
    paths = nopf.simulate(model, 3, jax.random.key(0), batch=20_000)
    assert paths.states.shape == (20_000, 3, 2)
    a = np.array([[1, 0.5], [0, 0.9]])
    h = np.array([[1.0, 0], [-1, 1]])
    mean, cov = np.asarray(model.prior.mean), np.asarray(model.prior.covariance)
    for t in range(3):
        mean, cov = a @ mean, a @ cov @ a.T + np.asarray(model.process_noise.covariance)
        y_cov = h @ cov @ h.T + np.asarray(model.observation_noise.covariance)
        # Five standard errors and a little.
        np.testing.assert_allclose(np.mean(paths.states[:, t], 0), mean, atol=0.08)
        np.testing.assert_allclose(np.cov(paths.states[:, t].T), cov, atol=0.2)
        np.testing.assert_allclose(np.mean(paths.observations[:, t], 0), h @ mean, atol=0.08)
        np.testing.assert_allclose(np.cov(paths.observations[:, t].T), y_cov, atol=0.25)


def test_simulation_starts_where_it_is_told_and_wraps():
    path = nopf.simulate(models.unicycle(), 40, jax.random.key(1), initial_state=[1.0, 2.0, 9.0])
    np.testing.assert_allclose(path.initial_state, [1.0, 2.0, 9.0 - 2 * np.pi], rtol=1e-5)
    assert np.all(np.abs(path.states[:, 2]) <= np.float32(np.pi))
    assert np.ptp(path.states[:, 2]) > 5  # it did turn through the cut


def test_functions_see_index_time_dt_and_control():
    """All of a step lands in the state, without noise to speak of."""

    def transition(x, step):
        return jnp.stack([step.index * 1.0, step.time, step.dt, step.control[0], step.control[1]])

    model = nopf.StateSpaceModel(
        prior=nopf.Gaussian(np.zeros(5), np.ones(5)),
        transition=transition,
        process_noise=1e-6,
        observation=lambda x, step: x[:1] + step.control[:1],
        observation_noise=[1e-6],
    )
    times, controls = [0.5, 0.7, 4.0], np.array([[1, 2], [3, 4], [5, 6]])
    path = nopf.simulate(model, 3, jax.random.key(0), times=times, controls=controls, start=0.25)
    expected = [[1, 0.5, 0.25, 1, 2], [2, 0.7, 0.2, 3, 4], [3, 4.0, 3.3, 5, 6]]
    np.testing.assert_allclose(path.states, expected, atol=1e-4)
    np.testing.assert_allclose(path.observations[:, 0], [2, 5, 8], atol=1e-4)

    with pytest.raises(ValueError, match="controls: this model reads"):
        nopf.simulate(model, 3, jax.random.key(0))
    with pytest.raises(ValueError, match=r"controls: expected shape \(3, u\)"):
        nopf.simulate(model, 3, jax.random.key(0), controls=controls[:2])


def test_noise_may_depend_on_the_step():
    model = models.linear(process_noise=lambda step: jnp.sqrt(step.dt) * jnp.array([0.1, 0.2]))
    path = nopf.simulate(model, 1, jax.random.key(0), times=[4.0], initial_state=[0, 0], batch=5000)
    np.testing.assert_allclose(np.std(path.states[:, 0], axis=0), [0.2, 0.4], rtol=0.06)


def test_time_differences_are_exact_late_in_a_recording():
    clock = 1.7e9 + 0.01 * np.arange(1, 4)
    steps = models.linear().steps(3, clock, start=1.7e9)
    np.testing.assert_allclose(steps.dt, 0.01, rtol=1e-4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"transition": lambda x, step: jnp.sqrt(x - 99)},
            r"step 1 in simulated states.*transition",
        ),
        ({"observation": lambda x, step: jnp.sqrt(x - 99)}, r"step 1 in simulated observations"),
    ],
)
def test_simulate_does_not_pass_nan_off_as_missing(changes, message):
    with pytest.raises(FloatingPointError, match=message):
        nopf.simulate(models.linear(**changes), 3, jax.random.key(0))


def test_lists_and_default_names():
    model = models.linear(
        transition=lambda x, step: [x[0], x[1]], observation=lambda x, step: [x[0], 1]
    )
    assert model.state_names == ("x0", "x1")
    assert nopf.simulate(model, 2, jax.random.key(0)).observations.shape == (2, 2)


def test_custom_prior_and_likelihood():
    class Uniform:
        def sample(self, key):
            return jax.random.uniform(key, (1,))

        def log_prob(self, x):
            return jnp.where((x[0] > 0) & (x[0] < 1), 0.0, -jnp.inf)

    model = nopf.StateSpaceModel(
        prior=Uniform(),
        transition=lambda x, step: x,
        process_noise=[0.1],
        observation_log_prob=lambda y, x, step: -jnp.abs(y[0] - x[0]) - jnp.log(2.0),
        observation_sample=lambda key, x, step: x + jax.random.laplace(key, (1,)),
    )
    assert model.observation_space.size == 1
    value = model.log_likelihood(jnp.array([2.0]), jnp.array([0.5]), step())
    np.testing.assert_allclose(value, -1.5 - np.log(2), rtol=1e-6)
    assert model.log_likelihood(jnp.array([jnp.nan]), jnp.array([0.5]), step()) == 0


class UniformLikelihood(nopf.Likelihood):
    """A likelihood of a user's own: uniform noise."""

    def log_prob(self, y, x, step):
        return jnp.where(jnp.max(jnp.abs(y - x)) < 0.5, 0.0, -jnp.inf)

    def sample(self, key, x, step):
        return x + jax.random.uniform(key, x.shape, minval=-0.5, maxval=0.5)


def test_a_likelihood_of_ones_own():
    plain = models.linear()
    model = nopf.StateSpaceModel(
        plain.prior, models.linear_transition, [0.6, 0.4], likelihood=UniformLikelihood()
    )
    assert model.observation_space.size == 2
    assert model.log_likelihood(jnp.array([0.4, 0.0]), jnp.zeros(2), STEP) == 0
    assert model.log_likelihood(jnp.array([0.6, 0.0]), jnp.zeros(2), STEP) == -np.inf
    assert model.log_likelihood(jnp.full(2, jnp.nan), jnp.zeros(2), STEP) == 0
    assert not model.likelihood.predicts
    ys = nopf.simulate(model, 5, jax.random.key(0)).observations
    posterior = nopf.ParticleFilter(model, particles=500).run(ys, key=jax.random.key(1))
    assert not posterior.collapsed.any()


def heading_noise(x, step, noise):
    """Two noise numbers for three states: along the heading, and of the turn."""
    speed, turn = 0.3 + 0.1 * noise[0], 0.4 + 0.05 * noise[1]
    return [x[0] + speed * jnp.cos(x[2]), x[1] + speed * jnp.sin(x[2]), x[2] + turn]


def test_a_transition_may_take_its_noise_itself():
    model = models.unicycle(transition=heading_noise, process_noise=None, noise_size=2)
    x, z = jnp.array([0.5, -0.5, 3.0]), jnp.array([1.0, -2.0])
    expected = [0.5 + 0.4 * np.cos(3.0), -0.5 + 0.4 * np.sin(3.0), 3.3 - 2 * np.pi]
    np.testing.assert_allclose(model.move(x, z, STEP), expected, rtol=1e-5)
    np.testing.assert_allclose(
        model.skeleton(x, STEP), models.unicycle().skeleton(x, STEP), rtol=1e-6
    )
    with pytest.raises(ValueError, match=r"with noise_size it is transition\(x, step, noise\)"):
        models.unicycle(process_noise=None, noise_size=2)
    with pytest.raises(ValueError, match="say with noise_size= how many"):
        models.unicycle(transition=heading_noise)
    with pytest.raises(ValueError, match="noise_size: expected at least 1"):
        models.unicycle(transition=heading_noise, process_noise=None, noise_size=0)


@pytest.mark.parametrize(
    ("noise", "rank"),
    [
        ([0.3, 0.0], 1),
        ([[1.0, 2.0], [2.0, 4.0]], 1),
        ([0.0, 0.0], 1),
        (0.0, 1),
        ([0.3, 0.2], 2),
        ([[1e-8, 0.0], [0.0, 1e4]], 2),
    ],
)
def test_noise_of_lower_rank(noise, rank):
    model = models.linear(process_noise=noise)
    assert model.noise_size == rank
    whites = jax.random.normal(jax.random.key(0), (4, rank))
    x = jnp.array([0.5, 0.2])
    moved = jax.vmap(lambda z: model.move(x, z, STEP))(whites) - model.skeleton(x, STEP)[None]
    factor = np.asarray(model.process_noise_at(STEP).factor)
    factor = factor if factor.ndim == 2 else np.diag(factor)
    np.testing.assert_allclose(moved, whites @ factor.T, atol=1e-6)
    wanted = np.asarray(noise, float) * np.ones(2) if np.ndim(noise) < 2 else np.asarray(noise)
    wanted = np.diag(wanted**2) if wanted.ndim == 1 else wanted
    np.testing.assert_allclose(factor @ factor.T, wanted, atol=1e-6)
    assert (model.why_no_density() is None) == (rank == 2)


def test_noise_may_depend_on_the_state():
    """Along the heading: a covariance of rank one in the plane, which turns with the robot."""

    def along(x, step):
        direction = jnp.array([jnp.cos(x[0]), jnp.sin(x[0])])
        return 0.25 * step.dt * jnp.outer(direction, direction)

    model = models.linear(process_noise=along)
    x = jnp.array([0.7, 0.1])
    whites = jax.random.normal(jax.random.key(0), (5, 2))

    @jax.jit
    def deviations(x):
        return jax.vmap(lambda z: model.move(x, z, STEP))(whites) - model.skeleton(x, STEP)[None]

    moved = np.asarray(deviations(x))
    across = moved @ np.array([-np.sin(0.7), np.cos(0.7)])
    np.testing.assert_allclose(across, 0, atol=1e-5)
    factor = np.asarray(jax.jit(lambda x: model.process_noise_at(STEP, x).factor)(x))
    np.testing.assert_allclose(factor @ factor.T, along(np.array([0.7, 0.1]), STEP), atol=1e-6)
    assert "no noise of their own" in model.why_no_density()
    with pytest.raises(TypeError, match="depends on the state"):
        model.process_noise_at(STEP)


@pytest.mark.parametrize("reads", [False, True])
def test_a_step_may_be_unpacked(reads):
    """Whether a model reads controls is known by what it does with them, not by looking."""

    def transition(x, step):
        _, _, dt, control = step
        return x + (dt * control if reads else 0.0)

    model = models.linear(transition=transition)
    assert model.reads_control == reads
    if reads:
        with pytest.raises(ValueError, match=r"reads step\.control, and no controls were given"):
            nopf.simulate(model, 3, jax.random.key(0))
        nopf.simulate(model, 3, jax.random.key(0), controls=np.zeros((3, 2)))
    else:
        with pytest.raises(ValueError, match=r"^controls: no function of this model reads step\."):
            nopf.simulate(model, 3, jax.random.key(0), controls=np.zeros((3, 2)))
        named = models.linear(transition=transition, control_names=("a", "b"))
        assert named.steps(3, controls=np.zeros((3, 2))).control.shape == (3, 2)


@pytest.mark.parametrize(
    ("transition", "reads"),
    [
        (lambda x, step: x + jnp.sin(step.control), True),
        (lambda x, step: x + jax.jit(jnp.abs)(step.control), True),
        (jax.jit(lambda x, step: 0.9 * x), False),
    ],
)
def test_controls_that_go_into_functions_of_jax(transition, reads):
    model = models.linear(transition=transition, control_names=("a", "b") if reads else ())
    assert model.reads_control == reads
    nopf.simulate(model, 3, jax.random.key(0), controls=np.zeros((3, 2)))


def test_a_likelihood_may_read_controls():
    class Scaled(nopf.Likelihood):
        def log_prob(self, y, x, step):
            return -jnp.sum((y - x[:1] * step.control[0]) ** 2)

        def sample(self, key, x, step):
            return [x[0] * step.control[0]]

    given = (models.linear().prior, models.linear_transition, [0.6, 0.4])
    with pytest.raises(ValueError, match="give observation_names"):
        nopf.StateSpaceModel(*given, likelihood=Scaled())
    model = nopf.StateSpaceModel(*given, likelihood=Scaled(), observation_names=("y",))
    path = nopf.simulate(model, 3, jax.random.key(0), controls=np.ones((3, 1)))
    assert path.observations.shape == (3, 1)


CONTROLLED = {"control_names": ("a", "b")}
OUT_OF_RANGE = {
    r"transition: x\[7\] is out of range: the state has 2 numbers": {
        "transition": lambda x, step: [x[0], x[7]]
    },
    r"transition: x\[-3\] is": {"transition": lambda x, step: [x[0], x[-3]]},
    r"transition: index 7 is out of range for an array of 2": {
        "transition": jax.jit(lambda x, step: x * x[7])
    },
    r"observation: x\[2\] is out of range": {"observation": lambda x, step: x[1:] * x[2]},
    r"process_noise: x\[2\] is out of range: the state": {
        "process_noise": lambda x, step: [x[2], 1.0]
    },
    r"transition: noise\[1\] is out of range: the noise has 1 number$": {
        "transition": lambda x, step, noise: x + noise[1],
        "process_noise": None,
        "noise_size": 1,
    },
    r"observation_log_prob: y\[2\] is out of range: the observation": {
        "observation_noise": None,
        "observation_log_prob": lambda y, x, step: y[2] * x[0],
        "observation_sample": lambda key, x, step: x,
    },
    r"transition: step.control\[2\] is out of range: the control has 2": CONTROLLED
    | {"transition": lambda x, step: x * step.control[2]},
    # The transition reads controls, and the observation is tried all the same.
    r"observation: x\[9\] is out of range": CONTROLLED
    | {
        "transition": lambda x, step: x * step.control[1],
        "observation": lambda x, step: [x[9], x[0]],
    },
}


@pytest.mark.parametrize("message", OUT_OF_RANGE)
def test_an_index_out_of_range_is_not_clamped(message):
    with pytest.raises(ValueError, match=f"^{message}"):
        models.linear(**OUT_OF_RANGE[message])


def looped(x, step):
    return jax.lax.fori_loop(0, 3, lambda i, x: x.at[i % 2].set(x[i - 1] + x[-2]), x)


@pytest.mark.parametrize(
    "transition",
    [
        looped,
        lambda x, step: x.at[1].add(jnp.sin(x)[-1]),
        lambda x, step: x.at[5].get(mode="fill", fill_value=0.0) * x,
        lambda x, step: jnp.concatenate([x[:1], x[1:9]]),
        lambda x, step: jax.vmap(lambda i: x[i])(jnp.arange(2)),
        # So many controls may be there: nobody has named them.
        jax.jit(lambda x, step: x * step.control[8]),
    ],
)
def test_indices_that_are_in_range_or_dealt_with_are_left_alone(transition):
    assert models.linear(transition=transition).space.size == 2


def test_a_control_out_of_range_is_reported_when_controls_are_given():
    model = models.linear(transition=lambda x, step: x * step.control[2])
    with pytest.raises(ValueError, match=r"^transition: step.control\[2\] is out of range"):
        model.steps(3, controls=np.zeros((3, 2)))


BAD = {
    "process_noise: expected positive standard deviations": {"process_noise": [0.1, -0.1]},
    "process_noise: expected either .* got both": {"noise_size": 2},
    "process_noise: expected either .* got neither": {"process_noise": None},
    "likelihood: expected instead of observation": {"likelihood": UniformLikelihood()},
    "process_noise: expected 2 standard deviations .* got shape .3,.": {"process_noise": [1, 1, 1]},
    "process_noise: expected a positive semidefinite": {"process_noise": [[1.0, 2.0], [2.0, 1.0]]},
    "observation_noise: expected 2 standard": {"observation_noise": [0.1]},
    "observation_noise: expected positive": {"observation_noise": [0.1, -0.1]},
    "observation_noise: expected either .* neither": {"observation_noise": None},
    "observation: expected a function": {"observation": None},
    "observation_log_prob, observation_sample: expected both": {
        "observation_noise": None,
        "observation_log_prob": lambda y, x, step: 0.0,
    },
    "observation_log_prob: expected .* of shape .., got .2,": {
        "observation_noise": None,
        "observation_log_prob": lambda y, x, step: y,
        "observation_sample": lambda key, x, step: x,
    },
    r"transition: expected transition\(x, step\) of shape \(2,\), got \(3,\)": {
        "transition": lambda x, step: jnp.zeros(3)
    },
    "transition: calling transition.* raised IndexError": {
        "transition": lambda x, step: (
            jnp.stack([x[0], {}[0] if x.ndim else [][1]]) if x.ndim > 1 else [][1]
        )
    },
    "observation: expected a vector": {"observation": lambda x, step: x[0]},
    "state_names: expected 2 names": {"state_names": ("a",)},
    "state_names: expected different": {"state_names": ("a", "a")},
    "state_angles: unknown name 'heading'; expected one of a, b": {
        "state_names": ("a", "b"),
        "state_angles": ("heading",),
    },
    "state_angles: expected indices from 0 to 1, got 2": {"state_angles": (2,)},
    "observation_angles: .*from 0 to 1": {"observation_angles": (5,)},
    "dt: expected a positive": {"dt": 0.0},
    "dt: expected a finite number, got True": {"dt": True},
    "dt: expected a finite number, got one that is too large": {"dt": 10**400},
    "process_noise: expected finite numbers, got one that is too": {"process_noise": 10**400},
    "noise_size: expected at most 2147483647": {
        "process_noise": None,
        "noise_size": 2**31,
        "transition": lambda x, step, noise: x,
    },
    "state_names: expected a tuple of names, got 'ab'": {"state_names": "ab"},
    "control_names: expected a tuple of names, got 'u'": {"control_names": "u"},
    "observation_names: expected a tuple of names, got 'uv'": {
        "observation": lambda x, step: x * step.control,
        "observation_names": "uv",
    },
    "state_angles: expected names or indices, got True": {"state_angles": [True]},
    "transition: expected real numbers to be returned, got complex": {
        "transition": lambda x, step: x * 1j
    },
    "observation: expected real numbers .* got complex": {
        "observation": lambda x, step: [x[0], x[1] * 1j]
    },
    "observation: expected real numbers .* or strings": {"observation": lambda x, step: ["1", "2"]},
    r"observation_noise: expected a function of one argument, \(step\)": {
        "observation_noise": lambda x, step: [0.1, 0.1]
    },
    r"process_noise: calling process_noise\(x, step\) .* missing 1": {
        "process_noise": lambda x, step, z: [0.1, 0.1]
    },
    # What JAX would say in ten lines; the message is one.
    "transition: np.sin and other NumPy functions cannot .* use jnp.sin and the like$": {
        "transition": lambda x, step: np.sin(x)
    },
    "observation: if, and, .* use jnp.where instead of if, [^\n]*$": {
        "observation": lambda x, step: x if x[0] > 0 else -x
    },
    "observation_noise: float, int, math.sin .* use jnp.sin and the like$": {
        "observation_noise": lambda step: [float(step.dt), math.sin(step.dt)]
    },
    "transition: its arguments cannot be the index of a list .* instead of range$": {
        "transition": lambda x, step: x * [1, 2][step.index]
    },
    r"transition: x\[x > 0\] and the like .*; use jnp.where$": {
        "transition": lambda x, step: x[x > 0]
    },
}


@pytest.mark.parametrize("message", BAD)
def test_says_what_is_wrong_when_the_model_is_built(message):
    with pytest.raises(ValueError, match=message):
        models.linear(**BAD[message])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nopf.Gaussian(["1.0", "2"], 1.0), r"mean: expected numbers, got \['1.0', '2'\]"),
        (lambda: nopf.Gaussian([1.0, None], 1.0), "mean: expected numbers, got .1.0, None."),
        (lambda: nopf.Gaussian([1.0, 2.0], "1.0"), "std: expected numbers, got '1.0'"),
        (lambda: nopf.Gaussian([1.0, 2j], 1.0), "mean: expected numbers"),
        (lambda: models.linear(process_noise=True), "process_noise: expected numbers, got True"),
        (
            lambda: models.linear().steps(1, controls=[[True]]),
            r"controls: expected numbers.*np.asarray\(controls, float\)",
        ),
        (lambda: models.linear().steps(1, ["1.0"]), "times: expected numbers, got ..1.0.."),
        (
            lambda: models.linear().steps(1, np.array(["2026-01-01"], "M8[s]")),
            r"times: expected numbers, got datetime64\[s\], .* pass seconds",
        ),
    ],
)
def test_what_only_looks_like_a_number_is_none(call, message):
    with pytest.raises(TypeError, match=f"^{message}"):
        call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: finite_number("1.0", "dt"), "dt: expected a finite number, got '1.0'"),
        (lambda: finite_number(None, "dt"), "dt: expected a finite number, got None"),
        (lambda: share_of_one(None, "share"), "share: expected a finite number, got None"),
        (lambda: share_of_one(10**400, "share"), "share: expected a finite number, got one that"),
        (lambda: share_of_one(2, "share"), "share: expected a number from 0 to 1, got 2"),
        (lambda: check_names(5, 2, "names", "x"), "names: expected a tuple of names, got 5"),
        (
            lambda: check_angles("angles", [1.5], ("a", "b")),
            "angles: expected names or indices, got 1.5",
        ),
        (
            lambda: check_angles("angles", None, ("a", "b")),
            "angles: expected names or indices, got None",
        ),
    ],
)
def test_values_that_no_annotation_allows_are_named(call, message):
    """Where annotations are checked, as in these tests, only the checks themselves see them."""
    with pytest.raises(ValueError, match=f"^{message}"):
        call()


def test_numbers_of_many_kinds():
    kinds = [np.float16(2), np.int8(2), jnp.asarray(2), jnp.bfloat16(2), Fraction(2), np.array(2)]
    for two in kinds:
        assert finite_number(two, "dt") == 2
        np.testing.assert_array_equal(nopf.Gaussian([two, 1], two).factor, [2, 2])


def test_no_control_names_are_none():
    assert models.linear(control_names=None).control_names == ()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"times": [1.0, 0.5]}, "step 2 is at 0.5 and step 1 at 1"),
        ({"times": [-1.0, 0.5]}, "step 1 is at -1 and step 0 at 0"),
        ({"times": [1.0]}, r"times: expected shape \(2,\)"),
        ({"times": [1.0, np.nan]}, "times: expected finite"),
        ({"initial_state": [1.0]}, r"initial_state: expected shape \(2,\), got \(1,\)"),
        ({"batch": 0}, "batch: expected at least 1"),
    ],
)
def test_simulate_says_what_is_wrong(changes, message):
    with pytest.raises(ValueError, match=message):
        nopf.simulate(models.linear(), 2, jax.random.key(0), **changes)
