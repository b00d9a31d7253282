"""Training: the objective, interruptions, and models that are not easy."""

import dataclasses
import itertools
import json
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nopf
from nopf.benchmarks import BENCHMARKS
from nopf.files import FileError, read_arrays, write_arrays
from nopf.training import TrainingInterrupted, trainer
from nopf.training.checkpoint import read_checkpoint, settled_base, write_checkpoint
from nopf.training.objective import Conditions, batch_loss, simulate_tuples
from tests import models
from tests.proposals.test_neural import scrambled

SMALL = nopf.Recipe.fast(base="skeleton", width=8, depth=2, steps=60, round=20)


def leaves(proposal):
    return jax.tree.leaves(eqx.filter(proposal.network, eqx.is_array))


def same(first, second):
    return all(np.array_equal(a, b) for a, b in zip(leaves(first), leaves(second), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("base", ["skeleton", "linearised"])
def test_both_objectives_have_the_same_gradient(base):
    """Means over 300 draws, every weight; |z| < 5 for about 100 weights: false alarm 6e-5."""
    model = models.linear(full=True)
    exact = scrambled(model, 0.2, base=base, width=4, depth=1)
    conditions = Conditions(exact.steps, None, len(exact.steps.index))
    tuples = simulate_tuples(model, conditions, jax.random.key(0), 2, 0.0)

    @eqx.filter_jit
    def gradients(proposal):
        def gradient(key):
            def loss(network):
                changed = eqx.tree_at(lambda p: p.network, proposal, network)
                return batch_loss(changed, model, tuples, key)[0]

            parts = jax.tree.leaves(jax.grad(loss)(proposal.network))
            return jnp.concatenate([part.ravel() for part in parts])

        return jax.vmap(gradient)(jax.random.split(jax.random.key(1), 300))

    sampled = dataclasses.replace(
        exact, recipe=dataclasses.replace(exact.recipe, closed_form=False, samples=8)
    )
    first, second = (np.asarray(gradients(p), np.float64) for p in (exact, sampled))
    error = np.sqrt((first.var(0, ddof=1) + second.var(0, ddof=1)) / 300)
    assert np.all(np.abs(first.mean(0) - second.mean(0)) < 5 * error + 1e-4)
    assert np.median(first.var(0) / second.var(0)) < 1  # and the exact one is less noisy


def test_tuples_pair_an_ancestor_with_the_next_observation_and_its_step():
    """Hardly any noise, and a motion that differs from step to step: a shift by one would show."""
    model = nopf.StateSpaceModel(
        prior=nopf.Gaussian([0.0], [1.0]),
        transition=lambda x, step: x + step.index**2 + step.control,
        process_noise=[1e-4],
        observation=lambda x, step: x + 10 * step.time,
        observation_noise=[1e-4],
    )
    times, controls = [0.5, 0.7, 2.0, 2.1, 5.0], np.array([[3.0], [1.0], [4.0], [1.5], [9.0]])
    conditions = Conditions(model.steps(5, times, controls), None, 5)
    ancestors, ys, own = simulate_tuples(model, conditions, jax.random.key(0), 3, 0.0)
    assert sorted(np.asarray(own.index).tolist()) == sorted(3 * [1, 2, 3, 4, 5])
    index = np.asarray(own.index)
    moved = ancestors[:, 0] + index**2 + controls[index - 1, 0]
    np.testing.assert_allclose(ys[:, 0], moved + 10 * np.asarray(times)[index - 1], atol=2e-3)
    _, masked, _ = simulate_tuples(model, conditions, jax.random.key(0), 300, 0.3)
    assert abs(np.isnan(masked).mean() - 0.3) < 0.06  # five standard errors


def test_a_long_recording_is_imitated_all_over():
    """Its gaps, controls and silences stay together, whichever rows a trajectory takes."""
    count = 40
    times = np.cumsum(np.where(np.arange(count) % 7, 0.1, 2.0))
    controls = np.arange(1.0, count + 1)[:, None]
    silent = (np.arange(count) % 5 == 0)[:, None]
    model = nopf.StateSpaceModel(
        prior=nopf.Gaussian([0.0], [1.0]),
        transition=lambda x, step: x + step.control,
        process_noise=[1e-4],
        observation=lambda x, step: x + 10 * step.dt,
        observation_noise=[1e-4],
    )
    conditions = Conditions(model.steps(count, times, controls), jnp.asarray(silent), 6)
    ancestors, ys, own = simulate_tuples(model, conditions, jax.random.key(0), 70, 0.0)
    index = np.asarray(own.index)
    assert set(index) == set(range(1, count + 1))
    first = np.bincount(index, minlength=count + 1)[7:-6]  # in the middle all come as often
    assert first.min() >= 8
    assert first.max() <= 16
    row = index - 1
    np.testing.assert_allclose(own.time, times[row], rtol=1e-6)
    np.testing.assert_allclose(own.dt, np.diff(times, prepend=0)[row], rtol=1e-4)
    np.testing.assert_array_equal(np.isnan(ys[:, 0]), silent[row, 0])
    expected = np.asarray(ancestors)[:, 0] + controls[row, 0] + 10 * np.asarray(own.dt)
    seen = ~silent[row, 0]
    np.testing.assert_allclose(np.asarray(ys)[seen, 0], expected[seen], atol=2e-3)


@pytest.mark.parametrize("constant", [1, 3])
def test_what_means_are_worth_is_asked_of_states_that_change(constant):
    """With an exact local proposal they are worth more than with the transition, also beside states
    that never change, in which all particles agree."""
    model = nopf.StateSpaceModel(
        prior=nopf.Gaussian(np.arange(1.0, 2 + constant), [1.0] * (1 + constant)),
        transition=lambda x, step: x,
        process_noise=[1.0] + [0.0] * constant,
        observation=lambda x, step: x[:1],
        observation_noise=[0.1],
    )
    conditions = Conditions(model.steps(8), None, 8)
    paths = nopf.simulate(model, 8, jax.random.key(1), batch=200)
    worth = {}
    for base in ("skeleton", "linearised"):
        own = trainer.Trainer(model, conditions, SMALL, base, jax.random.key(0), paths)
        network = own.blank.network
        worth[base] = own.worth(network) * own.work(network)
    assert worth["linearised"] > 3 * worth["skeleton"] > 0


def test_rows_to_imitate_are_as_many_in_each_kind():
    with pytest.raises(ValueError, match="controls: expected 9 rows, as many as the longest"):
        nopf.train(
            models.linear(), 4, jax.random.key(0), times=np.arange(1.0, 10), controls=[[1.0]] * 5
        )


def interrupt_at(monkeypatch, count):
    """Ctrl-C in the round of this number."""
    calls = []
    real = trainer.Trainer.round

    def interrupted(self, run):
        calls.append(run.step)
        if len(calls) == count:
            raise KeyboardInterrupt
        return real(self, run)

    monkeypatch.setattr(trainer.Trainer, "round", interrupted)


def test_resumed_training_ends_where_an_uninterrupted_one_does(tmp_path, monkeypatch):
    model, file = models.linear(), tmp_path / "run.part"
    whole = nopf.train(model, 4, jax.random.key(3), recipe=SMALL)
    with monkeypatch.context() as patch:
        interrupt_at(patch, 2)
        with pytest.warns(TrainingInterrupted, match="step 20 of 60"):
            cut = nopf.train(model, 4, jax.random.key(3), recipe=SMALL, checkpoint=file)
    assert len(cut.history) < len(whole.history)
    resumed = nopf.train(model, 4, jax.random.key(3), recipe=SMALL, checkpoint=file)
    assert same(whole, resumed)
    np.testing.assert_array_equal(whole.history, resumed.history)
    with pytest.raises(ValueError, match=r"another key.*; delete it"):
        nopf.train(model, 4, jax.random.key(4), recipe=SMALL, checkpoint=file)
    other = nopf.train(model, 4, jax.random.key(4), recipe=SMALL)
    assert not same(whole, other)


@dataclasses.dataclass
class Where:
    """Stands for a run."""

    network: np.ndarray
    history: np.ndarray
    step: int = 3
    best_loss: float = np.inf
    interrupted: bool = False


def test_a_checkpoint_that_is_none_is_named(tmp_path):
    """Each field of its header in turn is something else, or missing; the checksum is right."""
    file, settings = tmp_path / "run.part", {"model": {"dt": 1.0}, "base": "skeleton", "seed": 0}
    run = Where(np.ones(3), np.ones((2, 4)))
    write_checkpoint(file, run, settings)
    header, arrays = read_arrays(file, "nopf checkpoint")
    found = read_checkpoint(file, Where(np.zeros(3), np.zeros((0, 4)), 0), settings)
    assert (found.step, found.best_loss, len(found.history)) == (3, np.inf, 2)
    nested = json.loads("[" * 300 + "]" * 300)
    values = [None, -7, 10**13, 1.5, float("nan"), "x", [], [99], {}, nested]
    places = [(None, name) for name in header]
    places += [(part, name) for part in ("settings", "numbers") for name in header[part]]
    for (part, name), value in itertools.product(places, values):
        changed = {name: value} if part is None else {part: header[part] | {name: value}}
        write_arrays(file, "nopf checkpoint", header | changed, arrays)
        if name == "best_loss" and isinstance(value, int | float):
            assert read_checkpoint(file, run, settings).step == 3
            continue
        with pytest.raises(FileError, match=r"run\.part: ") as raised:
            read_checkpoint(file, run, settings)
        assert "\n" not in str(raised.value)
    for wrong in (arrays["['history']"][0], np.zeros((10**13, 0)), np.ones((2, 4), bool)):
        write_arrays(file, "nopf checkpoint", header, arrays | {"['history']": wrong})
        with pytest.raises(FileError, match=r"run\.part: "):
            read_checkpoint(file, run, settings)
    write_arrays(file, "nopf checkpoint", {}, {})
    for reading in (settled_base, lambda file: read_checkpoint(file, run, settings)):
        with pytest.raises(FileError, match=r"run\.part: "):
            reading(file)


def test_interruption_returns_the_best_so_far(monkeypatch):
    interrupt_at(monkeypatch, 3)
    with pytest.warns(TrainingInterrupted, match="step 40 of 60"):
        proposal = nopf.train(models.linear(), 4, jax.random.key(0), recipe=SMALL)
    assert proposal.history[-1, 0] == 40


def test_a_base_that_is_good_already_is_kept():
    """Observations so poor that the transition is as good as any proposal."""
    model = nopf.StateSpaceModel(
        prior=nopf.Gaussian([0.0], [1.0]),
        transition=lambda x, step: x,
        process_noise=[0.01],
        observation=lambda x, step: x,
        observation_noise=[1.0],
    )
    proposal = nopf.train(model, 3, jax.random.key(0), recipe=nopf.Recipe.fast(width=8))
    assert len(proposal.history) == 1
    assert proposal.history[0, 3] > 0.999


def test_divergence_is_rolled_back_and_reported():
    wild = dataclasses.replace(SMALL, learning_rate=float("inf"))
    with pytest.raises(FloatingPointError, match="smaller learning_rate"):
        nopf.train(models.linear(), 4, jax.random.key(0), recipe=wild)
    own = Conditions(models.linear().steps(4), None, 4)
    paths = nopf.simulate(models.linear(), 4, jax.random.key(1), batch=1000)
    network = trainer.Trainer(models.linear(), own, wild, "skeleton", jax.random.key(0), paths)
    start = network.begin()
    back = network.round(start)
    assert back.failures == 1
    assert back.step == 0
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(back.network))


def half_line(y, x, step):
    """Not a number, with a gradient that is none either, for negative states."""
    return -0.5 * ((y[0] - jnp.sqrt(x[0])) / 0.3) ** 2


HALF_LINE = nopf.StateSpaceModel(
    prior=nopf.Gaussian([1.0], [0.2]),
    transition=lambda x, step: x,
    process_noise=[0.5],
    observation_log_prob=half_line,
    observation_sample=lambda key, x, step: (
        jnp.sqrt(jnp.maximum(x, 0)) + 0.3 * jax.random.normal(key, (1,))
    ),
)


def test_likelihoods_that_are_no_numbers_are_left_out_and_reported():
    with pytest.warns(UserWarning, match="not finite for up to .* % of the samples"):
        proposal = nopf.train(HALF_LINE, 3, jax.random.key(0), recipe=SMALL)
    assert all(np.isfinite(leaf).all() for leaf in leaves(proposal))
    assert proposal.history[-1, 2] < proposal.history[0, 2]


def fifty():
    return nopf.StateSpaceModel(
        prior=nopf.Gaussian(np.zeros(50), np.ones(50)),
        transition=lambda x, step: 0.9 * x,
        process_noise=np.ones(50),
        observation=lambda x, step: x,
        observation_noise=np.ones(50),
    )


def with_control():
    return models.linear(transition=lambda x, step: 0.9 * x + step.control)


@pytest.mark.parametrize(
    ("model", "horizon", "settings", "changes"),
    [
        (models.linear(), 1, {}, {}),
        pytest.param(models.linear(), 4, {}, {"missing_rate": 0.3}, marks=pytest.mark.slow),
        pytest.param(
            models.linear(),
            4,
            {},
            {"batch_norm": True, "innovations": False, "closed_form": False},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            models.linear(), 4, {}, {"base": "auto", "precision": "float64"}, marks=pytest.mark.slow
        ),
        pytest.param(
            with_control(),
            4,
            {"controls": np.ones((4, 2)), "times": [0.5, 0.7, 2.0, 2.1]},
            {},
            marks=pytest.mark.slow,
        ),
        pytest.param(fifty(), 3, {}, {"base": "auto"}, marks=pytest.mark.slow),
        pytest.param(models.unicycle(), 4, {}, {"base": "linearised"}, marks=pytest.mark.slow),
    ],
)
def test_odd_cases_train(model, horizon, settings, changes, tmp_path):
    recipe = dataclasses.replace(SMALL, **changes)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        proposal = nopf.train(model, horizon, jax.random.key(0), recipe=recipe, **settings)
    assert proposal.history[:, 2].min() <= proposal.history[0, 2]
    assert np.isfinite(proposal.history[1:]).all()
    proposal.save(tmp_path / "p.nopf")
    loaded = nopf.NeuralProposal.load(tmp_path / "p.nopf", model)
    assert same(loaded, proposal)
    path = nopf.simulate(model, horizon, jax.random.key(1), **settings)
    posterior = nopf.ParticleFilter(model, loaded, 50).run(
        path.observations, key=jax.random.key(0), **settings
    )
    assert np.isfinite(posterior.mean).all()


@pytest.mark.slow
def test_one_dimension_reaches_the_optimum():
    model = nopf.StateSpaceModel(
        prior=nopf.Gaussian([0.0], [1.0]),
        transition=lambda x, step: 0.9 * x,
        process_noise=[1.0],
        observation=lambda x, step: x,
        observation_noise=[0.5],
    )
    recipe = dataclasses.replace(SMALL, steps=600, learning_rate=0.01)
    assert nopf.train(model, 4, jax.random.key(0), recipe=recipe).history[-1, 3] > 0.99


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"base": "straight"}, "base: expected one of auto"),
        ({"width": 0}, "width: expected a whole number of at least 1, got 0"),
        ({"defensive": 1.5}, "defensive: expected a number from 0 to 1"),
    ],
)
def test_recipe_refuses(changes, words):
    with pytest.raises(ValueError, match=words):
        nopf.Recipe.fast(**changes)


