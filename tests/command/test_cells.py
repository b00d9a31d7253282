"""`nopf bench` and `nopf sweep` as a user calls them."""

import csv
import json

import pytest

from tests.command.calling import invoke


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
    done = invoke("bench", *arguments, "--out", str(out))
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
    done = invoke(*arguments, "--out", str(out))
    assert done.exit_code == 2
    assert words in done.output
    assert not out.exists()


@pytest.mark.parametrize("command", ["bench", "sweep"])
def test_a_folder_that_cannot_be_written_to(tmp_path, command):
    (tmp_path / "notes.txt").write_text("mine")
    out = tmp_path / "notes.txt" / "results"
    done = invoke(command, "sensor-bias", "--out", str(out))
    assert done.exit_code == 2
    assert "cannot be written to" in done.output or "cannot be read" in done.output
    assert "name another folder" in done.output
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_bench_refuses_results_of_another_version(tmp_path):
    (tmp_path / "nopf.json").write_text('{"nopf": "9.9", "format": 1}')
    done = invoke("bench", "sensor-bias", "--out", str(tmp_path))
    assert done.exit_code == 2
    assert "made by nopf 9.9" in done.output
    assert [file.name for file in tmp_path.iterdir()] == ["nopf.json"]


def test_bench_and_sweep_write_tables(tmp_path):
    common = ["--filters", "bpf", "--seeds", "2", "--out", str(tmp_path / "out")]
    done = invoke("bench", "sensor-bias", "--particles", "30", *common, "--json")
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
    assert table["window"] == "all"
    done = invoke("bench", "sensor-bias", "--particles", "30", *common, "--against-paper")
    assert "without the first step" in done.stdout
    paper = (folder / "metrics.csv").read_text().splitlines()
    whole = list(csv.DictReader(lines))
    for before, after in zip(whole, csv.DictReader(paper), strict=True):
        cell = json.loads((folder / "cells" / f"bpf-30-{before['seed']}.json").read_text())["row"]
        path = cell["ess_path"]
        assert len(path) == 59
        assert float(before["ess"]) == pytest.approx(sum(path) / 59, rel=1e-4)
        assert float(after["ess"]) == pytest.approx(sum(path[1:]) / 58, rel=1e-4)
        # A joint coverage is a share of the steps that count.
        assert float(after["picp"]) * 58 == pytest.approx(
            round(float(after["picp"]) * 58), abs=1e-3
        )
        assert before["log_evidence"] == after["log_evidence"]
    done = invoke("bench", "sensor-bias", "--particles", "30", *common, "--window", "all", "--json")
    assert (folder / "metrics.csv").read_text().splitlines() == lines
    done = invoke("bench", "sensor-bias", *common, "--window", "late")
    assert done.exit_code == 2
    assert "late" in done.output
    assert "paper" in done.output
    done = invoke("sweep", "sensor-bias", "--particles", "10,30", *common)
    assert done.exit_code == 0, done.output
    assert "N = 10" in done.stdout
    assert len((folder / "sweep.csv").read_text().splitlines()) == 5
    assert (folder / "sweep.svg").stat().st_size > 1000
    assert len((folder / "metrics.csv").read_text().splitlines()) == 3
