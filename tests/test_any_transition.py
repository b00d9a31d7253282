"""Models whose noise is not added to the state: all that acts in noise space works on them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nopf
from tests import models

BEACONS = np.array([[2.0, 1.0], [-1.0, 2.5]])


def unicycle() -> nopf.StateSpaceModel:
    """Noise on speed and turn rate only: two noise numbers, three states."""

    def transition(x, step, noise):
        px, py, heading = x
        speed, turn = 0.5 + 0.3 * noise[0], 0.3 + 0.2 * noise[1]
        return [px + speed * jnp.cos(heading), py + speed * jnp.sin(heading), heading + turn]

    return nopf.StateSpaceModel(
        prior=nopf.Gaussian([0.0, 0.0, 0.5], [0.2, 0.2, 0.2]),
        transition=transition,
        noise_size=2,
        observation=lambda x, step: [jnp.hypot(bx - x[0], by - x[1]) for bx, by in BEACONS],
        observation_noise=[0.05, 0.05],
        state_names=("x", "y", "heading"),
        state_angles=("heading",),
    )


def lorenz(size: int = 8, substeps: int = 10) -> nopf.StateSpaceModel:
    """Lorenz's model of 1996, by Euler and Maruyama in substeps, each with its own noise."""

    def transition(x, step, noise):
        dt = step.dt / substeps

        def substep(x, white):
            drift = (jnp.roll(x, -1) - jnp.roll(x, 2)) * jnp.roll(x, 1) - x + 8.0
            return x + dt * drift + jnp.sqrt(dt) * white, None

        return jax.lax.scan(substep, x, noise.reshape(substeps, size))[0]

    return nopf.StateSpaceModel(
        prior=nopf.Gaussian(2.0 + np.arange(size) % 3, np.ones(size)),
        transition=transition,
        noise_size=substeps * size,
        observation=lambda x, step: x,
        observation_noise=0.3 * np.ones(size),
        dt=0.05,
    )


@pytest.mark.parametrize("make", [unicycle, pytest.param(lorenz, marks=pytest.mark.slow)])
def test_fitted_and_learned_proposals_beat_the_transition(make):
    model, horizon = make(), 15
    recipe = nopf.Recipe.fast(base="skeleton", width=32, steps=400)
    learned = nopf.train(model, horizon, jax.random.key(0), recipe=recipe)
    ys = nopf.simulate(model, horizon, jax.random.key(1)).observations

    def ess(proposal, kind=nopf.ParticleFilter):
        flt = kind(model, proposal, 500)
        return float(flt.run(ys, key=jax.random.key(2)).ess.mean())

    blind, fitted, trained = ess(None), ess(nopf.LinearisedProposal()), ess(learned)
    assert fitted > 1.5 * blind
    assert trained > 1.5 * blind
    assert ess(nopf.LinearisedProposal(), nopf.AuxiliaryFilter) > fitted


def test_the_rest_of_noise_space():
    """Ensemble, inner sampling, health, forecast, files: none asks for a density."""
    model = unicycle()
    path = nopf.simulate(model, 20, jax.random.key(0))
    spread = np.asarray(path.states).std(0)
    for flt in (
        nopf.EnsembleKalmanFilter(model, 500),
        nopf.ParticleFilter(model, nopf.InnerSamplingProposal(20), 500),
        nopf.ParticleFilter(model, nopf.NudgedProposal(500), 500),
    ):
        posterior = flt.run(path.observations, key=jax.random.key(1))
        error = np.asarray(model.space.difference(posterior.mean, path.states))[5:]
        assert np.sqrt((error**2).mean(0))[:2].max() < 0.3 * spread[:2].max()
        assert np.isfinite(np.asarray(posterior.p_value)).all()
        ahead = flt.forecast(posterior, 3)
        assert np.all(np.asarray(ahead.std)[-1, :2] > np.asarray(posterior.std)[-1, :2])


@pytest.mark.parametrize(
    "make", [unicycle, lambda: models.linear(process_noise=[0.6, 0.0])], ids=["argument", "rank"]
)
def test_what_needs_a_density_says_so(make):
    model = make()
    flt = nopf.ParticleFilter(model, None, 50)
    ys = nopf.simulate(model, 3, jax.random.key(0)).observations
    posterior = flt.run(ys, key=jax.random.key(0), keep="particles")
    with pytest.raises(ValueError, match="density of the transition, and this model has none"):
        flt.smooth(posterior, key=jax.random.key(1))
    if model.process_noise is None:
        with pytest.raises(ValueError, match=r"OptimalProposal needs.*InnerSamplingProposal"):
            nopf.ParticleFilter(model, nopf.OptimalProposal())
    with pytest.raises(ValueError, match=r"UnscentedProposal needs.*LinearisedProposal"):
        nopf.ParticleFilter(model, nopf.UnscentedProposal())


def test_noise_that_depends_on_the_state_has_a_density():
    """Backward simulation weighs by it: against quadrature on a grid, in one dimension."""
    model = nopf.StateSpaceModel(
        prior=nopf.Gaussian([1.0], [1.0]),
        transition=lambda x, step: 0.9 * x,
        process_noise=lambda x, step: 0.2 + 0.3 * jnp.abs(x),
        observation=lambda x, step: x,
        observation_noise=[0.5],
    )
    ys = np.array([[0.3], [1.8], [2.5]])
    flt = nopf.ParticleFilter(model, nopf.OptimalProposal(), 4000)
    posterior = flt.run(ys, key=jax.random.key(0), keep="particles")
    smoothed = flt.smooth(posterior, key=jax.random.key(1), trajectories=4000)
    grid = np.linspace(-6, 8, 1401)

    def normal(x, mean, std):
        return np.exp(-0.5 * ((x - mean) / std) ** 2) / std

    kernel = normal(grid[:, None], 0.9 * grid[None], 0.2 + 0.3 * np.abs(grid)[None])
    forward, seen = normal(grid, 1.0, 1.0), [normal(y, grid, 0.5) for y in ys[:, 0]]
    forwards = []
    for likelihood in seen:
        forward = (kernel @ forward) * likelihood
        forward /= forward.sum()
        forwards.append(forward)
    backward = np.ones(grid.size)
    for t in (2, 1, 0):
        exact = forwards[t] * backward
        exact /= exact.sum()
        mean = exact @ grid
        std = np.sqrt(exact @ (grid - mean) ** 2)
        # Five standard errors of 4000 draws, and as much again for the particles.
        assert abs(float(smoothed.mean[t, 0]) - mean) < 10 * std / np.sqrt(4000)
        np.testing.assert_allclose(smoothed.std[t, 0], std, rtol=0.1)
        backward = kernel.T @ (backward * seen[t])
        backward /= backward.max()
