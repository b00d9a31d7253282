"""Ranks of truths among posterior draws.

A case of d states fails by chance once in a thousand times: each p-value is held to 0.001 / d. Keys
are fixed.
"""

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import nopf
from nopf.benchmarks import BENCHMARKS
from nopf.filters.calibration import DRAWS
from tests import models

FALSE_ALARMS = 1e-3


def assert_uniform(found):
    assert np.all(found.p_value > FALSE_ALARMS / len(found.state_names)), f"\n{found}"


def of_uniforms(*places):
    """Ranks of truths that lie at these quantiles of their posteriors."""
    ranks = np.minimum((DRAWS + 1) * np.stack(places, axis=1), DRAWS).astype(int)
    return nopf.Calibration(tuple(f"x{i}" for i in range(len(places))), ranks)


def test_what_shapes_mean():
    even = (np.arange(300) + 0.5) / 300
    normal = scipy.stats.norm.ppf(even)
    cdf = scipy.stats.norm.cdf
    found = of_uniforms(
        even,
        cdf(2 * normal),
        cdf(20 * normal),
        cdf(normal / 2),
        cdf(normal - 0.5),
        cdf(normal + 9),
        np.where(even < 0.5, 0.21, 0.79),
    )
    assert found.verdicts == (
        "calibrated",
        "too certain: the truth falls outside of the middle 90 % in 41 % of series",
        "too certain: the truth falls outside of the middle 90 % in 93 % of series",
        "too vague: the truth falls outside of the middle 90 % in 0 % of series",
        "shifted: the truth is below the posterior's median in 69 % of series",
        "shifted: the truth is above the posterior's median in 100 % of series",
        "uneven: some ranks come too often, with 0 % of series outside of the middle 90 %",
    )
    assert found.is_calibrated.tolist() == [True] + 6 * [False]
    assert found.histogram[:, 0].tolist() == 10 * [30]
    assert found.coverage[0] == 0.9


def test_p_values_of_uniform_ranks_are_uniform():
    """By Kolmogorov and Smirnov with 2000 p-values: one that is off by 4 % would be seen. A false
    alarm in a thousand."""
    ranks = np.random.default_rng(0).integers(0, DRAWS + 1, (200, 2000))
    found = nopf.Calibration(tuple(map(str, range(2000))), ranks)
    assert scipy.stats.kstest(found.p_value, "uniform").pvalue > FALSE_ALARMS
    assert np.all(np.abs(found.shape.std(axis=1) - 1) < 4 / np.sqrt(2 * 2000))


@functools.cache
def kalman(**changes):
    """Ranks of a Kalman filter with another model than the truth's, if there are changes."""
    flt = nopf.KalmanFilter(models.linear(**{name: list(v) for name, v in changes.items()}), 200)
    said = []
    found = nopf.calibration(
        flt,
        8,
        jax.random.key(0),
        series=300,
        model=models.linear(),
        tell=lambda *counts: said.append(counts),
    )
    assert said == [(0, 300), (300, 300)]
    return found


def test_the_kalman_filter_is_calibrated():
    found = kalman()
    assert found.ranks.shape == (300, 2)
    assert_uniform(found)
    assert found.verdicts == ("calibrated", "calibrated")
    # Ranks of independent series: the two states have the correlation of the posterior, but the
    # ranks of one series say nothing of the next.
    assert abs(scipy.stats.spearmanr(found.ranks[1:, 0], found.ranks[:-1, 0]).statistic) < 0.2


def test_a_kalman_filter_with_too_little_process_noise_is_too_certain():
    found = kalman(process_noise=(0.2, 0.4 / 3))
    assert all(verdict.startswith("too certain: ") for verdict in found.verdicts)
    assert np.all(found.coverage < 0.75)


def test_a_kalman_filter_with_too_much_observation_noise_is_too_vague():
    found = kalman(observation_noise=(2.1, 1.5))
    assert found.verdicts[0].startswith("too vague: ")
    assert found.coverage[0] > 0.95


