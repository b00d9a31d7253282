"""A short run of what `make fuzz` does at length; and what it does not count."""

import errno
import os
import re
import subprocess
import sys

import pytest

from nopf import files
from nopf.benchmarks.results import Results
from tests import recordings
from tests.command.calling import CODE


def fuzz(*arguments):
    """In a process of its own, without the hook that checks the types of arguments before nopf."""
    command = [sys.executable, "-m", "tests.fuzz", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_odd_inputs_are_refused_with_a_message_or_work():
    done = fuzz("--inputs", 400, "--kills", 0)
    assert done.returncode == 0, done.stdout + done.stderr
    tried, refused, taken = map(
        int, re.search(r"^all +(\d+) +(\d+) +(\d+)$", done.stdout, re.M).groups()
    )
    assert tried == refused + taken >= 400
    assert refused > 100
    assert taken > 20


def test_what_is_killed_ends_as_if_nothing_had_happened():
    done = fuzz("--inputs", 0, "--kills", 2, "--only", "filter")
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(re.search(r"^all +(\d+)", done.stdout, re.M)[1]) >= 2


def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_text("old")

    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        files.write_whole(file, b"new")
    assert file.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_full_disk_is_one_line_and_the_old_file_stays(tmp_path):
    """No file of the process may grow beyond 200 bytes: the estimates do not fit."""
    (tmp_path / "robot.py").write_text(recordings.MODEL)
    (tmp_path / "run.csv").write_text(recordings.GOOD)
    (tmp_path / "out.csv").write_text("old")
    before = sorted(file.name for file in tmp_path.iterdir())
    limited = f"import resource as r; r.setrlimit(r.RLIMIT_FSIZE, (200, 200)); {CODE}"
    words = "--no-cache filter robot.py:model --data run.csv --filter bpf --particles 16"
    done = subprocess.run(
        [sys.executable, "-c", limited, *words.split(), "--out", "out.csv"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
        | {"PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("nopf: ")
    assert "Traceback" not in done.stderr
    assert (tmp_path / "out.csv").read_text() == "old"
    assert sorted(file.name for file in tmp_path.iterdir()) == before


@pytest.mark.slow
def test_two_benches_that_train_at_once_end_well(tmp_path):
    """In one folder: neither disturbs the other, and what is there can be read."""
    words = ["bench", "sensor-bias", "--filters", "nopf", "--seeds", "1", "--particles", "50"]
    command = [sys.executable, "-c", CODE, *words, "--out", "results"]
    both = [
        subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) for _ in range(2)
    ]
    for process in both:
        _, said = process.communicate()
        assert process.returncode == 0, said
    results = Results(tmp_path / "results")
    assert [row["filter"] for row in results.rows("sensor-bias")] == ["nopf"]
    assert not list((tmp_path / "results").rglob("*.part"))
