"""The command as a user calls it."""

import json
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import safetensors.numpy
from typer.testing import CliRunner

from nopf import cli

MODEL = """
import jax.numpy as jnp, nopf
model = nopf.StateSpaceModel(
    prior=nopf.Gaussian([0.0], [1.0]), transition=lambda x, step: 0.9 * x, process_noise=[1.0],
    observation=lambda x, step: x, observation_noise=[0.5])
other = 3
"""


def nopf(*arguments, **options):
    command = [sys.executable, "-c", "import nopf.cli; nopf.cli.main()", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


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
    for arguments, words in [
        (["train", "nothing", "--out", out], "unordered-range"),
        (["train", f"{robot}:other", "--out", out, "--horizon", 3], "models in this file: model"),
        (["train", f"{robot}:model", "--out", out], "--horizon"),
        (["train", "sensor-bias", "--out", tmp_path / "no" / "x.nopf"], "does not exist"),
    ]:
        done = CliRunner().invoke(cli.app, [str(a) for a in arguments], env={"COLUMNS": "200"})
        assert done.exit_code == 2
        assert words in done.output
    assert not out.exists()


@pytest.mark.slow
def test_killed_training_goes_on_to_the_same_result(tmp_path):
    code = (
        "import nopf.training.trainer as t; t.CHECKPOINT_SECONDS = 0; "
        "import nopf.cli; nopf.cli.main()"
    )
    settings = ["--base", "skeleton", "--steps", "1000"]

    def command(out):
        return [sys.executable, "-c", code, "train", "range-only", "--out", str(out), *settings]

    killed, whole = tmp_path / "killed.nopf", tmp_path / "whole.nopf"
    part = tmp_path / "killed.nopf.part"
    process = subprocess.Popen(command(killed), stderr=subprocess.DEVNULL)
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


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["range-onl"], "did you mean range-only?"),
        (["sensor-bias", "--filters", "bfp"], "did you mean bpf?"),
        (["sensor-bias", "--seeds", "0"], "expected at least 1, got 0"),
        (["sensor-bias", "--particles", "0"], "expected at least 2, got 0"),
        (["range-only", "--filters", "kf"], "none of these filters applies"),
    ],
)
def test_bench_mistakes_are_named(tmp_path, arguments, words):
    out = tmp_path / "out"
    done = CliRunner().invoke(
        cli.app, ["bench", *arguments, "--out", str(out)], env={"COLUMNS": "300"}
    )
    assert done.exit_code == 2
    assert words in done.output
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["sweep", "range-onl"], "did you mean range-only?"),
        (["sweep", "sensor-bias", "--particles", "100,many"], "whole numbers with commas"),
        (["sweep", "sensor-bias", "--particles", "0,10"], "expected at least 2, got 0"),
        (["sweep", "sensor-bias", "--seeds", "0"], "expected at least 1, got 0"),
        (["bench", "sensor-bias", "--workers", "-1"], "expected at least 0, got -1"),
        (
            ["bench", "sensor-bias", "--workers", "2", "--cluster", "tcp://somewhere:1"],
            "--workers or --cluster, not both",
        ),
    ],
)
def test_mistakes_in_many_runs_are_named(tmp_path, arguments, words):
    out = tmp_path / "out"
    done = CliRunner().invoke(cli.app, [*arguments, "--out", str(out)], env={"COLUMNS": "300"})
    assert done.exit_code == 2
    assert words in done.output
    assert not out.exists()


@pytest.mark.parametrize("command", ["bench", "sweep"])
def test_a_folder_that_cannot_be_written_to(tmp_path, command):
    (tmp_path / "notes.txt").write_text("mine")
    out = tmp_path / "notes.txt" / "results"
    done = CliRunner().invoke(
        cli.app, [command, "sensor-bias", "--out", str(out)], env={"COLUMNS": "300"}
    )
    assert done.exit_code == 2
    assert "cannot be written to" in done.output or "cannot be read" in done.output
    assert "name another folder" in done.output
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_bench_refuses_results_of_another_version(tmp_path):
    (tmp_path / "nopf.json").write_text('{"nopf": "9.9", "format": 1}')
    done = CliRunner().invoke(
        cli.app, ["bench", "sensor-bias", "--out", str(tmp_path)], env={"COLUMNS": "300"}
    )
    assert done.exit_code == 2
    assert "made by nopf 9.9" in done.output
    assert [file.name for file in tmp_path.iterdir()] == ["nopf.json"]


def test_bench_and_sweep_write_tables(tmp_path):
    common = ["--filters", "bpf", "--seeds", "2", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(
        cli.app, ["bench", "sensor-bias", "--particles", "30", *common, "--json"]
    )
    assert done.exit_code == 0, done.output
    (table,) = json.loads(done.stdout)
    assert table["particles"] == 30
    assert set(table["filters"]) == {"bpf"}
    folder = tmp_path / "out" / "sensor-bias"
    lines = (folder / "metrics.csv").read_text().splitlines()
    assert lines[0] == (
        "benchmark,filter,seed,particles,nmse,pnll,es,ess,wt,made,picp,log_evidence"
    )
    assert len(lines) == 3
    assert "| BPF |" in (folder / "table.md").read_text()
    done = CliRunner().invoke(cli.app, ["sweep", "sensor-bias", "--particles", "10,30", *common])
    assert done.exit_code == 0, done.output
    assert "N = 10" in done.stdout
    assert len((folder / "sweep.csv").read_text().splitlines()) == 5
    assert (folder / "sweep.svg").stat().st_size > 1000
    assert len((folder / "metrics.csv").read_text().splitlines()) == 3
