"""`nopf train` as a user calls it."""

import json
import os
import signal
import subprocess
import sys
import time
import types
import warnings
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from nopf import Recipe
from nopf.training import TrainingInterrupted
from tests.command.calling import invoke, nopf

MODEL = """
import jax.numpy as jnp, nopf
model = nopf.StateSpaceModel(
    prior=nopf.Gaussian([0.0], [1.0]), transition=lambda x, step: 0.9 * x, process_noise=[1.0],
    observation=lambda x, step: x, observation_noise=[0.5])
other = 3
"""


@pytest.fixture
def robot(tmp_path):
    (tmp_path / "robot.py").write_text(MODEL)
    return tmp_path / "robot.py"


def test_train(robot, tmp_path):
    out = tmp_path / "robot.nopf"
    arguments = ["train", f"{robot}:model", "--horizon", 4, "--out", out, "--steps", 50, "--json"]
    arguments += ["--base", "skeleton"]
    done = nopf(*arguments)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    result = json.loads(done.stdout)
    assert result["file"] == str(out)
    assert result["base"] == "skeleton"
    assert 0.5 < result["held_out_ess_fraction"] <= 1
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_file()) == ["robot.nopf", "robot.py"]


def test_mistakes_are_named(robot, tmp_path):
    out = tmp_path / "x.nopf"
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "y.nopf.part").symlink_to(tmp_path / "gone")
    for arguments, words in [
        (["train", "nothing", "--out", out], "unordered-range"),
        (["train", f"{robot}:other", "--out", out, "--horizon", 3], "models in this file: model"),
        (["train", f"{robot}:model", "--out", out], "--horizon"),
        (["train", "sensor-bias", "--out", tmp_path / "no" / "x.nopf"], "does not exist"),
        (["train", "sensor-bias", "--out", tmp_path], "is a folder; name a file"),
        (["train", "sensor-bias", "--out", tmp_path / "pipe"], "is a device, a pipe or a socket"),
        (["train", "sensor-bias", "--out", tmp_path / "y.nopf"], "a symbolic link to nothing"),
    ]:
        done = invoke(*arguments)
        assert done.exit_code == 2
        assert words in done.output
    assert not out.exists()


def test_half_a_training_is_written_only_where_nothing_was(robot, tmp_path, monkeypatch):
    proposal = types.SimpleNamespace(
        history=np.array([[7, 0.1, 0.2, 0.9]]),
        recipe=Recipe.fast(),
        adds_nothing=False,
        save=lambda file: Path(file).write_text("half"),
    )

    def interrupted(*_, checkpoint, **rest):
        checkpoint.write_text("where it was")
        warnings.warn("training: interrupted at step 7", TrainingInterrupted, stacklevel=1)
        return proposal

    monkeypatch.setattr("nopf.training.to_file.train", interrupted)
    out, part = tmp_path / "robot.nopf", tmp_path / "robot.nopf.part"
    arguments = ["train", f"{robot}:model", "--horizon", 4, "--out", out]
    for before, after in [(None, "half"), ("whole", "whole")]:
        if before is not None:
            out.write_text(before)
        done = invoke(*arguments)
        assert done.exit_code == 130
        assert out.read_text() == after
        assert part.read_text() == "where it was"
        said = ["nopf: training: interrupted at step 7"]
        if before is not None:
            said.append(f"nopf: {out} is kept as it was; the run is in {part}")
        said.append("nopf: run the same command again to resume")
        assert done.stderr.splitlines() == said
        assert done.stdout.startswith(f"{out}: 7 steps in ")


@pytest.mark.slow
def test_killed_training_goes_on_to_the_same_result(tmp_path):
    code = (
        "import nopf.training.trainer as t; t.CHECKPOINT_SECONDS = 0; "
        "from nopf.command import main; main()"
    )
    settings = ["--base", "skeleton", "--steps", "1000"]

    def command(out):
        return [sys.executable, "-c", code, "train", "range-only", "--out", str(out), *settings]

    killed, whole = tmp_path / "killed.nopf", tmp_path / "whole.nopf"
    part = tmp_path / "killed.nopf.part"
    # Without the compiled code that tests share: a kill could leave a part of a file there.
    alone = os.environ | {"JAX_ENABLE_COMPILATION_CACHE": "false"}
    process = subprocess.Popen(command(killed), stderr=subprocess.DEVNULL, env=alone)
    while not part.exists():
        assert process.poll() is None
        time.sleep(0.1)
    time.sleep(1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert part.exists()
    assert not killed.exists()
    for out in (killed, whole):
        subprocess.run(command(out), check=True, capture_output=True)
    assert not part.exists()
    first, second = (safetensors.numpy.load_file(path) for path in (killed, whole))
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_array_equal(first[name], second[name])
