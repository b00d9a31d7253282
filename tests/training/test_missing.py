"""Training for sensors that take turns."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nopf
from tests import models


@pytest.mark.slow
def test_training_with_sensors_that_take_turns():
    """Each step has one of two sensors; the network is used, and beats the transition."""
    model = models.linear(observation_noise=[0.1, 0.1])
    missing = np.arange(12)[:, None] % 2 == np.array([[0, 1]])
    recipe = nopf.Recipe.fast(base="skeleton", width=16, steps=300)
    proposal = nopf.train(model, 12, jax.random.key(0), recipe=recipe, missing=missing)
    assert proposal.features.masks
    ys = np.where(missing, np.nan, nopf.simulate(model, 12, jax.random.key(1)).observations)
    learned, blind = (
        float(nopf.ParticleFilter(model, p, 500).run(ys, key=jax.random.key(2)).ess.mean())
        for p in (proposal, None)
    )
    assert learned > 1.5 * blind
    with pytest.raises(ValueError, match="missing: expected 12 rows"):
        nopf.train(model, 12, jax.random.key(0), missing=jnp.zeros((3, 2), bool))
