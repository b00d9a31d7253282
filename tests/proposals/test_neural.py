"""The neural proposal against densities worked out independently, and against Kalman."""

import dataclasses
import itertools
import json
import time
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
import scipy.stats

import nopf
from nopf.benchmarks import sensor_bias
from nopf.files import FileError, _checksum, read_arrays, write_arrays
from nopf.proposals.fingerprint import differences, fingerprint
from nopf.proposals.network import SOFTPLUS_ONE
from nopf.proposals.neural import untrained
from nopf.proposals.seen import pattern_of
from tests import models
from tests.filters.test_particle import standard_errors_from_one

STEP = nopf.Step(jnp.asarray(1), jnp.asarray(1.0), jnp.asarray(1.0))


def scrambled(model, scale=0.3, seed=0, **recipe):
    """A proposal with random weights."""
    recipe = nopf.Recipe.fast(**{"base": "skeleton", "width": 8} | recipe)
    steps = model.steps(5)
    proposal = untrained(fingerprint(model, None), recipe, steps, jax.random.key(seed))
    leaves, structure = jax.tree.flatten(proposal.network)
    keys = jax.random.split(jax.random.key(seed + 1), len(leaves))
    noisy = [a + scale * jax.random.normal(k, a.shape) for a, k in zip(leaves, keys, strict=True)]
    return dataclasses.replace(proposal, network=jax.tree.unflatten(structure, noisy))


@pytest.mark.parametrize("share", [pytest.param(0.0, marks=pytest.mark.slow), 0.4])
@pytest.mark.parametrize(
    ("base", "model"),
    [
        ("skeleton", models.unicycle()),
        ("linearised", models.linear(full=True)),
        pytest.param("skeleton", models.linear(full=True), marks=pytest.mark.slow),
        pytest.param("linearised", models.unicycle(), marks=pytest.mark.slow),
    ],
)
def test_weight_is_likelihood_times_transition_over_mixture(model, base, share):
    proposal = scrambled(model, base=base, defensive=share)
    path = nopf.simulate(model, 1, jax.random.key(3))
    ancestor, y = path.initial_state, path.observations[0]
    predicted = np.asarray(model.skeleton(ancestor, STEP), np.float64)
    process = np.asarray(model.process_noise_at(STEP).covariance, np.float64)
    root = np.linalg.cholesky(process)

    @jax.jit
    def place(white):
        return proposal.law(model, ancestor, y, STEP).place(white)[0]

    jacobian = root @ np.asarray(jax.jit(jax.jacfwd(place))(jnp.zeros(len(root))), np.float64)
    mean = predicted + root @ np.asarray(place(jnp.zeros(len(root))), np.float64)
    moves = models.move_copies(proposal, jax.random.key(0), model, ancestor, y, STEP, 10)
    for state, log_weight in zip(moves.state, moves.log_weight, strict=True):

        def density(at, centre, covariance, state=state):
            apart = model.space.difference(state, jnp.asarray(centre, jnp.float32))
            return at.logpdf(np.asarray(apart, np.float64), np.zeros(len(root)), covariance)

        normal = scipy.stats.multivariate_normal
        log_q = density(normal, mean, jacobian @ jacobian.T)
        log_p = density(normal, predicted, process)
        mixed = np.logaddexp(np.log1p(-share) + log_q, np.log(share) + log_p) if share else log_q
        expected = float(model.log_likelihood(y, state, STEP)) + log_p - mixed
        np.testing.assert_allclose(log_weight, expected, atol=2e-3, rtol=1e-4)


@pytest.mark.parametrize(("share", "components"), [(0.0, 1), (0.01, 1), (0.3, 1), (0.1, 3)])
def test_moving_all_together_is_unbiased(share, components):
    """Mean weight over 40 000 moves of one ancestor is p(y | ancestor); |z| < 4: false alarm 6e-5.

    The network is wrong: too narrow and off centre.
    """
    model = models.linear()
    objective = "inclusive" if components > 1 else "exclusive"
    recipe = {"components": components, "objective": objective, "defensive": share}
    proposal = scrambled(model, **recipe)
    x, y = jnp.array([0.5, 0.2]), jnp.array([0.3, -0.6])
    move = models.move_copies(proposal, jax.random.key(0), model, x, y, STEP, 40_000)
    h = np.asarray(jax.jacfwd(lambda x: model.observation(x, STEP))(x), np.float64)
    noise = np.diag([0.7, 0.5]) ** 2 + h @ np.diag([0.6, 0.4]) ** 2 @ h.T
    centre = h @ np.asarray(model.skeleton(x, STEP), np.float64)
    exact = scipy.stats.multivariate_normal.logpdf(np.asarray(y), centre, noise)
    ratios = np.exp(np.asarray(move.log_weight, np.float64) - exact)
    assert abs(standard_errors_from_one(ratios)) < 4
    if share:  # bounded by what the transition's weights are bounded by
        bound = scipy.stats.multivariate_normal.logpdf([0, 0], [0, 0], np.diag([0.7, 0.5]) ** 2)
        assert move.log_weight.max() <= bound - np.log(share) + 1e-3


