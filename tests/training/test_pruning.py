"""What a network hardly says is left out, and the rest stays as it was."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nopf
from nopf.training.objective import Conditions, simulate_tuples
from nopf.training.pruning import pruned
from tests.proposals.test_neural import STEP, scrambled

# Below the diagonal, column by column: (1, 0), (2, 0) and (2, 1); of one component and of two.
ENTRIES = {
    1: ([[0.5, 0.03, -0.02]], [[0.5, 0.0, 0.0]], ((1, 0),)),
    2: (
        [[0.5, 0.03, 0.02], [0.0, 0.3, -0.02]],
        [[0.5, 0.03, 0.0], [0.0, 0.3, 0.0]],
        ((1, 0), (2, 0)),
    ),
}


def three():
    return nopf.StateSpaceModel(
        prior=nopf.Gaussian(np.zeros(3), np.ones(3)),
        transition=lambda x, step: 0.9 * x,
        process_noise=[1.0, 0.5, 0.2],
        observation=lambda x, step: jnp.stack([x[0] + x[1] + x[2]]),
        observation_noise=[0.1],
    )


def saying(model, entries):
    """A proposal whose network gives these entries whatever it is shown, and random means."""
    components = len(entries)
    several = {"objective": "inclusive", "components": components} if components > 1 else {}
    proposal = scrambled(model, **several)
    head = proposal.network.factor_head
    bias = jnp.concatenate([head.bias[: 3 * components], jnp.ravel(jnp.asarray(entries))])
    weight = head.weight.at[:, 3 * components :].set(0)
    return eqx.tree_at(
        lambda p: (p.network.factor_head.weight, p.network.factor_head.bias),
        proposal,
        (weight, bias),
    )


@pytest.mark.parametrize("components", [1, 2])
def test_small_entries_are_left_out_and_nothing_else_changes(components, tmp_path):
    entries, left, pairs = ENTRIES[components]
    model = three()
    tuples = simulate_tuples(model, Conditions(model.steps(5), None, 5), jax.random.key(0), 4, 0.0)
    small = pruned(saying(model, entries), model, tuples)
    assert small.pairs == pairs
    assert small.network.factor_head.bias.size == components * (3 + len(pairs))
    expected = saying(model, left)
    small.save(tmp_path / "small.nopf")
    loaded = nopf.NeuralProposal.load(tmp_path / "small.nopf", model)
    assert loaded.pairs == pairs

    def odds(proposal):
        law = proposal.law(model, jnp.ones(3), jnp.asarray([2.0]), STEP)
        points = jax.random.normal(jax.random.key(1), (20, 3))
        return jax.vmap(law.log_ratio)(points)

    for proposal in (small, loaded):
        np.testing.assert_allclose(odds(proposal), odds(expected), rtol=1e-4, atol=1e-4)


def test_a_trained_network_keeps_what_depends_on_each_other():
    """Given the sum of two noise numbers, these are not independent; a third hardly counts."""
    model = nopf.StateSpaceModel(
        prior=nopf.Gaussian(np.zeros(3), np.ones(3)),
        transition=lambda x, step: 0.9 * x,
        process_noise=[1.0, 1.0, 1e-3],
        observation=lambda x, step: jnp.stack([x[0] + x[1] + x[2]]),
        observation_noise=[0.3],
    )
    recipe = nopf.Recipe(base="skeleton", width=8, steps=150)
    proposal = nopf.train(model, 10, jax.random.key(0), recipe=recipe)
    assert proposal.pairs == ((1, 0),)
