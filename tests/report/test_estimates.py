"""The page of estimates: what it shows, and that it moves as one."""

import dataclasses

import jax
import numpy as np
import pytest

import nopf
from nopf.report.estimates import About, estimates_page
from nopf.report.predictions import predictions
from tests import models
from tests.report.pages import unpacked, wait

KEY = jax.random.key(1)
PLANTED = '<img src="x" onerror="document.title=1">'


@pytest.fixture(scope="module")
def robot():
    """A model whose place has names of its own, its filter, and a filtered series."""
    names = ("east-ish", "north-ish", "heading")
    model = models.unicycle(state_names=names, plane=("north-ish", "east-ish"))
    path = nopf.simulate(model, 30, jax.random.key(0))
    ys = np.array(path.observations)
    ys[12, 0] += 30.0
    flt = nopf.ParticleFilter(model, None, 200)
    return model, flt, flt.run(ys, key=KEY, keep="particles"), path


def test_predictions_are_those_of_the_mean_moved_on():
    """By hand, with the matrices of the linear model."""
    model = models.linear()
    ys = np.asarray(nopf.simulate(model, 6, jax.random.key(0)).observations)
    posterior = nopf.ParticleFilter(model, None, 50).run(ys, key=KEY)
    moves, sees = np.array([[1.0, 0.5], [0.0, 0.9]]), np.array([[1.0, 0.0], [-1.0, 1.0]])
    found = predictions(model, posterior)
    assert np.isnan(found[0]).all()
    expected = np.asarray(posterior.mean)[:-1] @ moves.T @ sees.T
    np.testing.assert_allclose(found[1:], expected, rtol=1e-4, atol=1e-5)


def test_a_model_names_its_plane(robot):
    posterior = robot[2]
    assert posterior.plane == ("north-ish", "east-ish")
    for wrong in (("north-ish",), ("north-ish", "up"), "xy"):
        with pytest.raises(ValueError, match="plane: expected two of"):
            models.unicycle(plane=wrong)
    content = unpacked(estimates_page(posterior), "plots")
    (drawn,) = [plot for plot in content["plots"] if plot["kind"] == "map"]
    (line,) = [line for line in drawn["data"] if line["name"] == "mean"]
    path = np.asarray(posterior.mean)
    for axis, i in (("x", 1), ("y", 0)):
        np.testing.assert_allclose(content["arrays"][line[axis]], path[:, i], atol=1e-4)
    # Without it the names say nothing, and there is no map.
    assert "<h2>Map</h2>" not in estimates_page(dataclasses.replace(posterior, plane=None))


def test_outliers_are_marked_sensor_by_sensor(robot):
    posterior = robot[2]
    content = unpacked(estimates_page(posterior), "plots")
    rings = [
        (content["arrays"][line["x"]], line["xaxis"])
        for plot in content["plots"]
        for line in plot["data"]
        if line.get("marker", {}).get("symbol") == "circle-open"
    ]
    far = np.abs(np.asarray(posterior.innovation)) > 5.3
    assert far[12, 0]
    expected = [
        (np.asarray(posterior.times)[far[:, j]].tolist(), row)
        for j, rows in enumerate([("x", "x2"), ("x3", "x4")])
        for row in rows
        if far[:, j].any()
    ]
    assert rings == expected


def test_forecast_and_smoothed_path_are_shown(robot):
    _, flt, posterior, _ = robot
    ahead = flt.forecast(posterior, 5)
    after = flt.smooth(posterior, key=KEY, trajectories=20)
    text = estimates_page(posterior, smoothed=after, forecast=ahead)
    assert "deviations from the smoothed path" in text
    assert "the filter&#x27;s own mean" not in text
    content = unpacked(text, "plots")
    states = next(plot for plot in content["plots"] if plot["kind"] == "time")
    arrays = content["arrays"]
    shown = [(arrays[line["x"]], arrays[line["y"]]) for line in states["data"]]
    first = np.asarray(posterior.mean)[:, 0]
    times = np.concatenate([posterior.times[-1:], ahead.times])
    fan = np.concatenate([first[-1:], np.asarray(ahead.mean)[:, 0]])
    for x, y in [(times, fan), (posterior.times, np.asarray(after.mean)[:, 0])]:
        assert any(
            len(a) == len(x) and np.allclose(a, x) and np.allclose(b, y, atol=1e-4)
            for a, b in shown
        )
    assert states["layout"]["xaxis"]["range"] == [posterior.times[0], ahead.times[-1]]


def test_names_from_files_stay_texts():
    """Of the recording, the model, the filter, states and sensors."""
    model = models.linear(
        state_names=(PLANTED, "x1"), observation_names=(PLANTED, "y1"), plane=(PLANTED, "x1")
    )
    posterior = nopf.ParticleFilter(model, None, 20).run(np.full((3, 2), 50.0), key=KEY)
    about = About(PLANTED, PLANTED, PLANTED)
    text = estimates_page(posterior, about, {PLANTED: np.zeros(3)}, model=model)
    assert "<img" not in text
    content = unpacked(text, "plots")
    for plot in content["plots"]:
        layout = plot["layout"]
        titles = [note["text"] for note in layout.get("annotations", ())]
        titles += [
            axis["title"]["text"]
            for name, axis in layout.items()
            if name[1:5] == "axis" and "title" in axis
        ]
        assert titles
        assert not any("<" in title for title in titles)
    # The names beside the slider are set as text, not as HTML.
    assert content["now"]["names"][0] == PLANTED


def test_one_time_for_all_plots(robot, browser, tmp_path):
    model, _, posterior, path = robot
    truth = dict(zip(model.state_names, np.asarray(path.states).T, strict=True))
    file = tmp_path / "page.html"
    file.write_text(estimates_page(posterior, truth=truth, model=model))
    browser.get(file.as_uri())
    wait(browser, "document.documentElement.dataset.ready === 'yes'")
    browser.execute_script(
        "const s = document.querySelector('.player input'); s.value = 7;"
        "s.dispatchEvent(new Event('input'))"
    )
    plots = "[...document.querySelectorAll('.plot')]"
    over_time = f"{plots}.filter((p) => p.cursor !== undefined)"
    cursors = f"{over_time}.map((p) => p.layout.shapes[p.cursor].x0)"
    wait(browser, "document.querySelector('.player output').textContent.startsWith('time 8 ')")
    found = browser.execute_script(f"return {cursors}")
    assert found == [8.0] * 4
    marked = f"{plots}.find((p) => p.cursor === undefined).data.slice(-2)"
    ellipse, place = browser.execute_script(
        f"return {marked}.map((line) => [Array.from(line.x), Array.from(line.y)])"
    )
    own = [1, 0]
    mean = np.asarray(posterior.mean)[7, own]
    np.testing.assert_allclose(np.ravel(place), mean, atol=1e-4)
    cov = np.asarray(posterior.cov)[7][np.ix_(own, own)]
    apart = np.array(ellipse).T - mean
    squares = np.sum(apart * np.linalg.solve(cov, apart.T).T, axis=1)
    np.testing.assert_allclose(squares, -2 * np.log(0.1), rtol=0.02)
    # What is zoomed in one is zoomed in all.
    browser.execute_script(f"Plotly.relayout({over_time}[2], {{'xaxis2.range': [5, 9]}})")
    wait(browser, f"{over_time}.every((p) => p.layout.xaxis.range[0] === 5)")
    # A phone: nothing is wider than the screen.
    browser.set_window_size(500, 900)
    wait(browser, "document.documentElement.scrollWidth <= window.innerWidth")
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