def test_moving_all_together_weighs_each_by_its_own_ancestor():
    model, share, n = models.unicycle(), 0.5, 40
    proposal = scrambled(model, defensive=share)
    path = nopf.simulate(model, 1, jax.random.key(3), batch=n)
    ancestors, y = path.initial_state, path.observations[0, 0]
    move = models.move(proposal, jax.random.key(0), model, ancestors, y, STEP)

    def expected(ancestor, state):
        process = model.process_noise_at(STEP)
        z = process.whiten(model.space.difference(state, model.skeleton(ancestor, STEP)))
        ratio = proposal.law(model, ancestor, y, STEP).log_ratio(z)
        mixed = jnp.logaddexp(jnp.log(1 - share) + ratio, jnp.log(share))
        return model.log_likelihood(y, state, STEP) - mixed

    np.testing.assert_allclose(
        move.log_weight, jax.jit(jax.vmap(expected))(ancestors, move.state), rtol=1e-3, atol=5e-3
    )


@pytest.mark.slow
def test_angles_may_be_shifted_by_whole_turns():
    model = models.unicycle()
    proposal = scrambled(model)
    x, y = jnp.array([0.1, 0.2, 3.0]), jnp.array([2.0, -3.1])
    turn = 2 * np.pi
    with jax.enable_x64(True):
        proposal = jax.tree.map(lambda a: jnp.asarray(a, jnp.float64), proposal)
        key = jax.random.key(0)
        moves = [
            models.move_one(proposal, key, model, jnp.asarray(a), jnp.asarray(b), STEP)
            for a, b in [(x, y), (x + turn * np.array([0, 0, 1]), y - turn * np.array([0, 1]))]
        ]
    np.testing.assert_allclose(moves[0].state, moves[1].state, atol=1e-6)
    np.testing.assert_allclose(moves[0].log_weight, moves[1].log_weight, atol=1e-4)


@pytest.mark.parametrize(("masks", "y", "uses_network"), [
    (0.0, [np.nan, np.nan], False),
    (0.0, [0.5, np.nan], False),
    (0.5, [0.5, np.nan], True),
    (0.5, [np.nan, np.nan], False),
])  # fmt: skip
def test_missing_observations(masks, y, uses_network):
    model = models.linear()
    proposal = scrambled(model, missing_rate=masks, defensive=0.0)
    x, y = jnp.array([0.5, 0.2]), jnp.array(y)
    move = models.move_one(proposal, jax.random.key(0), model, x, y, STEP)
    blind = abs(float(move.log_weight - model.log_likelihood(y, move.state, STEP))) < 1e-5
    assert blind != uses_network
    assert np.isfinite(move.log_weight)


def test_a_broken_network_is_the_bootstrap_filter():
    model = models.linear()
    proposal = scrambled(model, defensive=0.0)
    broken = eqx.tree_at(lambda p: p.network.first.bias, proposal, jnp.full(8, jnp.nan))
    x, y = jnp.array([0.5, 0.2]), jnp.array([0.3, -0.6])
    move = models.move_one(broken, jax.random.key(0), model, x, y, STEP)
    np.testing.assert_allclose(
        move.log_weight, model.log_likelihood(y, move.state, STEP), rtol=1e-5
    )


