"""`nopf filter` for many recordings."""

import csv
import json
import os
from pathlib import Path

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
        (["--data", "runs", "--time", "when"], "no recording can be read"),
        (["--data", "empty"], "in a folder of its own, write 'empty/*/*.csv'"),
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
    assert "the summary would overwrite the estimates" in " ".join(
        call("--data", "runs").output.split()
    )
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


def test_files_of_one_name_are_told_apart_by_their_folders(folder):
    for k in range(2):
        drive = folder / "drives" / f"day{k}"
        drive.mkdir(parents=True)
        (folder / "runs" / f"run{k}.csv").rename(drive / "run.csv")
    done = call("--data", "drives/*/run.csv")
    assert done.exit_code == 0, done.output
    rows = summary(folder)
    assert [row["recording"] for row in rows] == [f"drives/day{k}/run.csv" for k in range(2)]
    assert rows[0]["log_evidence"] != rows[1]["log_evidence"]
    page = (folder / "estimates" / "index.html").read_text()
    for k in range(2):
        assert (folder / "estimates" / f"day{k}" / "run.csv").exists()
        assert f'<a href="day{k}/run.csv">drives/day{k}/run.csv</a>' in page
    assert "2 of 2 recordings were finished before" in call("--data", "drives/*/run.csv").stderr
    refused = call("--data", "drives/*/run.csv", "--out", "drives")
    assert "is read from there" in " ".join(refused.output.split())


def parquet(folder, runs):
    """The recordings of the folder as one table, with a column that names the run."""
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is in the tables extra")
    writer = pytest.importorskip("pyarrow.parquet", reason="pyarrow is in the tables extra")
    columns = {name: [] for name in ("drive", "time", "speed", "gps", "odometer")}
    for run, text in runs.items():
        for line in text.splitlines()[1:]:
            cells = [float(cell) if cell else None for cell in line.split(",")[:4]]
            for name, value in zip(columns, [run, *cells], strict=True):
                columns[name].append(value)
    writer.write_table(pyarrow.table(columns), folder / "drives.parquet")
    return columns


def test_runs_of_a_table_are_recordings(folder):
    """Each is estimated as if it were a file of its own, whatever it is called."""
    texts = [(folder / "runs" / f"run{k}.csv").read_text() for k in range(4)]
    names = ["one", "../two", "a/b", "4"]
    parquet(folder, dict(zip(names, texts, strict=True)))
    assert call("--data", "runs").exit_code == 0
    files = [(folder / "estimates" / f"run{k}.csv").read_bytes() for k in range(4)]
    done = call("--data", "drives.parquet", "--run", "drive", "--out", "own", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)["recordings"]
    assert [row["recording"] for row in found] == [f"drives.parquet, run {n}" for n in names]
    written = ["one", "%2E%2E%2Ftwo", "a%2Fb", "4"]
    assert sorted(p.stem for p in (folder / "own").glob("*.json")) == sorted(written)
    assert [(folder / "own" / f"{name}.csv").read_bytes() for name in written] == files
    parquet(folder, {"one": texts[0], "../two": texts[3]})
    again = call("--data", "drives.parquet", "--run", "drive", "--out", "own")
    assert "1 of 2 recordings were finished before" in again.stderr
    assert (folder / "own" / "%2E%2E%2Ftwo.csv").read_bytes() == files[3]
    wrong = call("--data", "drives.parquet", "--run", "driver", "--out", "own")
    assert "no column 'driver' (did you mean drive?)" in " ".join(wrong.output.split())


def test_runs_may_be_in_many_files(folder):
    pytest.importorskip("pyarrow", reason="pyarrow is in the tables extra")
    texts = [(folder / "runs" / f"run{k}.csv").read_text() for k in range(4)]
    (folder / "parts").mkdir()
    for part, own in enumerate([{"a": texts[0]}, {"b": texts[1], "c": texts[2]}]):
        parquet(folder, own)
        (folder / "drives.parquet").rename(folder / "parts" / f"{part}.parquet")
    done = call("--data", "parts", "--run", "drive")
    assert done.exit_code == 0, done.output
    assert [row["recording"] for row in summary(folder)] == [f"parts, run {n}" for n in "abc"]
    assert call("--data", "parts", "--run", "drive", "--out", "parts").exit_code == 2
    parquet(folder, {None: texts[0]})
    done = call("--data", "drives.parquet", "--run", "drive")
    assert "one row has None" in " ".join(done.output.split())


def test_smoothed_and_forecast_for_each(folder):
    done = call("--data", "runs", "--smooth", "--forecast", "2", "--filter", "kf")
    assert done.exit_code == 0, done.output
    lines = (folder / "estimates" / "run3.csv").read_text().splitlines()
    alone = invoke(
        *("filter", "robot.py:model", "--data", "runs/run3.csv", "--filter", "kf", "--smooth"),
        *("--forecast", 2),
    )
    assert alone.stdout.splitlines() == lines
    assert [line.rpartition(",")[2] for line in lines[-3:]] == ["estimate", "forecast", "forecast"]


def many_runs(folder, monkeypatch, count):
    """What a process holds after each of many recordings: open files, and bytes of memory."""
    seen = []

    class Count:
        def __init__(self, *_):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def __call__(self, done, total):
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            seen.append((len(os.listdir("/proc/self/fd")), pages * os.sysconf("SC_PAGESIZE")))

    monkeypatch.setattr("nopf.command.many.Counted", Count)
    texts = [GOOD.replace("0.5,0.6", f"0.5,{k / count:.4f}") for k in range(count)]
    parquet(folder, {f"run{k}": text for k, text in enumerate(texts)})
    done = call("--data", "drives.parquet", "--run", "drive", "--particles", 20)
    assert done.exit_code == 0, done.output
    assert len(summary(folder)) == count
    assert len({row["log_evidence"] for row in summary(folder)}) == count
    return seen


LINUX = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="it is Linux that tells")


@LINUX
def test_twenty_runs_open_no_more_files_than_one(folder, monkeypatch):
    seen = many_runs(folder, monkeypatch, 20)
    assert len(seen) == 21
    assert seen[-1][0] <= seen[2][0]


@LINUX
@pytest.mark.slow
def test_a_thousand_runs_take_no_more_memory_than_two_hundred(folder, monkeypatch):
    seen = many_runs(folder, monkeypatch, 1000)
    assert seen[-1][0] <= seen[2][0]
    assert seen[-1][1] < seen[200][1] + 20e6
