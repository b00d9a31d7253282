"""What holds for every filter."""

import dataclasses
import pickle

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nopf
from nopf.filters.inputs import check_quantiles
from tests import models

SLOW = pytest.mark.slow
FILTERS = {
    "particle": lambda model: nopf.ParticleFilter(model, particles=64, ess_threshold=0.5),
    "auxiliary": lambda model: nopf.AuxiliaryFilter(model, particles=64),
    "ensemble": lambda model: nopf.EnsembleKalmanFilter(model, particles=64),
    "kalman": lambda model: nopf.KalmanFilter(model),
}
every_filter = pytest.mark.parametrize("make", FILTERS.values(), ids=FILTERS)
# What `Filter` does for all of them alike is tried quickly with one that is random and one that is
# not, and with the others in `make test-all`.
two_filters = pytest.mark.parametrize(
    "make",
    [
        pytest.param(
            make, id=name, marks=[] if name in ("particle", "kalman") else pytest.mark.slow
        )
        for name, make in FILTERS.items()
    ],
)


def data(horizon=7, seed=0):
    return np.array(nopf.simulate(models.linear(), horizon, jax.random.key(seed)).observations)


WITH_MEMORY = {"memory": lambda model: nopf.ParticleFilter(model, nopf.UnscentedProposal(), 64)}


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(make, id=name, marks=SLOW if name in ("auxiliary", "ensemble") else ())
        for name, make in (FILTERS | WITH_MEMORY).items()
    ],
)
def test_step_by_step_equals_run(make):
    same = np.testing.assert_array_equal  # to the last bit: both run the same compiled step
    flt = make(models.linear())
    ys = data()
    ys[2, 1] = ys[4] = np.nan
    posterior = flt.run(ys, key=jax.random.key(5))
    state = flt.init(jax.random.key(5))
    for t, y in enumerate(ys):
        state, info = flt.step(state, y)
        same(info.mean, posterior.mean[t])
        same(info.cov, posterior.cov[t])
        same(info.quantiles, posterior.quantiles[t])
        same(info.log_evidence, posterior.log_evidence_increments[t])
        if info.ess is not None:
            same(info.ess, posterior.ess[t])
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(posterior.state), strict=True):
        same(*(jax.random.key_data(x) if is_key(x) else x for x in (a, b)))


def is_key(x):
    return isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


@two_filters
def test_step_equals_run_with_times_and_controls(make):
    model = models.linear(
        transition=lambda x, step: x + step.dt * step.control + 0.01 * jnp.sin(step.time),
        process_noise=lambda step: 0.3 * jnp.sqrt(step.dt) * jnp.ones(2),
    )
    flt = make(model)
    times = 1000 + np.cumsum(np.random.default_rng(0).uniform(0.001, 0.1, 7))
    controls = np.random.default_rng(1).normal(size=(7, 2))
    ys = data()
    posterior = flt.run(ys, key=jax.random.key(5), times=times, controls=controls, start=1000.0)
    state = flt.init(jax.random.key(5), time=1000.0)
    for t in range(7):
        state, info = flt.step(state, ys[t], time=times[t], control=controls[t])
        np.testing.assert_array_equal(info.mean, posterior.mean[t])
    np.testing.assert_array_equal(posterior.times, times)
    assert state.time == times[-1]


@two_filters
def test_a_batch_equals_its_series(make):
    flt = make(models.linear())
    batch = np.stack([data(seed=s) for s in range(3)])
    together = flt.run_batch(batch, key=jax.random.key(9))
    assert together.mean.shape == (3, 7, 2)
    assert together.log_evidence.shape == (3,)
    for b, key in enumerate(jax.random.split(jax.random.key(9), 3)):
        alone = flt.run(batch[b], key=key)
        np.testing.assert_allclose(together.mean[b], alone.mean, atol=1e-5)
        np.testing.assert_allclose(together.log_evidence[b], alone.log_evidence, atol=1e-4)


@two_filters
def test_goes_on_after_a_run(make):
    flt = make(models.linear())
    ys = data()
    whole = flt.run(ys, key=jax.random.key(0))
    part = flt.run(ys[:4], key=jax.random.key(0))
    state = part.state
    for y in ys[4:]:
        state, info = flt.step(state, y)
    if hasattr(state.belief, "states"):
        np.testing.assert_array_equal(state.belief.states, whole.state.belief.states)
    np.testing.assert_array_equal(info.mean, whole.mean[-1])
    assert (state.index, state.time) == (7, 7.0)


@pytest.mark.parametrize("make", [FILTERS["particle"], FILTERS["kalman"]])
def test_works_inside_the_users_own_jit(make):
    flt = make(models.linear())
    ys = data()

    @jax.jit
    def filtered(ys):
        state, means = flt.init(jax.random.key(0)), []
        for y in ys:
            state, info = flt.step(state, y)
            means.append(info.mean)
        return jnp.stack(means)

    expected = flt.run(ys, key=jax.random.key(0)).mean
    np.testing.assert_allclose(filtered(jnp.asarray(ys)), expected, atol=1e-5)


