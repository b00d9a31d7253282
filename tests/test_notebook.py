"""What a notebook shows: HTML in which nothing of the user's is taken for HTML, and a bar."""

import sys
import types
import xml.etree.ElementTree

import jax
import numpy as np
import pytest

import nopf
from nopf import notebook
from nopf.training.progress import Progress
from nopf.words import listed
from tests import models

NASTY = "<script>alert('x')</script> & \"more\""
ROW = np.array([100.0, 1.25, 1.5, 0.4])


def texts(page):
    """All that a reader sees; a page that is not well-formed is an error."""
    return [text.strip() for text in xml.etree.ElementTree.fromstring(page).itertext()]


def test_tables_are_escaped():
    page = notebook.table(NASTY, [NASTY], [[NASTY], [3]], [NASTY])
    assert "<script" not in page
    assert texts(page) == [NASTY, NASTY, NASTY, "3", NASTY]


def test_a_posterior_and_its_model_with_odd_names():
    model = models.linear(state_names=("speed", NASTY))
    assert texts(model._repr_html_())[0] == "StateSpaceModel, dt 1"
    assert NASTY in texts(model._repr_html_())
    flt = nopf.KalmanFilter(model)
    posterior = flt.run(np.zeros((3, 2)))
    seen = texts(posterior._repr_html_())
    assert seen[0] == repr(posterior)
    assert seen[1:7] == ["at 3", "mean", "std", "5 %", "50 %", "95 %"]
    assert seen[7] == "speed"
    assert float(seen[8]) == pytest.approx(float(posterior.mean[-1, 0]), rel=1e-3)
    assert float(seen[12]) == pytest.approx(float(posterior.quantiles[-1, 2, 0]), rel=1e-3)
    assert NASTY in seen
    batch = flt.run_batch(np.zeros((2, 3, 2)))
    assert texts(batch._repr_html_()) == [repr(batch)]


def test_one_line_each():
    model = models.unicycle(control_names=("speed",))
    lines = [
        (model, "StateSpaceModel: 3 states (x, y, heading), 2 observations (y0, y1), dt 1"),
        (
            nopf.ParticleFilter(model, nopf.LinearisedProposal(), 1e3),
            "ParticleFilter: 1000 particles, LinearisedProposal, 3 states, 2 observations",
        ),
        (
            nopf.AuxiliaryFilter(model, None, 50),
            "AuxiliaryFilter: 50 particles, TransitionProposal, 3 states, 2 observations",
        ),
        (
            nopf.EnsembleKalmanFilter(model, 50),
            "EnsembleKalmanFilter: 50 particles, 3 states, 2 observations",
        ),
        (nopf.KalmanFilter(models.linear()), "KalmanFilter: 2 states, 2 observations"),
        (
            nopf.marginalise(models.linear()),
            "MarginalisedModel: 2 states (x0, x1), 2 observations (y0, y1), dt 1, "
            "solved exactly: x0, x1",
        ),
    ]
    for thing, line in lines:
        assert repr(thing) == line
    path = nopf.simulate(models.linear(), 1e1, jax.random.key(0))
    assert repr(path) == "Trajectories: 10 steps, 2 states, 2 observations"
    paths = nopf.simulate(models.linear(), 10, jax.random.key(0), batch=4e0)
    assert repr(paths) == "Trajectories: 4 series, 10 steps, 2 states, 2 observations"
    assert listed([*"abcdefghij"], 8) == "a, b, c, d, e, f, g, …"


@pytest.fixture
def cells(monkeypatch):
    """The pages that a kernel was asked to show, as its own IPython would be asked."""
    shown = []

    class Handle:
        def update(self, page):
            shown.append(page)

    def display(page, display_id):
        assert display_id is True
        shown.append(page)
        return Handle()

    shell = types.SimpleNamespace(kernel=object())
    ipython = types.ModuleType("IPython")
    ipython.get_ipython = lambda: shell
    inside = types.ModuleType("IPython.display")
    inside.HTML, inside.display = str, display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", inside)
    return shown


def test_training_shows_a_bar_in_a_notebook(cells, capsys):
    with Progress() as bar:
        bar.say(NASTY)
        bar.update(0.5, ROW)
        bar.update(1.0, ROW)
    assert "0%" in texts(cells[0])[-1]
    assert texts(cells[-1]) == [NASTY, "training", "100% loss 1.250, held out 1.500, ESS 40 %"]
    assert capsys.readouterr() == ("", "")
    cells.clear()
    with Progress(show=False) as bar:
        bar.update(1.0, ROW)
    assert not cells


def test_in_a_pipe_nothing_is_shown(capsys):
    assert notebook.kernel() is None
    with Progress() as bar:
        bar.say("anything")
        bar.update(1.0, ROW)
    assert capsys.readouterr() == ("", "")
