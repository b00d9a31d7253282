"""Coordinates far from zero in single precision: a warning where noise is lost in rounding, and an
origin to count from."""

import warnings

import jax
import numpy as np
import pytest

import nopf
from nopf.arguments import check_origin
from nopf.benchmarks import BENCHMARKS
from nopf.filters.precision import warn_if_too_coarse
from tests import geo
from tests.filters.test_particle import standard_errors_from_one
from tests.geo import EAST, NORTH

gps = geo.models()["make"]


def said(model, ys):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_if_too_coarse(model, np.asarray(ys, np.float32))
    return [str(warning.message) for warning in caught]


def test_noise_that_rounding_swallows_is_named_with_where_and_what_to_do():
    (message,) = said(gps((500.0, NORTH)), [[500.0, NORTH]])
    assert message.startswith(
        "process_noise: the standard deviation 0.1 of north is hardly resolved at 5000000, where "
        "numbers in single precision are 0.5 apart (also gps_north)"
    )
    for remedy in ("origin=", "nopf filter --double", 'jax.config.update("jax_enable_x64", True)'):
        assert remedy in message


@pytest.mark.parametrize(
    ("changes", "at", "named"),
    [
        ({}, 0.0, None),
        ({"process_noise": [4.0, 4.0, 0.2, 0.2], "observation_noise": [4.0, 4.0]}, NORTH, None),
        ({"process_noise": [3.9, 4.0, 0.2, 0.2], "observation_noise": [4.0, 4.0]}, NORTH, "east"),
        ({"process_noise": lambda step: 3.9 * np.ones(4), "observation_noise": 4.0}, NORTH, "east"),
        ({"process_noise": lambda x, step: 4 * np.ones(4), "observation_noise": 4.0}, NORTH, None),
        ({"process_noise": np.diag([16.0, 15, 1, 1]), "observation_noise": 4.0}, NORTH, "north"),
        # What has no noise cannot lose it; what the next step adds drowns a prior that is sharp.
        ({"process_noise": [0.0, 0.0, 0.2, 0.2], "observation_noise": 4.0}, NORTH, None),
        ({"prior": nopf.Gaussian([1.0] * 4, [1e-9] * 4)}, 0.0, None),
        (
            {"prior": nopf.Gaussian([1.0] * 4, [1e-9] * 4), "process_noise": [0.0, 1, 1, 1]},
            0.0,
            "prior: the standard deviation 1e-09 of east",
        ),
        (
            {
                "prior": nopf.GaussianMixture(
                    [0.5, 0.5], [[0.0] * 4, [0, 0, 0, NORTH]], [10.0, 10, 1, 1]
                )
            },
            0.0,
            "of v_north",
        ),
        ({"observation_noise": [[9.0, 0.0], [0.0, 9.0]], "process_noise": 4.0}, NORTH, "gps_east"),
    ],
)
def test_eight_spacings_are_enough(changes, at, named):
    settings = {"prior": nopf.Gaussian([at, at, 0, 0], [10.0, 10, 1, 1])} | changes
    messages = said(gps(**settings), [[np.nan, np.nan], [at, at]])
    assert len(messages) == (named is not None)
    assert named is None or named in messages[0]


def test_double_precision_resolves_it():
    with jax.enable_x64(True):
        warn_if_too_coarse(gps((0.0, NORTH)), np.array([[0.0, NORTH]]))


@pytest.mark.parametrize("name", BENCHMARKS)
def test_benchmarks_are_near_enough_to_zero(name):
    case = BENCHMARKS[name]
    warn_if_too_coarse(case.model, np.asarray(case.simulate(0).observations))
    if case.model.observation_noise is not None:  # and the check sees their noise
        assert said(case.model, np.full((1, case.model.observation_space.size), 1e12))


def test_every_way_in_warns_once():
    model = gps()
    flt, far = nopf.KalmanFilter(model), np.array([[0.0, NORTH]])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        flt.run(far)
        flt.run_batch(far[None])
        state, _ = flt.step(flt.init(), far[0])
        flt.step(state, far[0])  # Only the first of a stream is looked at.
    assert ["of gps_north is hardly resolved" in str(warning.message) for warning in caught] == [
        True
    ] * 3


def test_with_an_origin_single_precision_gives_kalmans_answer():
    ys = geo.recording()
    mean, std, evidence = geo.kalman(ys)
    found = nopf.KalmanFilter(geo.models()["near"]).run(ys)  # warnings are errors
    np.testing.assert_allclose(found.mean, mean, rtol=0, atol=2e-5)
    np.testing.assert_allclose(found.std, std, rtol=1e-5)
    np.testing.assert_allclose(found.log_evidence, evidence, rtol=1e-5)
    with pytest.warns(UserWarning, match="of north is hardly resolved"):
        lost = nopf.KalmanFilter(geo.models()["far"]).run(ys)
    assert abs(lost.log_evidence - evidence) > 1