@pytest.mark.parametrize(
    "make",
    [
        lambda model: nopf.ParticleFilter(model, nopf.LinearisedProposal(), 20),
        lambda model: nopf.AuxiliaryFilter(model, None, 20, resampling=nopf.residual),
        nopf.KalmanFilter,
    ],
)
def test_filters_and_what_they_say_can_be_pickled(make):
    """If the functions of the model can: those here are a module's."""
    flt = make(models.linear())
    ys = data()
    posterior = flt.run(ys[:5], key=jax.random.key(0))
    again, kept = pickle.loads(pickle.dumps((flt, posterior.info)))
    np.testing.assert_array_equal(again.run(ys[:5], key=jax.random.key(0)).mean, kept.mean)
    without_keys = eqx.tree_at(lambda p: p.state, posterior, None)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(without_keys)).mean, posterior.mean)
    assert pickle.loads(pickle.dumps(flt.model)).state_names == flt.model.state_names


def test_health_can_be_switched_off():
    model, ys = models.linear(), data()
    for make in FILTERS.values():
        plain = make(model)
        quiet = dataclasses.replace(plain, health=False)
        found, same = (flt.run(ys, key=jax.random.key(0)) for flt in (quiet, plain))
        assert np.isnan(found.p_value).all()
        assert np.isnan(found.drift).all()
        assert np.isfinite(same.p_value).all()
        np.testing.assert_allclose(found.mean, same.mean, atol=1e-6)


class Compilations:
    """Counts what XLA compiles in a `with` block."""

    def __enter__(self):
        self.count = 0
        jax.monitoring.register_event_duration_secs_listener(self._listen)
        return self

    def __exit__(self, *_):
        jax.monitoring.unregister_event_duration_listener(self._listen)

    def _listen(self, event, duration, **_):
        self.count += event == "/jax/core/compile/backend_compile_duration"


@two_filters
def test_compiles_once(make):
    traces = []

    def transition(x, step):
        traces.append(1)
        return models.linear_transition(x, step)

    flt = make(models.linear(transition=transition))
    series = [data(seed=s) for s in range(11)]
    key = jax.random.key(0)
    before = len(traces)
    with Compilations() as first:
        flt.run(series[0], key=key)
    assert first.count >= 1  # the counter counts
    assert len(traces) > before
    traced = len(traces)
    with Compilations() as later:
        for ys in series[1:]:
            flt.run(ys, key=key)
        # A series of another length, a step and what follows a run are the same program.
        first = flt.run(series[0][:3], key=key)
        flt.resume(first.state, series[0][3:])
        state = flt.init(jax.random.key(1))
        for y in series[0]:
            state, _ = flt.step(state, y)
    assert later.count == 0
    assert len(traces) == traced


@two_filters
def test_another_filter_object_of_the_same_kind_compiles_nothing_new(make):
    model = models.linear()
    make(model).run(data(), key=jax.random.key(0))
    with Compilations() as again:
        make(model).run(data(seed=1), key=jax.random.key(1))
    assert again.count == 0


@every_filter
@pytest.mark.parametrize(
    ("ys", "error", "message"),
    [
        (np.zeros((5, 3)), ValueError, r"ys: expected shape \(time, 2\).*got \(5, 3\)"),
        (np.zeros(5), ValueError, r"ys: expected shape \(time, 2\).*got \(5,\)"),
        (np.zeros((0, 2)), ValueError, "ys: expected at least one observation"),
        (np.zeros((5, 2), int), TypeError, r"ys: expected floating-point.*np.asarray\(ys, float\)"),
        ([[1.0, np.inf]], ValueError, r"inf at position \(0, 1\)"),
    ],
)
def test_refuses_bad_observations(make, ys, error, message):
    with pytest.raises(error, match=message):
        make(models.linear()).run(ys, key=jax.random.key(0))


@every_filter
def test_refuses_bad_steps(make):
    flt = make(models.linear())
    state = flt.init(jax.random.key(0))
    with pytest.raises(ValueError, match=r"y: expected shape \(2,\).*got \(3,\)"):
        flt.step(state, np.zeros(3))
    state, _ = flt.step(state, np.zeros(2), time=5.0)
    with pytest.raises(ValueError, match="step 2 is at 4 and step 1 at 5"):
        flt.step(state, np.zeros(2), time=4.0)
    with pytest.raises(ValueError, match=r"controls: expected shape \(3, u\)"):
        flt.run(np.zeros((3, 2)), key=jax.random.key(0), controls=np.zeros((2, 1)))


@pytest.mark.parametrize("name", ["particle", "ensemble"])
def test_random_filters_need_a_key(name):
    flt = FILTERS[name](models.linear())
    for call in (lambda: flt.init(), lambda: flt.run(data())):
        with pytest.raises(TypeError, match="key: expected a random key"):
            call()


