import jax
import numpy as np
import pytest

import nopf
from tests import models

xarray = pytest.importorskip("xarray", reason="xarray is in the tables extra")


@pytest.mark.parametrize("batch", [False, True])
def test_to_xarray_has_names_times_and_all_numbers(batch):
    model = models.unicycle()
    ys = nopf.simulate(model, 4, jax.random.key(0)).observations
    flt = nopf.ParticleFilter(model, particles=8, quantiles=(0.25, 0.75))
    if batch:
        posterior = flt.run_batch(ys[None], key=jax.random.key(0), keep="particles")
    else:
        posterior = flt.run(ys, key=jax.random.key(0), keep="particles")
    table = posterior.to_xarray()
    assert table["mean"].dims == (("series",) if batch else ()) + ("time", "state")
    assert list(table.coords["state"].values) == ["x", "y", "heading"]
    np.testing.assert_array_equal(table.coords["time"], [1, 2, 3, 4])
    upper = table["quantiles"].sel(quantile=0.75, state="heading").values
    np.testing.assert_array_equal(upper, posterior.quantiles[..., 1, 2])
    np.testing.assert_array_equal(table["std"], posterior.std)
    np.testing.assert_array_equal(table["log_evidence"], posterior.log_evidence)
    np.testing.assert_array_equal(
        table["particles"].isel(particle=3), posterior.particles[..., 3, :]
    )


def test_filters_without_weights_have_no_ess_column():
    table = nopf.KalmanFilter(models.linear()).run(np.zeros((2, 2))).to_xarray()
    assert "ess" not in table
    assert "particles" not in table