def test_particles_with_an_origin_are_right_within_monte_carlo_error():
    """48 numbers in their own standard errors of 64 runs, bound 5: false alarm 3e-4. Evidence: 3 of
    its standard errors, false alarm 3e-3."""
    ys, runs = geo.recording()[:12], 64
    mean, std, evidence = geo.kalman(ys)
    flt = nopf.ParticleFilter(geo.models()["near"], nopf.LinearisedProposal(), 500)
    found = flt.run_batch(np.broadcast_to(ys, (runs, *ys.shape)), key=jax.random.key(3))
    error = found.mean.mean(0) - mean
    assert np.all(np.abs(error) < 5 * found.mean.std(0, ddof=1) / np.sqrt(runs) + 0.02 * std)
    np.testing.assert_allclose(np.sqrt(np.mean(found.std**2, axis=0)), std, rtol=0.1)
    ratios = np.exp(np.asarray(found.log_evidence, np.float64) - evidence)
    assert abs(standard_errors_from_one(ratios)) < 3


def test_an_origin_changes_nothing_but_where_coordinates_are_counted_from():
    place, seen = np.array([EAST, NORTH, 0, 0]), np.array([EAST, NORTH])
    near, plain = (
        nopf.ParticleFilter(model, particles=100) for model in (geo.models()["near"], gps())
    )
    ys, key = geo.recording(8).astype(np.float64), jax.random.key(1)
    ys = (ys - seen).astype(np.float32) + seen  # so that both round to the same

    def same(found, wanted, shift=0.0):
        np.testing.assert_allclose(found, np.asarray(wanted, np.float64) + shift, atol=2e-9, rtol=0)

    one, two = (
        near.run(ys, key=key, keep="particles"),
        plain.run(ys - seen, key=key, keep="particles"),
    )
    same(one.mean, two.mean, place)
    same(one.quantiles, two.quantiles, place)
    same(one.particles, two.particles, place)
    same(one.observations, ys)
    same(one.cov, two.cov)
    same(one.log_evidence, two.log_evidence)
    state = near.init(key)
    for t in range(2):
        state, info = near.step(state, ys[t])
        same(info.mean, one.mean[t])
        same(info.quantiles, one.quantiles[t])
    same(near.forecast(one, 3).mean, plain.forecast(two, 3).mean, place)
    smooth = [f.smooth(p, key=key, trajectories=20) for f, p in ((near, one), (plain, two))]
    same(smooth[0].mean, smooth[1].mean, place)
    same(smooth[0].trajectories, smooth[1].trajectories, place)
    exact = [nopf.KalmanFilter(f.model) for f in (near, plain)]
    smooth = [f.smooth(f.run(y)) for f, y in zip(exact, (ys, ys - seen), strict=True)]
    same(smooth[0].mean, smooth[1].mean, place)
    paths = [nopf.simulate(f.model, 8, key, batch=2) for f in (near, plain)]
    same(paths[0].states, paths[1].states, place)
    same(paths[0].observations, paths[1].observations, seen)
    begun = nopf.simulate(near.model, 1, key, initial_state=place + 0.25)
    same(begun.initial_state, place, 0.25)


def test_a_traced_run_is_shifted_too():
    near, ys = nopf.KalmanFilter(geo.models()["near"]), geo.recording(3)
    mean = jax.jit(lambda ys: near.run(ys).mean)(ys.astype(np.float32))
    np.testing.assert_allclose(mean, near.run(ys.astype(np.float32)).mean, rtol=1e-6)


def test_a_prior_that_is_not_counted_from_the_origin_is_warned_of():
    (message,) = said(gps((EAST, NORTH), origin={"north": NORTH}), [[EAST, NORTH]])
    assert "of north is hardly resolved at 5000000 from its origin" in message


@pytest.mark.parametrize(
    ("origin", "words"),
    [
        (
            {"nort": NORTH},
            "origin: unknown name 'nort'; expected one of east, north, v_east, v_north, gps",
        ),
        ({"north": np.inf}, r"origin\['north'\]: expected a finite number, got inf"),
        ({"v_east": 1.0}, "origin: 'v_east' is an angle, which is counted from zero"),
    ],
)
def test_origins_that_are_none(origin, words):
    with pytest.raises((TypeError, ValueError), match=words):
        gps(origin=origin, state_angles=("v_east",))
    with pytest.raises(TypeError, match="origin: expected numbers by the names of states"):
        check_origin([EAST, NORTH], ("east", "north"), (), ("east", "north"))
