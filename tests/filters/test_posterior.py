import sys

import jax
import jax.numpy as jnp
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


def test_a_verdict_sums_up_the_warnings():
    """A right model, one measurement that is far off, measurements that another model made, and one
    that is impossible."""
    model = models.linear()
    ys = np.array(nopf.simulate(model, 40, jax.random.key(3)).observations)
    verdicts = []
    for k, spoilt in enumerate([ys, ys.copy(), ys + 30 * (np.arange(40) > 20)[:, None]]):
        if k == 1:
            spoilt[20, 0] += 9
        verdicts.append(nopf.KalmanFilter(model).run(spoilt).verdict)
    assert verdicts == ["trust it", "look here", "do not trust it"]
    assert nopf.KalmanFilter(model).run(np.full((5, 2), np.nan)).verdict == "look here"
    never = nopf.StateSpaceModel(
        prior=nopf.Gaussian([0.0], [1.0]),
        transition=lambda x, step: x,
        process_noise=[0.1],
        observation_log_prob=lambda y, x, step: jnp.where(y[0] > 5, -jnp.inf, 0.0),
        observation_sample=lambda key, x, step: x,
    )
    flt = nopf.ParticleFilter(never, particles=50)
    assert flt.run([[1.0], [9.0]], key=jax.random.key(0)).verdict == "do not trust it"


def test_to_arviz_has_draws_by_their_weights():
    model = models.unicycle(state_names=("x", "y", "heading"), observation_names=("range", "side"))
    ys = np.array(nopf.simulate(model, 4, jax.random.key(0)).observations)
    ys[2, 1] = np.nan
    flt = nopf.ParticleFilter(model, particles=200)
    posterior = flt.run(ys, key=jax.random.key(0), keep="particles")
    tree = posterior.to_arviz(5e3)
    assert set(tree.children) == {"posterior", "observed_data"}
    states = tree["posterior"].dataset
    assert states["heading"].dims == ("chain", "draw", "time")
    assert dict(states.sizes) == {"chain": 1, "draw": 5000, "time": 4}
    np.testing.assert_array_equal(tree["observed_data"]["side"], posterior.observations[:, 1])
    # Means of the draws are those of the weighted particles, and nothing else was drawn.
    np.testing.assert_allclose(states["x"].mean(("chain", "draw")), posterior.mean[:, 0], atol=2e-3)
    assert set(states["y"].values[0, :, 1].tolist()) <= set(
        np.asarray(posterior.particles)[1, :, 1].tolist()
    )
    assert posterior.to_arviz()["posterior"].sizes["draw"] == 200
    with pytest.raises(ValueError, match="to_arviz: the particles are needed"):
        flt.run(ys, key=jax.random.key(0)).to_arviz()
    smoothed = flt.smooth(posterior, key=jax.random.key(1), trajectories=7)
    np.testing.assert_array_equal(
        smoothed.to_arviz()["posterior"]["y"].values[0], smoothed.trajectories[:, :, 1]
    )
    assert repr(smoothed) == "Smoothed: 4 steps, 3 states, 7 trajectories"


def test_to_arviz_says_what_is_missing(monkeypatch):
    flt = nopf.KalmanFilter(models.linear())
    posterior = flt.run(np.zeros((2, 2)), key=jax.random.key(0), keep="particles")
    with pytest.raises(ValueError, match="to_arviz: there are no trajectories"):
        flt.smooth(posterior).to_arviz()
    monkeypatch.setitem(sys.modules, "xarray", None)
    with pytest.raises(ImportError, match=r"install it with: pip install 'nopf\[tables\]'"):
        posterior.to_arviz()
