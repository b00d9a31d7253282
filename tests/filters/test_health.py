"""Diagnostics: calibrated where the model is right, and loud where it is not."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import nopf
from nopf.benchmarks import BENCHMARKS
from nopf.filters.health import judge_among
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
    assert "the model does not explain this data" in said(small, linearised, 4000)
    assert "proposal is poor" not in said(small, linearised, 4000)
    turning = models.unicycle(
        transition=lambda x, step: models.unicycle_transition(x, step).at[2].add(0.15)
    )
    assert "the model does not explain this data" in said(turning, linearised, 4000)
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
    (message,) = (text for text in posterior.warnings() if "independent draw" not in text)
    assert message.startswith("step 30 (time 30): the observation is far from what was predicted")
    assert "y0 by" in message
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
    usual |= {"cov": np.diag([4.0, 1.0]), "error": np.array([0.1, 0.1]), "innovation": np.zeros(2)}
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
    said = [monitor.look(signs(ess=500.0, drift=-6.0), t, 0.1 * t) for t in range(24, 50)]
    (vague,) = (text for texts in said for text in texts)
    assert "noise is probably too large" in vague
    # An observation that is far out is named, but not the next time, nor the one after that.
    far = [
        monitor.look(signs(ess=500.0, nominal_p_value=p), 25, 2.5) for p in (1e-9, 1e-9, 1, 1e-9)
    ]
    assert [len(messages) for messages in far] == [1, 0, 0, 0]
    assert [text[:7] for text in monitor.summary()] == ["step 21", "step 34", "3 of 55"]
    for p_value, tails, words in [
        (0.5, nopf.StudentT(4), "it counts as an outlier"),
        (1e-9, None, "use robust="),
        (1e-9, nopf.StudentT(4), "too far"),  # of a filter that has no other p-value
        (1e-7, nopf.StudentT(4), "too far"),
    ]:
        far_out = signs(ess=500.0, nominal_p_value=1e-9, p_value=p_value)
        assert words in nopf.Monitor(tails=tails).look(far_out, 26, 2.6)[0]
    zero = [monitor.look(signs(ess=500.0, collapsed=c), 30, 3.0) for c in (True, True, False, True)]
    assert [len(messages) for messages in zero] == [1, 0, 0, 0]
    poor = nopf.Monitor()
    drifts = [0.0] * 15 + [9.0] * 25
    said = [poor.look(signs(ess=3.0, drift=d), t, float(t)) for t, d in enumerate(drifts, 1)]
    words = [message for messages in said for message in messages]
    assert all("does not explain" not in message for message in words)
    assert sum("the proposal is poor" in message for messages in said for message in messages) == 1
    around = [poor.look(signs(ess=e), 41, 4.1) for e in [25.0, 35.0] * 40]
    assert not any(around)
    drifts = [0.0] * 45 + [9.0] * 5
    better = [poor.look(signs(ess=200.0, drift=d), t, 0.1 * t) for t, d in enumerate(drifts, 42)]
    assert [len(messages) for messages in better if messages] == [1]


def test_states_that_are_poorly_known_are_named():
    monitor = nopf.Monitor(state_names=("place", "bias"))
    poor = signs(error=np.array([0.1, 0.4]))  # 100 and 6 draws
    said = [monitor.look(poor, t, float(t)) for t in range(1, 20)]
    assert [len(messages) for messages in said] == [0] * 4 + [1] + [0] * 14
    assert said[4][0].startswith(
        "step 5 (time 5): the mean of bias is worth only 6 independent draws of the posterior, and "
        "may be off by 0.4 posterior standard deviations"
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
    said = [text for text in posterior.warnings() if "independent draw" in text]
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


def test_what_comes_back_is_summed_up():
    tails = nopf.Outliers(0.05, 10.0)
    monitor = nopf.Monitor(tails=tails, observation_names=("left", "right"))
    every = []
    for t in range(1, 201):
        far = t % 20 == 0
        innovation = np.array([0.0, 9.0 if far else 0.1])
        now = signs(nominal_p_value=1e-9 if far else 0.5, innovation=innovation)
        every += monitor.begun(now, t, float(t))
    assert len(every) == 10
    assert "right by 9 standard deviations" in every[0][0]
    # Said the first time and the tenth.
    assert [said is not None for _, said in every] == [True] + [False] * 8 + [True]
    assert every[-1][1].endswith("(this is the 10th time)")
    # Beyond five standard deviations are 0.05 * P(|10 z| > 5.26) of them, in two coordinates.
    outliers = 200 * (1 - (1 - 0.05 * 2 * scipy.stats.norm.sf(0.526)) ** 2)
    assert monitor.summary() == [
        "10 of 200 rows had an outlier, the first at step 20 (time 20), most often right; about "
        f"{outliers:.0f} were to be expected"
    ]


def test_outliers_that_are_too_many_are_said_to_be():
    monitor = nopf.Monitor(tails=nopf.Outliers(0.001, 10.0))
    for t in range(1, 201):
        monitor.look(signs(nominal_p_value=1e-9 if t % 5 == 0 else 0.5), t, float(t))
    (line,) = monitor.summary()
    assert line.startswith("40 of 200 rows had an outlier")
    assert "only about 0 were to be expected: either outliers are more frequent" in line


@pytest.mark.parametrize(
    ("shared", "size", "drift", "expected"),
    [
        (0.0, 1.0, 0.0, []),
        (0.8, 1.3, 3.0, ["persist"]),
        (0.0, 0.4, -8.0, ["too large"]),
        (0.35, 0.4, -8.0, ["too large"]),  # as of noise four times too large
        (0.9, 0.4, -8.0, ["persist"]),  # as in recordings: never the advice to trust them more
    ],
)
def test_errors_that_last_are_told_from_noise(shared, size, drift, expected):
    """Innovations of two sensors with a correlation from step to step, 400 of them."""
    noise = np.random.default_rng(0).normal(size=(400, 2))
    values = noise.copy()
    for t in range(1, 400):
        values[t] = shared * values[t - 1] + np.sqrt(1 - shared**2) * noise[t]
    monitor = nopf.Monitor(observation_names=("left", "right"))
    for t, value in enumerate(values, start=1):
        monitor.look(signs(ess=500.0, drift=drift, innovation=size * value), t, float(t))
    said = monitor.summary()
    assert [word for word in ("persist", "too large") if word in " ".join(said)] == expected
    assert len(said) == len(expected)


def test_few_particles_are_not_blamed_on_the_model():
    monitor = nopf.Monitor()
    for t in range(1, 21):
        assert monitor.look(signs(ess=500.0), t, float(t)) == []
    (thin,) = monitor.look(signs(ess=2.0), 21, 21.0)
    assert "only 2 particles left" in thin
    said = [
        text
        for t in range(22, 50)
        for text in monitor.look(signs(ess=500.0, drift=min(9.0, t - 22.0)), t, float(t))
    ]
    assert len(said) == 1
    assert "the particles have probably lost the state" in said[0]
    # That is over, and forty steps later the model may be blamed.
    said = [
        text
        for t in range(50, 120)
        for text in monitor.look(signs(ess=500.0, drift=0.0 if t < 110 else 9.0), t, float(t))
    ]
    assert monitor.summary()[1].count("lost the state") == 1
    assert not said  # The second time of the same kind.
    other = nopf.Monitor()
    assert "the model does not explain" in other.look(signs(ess=500.0, drift=9.0), 1, 1.0)[0]


@pytest.mark.slow
def test_a_tracker_by_bearings_that_collapses_does_not_blame_the_model():
    """Data of the model itself, N = 1000: in half of the runs the particles lose the target, which
    is said in each of them, and nothing of the model in any."""
    model = nopf.StateSpaceModel(
        prior=nopf.Gaussian([-0.05, 0.001, 0.7, -0.055], [0.5, 0.005, 0.3, 0.01]),
        transition=lambda x, step: jnp.stack([x[0] + x[1], x[1], x[2] + x[3], x[3]]),
        process_noise=[0.0005, 0.001, 0.0005, 0.001],
        observation=lambda x, step: jnp.arctan2(x[2], x[0])[None],
        observation_noise=[0.005],
        observation_angles=[0],
    )
    flt = nopf.ParticleFilter(model, particles=1000)
    collapses = 0
    for seed in range(20):
        ys = nopf.simulate(model, 100, jax.random.key(seed)).observations
        posterior = flt.run(ys, key=jax.random.key(100 + seed))
        said = words(posterior)
        assert not any(text in said for text in ("does not explain", "persist", "too large"))
        if posterior.log_evidence < 0:
            collapses += 1
            assert "have probably lost the state" in said
    assert collapses > 3


def discrete(name):
    """Bernoulli or Poisson observations of a state that wanders, or a count beside a number."""

    def log_prob(y, x, step):
        if name == "bernoulli":
            return jax.nn.log_sigmoid((2 * y[0] - 1) * (x[0] - 2))
        counted = jax.scipy.stats.poisson.logpmf(y[0], 0.3 * jnp.exp(x[0]))
        return counted + (jax.scipy.stats.norm.logpdf(y[1], x[0], 0.5) if name == "mixed" else 0)

    def sample(key, x, step):
        if name == "bernoulli":
            return jax.random.bernoulli(key, jax.nn.sigmoid(x[0] - 2), (1,)).astype(float)
        count = jax.random.poisson(key, 0.3 * jnp.exp(x[0]), (1,)).astype(float)
        seen = x + 0.5 * jax.random.normal(jax.random.fold_in(key, 1), (1,))
        return jnp.concatenate([count, seen]) if name == "mixed" else count

    return nopf.StateSpaceModel(
        prior=nopf.Gaussian([0.0], [1.0]),
        transition=lambda x, step: 0.95 * x,
        process_noise=[0.3],
        observation_log_prob=log_prob,
        observation_sample=sample,
    )


@pytest.mark.parametrize("name", ["bernoulli", "poisson", "mixed"])
def test_discrete_observations_have_uniform_p_values_and_normal_innovations(name):
    """2000 steps in 20 series; Kolmogorov and Smirnov, false alarm 1e-3, and no warning."""
    model = discrete(name)
    ys = nopf.simulate(model, 100, jax.random.key(0), batch=20).observations
    found = nopf.ParticleFilter(model, particles=500).run_batch(ys, key=jax.random.key(1))
    p_values, innovations = np.asarray(found.p_value), np.asarray(found.innovation)
    assert scipy.stats.kstest(p_values.ravel(), "uniform").pvalue > 1e-3
    for innovation in np.moveaxis(innovations, -1, 0):
        assert scipy.stats.kstest(innovation.ravel(), "norm").pvalue > 1e-3
    drift = np.asarray(found.drift)[:, [19, 59, 99]].ravel()
    assert scipy.stats.kstest(drift, "norm").pvalue > 1e-3
    assert np.abs(np.asarray(found.drift)).max() < 4.5


def test_a_count_that_cannot_be_is_far():
    model = discrete("poisson")
    ys = np.array(nopf.simulate(model, 30, jax.random.key(0)).observations)
    ys[20] = 60.0
    said = nopf.ParticleFilter(model, particles=500).run(ys, key=jax.random.key(1)).warnings()
    assert any(
        text.startswith("step 21") and "far from what was predicted" in text for text in said
    )


def judged(y, predicted):
    """Of draws of a model with so many observations; those of the model itself do not matter."""
    width = len(y)
    return judge_among(wide(width), jax.random.key(1), jnp.asarray(y), jnp.asarray(predicted))


def wide(width):
    return nopf.StateSpaceModel(
        transition=lambda x, step: x,
        observation=lambda x, step: jnp.ones(width) * x[0],
        process_noise=1.0,
        observation_noise=1.0,
        prior=nopf.Gaussian([0.0], [1.0]),
    )


@pytest.mark.parametrize("width", [2, 40])
def test_draws_that_are_not_finite_are_left_out(width):
    rng = np.random.default_rng(0)
    predicted, y = rng.normal(size=(127, width)), np.zeros(width)
    y[1] = 50.0
    clean = judged(y, predicted[1:])
    predicted[0, 0] = -np.inf
    found = judged(y, predicted)
    assert found.p_value < 1e-10
    np.testing.assert_allclose(found.innovation, clean.innovation, rtol=1e-5)
    assert np.isnan(judged(y, np.full((127, width), np.nan)).p_value)


@pytest.mark.parametrize("far", [30.0, 1e4])
def test_innovations_are_in_standard_deviations_however_far(far):
    predicted = np.random.default_rng(0).normal(size=(127, 2))
    # The spread of 127 draws is known to about 6 %.
    np.testing.assert_allclose(judged([0.0, far], predicted).innovation[1], far, rtol=0.25)


def test_one_sensor_of_many_that_is_far_off_is_told():
    rng = np.random.default_rng(0)
    y = np.zeros(40)
    y[7] = 30.0
    assert judged(y, rng.normal(size=(127, 40))).p_value < 1e-10
    # If all go together, one standard deviation of all is nothing.
    together = np.repeat(rng.normal(size=(127, 1)), 40, axis=1)
    assert judged(np.ones(40), together).p_value > 0.05


def test_a_filter_that_cannot_recover_is_not_told_to():
    ys = np.repeat(np.concatenate([np.zeros(20), np.full(30, 40.0)])[:, None], 2, axis=1)
    flt = nopf.EnsembleKalmanFilter(models.linear(), 200)
    (lost,) = [w for w in flt.run(ys, key=jax.random.key(0)).warnings() if "does not explain" in w]
    assert "recover=" not in lost


@pytest.mark.parametrize(
    ("arguments", "words"),
    [({"p_value": 0.0}, "p_value: expected"), ({"drift": -5.0}, "drift: expected")],
)
def test_a_monitor_names_what_is_wrong(arguments, words):
    with pytest.raises(ValueError, match=words):
        nopf.Monitor(**arguments)
