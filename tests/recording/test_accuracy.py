"""How near estimates are to the truth."""

import equinox as eqx
import jax
import numpy as np
import pytest

import nopf
from nopf.recording import DataError, Named, accuracy, read_recording
from tests import models, recordings


def test_a_right_filter_is_as_near_as_it_says():
    """One Kalman filter on 2000 independent steps: the squared error over the variance is a mean of
    squares of normal numbers, correlated over some steps; 0.15 is about four standard errors."""
    model = models.linear()
    truth = nopf.simulate(model, 2000, jax.random.key(0))
    posterior = nopf.KalmanFilter(model).run(truth.observations)
    found = accuracy(posterior, {"x0": np.asarray(truth.states)[:, 0]})
    assert list(found) == ["x0"]
    error = np.asarray(truth.states)[:, 0] - posterior.mean[:, 0]
    assert found["x0"].rmse == pytest.approx(np.sqrt(np.mean(error**2)), rel=1e-5)
    assert abs(found["x0"].error_over_variance - 1) < 0.15
    assert found["x0"].nominal == pytest.approx(0.9)
    assert abs(found["x0"].coverage - 0.9) < 0.03
    assert found["x0"].rows == 2000


def test_angles_are_compared_around_the_circle_and_rows_without_a_truth_are_left_out():
    model = models.unicycle()
    truth = nopf.simulate(model, 12, jax.random.key(0))
    posterior = nopf.ParticleFilter(model, particles=500).run(
        truth.observations, key=jax.random.key(1)
    )
    heading = np.array(truth.states)[:, 2]
    plain = accuracy(posterior, {"heading": heading})["heading"]
    turned = accuracy(posterior, {"heading": heading + 2 * np.pi})["heading"]
    np.testing.assert_allclose(plain, turned, rtol=1e-4)
    assert plain.rmse < 1
    heading[3:] = np.nan
    assert accuracy(posterior, {"heading": heading})["heading"].rows == 3
    assert accuracy(posterior, {"heading": np.full(12, np.nan)}) == {}


def test_a_filter_that_says_it_is_exact_has_no_ratio():
    model = models.linear()
    posterior = nopf.KalmanFilter(model).run(np.zeros((3, 2)))
    sure = eqx.tree_at(lambda p: p.info.cov, posterior, np.zeros((3, 2, 2)))
    assert accuracy(sure, {"x0": np.ones(3)})["x0"].error_over_variance is None


@pytest.mark.parametrize(
    ("named", "words"),
    [
        (["place=nowhere"], "no column 'nowhere'"),
        (["altitude"], "'altitude' is none of the states place, bias"),
        (["place=gps", "place=gps"], "'place' is named twice"),
    ],
)
def test_columns_of_truth_that_are_not_there_are_named(tmp_path, named, words):
    (tmp_path / "run.csv").write_text(recordings.GOOD)
    with pytest.raises(DataError, match=words):
        read_recording(tmp_path / "run.csv", recordings.model(), Named(truth=named))
