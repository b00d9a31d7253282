"""Several Gaussians where one leaves out a mode, and learning where there is no gradient."""

import runpy
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nopf
from nopf.proposals.importance import expect, judge
from nopf.resampling import effective_sample_size
from nopf.training.objective import Conditions, gradients_that_tell, simulate_tuples
from tests import models
from tests.proposals.test_neural import scrambled

QUICK = {"base": "skeleton", "width": 16, "steps": 400, "round": 50}


def growth():
    """The model that benchmarks/modes.py measures: x and −x look alike."""
    return runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "modes.py"))["growth"]()


def rounded():
    """A linear model whose sensor rounds: its likelihood has no gradient."""

    def seen(x):
        return jnp.round(5 * models.linear_observation(x, None)) / 5

    return models.linear(
        observation=None,
        observation_noise=None,
        observation_log_prob=lambda y, x, step: -0.5 * jnp.sum(((y - seen(x)) / 0.2) ** 2),
        observation_sample=lambda key, x, step: seen(x) + 0.2 * jax.random.normal(key, (2,)),
    )


def test_a_mode_that_is_left_out_is_seen_from_outside():
    model = nopf.StateSpaceModel(
        prior=nopf.Gaussian([0.0], [1.0]),
        transition=lambda x, step: 0 * x,
        process_noise=[2.0],
        observation=lambda x, step: x**2,
        observation_noise=[0.5],
    )
    ancestor, y, step, share = jnp.zeros(1), jnp.array([4.0]), model.nominal_step(), 0.05

    def log_likelihood(z):
        return model.log_likelihood(y, 2 * z, step)

    law = nopf.GaussianLaw(jnp.ones(1), jnp.array([0.07]), log_likelihood)  # z = −1 is another mode
    whites = jax.random.normal(jax.random.key(0), (40_000, 1))
    found = judge(model, law, ancestor, y, step, whites, share)

    z = np.linspace(-6, 6, 240_001)[:, None]
    fit = np.asarray(jax.vmap(log_likelihood)(jnp.asarray(z)), float)
    standard = np.exp(-0.5 * z[:, 0] ** 2) / np.sqrt(2 * np.pi)
    own = np.exp(-0.5 * ((z[:, 0] - 1) / 0.07) ** 2) / np.sqrt(2 * np.pi) / 0.07
    joint, width = np.exp(fit) * standard, z[1, 0] - z[0, 0]
    predictive = joint.sum() * width
    square = (joint**2 / ((1 - share) * own + share * standard)).sum() * width
    np.testing.assert_allclose(np.exp(found.log_predictive), predictive, rtol=0.05)
    np.testing.assert_allclose(found.ess_fraction, predictive**2 / square, rtol=0.1)
    assert predictive**2 / square < 0.4
    # By its own draws alone it looks as good as can be.
    alone = expect(model, law, ancestor, y, step, whites).log_weights
    assert effective_sample_size(alone) / whites.shape[0] > 0.9


def test_learning_from_simulated_states_finds_the_posterior():
    model = models.linear(full=True)
    recipe = nopf.Recipe.fast(objective="inclusive", components=1, **QUICK)
    proposal = nopf.train(model, 10, jax.random.key(0), recipe=recipe)
    assert proposal.history[0, 3] < 0.7
    assert proposal.history[-1, 3] > 0.95


@pytest.mark.parametrize(("model", "share"), [(models.linear(), 1.0), (rounded(), 0.0)])
def test_gradients_are_looked_at(model, share):
    tuples = simulate_tuples(model, Conditions(model.steps(5), None, 5), jax.random.key(0), 4, 0.0)
    assert gradients_that_tell(model, tuples, jax.random.key(1)) == share


def test_without_a_gradient_it_learns_all_the_same():
    model = rounded()
    recipe = nopf.Recipe.fast(components=1, **QUICK)
    with pytest.warns(UserWarning, match="the likelihood has no gradient"):
        proposal = nopf.train(model, 10, jax.random.key(0), recipe=recipe)
    ys = nopf.simulate(model, 20, jax.random.key(1)).observations
    plain, learned = (
        nopf.ParticleFilter(model, p, 500, quantiles=()).run(ys, key=jax.random.key(2))
        for p in (None, proposal)
    )
    assert learned.ess.mean() > 1.5 * plain.ess.mean()


def test_a_likelihood_that_jax_cannot_differentiate_is_no_obstacle():
    """A loop whose end is not known, as in a ray cast: there is no reverse mode."""

    def seen(x):
        return jax.lax.while_loop(lambda r: r < jnp.abs(x[0]), lambda r: r + 0.2, 0.0)[None]

    model = models.linear(
        observation=None,
        observation_noise=None,
        observation_log_prob=lambda y, x, step: -0.5 * jnp.sum(((y - seen(x)) / 0.2) ** 2),
        observation_sample=lambda key, x, step: seen(x) + 0.2 * jax.random.normal(key, (1,)),
    )
    recipe = nopf.Recipe.fast(components=1, width=8, steps=40, round=20)
    with pytest.warns(UserWarning, match="no gradient"):
        proposal = nopf.train(model, 5, jax.random.key(0), recipe=recipe)
    assert proposal.recipe.objective == "inclusive"
    assert proposal.history[-1, 2] < proposal.history[0, 2]


def test_several_components_survive_a_file(tmp_path):
    model = models.unicycle()
    proposal = scrambled(model, objective="inclusive", components=3)
    proposal.save(tmp_path / "three.nopf")
    loaded = nopf.NeuralProposal.load(tmp_path / "three.nopf", model)
    x, y, step = jnp.zeros(3), jnp.array([2.0, 0.4]), model.nominal_step()
    laws = [p.law(model, x, y, step) for p in (proposal, loaded)]
    assert laws[0].log_weights.size == 3
    for a, b in zip(*(jax.tree.leaves(law) for law in laws), strict=True):
        np.testing.assert_array_equal(a, b)


def test_several_need_the_inclusive_objective():
    with pytest.raises(ValueError, match="components: several need the inclusive objective"):
        nopf.Recipe.fast(components=2, objective="exclusive")


@pytest.mark.slow
def test_two_modes_are_noticed_and_learned():
    """The growth model, N = 200, 50 steps: the standard deviation of the log-evidence, from 100
    runs on each of six series; its mean is known to about 0.02."""
    model = growth()
    one = nopf.train(model, 50, jax.random.key(0), recipe=nopf.Recipe.fast(components=1))
    chosen = nopf.train(model, 50, jax.random.key(0))
    assert chosen.recipe.components == 2
    spread = []
    for proposal in (one, chosen):
        flt = nopf.ParticleFilter(model, proposal, 200, quantiles=(), health=False)
        spread.append([])
        for seed in range(6):
            ys = np.asarray(nopf.simulate(model, 50, jax.random.key(seed)).observations)
            runs = flt.run_batch(np.repeat(ys[None], 100, axis=0), key=jax.random.key(1))
            spread[-1].append(float(np.std(runs.log_evidence, ddof=1)))
    assert np.mean(spread[1]) < 0.7
    assert np.mean(spread[0]) > 1.0
    of_limit = [
        nopf.quality(proposal, model, jax.random.key(5)).fraction_of_limit.mean()
        for proposal in (one, chosen)
    ]
    assert of_limit[0] < 0.9 < 0.95 < of_limit[1]
