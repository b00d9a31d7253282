"""`nopf filter` for many recordings."""

import csv
import json

import numpy as np
import pytest

from tests.command.calling import invoke
from tests.recordings import GOOD, MODEL


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("NOPF_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "robot.py").write_text(MODEL)
    runs = tmp_path / "runs"
    runs.mkdir()
    for k in range(4):
        (runs / f"run{k}.csv").write_text(GOOD.replace("0.5,0.6", f"0.5,{0.6 + k / 10:.1f}"))
    (runs / "notes.md").write_text("not a recording")
    return tmp_path


def call(*more):
    return invoke(
        *("filter", "robot.py:model", "--out", "estimates", "--particles", 100, "--filter", "bpf"),
        *more,
    )


def summary(folder):
    with (folder / "estimates" / "summary.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("data", ["runs", "runs/*.csv"])
def test_each_recording_has_the_estimates_that_it_has_alone(folder, data):
    done = call("--data", data, "--truth", "place=gps")
    assert done.exit_code == 0, done.output
    assert "estimates: 4 recordings, " in done.stdout
    rows = summary(folder)
    assert [row["recording"] for row in rows] == [f"runs/run{k}.csv" for k in range(4)]
    alone = invoke(
        *("filter", "robot.py:model", "--data", "runs/run2.csv", "--out", "alone.csv"),
        *("--particles", 100, "--filter", "bpf", "--json"),
    )
    said = json.loads(alone.stdout)
    assert (folder / "estimates" / "run2.csv").read_bytes() == (folder / "alone.csv").read_bytes()
    assert float(rows[2]["log_evidence"]) == pytest.approx(said["log_evidence"])
    assert rows[2]["verdict"] == said["verdict"]
    assert len({row["log_evidence"] for row in rows}) == 4
    assert all(0 <= float(row["rmse_place"]) < 2 for row in rows)
    page = (folder / "estimates" / "index.html").read_text()
    assert '<a href="run3.csv">runs/run3.csv</a>' in page


def test_one_that_fails_is_named_and_the_others_are_not_run_again(folder):
    (folder / "runs" / "run1.csv").write_text("time,speed,gps,odometer\n1,1,one,2\n")
    done = call("--data", "runs", "--json")
    assert done.exit_code == 1
    assert "runs/run1.csv: " in done.stderr
    assert "'one'" in done.stderr
    found = json.loads(done.stdout)["recordings"]
    assert [row["error"] is None for row in found] == [True, False, True, True]
    first = folder / "estimates" / "run0.csv"
    made = first.stat().st_mtime_ns
    (folder / "estimates" / "run3.csv").unlink()  # as if the call had been cut short
    (folder / "runs" / "run1.csv").write_text(GOOD)
    (folder / "runs" / "run2.csv").write_text(GOOD.replace("0.6", "0.7"))
    again = call("--data", "runs")
    assert again.exit_code == 0, again.output
    assert "1 of 4 recordings were finished before" in again.stderr
    assert first.stat().st_mtime_ns == made
    assert (folder / "estimates" / "run3.csv").exists()
    assert summary(folder)[2]["log_evidence"] != str(found[2]["log_evidence"])
    assert call("--data", "runs", "--seed", 1).exit_code == 0
    assert first.stat().st_mtime_ns != made  # other settings


def test_two_workers_give_what_one_process_gives(folder):
    pytest.importorskip("distributed", reason="distributed is in the cluster extra")
    assert call("--data", "runs").exit_code == 0
    here = {p.name: p.read_bytes() for p in (folder / "estimates").glob("run*.csv")}
    for file in (folder / "estimates").iterdir():
        file.unlink()
    done = call("--data", "runs", "--workers", 2)
    assert done.exit_code == 0, done.output
    there = {p.name: p.read_bytes() for p in (folder / "estimates").glob("run*.csv")}
    assert there.keys() == here.keys()
    for name, text in here.items():
        one, other = (
            np.genfromtxt(t.decode().splitlines()[1:], delimiter=",") for t in (text, there[name])
        )
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--data", "none/*.csv"], "there is no recording of that name"),
        (["--data", "runs", "--plot", "x.html"], "name a folder with --out"),
        (["--data", "runs/run0.csv", "--workers", "2"], "is for many recordings"),
        (["--data", "runs", "--workers", "-1"], "expected"),
        (["--data", "runs", "--time", "when"], "none can be read"),
        (["--data", "empty"], "for a folder for each, write 'empty/*/*.csv'"),
        (["--data", "runs", "--run", "drive"], "expected Parquet"),
        (["--data", "nowhere", "--run", "drive"], "no such file or folder"),
    ],
)
def test_mistakes_are_named(folder, arguments, words):
    (folder / "empty").mkdir()
    done = call(*arguments)
    assert done.exit_code == 2
    assert words in " ".join(done.output.split())
    assert not (folder / "estimates").exists()


def test_recordings_are_never_written_over(folder):
    before = {p: p.read_bytes() for p in (folder / "runs").iterdir()}
    for arguments in (
        ("--data", "runs", "--out", "runs"),
        ("--data", "runs/*.csv", "--out", "runs"),
        ("--data", "runs/*.csv", "--out", "."),
    ):
        done = call(*arguments)
        assert done.exit_code == 2
        assert "is read from there; name another folder" in " ".join(done.output.split())
    (folder / "runs" / "summary.csv").write_text(GOOD)
    assert "would be lost in the summary" in " ".join(call("--data", "runs").output.split())
    (folder / "runs" / "summary.csv").unlink()
    assert before == {p: p.read_bytes() for p in (folder / "runs").iterdir()}


def test_estimates_of_other_settings_are_not_taken_for_these(folder, monkeypatch):
    """A call with other settings that was killed between its estimates and its record."""
    assert call("--data", "runs").exit_code == 0
    right = (folder / "estimates" / "run0.csv").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr("nopf.command.many._summary", lambda *_: 1 / 0)
        assert call("--data", "runs", "--seed", 1).exit_code == 1
    assert (folder / "estimates" / "run0.csv").read_bytes() != right
    assert call("--data", "runs").exit_code == 0
    assert (folder / "estimates" / "run0.csv").read_bytes() == right


@pytest.mark.parametrize("kept", ["[]", '{"of": 1}', '{"row": ["ess"]}', '{"row": {"ess": "x"}}'])
def test_a_record_that_is_none_counts_as_none(folder, kept):
    assert call("--data", "runs").exit_code == 0
    file = folder / "estimates" / "run0.json"
    sound = json.loads(file.read_text())
    file.write_text(kept if kept == "[]" else json.dumps(sound | json.loads(kept)))
    assert call("--data", "runs").exit_code == 0
    assert json.loads(file.read_text()) == sound


def test_names_are_names_and_no_addresses(folder):
    (folder / "runs" / "run0.csv").rename(folder / "runs" / "javascript:alert(1)#.csv")
    assert call("--data", "runs").exit_code == 0
    page = (folder / "estimates" / "index.html").read_text()
    assert 'href="javascript%3Aalert%281%29%23.csv"' in page
    assert 'href="javascript:' not in page
