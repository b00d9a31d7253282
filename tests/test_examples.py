"""The examples with real recordings, where those are at hand."""

import importlib
from pathlib import Path

import numpy as np
import pytest

import nopf

DATA = Path(__file__).parent.parent.parent / "shared" / "data"


def example(monkeypatch, name):
    monkeypatch.syspath_prepend(Path(__file__).parent.parent / "examples")
    return importlib.import_module(name)


def recording(*parts):
    folder = DATA.joinpath(*parts)
    if not folder.is_dir():
        pytest.skip(f"the recording is not at hand: no {'/'.join(parts)} in shared/data")
    return folder


def test_labyrinth(monkeypatch):
    labyrinth = example(monkeypatch, "labyrinth_uwb")
    drive = labyrinth.load(recording("labyrinth_uwb"))
    # Anchors answer one at a time.
    assert set(np.sum(~np.isnan(drive.ranges), axis=1)) == {1}
    assert drive.ranges.shape[1] == 4
    error, flt = example(monkeypatch, "uwb").error, nopf.ParticleFilter(labyrinth.model, None, 1000)
    found = error(flt, drive, 0).rmse
    assert found < 0.13  # five seeds gave 0.09 m on average
    # The readme of the recording has the wheels the wrong way round: so would the robot turn.
    swapped = error(flt, drive._replace(controls=drive.controls[:, ::-1]), 0).rmse
    assert swapped > 2 * found


def test_hanyang(monkeypatch):
    hanyang = example(monkeypatch, "hanyang_uwb")
    drive = hanyang.load(recording("hanyang_uwb", "LOS", "A", "Case_1"))
    assert np.all(np.diff(drive.times) > 0)
    assert not np.isnan(drive.ranges).all(axis=1).any()
    error, flt = example(monkeypatch, "uwb").error, nopf.ParticleFilter(hanyang.model, None, 1000)
    beginning = type(drive)(drive.times[:800], drive.ranges[:800], drive.truth[:800])
    found = error(flt, beginning, 0).rmse
    assert nopf.marginalise(hanyang.model).linear_states == ("vx", "vy")
    assert found < 1.3  # 1.01 m was seen here; 0.83 m over the whole drive, by five seeds


def test_a_folder_without_the_recording_is_named(monkeypatch, tmp_path, capsys):
    labyrinth, uwb = example(monkeypatch, "labyrinth_uwb"), example(monkeypatch, "uwb")
    monkeypatch.setattr("sys.argv", ["labyrinth_uwb.py", str(tmp_path)])
    with pytest.raises(SystemExit, match=r"no Indoor_UWB_Input\.txt"):
        uwb.main("", labyrinth.model, labyrinth.load, "Indoor_UWB_Input.txt")