def test_published_recipe():
    recipe = nopf.Recipe.paper("range-only")
    assert (recipe.width, recipe.depth, recipe.batch, recipe.samples) == (128, 6, 50, 100)
    assert recipe.steps * recipe.batch == 500 * 1000
    assert (recipe.base, recipe.defensive, recipe.learning_rate) == ("skeleton", 0.0, 1e-3)
    with pytest.raises(ValueError, match='expected "fast", "paper"'):
        nopf.train(models.linear(), 3, jax.random.key(0), recipe="slow")


def test_linearised_base_needs_additive_noise():
    recipe = dataclasses.replace(SMALL, base="linearised")
    with pytest.raises(ValueError, match="needs additive observation noise"):
        nopf.train(HALF_LINE, 3, jax.random.key(0), recipe=recipe)


@pytest.mark.slow
def test_masks_keep_the_sample_size_on_range_bearing():
    """A fifth of all entries is missing; the same proposal, with and without."""
    case = BENCHMARKS["range-bearing"]
    recipe = nopf.Recipe.fast(missing_rate=0.2)
    proposal = nopf.train(case.model, case.horizon, jax.random.key(0), recipe=recipe)
    flt = nopf.ParticleFilter(case.model, proposal, 2000)
    found = []
    for seed in range(3):
        ys = np.asarray(case.simulate(seed).observations)
        holes = np.random.default_rng(seed).random(ys.shape) < 0.2
        found.append(
            [
                float(flt.run(data, key=jax.random.key(seed)).ess.mean())
                for data in (ys, np.where(holes, np.nan, ys))
            ]
        )
    whole, masked = np.mean(found, axis=0)
    assert whole > 0.5 * 2000
    assert masked > 0.7 * whole


def test_a_fit_that_does_without_a_network_is_handed_back_as_it_is():
    # A linear observation with Gaussian noise: the linearised fit is the optimal proposal.
    model = models.linear()
    proposal = nopf.train(model, 6, jax.random.key(0))
    assert proposal.recipe.base == "linearised"
    assert proposal.adds_nothing
    assert len(proposal.history) == 1  # no gradient step was made


def test_the_last_network_is_kept_where_the_recipe_says_so():
    """With a step size that makes things worse, the best network is not the last."""
    model = models.linear()
    kept = {}
    for keep in ("best", "last"):
        recipe = nopf.Recipe.fast(
            base="skeleton",
            width=4,
            depth=1,
            steps=4,
            round=2,
            learning_rate=3.0,
            warmup=0,
            keep=keep,
        )
        kept[keep] = nopf.train(model, horizon=5, recipe=recipe, key=jax.random.key(0))
    held_out = kept["best"].history[:, 2]
    np.testing.assert_array_equal(held_out, kept["last"].history[:, 2])
    assert np.argmin(held_out) < len(held_out) - 1
    assert not same(kept["best"], kept["last"])
    assert nopf.Recipe.paper().keep == "last"
