"""Coordinates far from zero in single precision: a warning where noise is lost in rounding."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nopf
from nopf.benchmarks import BENCHMARKS
from nopf.filters.precision import warn_if_too_coarse

NORTH = 5_000_000.0  # single precision has a number every 0.5 there


def gps(at=(0.0, 0.0), **changes):
    """A walker of constant velocity, seen by GPS: position and velocity, east and north."""
    settings = {
        "prior": nopf.Gaussian([*at, 0.0, 0.0], [10.0, 10.0, 1.0, 1.0]),
        "transition": lambda x, step: jnp.concatenate([x[:2] + x[2:], x[2:]]),
        "process_noise": [0.3, 0.3, 0.2, 0.2],
        "observation": lambda x, step: x[:2],
        "observation_noise": [2.0, 2.0],
        "state_names": ("east", "north", "v_east", "v_north"),
        "observation_names": ("gps_east", "gps_north"),
    }
    return nopf.StateSpaceModel(**(settings | changes))


def said(model, ys):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_if_too_coarse(model, np.asarray(ys, np.float32))
    return [str(warning.message) for warning in caught]


def test_noise_that_rounding_swallows_is_named_with_where_and_what_to_do():
    (message,) = said(gps((500.0, NORTH)), [[500.0, NORTH]])
    assert message.startswith(
        "process_noise: the standard deviation 0.3 of north is hardly resolved at 5000000, where "
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
