"""Benchmark runs: the same for every filter, on disk at once, and never run twice."""

import csv
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

import nopf
from nopf.benchmarks import BENCHMARKS, runner, sensor_bias
from nopf.benchmarks.cluster import ClusterError
from nopf.benchmarks.results import COLUMNS, FORMAT, Cell, Results, ResultsError
from nopf.benchmarks.runner import plan, run, run_cell
from nopf.catalogue import Tuning
from nopf.command.app import app


@pytest.fixture
def untrained(monkeypatch):
    """Learned filters with a network that has learned nothing: right, and quick to make."""
    quick = nopf.Recipe.fast(base="skeleton", steps=0)
    monkeypatch.setattr(nopf.Recipe, "fast", classmethod(lambda cls, **changes: quick))


def rows_of(results, drop=("wt", "compile_seconds")):
    rows = [row for name in results.benchmarks() for row in results.rows(name)]
    return [{key: value for key, value in row.items() if key not in drop} for row in rows]


def test_a_cell_is_what_the_filter_gives(tmp_path):
    row, trace = run_cell(Cell("sensor-bias", "bpf", 100, 3), None)
    assert trace is None
    case = BENCHMARKS["sensor-bias"]
    path = case.simulate(3)
    key, scores_key = jax.random.split(jax.random.fold_in(jax.random.key(3), 1))
    posterior = nopf.ParticleFilter(case.model, particles=100).run(
        path.observations, key=key, keep="particles"
    )
    expected = nopf.metrics.evaluate(scores_key, case.model, posterior, path)
    assert {name: row[name] for name in expected} == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(row["ess_path"], posterior.ess, rtol=1e-5)
    np.testing.assert_allclose(sum(row["evidence_path"]), row["log_evidence"], rtol=1e-4)
    assert row["wt"] > 0


def test_a_trace_shows_particles_by_weight():
    _, trace = run_cell(Cell("sensor-bias", "bpf", 2000, 0), None)
    np.testing.assert_array_equal(trace["truth"], BENCHMARKS["sensor-bias"].simulate(0).states)
    mean, spread = trace["mean"][:, 1:], np.sqrt(np.diagonal(trace["cov"], axis1=1, axis2=2))

    def farthest(points):
        error = (points.mean(1) - mean) / (spread / np.sqrt(points.shape[1]))
        return np.abs(error).max()

    # Five standard errors of independent draws; a systematic draw has less.
    assert farthest(trace["kept"]) < 5
    assert farthest(trace["proposed"]) > 5


def test_finished_cells_are_not_run_again(tmp_path, untrained, monkeypatch):
    cells, skipped = plan(["sensor-bias"], ["kf", "nupf", "nopf"], 2, [50])
    assert skipped == []
    told = []
    results = Results(tmp_path / "out")
    assert run(results, cells, tell=lambda *numbers: told.append(numbers)) == (6, [])
    assert told == [(done, 6) for done in range(7)]
    before = rows_of(results)
    files = sorted((tmp_path / "out" / "sensor-bias" / "cells").glob("*.json"))
    assert len(files) == 6
    assert run(Results(tmp_path / "out"), cells) == (0, [])
    # One is lost, one is half written: both are run again, to the same numbers.
    files[0].unlink()
    files[1].write_text(files[1].read_text()[:40])
    (files[0].parent / "mine.json").write_text('{"row": {}}')
    assert run(Results(tmp_path / "out"), cells) == (2, [])
    assert rows_of(results) == before
    # A setting of one filter touches its cells only.
    case = dataclasses.replace(BENCHMARKS["sensor-bias"], tuning=Tuning(eta=0.02))
    monkeypatch.setattr(sensor_bias, "benchmark", case)
    assert {row["filter"] for row in results.rows("sensor-bias")} == {"kf", "nopf"}
    assert run(Results(tmp_path / "out"), cells) == (2, [])
    changed = [a for a, b in zip(rows_of(results), before, strict=True) if a != b]
    assert {row["filter"] for row in changed} == {"nupf"}


def test_filters_with_the_same_recipe_share_a_proposal(tmp_path, untrained):
    results = Results(tmp_path)
    cells, skipped = plan(["sensor-bias"], ["nopf", "anopf"], 1, [50])
    assert skipped == []
    assert run(results, cells) == (2, [])
    (kept,) = (tmp_path / "proposals").glob("*.nopf")
    assert kept == results.proposal_file("sensor-bias", "fast")
    assert results.training("sensor-bias", "fast")["recipe"] == "fast"
    nopf_row, anopf_row = results.rows("sensor-bias")
    assert nopf_row["ess"] != anopf_row["ess"]


def test_a_cell_that_fails_is_named_and_the_others_are_run(tmp_path, monkeypatch):
    cells, _ = plan(["sensor-bias"], ["bpf"], 3, [20])
    real = runner.run_cell

    def fails(cell, proposal):
        if cell.seed == 1:
            raise FloatingPointError("not finite")
        return real(cell, proposal)

    monkeypatch.setattr(runner, "run_cell", fails)
    ran, failures = run(Results(tmp_path), cells)
    assert ran == 3
    assert failures == [
        "bpf on sensor-bias, 20 particles, seed 1 failed: FloatingPointError: not finite"
    ]
    assert [row["seed"] for row in Results(tmp_path).rows("sensor-bias")] == [0, 2]
    monkeypatch.undo()
    assert run(Results(tmp_path), cells) == (1, [])