def test_batch_norm_folds_into_the_weights():
    model = models.linear()
    proposal = scrambled(model, 0.2, batch_norm=True, depth=2)
    network = proposal.network
    variances = [jnp.abs(norm.variance) + 0.5 for norm in network.norms]
    network = eqx.tree_at(lambda n: [norm.variance for norm in n.norms], network, variances)
    features = jax.random.normal(jax.random.key(0), (network.first.weight.shape[0],))
    h = network.first(features)
    for i in range(0, 4, 2):
        for j, rectify in ((i, True), (i + 1, False)):
            norm, start = network.norms[j], h if rectify else u
            value = network.hidden[j](start)
            value = norm.scale * (value - norm.mean) / jnp.sqrt(norm.variance + 1e-5) + norm.shift
            u = jax.nn.relu(value) if rectify else value
        h = jax.nn.relu(h + u)
    (mean, diagonal, below, _), _ = network.folded()([features])
    entries = network.factor_head(h)
    np.testing.assert_allclose(mean, network.mean_head(h), rtol=1e-4, atol=1e-5)
    softplus = jax.nn.softplus(entries[:2] + SOFTPLUS_ONE)
    np.testing.assert_allclose(diagonal, softplus, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(below, entries[2:], rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def trained():
    recipe = nopf.Recipe.fast(base="skeleton", width=16, steps=300)
    return nopf.train(models.linear(), 6, jax.random.key(0), recipe=recipe)


def proposal_for_sensor_bias(which):
    """A good one, also with masks, one with random weights, or one trained for another model."""
    model = sensor_bias.model
    if which == "untrained":
        return scrambled(model, scale=0.15)
    if which == "elsewhere":
        model = nopf.StateSpaceModel(
            prior=model.prior,
            transition=sensor_bias.transition,
            process_noise=[0.07, 0.15, 0.12],
            observation=sensor_bias.observation,
            observation_noise=[0.15, 0.15],
            state_names=model.state_names,
            dt=0.1,
        )
    rate = 0.2 if which == "masks" else 0.0
    recipe = nopf.Recipe.fast(base="skeleton", width=16, steps=200, missing_rate=rate)
    return nopf.train(model, 6, jax.random.key(0), recipe=recipe)


@pytest.mark.parametrize(
    "which",
    [
        "untrained",
        pytest.param("trained", marks=pytest.mark.slow),
        pytest.param("masks", marks=pytest.mark.slow),
        pytest.param("elsewhere", marks=pytest.mark.slow),
    ],
)
def test_evidence_is_unbiased_whatever_the_network(which):
    """On sensor-bias, against Kalman: 200 runs of 1000 particles on six observations.

    |z| < 3: a false alarm of 0.3 % a case.
    """
    model, proposal = sensor_bias.model, proposal_for_sensor_bias(which)
    ys = np.array(nopf.simulate(model, 6, jax.random.key(42)).observations)
    ys[2] = ys[4, 1] = np.nan
    assert proposal.features.masks == (which == "masks")
    flt = nopf.ParticleFilter(model, proposal, 1000)
    found = flt.run_batch(np.broadcast_to(ys, (200, *ys.shape)), key=jax.random.key(7))
    exact = nopf.KalmanFilter(model).run(ys)
    ratios = np.exp(np.asarray(found.log_evidence - exact.log_evidence, np.float64))
    assert ratios.std() < 0.7  # so that a bias of 15 % would be seen
    assert abs(standard_errors_from_one(ratios)) < 3


def test_training_reaches_the_optimum(trained):
    assert trained.history[-1, 3] > 0.98
    quality = nopf.quality(trained, models.linear(), jax.random.key(1))
    assert quality.ess_fraction.shape == (6,)
    assert quality.fraction_of_limit.mean() > 0.95
    assert abs(quality.kl_gap.mean()) < 0.02
    poor = nopf.quality(scrambled(models.linear()), models.linear(), jax.random.key(1))
    assert poor.fraction_of_limit.mean() < 0.9
    assert poor.kl_gap.mean() > 0.1
    assert "locally optimal limit" in str(quality)


def test_filters_refuse_a_proposal_of_another_shape(trained):
    with pytest.raises(ValueError, match="another shape: state_names"):
        nopf.ParticleFilter(models.unicycle(), trained, 10)


def test_file_gives_back_the_same_filter(trained, tmp_path):
    model, path = models.linear(), tmp_path / "robot.nopf"
    trained.save(path)
    loaded = nopf.NeuralProposal.load(path, model)
    ys = nopf.simulate(model, 6, jax.random.key(1)).observations
    first, second = (
        nopf.ParticleFilter(model, p, 100).run(ys, key=jax.random.key(2)) for p in (trained, loaded)
    )
    np.testing.assert_array_equal(first.mean, second.mean)
    assert loaded.recipe == trained.recipe
    np.testing.assert_array_equal(loaded.history, trained.history)
    assert [p.name for p in tmp_path.iterdir()] == ["robot.nopf"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"observation_noise": [0.7, 0.6]}, r"observation_noise was \[0.7, 0.5\], is \[0.7, 0.6\]"),
        ({"transition": lambda x, step: 0.9 * x}, "transition gives other numbers"),
        ({"state_names": ("a", "b")}, r"state_names was \['x0', 'x1'\]"),
    ],
)
def test_load_says_what_differs(trained, tmp_path, changes, words):
    trained.save(tmp_path / "robot.nopf")
    with pytest.raises(ValueError, match=words):
        nopf.NeuralProposal.load(tmp_path / "robot.nopf", models.linear(**changes))
    nopf.NeuralProposal.load(tmp_path / "robot.nopf")


