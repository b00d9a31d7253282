"""What a posterior looks like: in a line, a table, a plot and on a map."""

import jax
import matplotlib as mpl
import numpy as np
import pytest
from matplotlib import pyplot

import nopf
from nopf.arguments import positive_integer
from tests import models

mpl.use("agg")


@pytest.fixture(scope="module")
def driven():
    """A robot whose heading crosses ±π, and its estimate."""
    model = nopf.StateSpaceModel(
        prior=nopf.Gaussian([0.0, 0.0, 3.0], [0.1, 0.1, 0.1]),
        transition=lambda x, step: [
            x[0] + 0.1 * jax.numpy.cos(x[2]),
            x[1] + 0.1 * jax.numpy.sin(x[2]),
            x[2] + 0.05,
        ],
        process_noise=[0.02, 0.02, 0.02],
        observation=lambda x, step: x[:2],
        observation_noise=[0.1, 0.1],
        state_names=("x", "y", "heading"),
        state_angles=("heading",),
    )
    truth = nopf.simulate(model, 40, jax.random.key(0))
    flt = nopf.ParticleFilter(model, particles=2e2)
    return flt.run(truth.observations, key=jax.random.key(1)), truth, flt


@pytest.fixture(autouse=True)
def closed():
    yield
    pyplot.close("all")


def test_a_posterior_in_one_line(driven):
    posterior, truth, flt = driven
    ess = round(float(posterior.ess.mean()))
    found = len(posterior.warnings())
    words = {0: "no warnings", 1: "1 warning"}.get(found, f"{found} warnings")
    assert repr(posterior) == f"Posterior: 40 steps, 3 states, mean ESS {ess} of 200, {words}"
    batch = flt.run_batch(np.stack([truth.observations] * 2), key=jax.random.key(1))
    assert repr(batch).startswith("Posterior: 2 series, 40 steps, 3 states, mean ESS ")
    exact = nopf.KalmanFilter(models.linear()).run(np.zeros((3, 2)))
    assert repr(exact).startswith(f"Posterior: 3 steps, {exact.mean.shape[1]} states, ")
    assert "ESS" not in repr(exact)


def test_a_table_has_the_columns_of_the_command(driven):
    posterior = driven[0]
    frame = posterior.to_dataframe()
    assert list(frame)[:6] == ["time", "x_mean", "x_std", "x_q05", "x_q50", "x_q95"]
    np.testing.assert_allclose(frame["heading_mean"], posterior.mean[:, 2])
    np.testing.assert_allclose(frame["y_q95"], posterior.quantiles[:, 2, 1])
    np.testing.assert_allclose(frame["ess"], posterior.ess)
    assert frame["log_evidence"].sum() == pytest.approx(float(posterior.log_evidence), rel=1e-5)


def test_a_plot_has_a_panel_a_state(driven):
    posterior, truth, _ = driven
    axes = posterior.plot(truth)
    assert [panel.get_ylabel() for panel in axes] == ["x", "y", "heading", "ESS"]
    mean, true = (line.get_ydata() for line in axes[2].lines)
    np.testing.assert_allclose(np.asarray(axes[0].lines[1].get_ydata()), truth.states[:, 0])
    # The heading goes on beyond π, and so does the truth beside it.
    assert mean.max() > np.pi
    assert np.abs(mean - true).max() < 1
    np.testing.assert_allclose(axes[3].lines[0].get_ydata(), posterior.ess)
    with pytest.raises(ValueError, match=r"truth: expected shape \(40, 3\), got \(39, 3\)"):
        posterior.plot(truth.states[:-1])


def test_a_map_has_path_ellipses_and_landmarks(driven):
    posterior, truth, _ = driven
    panel = posterior.plot_map(truth=truth, landmarks=[[1.0, 2.0]])
    assert (panel.get_xlabel(), panel.get_ylabel()) == ("x", "y")
    lines = {line.get_label(): line.get_xydata() for line in panel.lines}
    np.testing.assert_allclose(lines["mean"], posterior.mean[:, :2])
    np.testing.assert_allclose(lines["truth"], truth.states[:, :2])
    np.testing.assert_allclose(lines["landmarks"], [[1.0, 2.0]])
    np.testing.assert_allclose(lines["end"][0], posterior.mean[-1, :2])
    around = lines["90 % ellipse"] - posterior.mean[0, :2]
    inverse = np.linalg.inv(np.asarray(posterior.cov)[0, :2, :2])
    np.testing.assert_allclose(
        np.einsum("ki,ij,kj->k", around, inverse, around), -2 * np.log(0.1), rtol=1e-3
    )
    own = pyplot.subplots()[1]
    assert posterior.plot_map(("y", "heading"), ax=own) is own
    assert own.get_xlabel() == "y"


