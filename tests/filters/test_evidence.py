"""Evidence against Kalman and quadrature, where the law, the choice or the noise is unusual.

Each is the mean of 400 independent runs on the same data in its own standard errors, |z| < 4: a
false alarm of 6e-5 a case, and a fixed key.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nopf
from tests import models
from tests.filters.test_particle import standard_errors_from_one
from tests.proposals.test_neural import scrambled

RUNS = 400
SLOW = pytest.mark.slow


def ratios(flt, ys, log_evidence, runs=RUNS):
    copies = np.broadcast_to(np.asarray(ys), (runs, *np.shape(ys)))
    found = flt.run_batch(copies, key=jax.random.key(5)).log_evidence
    return np.exp(np.asarray(found, np.float64) - float(log_evidence))


def make(name, model, particles):
    """A filter by the name of its proposal; with an `a` before it, one that looks ahead."""
    proposals = {
        "bpf": lambda: None,
        "lpf": nopf.LinearisedProposal,
        # A network that is wrong; with a promise that is, weights vary more.
        "nopf": lambda: scrambled(model, 0.05 if name[0] == "a" else 0.15),
        "ispf": lambda: nopf.InnerSamplingProposal(20),
    }
    kind = nopf.AuxiliaryFilter if name[0] == "a" else nopf.ParticleFilter
    proposal = proposals["bpf" if name == "apf" else name.removeprefix("a")]()
    return kind(model, proposal, particles, quantiles=(), health=False)


def noise_as_argument(x, step, noise):
    """Three noise numbers for two states, one of them shared."""
    moved = models.linear_transition(x, step)
    return moved + jnp.stack([0.4 * noise[0] + 0.2 * noise[2], 0.3 * noise[1] - 0.2 * noise[2]])


LINEAR = {
    "plain": lambda: models.linear(full=True),
    "rank one": lambda: models.linear(process_noise=[0.6, 0.0]),
    "singular covariance": lambda: models.linear(process_noise=[[0.4, 0.2], [0.2, 0.1]]),
    "as argument": lambda: models.linear(
        transition=noise_as_argument, process_noise=None, noise_size=3
    ),
}


@pytest.mark.parametrize(
    ("name", "noise"),
    [
        ("alpf", "plain"),
        ("anopf", "plain"),
        pytest.param("aispf", "plain", marks=SLOW),
        ("lpf", "rank one"),
        pytest.param("bpf", "rank one", marks=SLOW),
        pytest.param("nopf", "rank one", marks=SLOW),
        ("alpf", "singular covariance"),
        ("nopf", "as argument"),
        pytest.param("bpf", "as argument", marks=SLOW),
        pytest.param("lpf", "as argument", marks=SLOW),
        pytest.param("ispf", "as argument", marks=SLOW),
        pytest.param("anopf", "as argument", marks=SLOW),
    ],
)
def test_evidence_agrees_with_kalman(name, noise):
    model = LINEAR[noise]()
    ys = np.array(nopf.simulate(model, 6, jax.random.key(42)).observations)
    ys[1, 0] = ys[3] = np.nan
    flt = make(name, model, 300)
    exact = nopf.KalmanFilter(model).run(ys).log_evidence
    found = ratios(flt, ys, exact)
    assert found.std() < 0.7  # so that a bias of 14 % would be seen
    assert abs(standard_errors_from_one(found)) < 4


def quadrature(model, ys, transition_density, grid):
    """log p(y_1 … y_T) of a model of one state, on a grid of equal steps, in double precision."""
    with jax.enable_x64(True):
        width = grid[1] - grid[0]
        states = jnp.asarray(grid)[:, None]
        density = np.exp(np.asarray(jax.vmap(model.prior.log_prob)(states)))
        total = 0.0
        kernel = transition_density(grid[:, None], grid[None]) * width
        for t, y in enumerate(np.asarray(ys, np.float64)):
            step = model.nominal_step(t + 1)
            density = kernel @ density
            seen = jax.vmap(lambda x, y=y, s=step: model.log_likelihood(jnp.asarray(y), x, s))
            density = density * np.exp(np.asarray(seen(states)))
            share = density.sum() * width
            total += np.log(share)
            density /= share
    return total


def normal_density(apart, std=1.0):
    """Of a normal number: as `scipy.stats` has it, which takes several times longer."""
    return np.exp(-0.5 * (apart / std) ** 2) / (np.sqrt(2 * np.pi) * std)


def spread(x):
    return 0.2 + 0.3 * abs(x)


@pytest.mark.parametrize(
    "name", ["lpf", *(pytest.param(n, marks=SLOW) for n in ("bpf", "alpf", "nopf", "ispf"))]
)
def test_evidence_with_noise_that_depends_on_the_state(name):
    model = nopf.StateSpaceModel(
        prior=nopf.Gaussian([0.5], [1.0]),
        transition=lambda x, step: 0.9 * x,
        process_noise=lambda x, step: spread(x),
        observation=lambda x, step: x + 0.1 * x**3,
        observation_noise=[0.3],
    )
    ys = nopf.simulate(model, 5, jax.random.key(0)).observations
    exact = quadrature(
        model,
        ys,
        lambda new, old: normal_density(new - 0.9 * old, spread(old)),
        np.linspace(-9, 9, 3001),
    )
    found = ratios(make(name, model, 500), ys, exact)
    assert found.std() < 0.7
    assert abs(standard_errors_from_one(found)) < 4


def bounded_walk():
    """A random walk seen with uniform noise: a promise can be zero where the truth is not."""
    return nopf.StateSpaceModel(
        prior=nopf.Gaussian([0.0], [1.0]),
        transition=lambda x, step: x,
        process_noise=[0.5],
        observation_log_prob=lambda y, x, step: jnp.where(
            jnp.abs(y - x)[0] < 0.4, -jnp.log(0.8), -jnp.inf
        ),
        observation_sample=lambda key, x, step: (
            x + jax.random.uniform(key, (1,), minval=-0.4, maxval=0.4)
        ),
    )


@pytest.mark.parametrize("name", ["apf", pytest.param("aispf", marks=SLOW)])
def test_an_ancestor_that_promises_nothing_may_still_be_chosen(name):
    model = bounded_walk()
    ys = np.array([[0.3], [1.2], [0.9], [2.1], [1.5]])
    exact = quadrature(
        model, ys, lambda new, old: normal_density(new - old, 0.5), np.linspace(-6, 8, 7001)
    )
    found = ratios(make(name, model, 1000), ys, exact)
    assert found.std() < 0.7
    assert abs(standard_errors_from_one(found)) < 4
    if name == "apf":  # and without a defensive share it is as wrong as was found
        blind = nopf.AuxiliaryFilter(model, None, 1000, defensive=0.0, quantiles=(), health=False)
        assert standard_errors_from_one(ratios(blind, ys, exact)) < -20


@pytest.mark.parametrize("name", ["lpf", pytest.param("alpf", marks=SLOW)])
def test_an_angle_with_a_radian_of_noise(name):
    """The fit sees one way round the circle; the defensive share sees the others."""
    model = nopf.StateSpaceModel(
        prior=nopf.Gaussian([0.0], [1.0]),
        transition=lambda x, step: x + 0.5,
        process_noise=[1.0],
        observation=lambda x, step: x,
        observation_noise=[0.3],
        state_angles=(0,),
        observation_angles=(0,),
    )
    ys = np.array([[0.2], [3.0], [0.7], [-2.1]])  # half a turn and more, twice

    def wrapped(new, old):
        apart = new - old - 0.5
        return sum(normal_density(apart + 2 * np.pi * k) for k in range(-4, 5))

    grid = np.linspace(-np.pi, np.pi, 2001)[:-1]
    with jax.enable_x64(True):
        turns = [jnp.asarray(grid)[:, None] + 2 * np.pi * k for k in range(-3, 4)]
        prior = sum(np.exp(jax.vmap(model.prior.log_prob)(x)) for x in turns)
    circular = models_with_prior(model, prior, grid)
    exact = quadrature(circular, ys, wrapped, grid)
    assert nopf.LinearisedProposal().settled(model).share == 0.1
    found = ratios(make(name, model, 2000), ys, exact)
    assert found.std() < 0.7
    assert abs(standard_errors_from_one(found)) < 4
    if name == "lpf":
        proposal = nopf.LinearisedProposal(defensive=0.0)
        alone = nopf.ParticleFilter(model, proposal, 2000, quantiles=(), health=False)
        assert standard_errors_from_one(ratios(alone, ys, exact)) < -10


class Tabulated(eqx.Module):
    """A density on a grid."""

    grid: jax.Array
    values: jax.Array

    def sample(self, key):
        return jnp.zeros(1)

    def log_prob(self, x):
        return jnp.log(jnp.interp(x[0], self.grid, self.values))


def models_with_prior(model, values, grid):
    return eqx.tree_at(lambda m: m.prior, model, Tabulated(jnp.asarray(grid), jnp.asarray(values)))