@two_filters
def test_masked_entries_are_missing(make):
    flt = make(models.linear())
    ys = data()
    masked = np.ma.masked_array(ys, mask=np.eye(7, 2, dtype=bool))
    missing = np.where(np.eye(7, 2, dtype=bool), np.nan, ys)
    a, b = (flt.run(y, key=jax.random.key(0)).mean for y in (masked, missing))
    np.testing.assert_array_equal(a, b)


def test_a_clock_that_does_not_start_at_zero_needs_a_start():
    flt = nopf.KalmanFilter(models.linear())
    clock = 1.7e9 + np.arange(7.0)
    with pytest.raises(ValueError, match="pass start=, the prior's time"):
        flt.run(data(), times=clock)
    early = flt.run(data(), times=clock, start=1.7e9 - 1)
    np.testing.assert_array_equal(early.mean, flt.run(data()).mean)
    with pytest.raises(ValueError, match="start: expected a finite number"):
        flt.run(data(), times=clock, start=float("nan"))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda flt, state: flt.run(data(1), times=[1.7e9]), "times: .* pass start="),
        (lambda flt, state: flt.step(state, data(1)[0], time=1.7e9), "time: .* time= to init"),
        (lambda flt, state: flt.resume(state, data(1), times=[1.7e9]), "times: .* time= to init"),
        (lambda flt, state: flt.resume(state, data(2), times=[1.7e9] * 2), "times: .* to init"),
    ],
)
def test_a_first_observation_alone_at_epoch_time_is_refused_too(call, message):
    flt = nopf.KalmanFilter(models.linear(dt=3600.0))
    with pytest.raises(ValueError, match=f"^{message}.* prior's time$"):
        call(flt, flt.init())


def test_a_late_first_observation_is_taken_as_it_is_where_the_prior_has_a_time():
    """The steps are those of the longer case; nothing is compiled but one step."""
    flt, late = nopf.KalmanFilter(models.linear()), 1e4
    assert flt.model.steps(1, [1.7e9], start=0.0).dt == 1.7e9
    assert flt.model.steps(1, [late]).dt == late
    assert flt.step(flt.init(time=1.7e9 - late), data(1)[0], time=1.7e9)[0].time == 1.7e9


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"particles": 2**31}, "particles: expected at most 2147483647"),
        (
            {"resampling": lambda key, log_weights: jnp.arange(log_weights.size) + 1},
            "resampling: expected indices from 0 to 31 for 32 particles, got 32",
        ),
        (
            {"resampling": lambda key, log_weights: jnp.arange(log_weights.size) - 1},
            "resampling: expected indices from 0 to 31 for 32 particles, got -1",
        ),
    ],
)
def test_refuses_bad_settings(settings, message):
    with pytest.raises((TypeError, ValueError), match=f"^{message}"):
        nopf.ParticleFilter(models.linear(), **settings)


@pytest.mark.parametrize("levels", [None, "0.5", ("0.5",), (True,)])
def test_refuses_quantiles_that_are_no_numbers(levels):
    with pytest.raises(TypeError, match=r"^quantiles: expected numbers, got "):
        check_quantiles(levels)


@pytest.mark.parametrize(
    "resampling",
    [
        lambda key, log_weights: jnp.sort(jax.random.categorical(key, log_weights, shape=(32,))),
        lambda key, log_weights: jnp.arange(1000),  # of a thousand particles and no other number
        lambda key, log_weights: log_weights.no_such_thing,  # will be said when it is used
    ],
)
def test_a_trial_of_resampling_looks_for_indices_out_of_range_only(resampling):
    assert nopf.AuxiliaryFilter(models.linear(), resampling=resampling).resampling is resampling


@pytest.mark.parametrize(
    ("of", "to", "message"),
    [
        ("particle", "kalman", "its belief is Particles and not GaussianBelief"),
        ("kalman", "particle", "its belief is GaussianBelief and not Particles"),
        ("particle", "ensemble", "its belief is Particles and not Ensemble"),
        (
            "fewer",
            "particle",
            r"its states should be of shape \(64, 2\), and is of shape \(32, 2\)",
        ),
        ("wider", "kalman", r"its mean should be of shape \(2,\), and is of shape \(3,\)"),
    ],
)
def test_refuses_the_state_of_another_filter(of, to, message):
    others = {
        "fewer": lambda model: nopf.ParticleFilter(model, particles=32),
        "wider": lambda model: nopf.KalmanFilter(three_states()),
    }
    state = (FILTERS | others)[of](models.linear()).init(jax.random.key(0))
    flt = FILTERS[to](models.linear())
    for call in (lambda: flt.step(state, np.zeros(2)), lambda: flt.resume(state, data(2))):
        with pytest.raises(ValueError, match=f"^state: expected one of this filter, but {message}"):
            call()


def three_states():
    return nopf.StateSpaceModel(
        nopf.Gaussian(np.zeros(3), 1.0), lambda x, step: x, 1.0, lambda x, step: x[:2], 1.0
    )