def test_filters_that_do_not_apply_are_named():
    cells, skipped = plan(["range-only"], ["kf", "opf", "bpf"], 1)
    assert {cell.filter for cell in cells} == {"bpf"}
    assert cells[0].particles == 10_000
    assert [line.split(":")[0] for line in skipped] == [
        "kf does not apply to range-only",
        "opf does not apply to range-only",
    ]


def test_folders_of_other_things_are_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ResultsError, match="something else than results"):
        Results(tmp_path)
    with pytest.raises(ResultsError, match="found a file"):
        Results(tmp_path / "notes.txt")
    made = tmp_path / "made"
    made.mkdir()
    (made / "nopf.json").write_text(json.dumps({"nopf": "0.0.1", "format": 1}))
    with pytest.raises(ResultsError, match=r"made by nopf 0\.0\.1"):
        Results(made)
    (made / "nopf.json").write_text("{")
    with pytest.raises(ResultsError, match="not readable"):
        Results(made)
    with pytest.raises(ResultsError, match="cannot be written to"):
        Results(tmp_path / "notes.txt" / "below").prepare()


def test_links_out_of_a_folder_of_results_are_refused(tmp_path):
    results = Results(tmp_path / "out")
    results.prepare()
    (results.folder / "page").symlink_to("nopf.json")
    Results(tmp_path / "out")
    for name in ("report.html", "figures"):
        link = results.folder / name
        link.symlink_to(tmp_path)
        with pytest.raises(ResultsError, match=f"{name}: a symbolic link out of the folder"):
            Results(tmp_path / "out")
        link.unlink()


@pytest.mark.parametrize(
    "stamp",
    [{}, {"nopf": nopf.__version__}, {"nopf": 1, "format": 1}, {"made": 7}, {"made": {"jax": [7]}}],
)
def test_a_stamp_that_is_none_is_named(tmp_path, stamp):
    whole = {"nopf": nopf.__version__, "format": FORMAT} if "made" in stamp else {}
    for text in (json.dumps(whole | stamp), "[" * 200_000):
        (tmp_path / "nopf.json").write_text(text)
        with pytest.raises(ResultsError, match=r"nopf\.json: not readable"):
            Results(tmp_path)


CODE = "from nopf.command import main; main()"


def bench(out, *more):
    arguments = ["bench", "sensor-bias", "--filters", "kf,bpf", "--seeds", "4"]
    return [sys.executable, "-c", CODE, *arguments, "--particles", "200", "--out", str(out), *more]


def without_times(file):
    with file.open() as stream:
        rows = list(csv.DictReader(stream))
    assert tuple(rows[0]) == COLUMNS
    return [{key: value for key, value in row.items() if key != "wt"} for row in rows]


def test_killed_bench_goes_on_to_the_same_numbers(tmp_path):
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    # Without the compiled code that tests share: a kill could leave a part of a file there.
    alone = os.environ | {"JAX_ENABLE_COMPILATION_CACHE": "false"}
    process = subprocess.Popen(bench(killed), stdout=subprocess.DEVNULL, env=alone)
    cells = killed / "sensor-bias" / "cells"
    while not (cells / "bpf-200-1.json").exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = {file.name: file.stat().st_mtime_ns for file in cells.glob("*.json")}
    assert 6 <= len(done) < 8
    subprocess.run(bench(killed), check=True, stdout=subprocess.DEVNULL)
    done_at_once = CliRunner().invoke(app, bench(whole)[3:])
    assert done_at_once.exit_code == 0
    assert {name: (cells / name).stat().st_mtime_ns for name in done} == done
    names = ("killed", "whole")
    first, second = (
        without_times(tmp_path / name / "sensor-bias" / "metrics.csv") for name in names
    )
    assert len(first) == 8
    assert first == second


def test_two_workers_give_what_one_process_gives_though_one_is_killed(tmp_path):
    distributed = pytest.importorskip("distributed", reason="needs Dask: nopf[cluster]")
    cells, _ = plan(["sensor-bias"], ["bpf", "enkf"], 4, [100])
    alone = Results(tmp_path / "alone")
    run(alone, cells)
    victims = []
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=50
    ) as cluster:

        def kill_one(done, total):
            if done == 1:
                victims.append(cluster.workers[0].pid)
                os.kill(victims[0], signal.SIGKILL)

        spread = Results(tmp_path / "spread")
        run(spread, cells, cluster=cluster.scheduler_address, tell=kill_one)
    assert len(victims) == 1
    assert rows_of(spread) == rows_of(alone)
    assert len(rows_of(spread)) == 8


@pytest.mark.slow
def test_workers_are_started_on_this_machine(tmp_path):
    pytest.importorskip("distributed", reason="needs Dask: nopf[cluster]")
    arguments = ["bench", "sensor-bias", "--filters", "bpf", "--seeds", "2", "--particles", "50"]
    for name, more in [("alone", []), ("spread", ["--workers", "2"])]:
        done = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / name), *more])
        assert done.exit_code == 0, done.output
    assert rows_of(Results(tmp_path / "spread")) == rows_of(Results(tmp_path / "alone"))
    assert len(rows_of(Results(tmp_path / "spread"))) == 2


def test_without_dask_it_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    cells, _ = plan(["sensor-bias"], ["bpf"], 1, [20])
    with pytest.raises(ClusterError, match=r"nopf\[cluster\]"):
        run(Results(tmp_path), cells, workers=2)
