"""Diagnostics: calibrated where the model is right, and loud where it is not."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import nopf
from nopf.benchmarks import BENCHMARKS
from tests import models

SLOW = pytest.mark.slow
FILTERS = {
    "particle": lambda model: nopf.ParticleFilter(model, particles=2000),
    "auxiliary": lambda model: nopf.AuxiliaryFilter(model, particles=2000),
    "ensemble": lambda model: nopf.EnsembleKalmanFilter(model, particles=2000),
    "kalman": lambda model: nopf.KalmanFilter(model),
}


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(
            make, id=name, marks=[] if name in ("particle", "kalman") else pytest.mark.slow
        )
        for name, make in FILTERS.items()
    ],
)
def test_p_values_are_uniform_and_drift_is_normal_if_the_model_is_right(make):
    """2000 steps in 20 series, some coordinates missing; Kolmogorov and Smirnov, false alarm 1e-3.

    Successive values of the drift share data, so one in forty is compared.
    """
    model = models.linear()
    ys = np.array(nopf.simulate(model, 100, jax.random.key(0), batch=20).observations)
    ys[:, 10:20, 1] = ys[:, 30] = np.nan
    found = make(model).run_batch(ys, key=jax.random.key(1))
    assert np.isnan(found.p_value[:, 30]).all()
    assert (np.asarray(found.drift[:, 29]) == np.asarray(found.drift[:, 30])).all()
    p_values = np.delete(np.asarray(found.p_value), 30, axis=1).ravel()
    assert scipy.stats.kstest(p_values, "uniform").pvalue > 1e-3
    drift = np.asarray(found.drift)[:, [19, 59, 99]].ravel()
    assert scipy.stats.kstest(drift, "norm").pvalue > 1e-3
    assert np.abs(np.asarray(found.drift)).max() < 4.5


@pytest.mark.slow
def test_p_values_are_uniform_with_angles():
    model = models.unicycle()
    ys = nopf.simulate(model, 50, jax.random.key(0), batch=10).observations
    flt = nopf.ParticleFilter(model, nopf.LinearisedProposal(), 500)
    found = flt.run_batch(ys, key=jax.random.key(1))
    assert scipy.stats.kstest(np.asarray(found.p_value).ravel(), "uniform").pvalue > 1e-3


def words(posterior):
    return " | ".join(posterior.warnings())


@pytest.mark.slow
def test_a_wrong_model_is_told_from_a_poor_proposal():
    right = models.unicycle()
    ys = nopf.simulate(right, 150, jax.random.key(3)).observations
    linearised = nopf.LinearisedProposal()

    def said(model, proposal, particles):
        flt = nopf.ParticleFilter(model, proposal, particles)
        return words(flt.run(ys, key=jax.random.key(0)))

    # That means are worth few draws there is true (five, over 40 runs), and may be said.
    for_right = said(right, linearised, 500)
    assert not any(text in for_right for text in ("explain", "proposal is poor", "too large"))
    # Noise half of what it is; a turn rate that is off; noise three times what it is.
    small = models.unicycle(observation_noise=[0.05, 0.05])
    assert "the model does not explain this data" in said(small, linearised, 500)
    assert "proposal is poor" not in said(small, linearised, 500)
    turning = models.unicycle(
        transition=lambda x, step: models.unicycle_transition(x, step).at[2].add(0.15)
    )
    assert "the model does not explain this data" in said(turning, linearised, 500)
    large = models.unicycle(observation_noise=[0.4, 0.4])
    assert "noise is probably too large" in said(large, linearised, 500)
    # The right model, with a blind proposal and few particles.
    sharp = models.unicycle(observation_noise=[0.002, 0.002])
    sharp_ys = nopf.simulate(sharp, 150, jax.random.key(3)).observations
    poor = words(nopf.ParticleFilter(sharp, None, 200).run(sharp_ys, key=jax.random.key(0)))
    assert "the proposal is poor" in poor
    assert "the model does not explain" not in poor
    good = nopf.ParticleFilter(sharp, linearised, 200).run(sharp_ys, key=jax.random.key(0))
    assert words(good) == ""


@pytest.mark.parametrize(
    ("proposal", "tails"),
    [
        (None, nopf.Outliers(0.05, 20.0)),
        (nopf.LinearisedProposal(), nopf.StudentT(3.0)),
        pytest.param(None, nopf.StudentT(3.0), marks=pytest.mark.slow),
        pytest.param(nopf.LinearisedProposal(), nopf.Outliers(0.05, 20.0), marks=pytest.mark.slow),
    ],
)
def test_an_outlier_of_fifty_sigma(proposal, tails):
    """No NaN, a warning that names the step, and back within ten steps with robust noise."""
    model = models.unicycle(robust=tails)
    path = nopf.simulate(models.unicycle(), 60, jax.random.key(5))
    ys = np.array(path.observations)
    ys[29, 0] += 50 * 0.1
    flt = nopf.ParticleFilter(model, proposal, 1000)
    posterior = flt.run(ys, key=jax.random.key(0))
    assert np.isfinite(posterior.mean).all()
    # Few of the bootstrap's particles may be left by it, which is said too.
    (message,) = (text for text in posterior.warnings() if "independent draws" not in text)
    assert message.startswith("step 30 (time 30): the observation is far from what the model")
    clean = flt.run(np.array(path.observations), key=jax.random.key(0))
    error, usual = (
        np.hypot(*(np.asarray(p.mean) - np.asarray(path.states))[:, :2].T)
        for p in (posterior, clean)
    )
    # Within ten steps as good as without the outlier, give or take twice the usual error.
    assert error[39:].mean() < usual[39:].mean() + 2 * np.sqrt((usual**2).mean())
    assert error[39] < 6 * np.asarray(clean.std)[39, :2].max()


def signs(**changes):
    """What a monitor looks at of an `Info`."""
    usual = {"collapsed": False, "p_value": 0.5, "nominal_p_value": 0.5, "drift": 0.0, "ess": None}
    usual |= {"cov": np.diag([4.0, 1.0]), "error": np.array([0.1, 0.1])}
    return types.SimpleNamespace(**usual | changes)


def test_a_monitor_reports_a_trouble_once_and_blames_the_right_one():
    monitor = nopf.Monitor()
    assert [monitor.look(signs(ess=500.0), t, float(t)) for t in range(1, 21)] == [[]] * 20
    (lost,) = monitor.look(signs(ess=500.0, drift=6.0), 21, 2.1)
    assert lost.startswith("step 21 (time 2.1): the model does not explain this data")
    assert monitor.look(signs(ess=500.0, drift=7.0), 22, 2.2) == []
    # One that comes and goes around its bound is one trouble; well below, it is over.
    assert monitor.look(signs(ess=500.0, drift=4.9), 23, 2.3) == []
    assert monitor.look(signs(ess=500.0, drift=5.1), 23, 2.3) == []
    assert monitor.look(signs(ess=500.0), 23, 2.3) == []
    assert "noise is probably too large" in monitor.look(signs(ess=500.0, drift=-6.0), 24, 2.4)[0]
    # An observation that is far out is named once, and so is the next after a good one.
    far = [
        monitor.look(signs(ess=500.0, nominal_p_value=p), 25, 2.5) for p in (1e-9, 1e-9, 1, 1e-9)
    ]
    assert [len(messages) for messages in far] == [1, 0, 0, 1]
    for tails, words in [
        (0.5, "it counts as an outlier"),
        (1e-9, "use robust="),
        (1e-7, "too far"),
    ]:
        far_out = signs(ess=500.0, nominal_p_value=1e-9, p_value=tails)
        assert words in nopf.Monitor().look(far_out, 26, 2.6)[0]
    zero = [monitor.look(signs(ess=500.0, collapsed=c), 30, 3.0) for c in (True, True, False, True)]
    assert [len(messages) for messages in zero] == [1, 0, 0, 1]
    poor = nopf.Monitor()
    said = [poor.look(signs(ess=3.0, drift=9.0), t, float(t)) for t in range(1, 41)]
    words = [message for messages in said[15:] for message in messages]
    assert all("does not explain" not in message for message in words)
    assert sum("the proposal is poor" in message for messages in said for message in messages) == 1
    around = [poor.look(signs(ess=e), 41, 4.1) for e in [25.0, 35.0] * 40]
    assert not any(around)
    better = [poor.look(signs(ess=200.0, drift=d), 42, 4.2) for d in [0.0] * 40 + [9.0] * 5]
    assert [len(messages) for messages in better if messages] == [1]


def test_states_that_are_poorly_known_are_named():
    monitor = nopf.Monitor(state_names=("place", "bias"))
    poor = signs(error=np.array([0.1, 0.4]))  # 100 and 6 draws
    said = [monitor.look(poor, t, float(t)) for t in range(1, 20)]
    assert [len(messages) for messages in said] == [0] * 4 + [1] + [0] * 14
    assert said[4][0].startswith(
        "step 5 (time 5): bias is known no better than by 6 independent draws of the posterior: "
        "a mean may be off by 0.4 of its standard deviation"
    )
    hurried = nopf.Monitor(state_names=("place", "bias"))
    said = [hurried.look(signs(error=np.array([0.1, 0.5])), t, float(t)) for t in range(1, 9)]
    assert [len(messages) for messages in said] == [0, 1] + [0] * 6  # 4 draws
    # Over when twice as good as that; a single poor step is none.
    for _ in range(3):
        assert monitor.look(signs(), 20, 20.0) == []
        assert monitor.look(poor, 21, 21.0) == []
    exact, unknown = signs(error=np.zeros(2)), signs(error=np.full(2, np.nan))
    assert [monitor.look(exact, 22, 22.0), monitor.look(unknown, 23, 23.0)] == [[], []]


def test_a_robot_that_passes_a_landmark_is_warned_of():
    # In the last three steps of this series bearings bend within one step's noise, and a handful of
    # particles is left, by which slow states are known from then on.
    benchmark = BENCHMARKS["range-bearing"]
    flt = benchmark.make_filter("lpf", 2000)
    posterior = flt.run(benchmark.simulate(0).observations, key=jax.random.key(0))
    said = [text for text in posterior.warnings() if "independent draws" in text]
    assert len(said) == 1
    assert "turn_bias" in said[0]
    assert int(said[0].split()[1]) > 40  # and nothing before


def test_collapse_is_reported():
    model = nopf.StateSpaceModel(
        prior=nopf.Gaussian([0.0], [1.0]),
        transition=lambda x, step: x,
        process_noise=[0.1],
        observation_log_prob=lambda y, x, step: jnp.where(jnp.abs(y - x)[0] < 1, 0.0, -jnp.inf),
        observation_sample=lambda key, x, step: x + jax.random.uniform(key, (1,), minval=-1),
    )
    ys = np.zeros((5, 1))
    ys[2] = 100.0
    posterior = nopf.ParticleFilter(model, None, 100).run(ys, key=jax.random.key(0))
    (message,) = posterior.warnings()
    assert message.startswith("step 3 (time 3): every weight was zero")
    assert np.isfinite(posterior.mean).all()