def test_commands_that_change_over_time_are_part_of_a_model():
    def driven(rate):
        return models.linear(transition=lambda x, step: x + jnp.sin(rate * (step.index - 1)))

    first, same, other = (fingerprint(driven(rate), None) for rate in (0.3, 0.3, 0.5))
    assert differences(first, same) == []
    assert differences(first, other)[0] == "transition gives other numbers at the same test points"


def test_damaged_files_are_refused(trained, tmp_path):
    path = tmp_path / "robot.nopf"
    trained.save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="damaged or of another kind"):
        nopf.NeuralProposal.load(path)
    path.write_bytes(b"\x80\x04\x95 not ours")
    with pytest.raises(ValueError, match="damaged or of another kind"):
        nopf.NeuralProposal.load(path)
    path.write_bytes(whole[:-5] + b"\x00\x01\x02\x03\x04")
    with pytest.raises(ValueError, match="changed after it was written"):
        nopf.NeuralProposal.load(path)
    header = json.dumps({"version": "1"})[1:-1].replace(": ", ":").encode()
    path.write_bytes(whole.replace(header, header.replace(b"1", b"9")))
    with pytest.raises(ValueError, match="format 9"):
        nopf.NeuralProposal.load(path)
    with pytest.raises(FileNotFoundError, match="no such file"):
        nopf.NeuralProposal.load(tmp_path / "none.nopf")
    with pytest.raises(FileNotFoundError, match="folder"):
        trained.save(tmp_path / "nowhere" / "robot.nopf")


NESTED = json.loads("[" * 300 + "]" * 300)
BAD = [None, -1, 0, 10**13, 1.5, float("nan"), float("inf"), "x", [], [99], {}, NESTED, True]
# What these say matters to training only, or to the comparison with a model.
UNUSED = {
    *("closed_form", "samples", "batch", "round", "steps", "patience", "learning_rate"),
    *("warmup", "clip", "dt", "process_noise", "prior", "transition"),
    *("observation_noise", "observation", "likelihood"),
}


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """Header and arrays of a file, with all that there can be in it."""
    file = tmp_path_factory.mktemp("kept") / "robot.nopf"
    model = models.unicycle()
    recipe = nopf.Recipe.fast(base="linearised", width=4, components=1)
    identity = fingerprint(model, None) | {"noise_size": model.noise_size}
    untrained(identity, recipe, model.steps(5), jax.random.key(0), pattern_of(model)).save(file)
    return read_arrays(file, "nopf proposal")


def outcome(file, seconds=10.0):
    """What loading says, and soon: one line that names the file, or nothing."""
    started, said = time.perf_counter(), ""
    try:
        nopf.NeuralProposal.load(file)
    except FileError as error:
        said = str(error)
        assert said.startswith(f"{file}: ")
        assert "\n" not in said
        assert len(said) < 1000
    assert time.perf_counter() - started < seconds
    return said


def test_a_header_that_does_not_fit_is_refused(kept, tmp_path, monkeypatch):
    """Each of its fields in turn is something else; the checksum is right."""
    monkeypatch.delenv("XLA_FLAGS", raising=False)  # as for users: nopf says how to compile
    header, arrays = kept
    file, accepted = tmp_path / "robot.nopf", []
    write_arrays(file, "nopf proposal", header, arrays)
    assert outcome(file, 60) == ""
    places = [(None, name) for name in header]
    places += [(part, name) for part in ("recipe", "model") for name in header[part]]
    assert len(places) > 35
    for (part, name), value in itertools.product(places, BAD):
        changed = {name: value} if part is None else {part: header[part] | {name: value}}
        write_arrays(file, "nopf proposal", header | changed, arrays)
        if not outcome(file):
            accepted.append((part, name, value))
    for part, name, value in accepted:
        same = value == (header if part is None else header[part])[name]
        none_will_do = value is None and name in ("components", "pattern", "pairs")
        free = name in UNUSED or (part, name) == ("recipe", "name")
        assert same or none_will_do or free, (part, name, value)
    assert {name for _, name, _ in accepted} >= UNUSED  # those are not refused for fun
    for pairs in [[[0, 0]], [[0, 1]], [[1, 0], [1, 0]], [[9, 1]], [[1]], [[1, 0, 0]], [["a", 0]]]:
        write_arrays(file, "nopf proposal", header | {"pairs": pairs}, arrays)
        assert "pairs" in outcome(file)
    for name in header.keys() - {"pattern", "pairs"}:
        content = {key: value for key, value in header.items() if key != name}
        write_arrays(file, "nopf proposal", content, arrays)
        assert name in outcome(file)