@pytest.mark.parametrize("plane", [("x", "foo"), ("x",), "xy"])
def test_planes_that_are_none(driven, plane):
    with pytest.raises(ValueError, match="plane: expected two of x, y, heading, got"):
        driven[0].plot_map(plane)
    with pytest.raises(ValueError, match=r"landmarks: expected shape \(k, 2\), got \(3,\)"):
        driven[0].plot_map(landmarks=[1.0, 2.0, 3.0])


def test_without_names_of_a_place_a_plane_is_asked_for():
    found = nopf.KalmanFilter(models.linear()).run(np.zeros((3, 2)))
    with pytest.raises(ValueError, match="plane: no two states have names of a place"):
        found.plot_map()
    batch = nopf.KalmanFilter(models.linear()).run_batch(np.zeros((2, 3, 2)))
    for call in (batch.plot, batch.plot_map, batch.to_dataframe):
        with pytest.raises(ValueError, match="expected the posterior of one series"):
            call()


def test_a_training_curve():
    recipe = nopf.Recipe.fast(base="skeleton", width=4, depth=1, steps=4, round=2)
    proposal = nopf.train(models.linear(), horizon=5, recipe=recipe, key=jax.random.key(0))
    losses, fraction = proposal.plot_history()
    np.testing.assert_allclose(losses.lines[1].get_ydata(), proposal.history[:, 2])
    np.testing.assert_allclose(fraction.lines[0].get_ydata(), 100 * proposal.history[:, 3])


def test_a_model_shows_a_few_of_its_paths(driven):
    model = driven[2].model
    axes = model.plot(8, jax.random.key(3), paths=3, times=np.arange(8) / 2 + 0.5)
    assert [panel.get_ylabel() for panel in axes] == ["x", "y", "heading", "y"]
    assert axes[3].get_xlabel() == "x"
    for panel in axes[:3]:
        assert len(panel.lines) == 3
        np.testing.assert_allclose(panel.lines[0].get_xdata(), np.arange(8) / 2 + 0.5)
    for k in range(3):
        x, y = (axes[i].lines[k].get_ydata() for i in range(2))
        np.testing.assert_allclose(axes[3].lines[2 * k].get_xydata(), np.stack([x, y], axis=1))
        # They follow the motion: as far as it goes, but for its noise.
        heading = axes[2].lines[k].get_ydata()
        assert np.abs(np.diff(heading)).max() < 0.2
        assert np.abs(np.diff(x) - 0.1 * np.cos(heading[:-1])).max() < 0.1
    assert len(models.linear().plot(4, paths=2)) == 2
    assert len(models.linear().plot(4, plane=("x1", "x0"))) == 3
    with pytest.raises(ValueError, match="plane: expected two of x0, x1"):
        models.linear().plot(4, plane=("x1", "x9"))


def test_a_model_far_from_zero_shows_where_it_is():
    axes = models.linear(origin={"x0": 1e6}).plot(4, paths=2)
    assert axes[0].lines[0].get_ydata().min() > 9e5
    assert nopf.marginalise(models.linear()).plot(4)[0].get_ylabel() == "x0"


def test_particles_as_a_round_float():
    linear, key = models.linear(), jax.random.key(0)
    assert positive_integer(np.float32(10), "n") == positive_integer(np.int64(10), "n") == 10
    for given in (10, 1e1):
        for flt in (
            nopf.ParticleFilter(linear, particles=given),
            nopf.AuxiliaryFilter(linear, None, given),
            nopf.EnsembleKalmanFilter(linear, given),
            nopf.KalmanFilter(linear, given),
        ):
            assert flt.particles == 10
            assert isinstance(flt.particles, int)
        assert nopf.NudgedProposal(given).particles == 10
        assert nopf.InnerSamplingProposal(given).candidates == 10
    exact = nopf.KalmanFilter(linear).run(np.zeros((3, 2)))
    assert nopf.KalmanFilter(linear).forecast(exact, 2e0).mean.shape == (2, 2)
    assert nopf.calibration(nopf.KalmanFilter(linear), 2e0, key, series=2e1).ranks.shape[0] == 20
    with pytest.raises(TypeError, match=r"particles: expected a positive whole number, got 1\.5"):
        nopf.ParticleFilter(models.linear(), particles=1.5)