def turning(x, step):
    """Driven by its controls; the last state is known exactly."""
    speed, turn = step.control
    px, py, heading, _ = x
    moved = [px + speed * jnp.cos(heading), py + speed * jnp.sin(heading), heading + turn]
    return jnp.stack([*moved, jnp.sin(step.time / 3)])


def controlled():
    return models.unicycle(
        prior=nopf.Gaussian([0.0, 0.0, 3.0, 0.0], [0.2, 0.2, 0.3, 1.0]),
        transition=turning,
        process_noise=[0.05, 0.05, 0.2, 0.0],
        observation=lambda x, step: models.unicycle_observation(x[:3], step),
        state_names=("x", "y", "heading", "known"),
    )


CONTROLS = np.stack([np.full(8, 0.3), np.linspace(0.1, 0.6, 8)], axis=1)


def test_angles_controls_and_states_that_are_known_exactly():
    """The heading is on either side of ±π in most of the series; the last state is the same in all
    particles, so that its rank is a matter of chance."""
    flt = nopf.ParticleFilter(controlled(), None, 1000, quantiles=(), health=False)
    found = nopf.calibration(flt, 8, jax.random.key(1), series=250, controls=CONTROLS)
    assert_uniform(found)


HIDDEN = np.zeros((8, 2), bool)
HIDDEN[::2, 0] = HIDDEN[3:5] = True
ODD_MODELS = {
    "controls": (controlled(), {"controls": CONTROLS}),
    "missing": (models.unicycle(), {"missing": HIDDEN}),
    "robust": (models.unicycle(robust=nopf.StudentT(3.0)), {}),
}
PROPOSALS = {
    "bpf": (nopf.ParticleFilter, None),
    "lpf": (nopf.ParticleFilter, nopf.LinearisedProposal()),
    "alpf": (nopf.AuxiliaryFilter, nopf.LinearisedProposal()),
}


@pytest.mark.slow
@pytest.mark.parametrize("short", PROPOSALS)
@pytest.mark.parametrize("name", ODD_MODELS)
def test_filters_are_calibrated(name, short):
    (model, given), (kind, proposal) = ODD_MODELS[name], PROPOSALS[short]
    flt = kind(model, proposal, 1000, quantiles=(), health=False)
    assert_uniform(nopf.calibration(flt, 8, jax.random.key(2), series=200, **given))


def on_benchmark(name, short):
    benchmark, proposal = BENCHMARKS[name], None
    if short == "nopf":  # However good it is, the weights make the answer right.
        recipe = nopf.Recipe(steps=50)
        with warnings.catch_warnings(action="ignore"):  # that training was brief
            proposal = nopf.train(benchmark.model, 10, jax.random.key(0), recipe=recipe)
    flt = benchmark.make_filter(short, 2000, proposal)
    return nopf.calibration(flt, 10, jax.random.key(3), series=150)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "short"),
    [
        *(("sensor-bias", short) for short in ("kf", "bpf", "lpf", "alpf", "mlpf", "nopf")),
        *(("range-only", short) for short in ("alpf", "mlpf")),
        *(("range-bearing", short) for short in ("lpf", "alpf", "mlpf", "nopf")),
        ("unordered-range", "mlpf"),
    ],
)
def test_filters_are_calibrated_on_the_benchmarks(name, short):
    """With 2000 particles, which are enough for these (benchmarks/calibration.py)."""
    assert_uniform(on_benchmark(name, short))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["range-only", "range-bearing", "unordered-range"])
def test_a_bootstrap_filter_with_too_few_particles_is_too_certain(name):
    found = on_benchmark(name, "bpf")
    assert any(verdict.startswith("too certain") for verdict in found.verdicts)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"series": 0}, "series: expected at least 1"),
        ({"missing": [True]}, r"missing: expected shape \(4, 2\), got \(1,\)"),
        ({"model": models.unicycle()}, "model: expected the states of the filter's, x0, x1, got x"),
    ],
)
def test_wrong_arguments_are_named(wrong, words):
    right = {"flt": nopf.KalmanFilter(models.linear()), "horizon": 4, "key": jax.random.key(0)}
    with pytest.raises((TypeError, ValueError), match=words):
        nopf.calibration(**(right | wrong))