def test_arrays_that_do_not_fit_are_refused(kept, tmp_path):
    header, arrays = kept
    file = tmp_path / "robot.nopf"
    for name, array in arrays.items():
        empty = np.zeros((10**13, 0), array.dtype)
        for wrong in (array[:-1] if array.size else empty, array[None], array.astype(bool), empty):
            write_arrays(file, "nopf proposal", header, arrays | {name: wrong})
            assert outcome(file), (name, wrong.shape, wrong.dtype)
        rest = {key: value for key, value in arrays.items() if key != name}
        write_arrays(file, "nopf proposal", header, rest)
        assert outcome(file), name


def test_a_small_file_asks_for_nothing_large(kept, tmp_path):
    """Headers and arrays that agree on what would take minutes, and brackets without end."""
    header, arrays = kept
    file = tmp_path / "robot.nopf"
    width = 40_000
    wide = arrays | {".network.first.bias": np.zeros(width, np.float32)}
    recipe = header["recipe"] | {"width": width}
    write_arrays(file, "nopf proposal", header | {"recipe": recipe}, wide)
    assert "shape" in outcome(file)
    many = 30_000
    model = header["model"] | {"noise_size": many}
    for pattern in (None, [[]] * many, [[0]] * many):
        write_arrays(file, "nopf proposal", header | {"model": model, "pattern": pattern}, arrays)
        assert "shape" in outcome(file)
    recipe = header["recipe"] | {"depth": 10**5}
    write_arrays(file, "nopf proposal", header | {"recipe": recipe}, arrays)
    assert "depth: expected at most" in outcome(file)
    for text in ("[" * 200_000, '{"recipe":' + "[" * 200_000, "7", "null"):
        checksum = _checksum(text, arrays)
        metadata = {"kind": "nopf proposal", "version": "1", "header": text, "checksum": checksum}
        file.write_bytes(safetensors.numpy.save(arrays, metadata))
        assert "the header is not readable" in outcome(file)


def test_an_idle_network_is_left_out():
    """Untrained on the linearised fit: the filter is LPF's, particle by particle."""
    model = models.unicycle()
    recipe = nopf.Recipe.fast(base="linearised", width=8, defensive=0.0)
    steps, pattern = model.steps(5), pattern_of(model)
    idle = untrained(fingerprint(model, None), recipe, steps, jax.random.key(0), pattern)
    assert idle.adds_nothing
    assert nopf.ParticleFilter(model, idle, 10).proposal.idle
    assert not scrambled(model, base="linearised").adds_nothing
    ys = nopf.simulate(model, 5, jax.random.key(1)).observations
    plain = nopf.LinearisedProposal(defensive=0.0)
    found, expected = (
        nopf.ParticleFilter(model, proposal, 50).run(ys, key=jax.random.key(2))
        for proposal in (idle, plain)
    )
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-5, atol=1e-6)


def test_a_file_of_0_1_0_is_what_it_was():
    """Mean and factor at one state, as 0.1.0 gave them for this file."""
    model = sensor_bias.model
    file = Path(__file__).parents[1] / "data" / "sensor-bias-0.1.0.nopf"
    proposal = nopf.NeuralProposal.load(file, model)
    x, y = jnp.array([1.0, 0.2, -0.1]), jnp.array([1.1, 0.3])
    law = proposal.law(model, x, y, model.nominal_step())
    root = np.asarray(jax.vmap(law.factor.colour)(jnp.eye(3))).T
    np.testing.assert_allclose(law.mean, [0.400970, 0.679632, 0.679632], rtol=1e-4)
    diagonal = np.logaddexp(0, SOFTPLUS_ONE + np.array([-0.348076, -0.273434, -0.349314]))
    np.testing.assert_allclose(np.diagonal(root), diagonal, rtol=1e-4)
    below = [root[1, 0], root[2, 0], root[2, 1]]
    np.testing.assert_allclose(below, [-0.00392981, -0.00392981, -0.306751], rtol=1e-3)
    ys = nopf.simulate(model, 20, jax.random.key(1)).observations
    learned, plain = (
        nopf.ParticleFilter(model, how, 500).run(ys, key=jax.random.key(2)).ess.mean()
        for how in (proposal, None)
    )
    assert learned > 1.5 * plain
