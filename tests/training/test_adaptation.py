"""Adapting a proposal to a stream that is not what it was trained for."""

import equinox as eqx
import jax
import numpy as np
import pytest

import nopf
from nopf.training.adaptation import _tuples
from tests import models
from tests.proposals.test_neural import scrambled


def test_tuples_pair_particles_with_the_observation_that_came_next():
    """Hardly any noise, and a motion that differs from step to step: a shift by one would show."""
    model = nopf.StateSpaceModel(
        prior=nopf.Gaussian([0.0], [1.0]),
        transition=lambda x, step: x + step.index**2 + step.control,
        process_noise=[1e-3],
        observation=lambda x, step: x + 10 * step.time,
        observation_noise=[1e-2],
    )
    times, controls = 0.5 * np.arange(1, 12), np.arange(11.0)[:, None]
    ys = nopf.simulate(model, 11, jax.random.key(0), times=times, controls=controls).observations
    seen = nopf.ParticleFilter(model, None, 500).run(
        ys, key=jax.random.key(1), times=times, controls=controls, keep="particles"
    )
    training, held_out = _tuples(model, seen, jax.random.key(2))
    indices = [np.unique(part.steps.index).tolist() for part in (training, held_out)]
    assert indices == [[2, 3, 4, 5, 7, 8, 9, 10], [6, 11]]
    # Steps without observation say nothing: they are not held out.
    silent = np.asarray(ys).copy()
    silent[[5, 10]] = np.nan
    _, held_out_then = _tuples(
        model, eqx.tree_at(lambda p: p.observations, seen, silent), jax.random.key(2)
    )
    assert np.unique(held_out_then.steps.index).tolist() == [7]
    for ancestors, observations, steps in (training, held_out):
        index = np.asarray(steps.index)
        moved = ancestors[:, 0] + index**2 + controls[index - 1, 0]
        np.testing.assert_allclose(observations[:, 0], moved + 10 * times[index - 1], atol=0.1)


@pytest.mark.slow
def test_adapting_restores_the_effective_sample_size(tmp_path):
    """The sensors are five times better than in training, and the motion is another one."""
    old = models.linear()
    new = models.linear(
        transition=lambda x, step: 0.8 * models.linear_transition(x, step) + 0.3,
        observation_noise=[0.14, 0.1],
    )
    recipe = nopf.Recipe.fast(base="skeleton", width=16, steps=300)
    proposal = nopf.train(old, 6, jax.random.key(0), recipe=recipe)
    ys = nopf.simulate(new, 120, jax.random.key(1)).observations
    flt = nopf.ParticleFilter(new, proposal, 500)
    seen = flt.run(ys[:60], key=jax.random.key(2), keep="particles")
    adapted = nopf.adapt(flt, seen, key=jax.random.key(3), steps=400)
    optimal = nopf.ParticleFilter(new, nopf.OptimalProposal(), 500)
    before, after, best = (
        float(f.resume(seen.state, ys[60:]).ess.mean()) for f in (flt, adapted, optimal)
    )
    assert before < 0.5 * best
    assert after > 0.8 * best
    assert adapted.proposal.history[-1, 3] > adapted.proposal.history[0, 3]
    # What was adapted belongs to the new model, also on disk.
    adapted.proposal.save(tmp_path / "new.nopf")
    nopf.NeuralProposal.load(tmp_path / "new.nopf", new)
    with pytest.raises(ValueError, match="trained for another model"):
        nopf.NeuralProposal.load(tmp_path / "new.nopf", old)
    again = nopf.adapt(flt, seen, key=jax.random.key(3), steps=400)
    for a, b in zip(*(jax.tree.leaves(f.proposal.network) for f in (adapted, again)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_adapting_says_what_it_needs():
    model = models.linear()
    ys = np.zeros((5, 2))
    flt = nopf.ParticleFilter(model, scrambled(model), 20)
    short = flt.run(ys, key=jax.random.key(0), keep="particles")
    with pytest.raises(TypeError, match="only a learned proposal can learn"):
        nopf.adapt(nopf.ParticleFilter(model, None, 20), short, key=jax.random.key(0))
    with pytest.raises(ValueError, match="more than 5 observations"):
        nopf.adapt(flt, short, key=jax.random.key(0))
    renamed = models.linear(state_names=("one", "two"))
    other = nopf.ParticleFilter(renamed, scrambled(renamed), 20)
    with pytest.raises(ValueError, match="expected a posterior of this filter's model"):
        nopf.adapt(other, short, key=jax.random.key(0))
    with pytest.raises(ValueError, match='keep="particles"'):
        nopf.adapt(flt, flt.run(ys, key=jax.random.key(0)), key=jax.random.key(0))
