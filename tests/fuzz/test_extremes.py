"""Extreme settings: the results are finite, or there is a message."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nopf
from tests import models

KEY = jax.random.key(0)


def finite(posterior):
    parts = (posterior.mean, posterior.std, posterior.quantiles, posterior.log_evidence)
    return all(np.isfinite(np.asarray(part)).all() for part in parts)


def filtered(model, ys, particles=16, proposal=None, **settings):
    return nopf.ParticleFilter(model, proposal, particles).run(ys, key=KEY, **settings)


@pytest.mark.slow
@pytest.mark.parametrize("noise", [[0.0, 0.0], [[1.0, 1.0], [1.0, 1.0]], [[0.0, 0.0], [0.0, 0.0]]])
def test_no_process_noise_in_some_directions_or_none(noise):
    assert finite(filtered(models.linear(process_noise=noise), np.ones((3, 2))))


@pytest.mark.parametrize("particles", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_one_or_two_particles(particles):
    assert finite(filtered(models.linear(), np.ones((3, 2)), particles))


def test_nothing_observed_is_what_the_model_says_alone():
    posterior = filtered(models.linear(), np.full((3, 2), np.nan))
    assert finite(posterior)
    assert float(posterior.log_evidence) == 0


@pytest.mark.slow
def test_a_billionth_of_a_second():
    model = models.linear(dt=1e-9, process_noise=lambda step: jnp.sqrt(step.dt) * jnp.ones(2))
    assert finite(filtered(model, np.ones((3, 2))))
    assert finite(filtered(model, np.ones((3, 2)), times=1e-9 * np.arange(1, 4)))


@pytest.mark.slow
def test_forty_observations_a_step():
    model = models.linear(
        observation=lambda x, step: jnp.concatenate(
            [x[:1] + jnp.arange(20.0), x[1:] * jnp.ones(20)]
        ),
        observation_noise=np.full(40, 0.5),
    )
    assert finite(filtered(model, np.ones((3, 40))))


@pytest.mark.slow
def test_forty_observations_a_step_by_a_linearised_fit():
    model = models.linear(
        observation=lambda x, step: jnp.concatenate(
            [x[:1] + jnp.arange(20.0), x[1:] * jnp.ones(20)]
        ),
        observation_noise=np.full(40, 0.5),
    )
    assert finite(filtered(model, np.ones((3, 40)), proposal=nopf.LinearisedProposal()))


@pytest.mark.slow
def test_a_hundred_thousand_steps():
    assert finite(filtered(models.linear(), np.ones((100_000, 2))))


@pytest.mark.slow
def test_a_thousand_series():
    flt = nopf.ParticleFilter(models.linear(), None, 16)
    assert finite(flt.run_batch(np.ones((1000, 3, 2)), key=KEY))


def memory():
    """Bytes that are free, as far as the system says."""
    try:
        with open("/proc/meminfo") as lines:
            found = dict(line.split(":") for line in lines)
        return 1024 * int(found["MemAvailable"].split()[0])
    except (OSError, KeyError):
        return 0


@pytest.mark.slow
@pytest.mark.skipif(memory() < 8e9, reason="needs 8 GB")
def test_ten_million_particles():
    assert finite(filtered(models.linear(), np.ones((2, 2)), 10**7))
