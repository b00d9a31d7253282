"""Training that ends in a file: what is there after it is whole, and after Ctrl-C."""

import warnings
from pathlib import Path

import jax
import pytest

import nopf
from nopf.training import TrainingInterrupted, to_file
from nopf.training.to_file import Series, train_to_file
from tests import models


class Proposal:
    def save(self, file):
        Path(file).write_text("proposal")


@pytest.fixture
def ends(monkeypatch):
    """Sets with which warnings training ends."""
    said = []

    def train(*_, checkpoint, **rest):
        if checkpoint is not None:
            checkpoint.write_text("where it was")
        for category in said:
            warnings.warn("training: so it is", category, stacklevel=1)
        return Proposal()

    monkeypatch.setattr(to_file, "train", train)
    return said.extend


def run(folder, **options):
    places = {"file": folder / "x.nopf", "part": folder / "x.part"}
    key, recipe = jax.random.key(0), nopf.Recipe.fast()
    return train_to_file(models.linear(), Series(3), key, recipe, **(places | options))


def found(folder):
    return sorted(file.name for file in folder.iterdir())


def test_a_whole_training_leaves_the_file_only(ends, tmp_path):
    assert not run(tmp_path).resumed
    assert found(tmp_path) == ["x.nopf"]
    (tmp_path / "x.part").write_text("where it was")
    assert run(tmp_path).resumed
    assert found(tmp_path) == ["x.nopf"]


def test_what_is_to_be_recorded_is_recorded_before_the_file_is_there(ends, tmp_path):
    seen = []
    run(tmp_path, before_saving=lambda trained: seen.append((trained.resumed, found(tmp_path))))
    assert seen == [(False, ["x.part"])]


def test_nothing_is_written_without_a_place(ends, tmp_path):
    assert isinstance(run(tmp_path, file=None, part=None).proposal, Proposal)
    assert found(tmp_path) == []


def test_half_a_training_is_no_file(ends, tmp_path):
    ends([TrainingInterrupted])
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path)
    assert found(tmp_path) == ["x.part"]


def test_half_a_training_is_kept_if_it_is_wanted_and_nothing_is_there(ends, tmp_path):
    ends([TrainingInterrupted])
    with pytest.warns(TrainingInterrupted):
        assert run(tmp_path, keep_half=True).interrupted
    assert found(tmp_path) == ["x.nopf", "x.part"]
    (tmp_path / "x.nopf").write_text("whole")
    with pytest.warns(TrainingInterrupted):
        run(tmp_path, keep_half=True)
    assert (tmp_path / "x.nopf").read_text() == "whole"
    assert found(tmp_path) == ["x.nopf", "x.part"]


def test_other_warnings_of_training_are_heard(ends, tmp_path):
    ends([UserWarning])
    with pytest.warns(UserWarning, match="so it is"):
        run(tmp_path)
    assert found(tmp_path) == ["x.nopf"]
