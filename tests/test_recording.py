"""Recordings: what is read, and what is refused with row and column."""

import csv
import gzip
import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

import nopf
from nopf import cli
from nopf.estimate import oddities
from nopf.recording import (
    DataError,
    Named,
    Recording,
    csv_header,
    csv_rows,
    estimate_names,
    format_csv,
    format_json,
    json_rows,
    read_recording,
    write_estimates,
)

MODEL = """
import jax.numpy as jnp, nopf
model = nopf.StateSpaceModel(
    prior=nopf.Gaussian([0.0, 0.0], [1.0, 1.0]),
    transition=lambda x, step: jnp.stack([x[0] + step.dt * step.control[0], 0.9 * x[1]]),
    process_noise=lambda step: jnp.sqrt(step.dt) * jnp.array([0.3, 0.3]),
    observation=lambda x, step: jnp.stack([x[0], x[0] + x[1]]), observation_noise=[0.2, 0.2],
    state_names=("place", "bias"), observation_names=("gps", "odometer"),
    control_names=("speed",), dt=0.5)
def controls(steps):
    return jnp.ones((steps, 1))
"""
GOOD = "time,speed,gps,odometer,note\n10.0,1,0.5,0.6,a\n10.5,1,,1.1,b\n11.2,0.5,1.4,,c\n"


@pytest.fixture
def model():
    found = {}
    exec(MODEL, found)
    return found["model"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("NOPF_CACHE", str(tmp_path / "cache"))
    (tmp_path / "robot.py").write_text(MODEL)
    (tmp_path / "run.csv").write_text(GOOD)
    return tmp_path


def check(recording):
    np.testing.assert_array_equal(recording.times, [10.0, 10.5, 11.2])
    np.testing.assert_array_equal(recording.controls, [[1], [1], [0.5]])
    np.testing.assert_array_equal(
        recording.observations, [[0.5, 0.6], [np.nan, 1.1], [1.4, np.nan]]
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text,
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.replace(",", ";"),
        lambda text: text.replace(",", "\t"),
        lambda text: "\ufeff" + text,
        lambda text: text.replace("10.5", ' "10.5" ').replace(' "10.5" ', '"10.5"') + "\n\n",
    ],
    ids=["plain", "windows", "semicolons", "tabs", "byte order mark", "quotes and blank lines"],
)
def test_csv(model, tmp_path, change):
    file = tmp_path / "run.csv"
    file.write_bytes(change(GOOD).encode())
    check(read_recording(file, model))
    packed = tmp_path / "run.csv.gz"
    packed.write_bytes(gzip.compress(change(GOOD).encode()))
    check(read_recording(packed, model))


def test_a_row_with_nothing_observed_is_a_step(tmp_path):
    model = nopf.benchmarks.BENCHMARKS["sensor-bias"].model
    file = tmp_path / "run.csv"
    file.write_text("\ny0,y1\n1,1\n,\n\n , \n1.3,1\n")
    found = read_recording(file, model).observations
    np.testing.assert_array_equal(found, [[1, 1], [np.nan] * 2, [np.nan] * 2, [1.3, 1]])


def test_columns_that_do_not_fit_are_refused(model, tmp_path):
    file = tmp_path / "run.csv"
    file.write_text(GOOD)
    for named, words in [
        (Named(observations=["gps", "gps"]), "column 'gps' is used twice: time, speed, gps, gps"),
        (Named(time="gps"), "column 'gps' is used twice"),
        (
            Named(controls=["speed", "time"]),
            r"reads 1 controls \(speed\), but 2 columns",
        ),
    ]:
        with pytest.raises(DataError, match=words):
            read_recording(file, model, named)
    with pytest.raises(ValueError, match=r"controls: the model names 1 \(speed\), but there are 2"):
        nopf.simulate(model, 3, jax.random.key(0), controls=np.ones((3, 2)))


def test_a_pipe_can_be_read(model, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(
        ["sh", "-c", f"cat > {pipe}"], stdin=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdin is not None
        writer.stdin.write(GOOD)
        writer.stdin.close()
        check(read_recording(pipe, model))


def test_parquet(model, tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is in the tables extra")
    parquet = pytest.importorskip("pyarrow.parquet")
    file = tmp_path / "run.parquet"
    table = pyarrow.table(
        {
            "time": [10.0, 10.5, 11.2],
            "speed": [1, 1, 0.5],
            "gps": [0.5, None, 1.4],
            "odometer": [0.6, 1.1, None],
            "note": ["a", "b", "c"],
        }
    )
    parquet.write_table(table, file)
    check(read_recording(file, model))
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"run\.parquet: the Parquet file is damaged or cut short"):
        read_recording(file, model)
    file.write_bytes(whole)
    with pytest.raises(DataError, match=r"row 1, column note: expected a number, got 'a'"):
        read_recording(file, model, Named(observations=["gps", "note"]))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("gps", "gsp", r"run\.csv: no column 'gps'; there are time, speed, gsp, odometer, note"),
        ("note", "gps", r"several columns 'gps'"),
        ("1.4", "far", r"run\.csv, row 4, column gps: expected a number, got 'far'"),
        ("1.4", "inf", r"row 4, column gps: expected a finite number, got 'inf'"),
        ("11.2", "10.2", r"row 4, column time: times must not go backwards, but 10\.2 comes after"),
        ("11.2", "", r"row 4, column time: empty; only observations may be missing"),
        ("0.5,1.4", ",1.4", r"row 4, column speed: empty"),
        (",b", "", r"row 3: expected 5 cells, got 4"),
        ("10.5", "1718035203.35", r"but 11\.2 comes after 1718035203\.35 \(row 3\)"),
        ("1.4", "1_4", r"row 4, column gps: expected a number, got '1_4'"),
        ("1.4", "١", r"row 4, column gps: expected a number"),
        ("1.4", "1e39", r"row 4, column gps: expected a finite number, got '1e39'"),
        (",b", ',"5 in', r"row 3: not CSV .* quotes must be closed in their line"),
    ],
)
def test_bad_cells_are_named(model, tmp_path, old, new, words):
    file = tmp_path / "run.csv"
    file.write_text(GOOD.replace(old, new))
    with pytest.raises(DataError, match=words):
        read_recording(file, model)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty; expected a line of column names"),
        (GOOD.splitlines()[0].encode(), "expected at least one row"),
        (gzip.compress(GOOD.encode())[:40], "the gzip file is damaged or cut short"),
        (gzip.compress(GOOD.encode())[:30] + b"x" * 40, "the gzip file is damaged or cut short"),
        (b"\x89PNG\r\n\x1a\n\xff\xfe", r"expected CSV \(text in UTF-8\), gzip or Parquet"),
    ],
    ids=["empty", "names only", "half a gzip", "a bad gzip", "a picture"],
)
def test_bad_files_are_named(model, tmp_path, content, words):
    file = tmp_path / "run.csv"
    file.write_bytes(content)
    with pytest.raises(DataError, match=words):
        read_recording(file, model)
    with pytest.raises(DataError, match=r"none\.csv: cannot be read"):
        read_recording(tmp_path / "none.csv", model)


def test_times_may_be_left_out(model, tmp_path):
    file = tmp_path / "run.csv"
    file.write_text("\n".join(line.split(",", 1)[1] for line in GOOD.splitlines()))
    assert read_recording(file, model).times is None


def invoke(*arguments, **options):
    return CliRunner().invoke(
        cli.app, [str(a) for a in arguments], env={"COLUMNS": "300"}, **options
    )


def test_estimates_are_the_filters(folder, model):
    done = invoke(
        *("filter", f"{folder}/robot.py:model", "--data", folder / "run.csv", "--filter", "bpf"),
        *("--particles", 200, "--out", folder / "out.csv", "--json", "--plot", folder / "p.html"),
    )
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["steps"] == 3
    lines = (folder / "out.csv").read_text().splitlines()
    names = lines[0].split(",")
    assert names[:6] == ["time", "place_mean", "place_std", "place_q05", "place_q50", "place_q95"]
    assert names[-4:] == ["ess", "log_evidence", "p_value", "drift"]
    table = np.array([[float(cell) for cell in line.split(",")] for line in lines[1:]])
    recording = read_recording(folder / "run.csv", model)
    posterior = nopf.ParticleFilter(model, None, 200).run(
        recording.observations,
        key=jax.random.key(0),
        times=recording.times,
        controls=recording.controls,
        start=9.5,
    )
    np.testing.assert_allclose(table[:, 0], recording.times)
    np.testing.assert_allclose(table[:, 1], posterior.mean[:, 0], rtol=1e-5)
    np.testing.assert_allclose(table[:, 10], posterior.quantiles[:, 2, 1], rtol=1e-5)
    np.testing.assert_allclose(table[:, -4], posterior.ess, rtol=1e-5)
    np.testing.assert_allclose(table[:, -3], posterior.log_evidence_increments, rtol=1e-4)
    page = (folder / "p.html").read_text()
    assert "<h1>Estimates</h1>" in page
    assert "src=" not in page.split("<script")[0]


def stream(folder, text, *more):
    code = "import nopf.cli; nopf.cli.main()"
    arguments = ["filter", f"{folder}/robot.py:model", *map(str, more), "--particles", "200"]
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_live_stream_gives_the_same_as_a_recording(folder):
    whole = invoke(
        *("filter", f"{folder}/robot.py:model", "--data", folder / "run.csv"),
        *("--filter", "lpf", "--particles", 200),
    )
    live = stream(folder, GOOD, "-", "--filter", "lpf")
    assert live.returncode == 0, live.stderr
    assert live.stdout == whole.stdout
    rows = [line.split(",") for line in GOOD.splitlines()]
    objects = [
        json.dumps({n: float(c) for n, c in zip(rows[0], row, strict=True) if c and n != "note"})
        for row in rows[1:]
    ]
    as_json = stream(folder, "\n".join(objects) + "\n", "--data", "-", "--filter", "lpf")
    assert as_json.returncode == 0, as_json.stderr
    numbers = [list(json.loads(line).values()) for line in as_json.stdout.splitlines()]
    expected = [[float(cell) for cell in line.split(",")] for line in live.stdout.splitlines()[1:]]
    np.testing.assert_allclose(numbers, expected)
    bad = stream(folder, GOOD.replace("1.4", "far"), "-", "--filter", "lpf")
    assert bad.returncode == 2
    assert "standard input, row 4, column gps: expected a number" in bad.stderr
    assert len(bad.stdout.splitlines()) == 3  # what was right before is out


def test_units_that_differ_are_noticed(model):
    def said(unit=1.0, gps=(0.0, 0.1, 0.2, 0.3)):
        times = unit * np.array([10.0, 10.5, 11.2, 11.7])
        return oddities(model, Recording(np.stack([gps, np.zeros(4)], axis=1), times, None))

    assert said() == []
    assert said(1000.0)[0].startswith("rows are about 500 apart, and dt of the model is 0.5: do")
    assert "observation_angles=('gps',)" in said(gps=[3.0, 3.1, -3.1, -3.0])[0]
    angular = nopf.StateSpaceModel(
        prior=model.prior,
        transition=lambda x, step: x,
        process_noise=[1.0, 1.0],
        observation=model.observation,
        observation_noise=[1.0, 1.0],
        observation_names=("compass", "other"),
        observation_angles=("compass",),
    )
    degrees = Recording(np.array([[350.0, 0], [355, 0], [2, 0]]), None, None)
    assert oddities(angular, degrees) == ["compass is an angle, but goes to 355: radians?"]


def test_estimates_in_parquet(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is in the tables extra")
    names, rows = ["time", "x_mean", "ess"], np.array([[0.1, 2.5, np.nan], [0.2, -1.0, np.nan]])
    write_estimates(tmp_path / "states.parquet", names, rows)
    table = parquet.read_table(tmp_path / "states.parquet")
    assert table.column_names == names
    np.testing.assert_array_equal(np.stack([table.column(n) for n in names], axis=1), rows)


def test_names_with_commas_are_quoted():
    names = estimate_names(("pos, m", 'say "v"'), (0.5,))
    assert next(csv.reader([csv_header(names)])) == names


def test_what_is_read_is_not_written_over(folder):
    arguments = ("--filter", "bpf", "--data", folder / "run.csv")
    model = f"{folder}/robot.py:model"
    for command in (
        ("filter", model, *arguments, "--out", folder / "run.csv"),
        ("train", model, "--data", folder / "run.csv", "--out", folder / "run.csv"),
        ("train", model, "--data", folder / "run.csv", "--out", folder / "robot.py"),
    ):
        done = invoke(*command)
        assert done.exit_code == 2
        assert "is read here; name another file" in done.output
    for plot in (folder, folder / "no" / "x.svg"):
        done = invoke("filter", model, *arguments, "--plot", plot)
        assert done.exit_code == 2
    assert (folder / "run.csv").read_text() == GOOD
    assert (folder / "robot.py").read_text() == MODEL


def test_model_files_that_end_or_fail(tmp_path):
    for text, words in [
        ("import sys\nsys.exit(0)", "line 2: SystemExit: 0"),
        ("import helper", "helper.py, line 3"),
    ]:
        (tmp_path / "helper.py").write_text("\n\ndef (")
        (tmp_path / "robot.py").write_text(text)
        done = invoke("filter", f"{tmp_path}/robot.py:model", "--data", "x.csv")
        assert done.exit_code == 2
        assert words in done.output


def rows_of_json(model, *objects):
    return list(json_rows("stream", [json.dumps(o) + "\n" for o in objects], model))


def test_json_lines(model):
    with pytest.raises(DataError, match=r"row 1: none of gps, odometer; there are time, gsp"):
        rows_of_json(model, {"time": 1.0, "gsp": 2.0})
    good = {"speed": 1, "gps": 0.5}
    with pytest.raises(DataError, match="row 2: a time, but the rows before had none"):
        rows_of_json(model, good, good | {"time": 1.0})
    with pytest.raises(DataError, match="row 1, column gps: expected a number"):
        rows_of_json(model, good | {"gps": 10**400})
    for line in ("{", '{"gps":' + "[" * 100_000):
        with pytest.raises(DataError, match="row 1: not JSON"):
            list(json_rows("stream", [line], model))
    (row,) = rows_of_json(model, good)
    np.testing.assert_array_equal(row.observation, [0.5, np.nan])
    assert row.time is None
    # A sensor may be called as times are.
    named = Named(observations=("t", "gps"))
    (row,) = json_rows("stream", ['{"speed": 1, "t": 20.5}'], model, named)
    np.testing.assert_array_equal(row.observation, [20.5, np.nan])
    assert row.time is None


def test_bad_lines_can_be_left_out(model):
    said = []
    lines = GOOD.splitlines()
    lines[2:2] = ["10.2,1,garbage,,", '10.3,1,"', "9,1,2,3,x", "10.4,1,2"]
    rows = list(csv_rows("stream", lines, model, skip=said.append))
    assert [row.time for row in rows] == [10.0, 10.5, 11.2]
    assert [message.split(":")[0] for message in said] == [
        "stream, row 3, column gps",
        "stream, row 4",
        "stream, row 5, column time",
        "stream, row 6",
    ]
    objects = ['{"time": 1, "speed": 1, "gps": 2}', "{", '{"time": 2, "speed": 1, "gps": 3}']
    assert [row.time for row in json_rows("stream", objects, model, skip=said.append)] == [1, 2]
    assert said[-1].startswith("stream, row 2: not JSON")


def test_times_keep_all_their_digits():
    values = np.array([1718035203.35, 1 / 3])
    assert format_csv(values) == "1718035203.35,0.333333333"
    assert json.loads(format_json(["time", "x"], values))["time"] == 1718035203.35


@pytest.mark.slow
def test_without_a_proposal_one_is_trained_like_the_recording_and_kept(folder, monkeypatch):
    seen = []

    def quick(model, horizon, key, *, recipe, checkpoint, **data):
        seen.append({"horizon": horizon, **data})
        small = nopf.Recipe.fast(
            base="skeleton", width=4, steps=0, missing_rate=recipe.missing_rate
        )
        return nopf.train(model, horizon, key, recipe=small, **data)

    monkeypatch.setattr("nopf.estimate.train", quick)
    command = ["filter", f"{folder}/robot.py:model", "--data", folder / "run.csv"]
    first, second = (invoke(*command, "--particles", 50) for _ in range(2))
    assert first.exit_code == 0, first.output
    assert "training a proposal on 3 simulated steps" in first.stderr
    assert "trained for this model and data before" in second.stderr
    assert first.stdout == second.stdout
    (data,) = seen
    np.testing.assert_array_equal(data["times"], [10.0, 10.5, 11.2])
    np.testing.assert_array_equal(data["missing"], [[0, 0], [1, 0], [0, 1]])
    np.testing.assert_array_equal(data["controls"], [[1], [1], [0.5]])
    assert data["start"] == 9.5


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "a recording, or - for a live stream"),
        (["--data", "none.csv"], "cannot be read"),
        (["--data", "run.csv", "--filter", "bfp"], "did you mean bpf?"),
        (["--data", "run.csv", "--filter", "kf", "--proposal", "x.nopf"], "kf uses none"),
        (["--data", "run.csv", "--proposal", "run.csv"], "damaged or of another kind"),
        (["--data", "run.csv", "--observations", "gps"], "the model's observation has 2 numbers"),
        (["--data", "run.csv", "--plot", "x.gif"], "expected a name that ends in"),
        (["--data", "run.csv", "--json"], "standard output has the estimates; name a file"),
        (["--data", "-", "--out", "x.csv"], "are for recordings"),
        (["--data", "-"], "train on a recording first"),
    ],
)
def test_filter_mistakes_are_named(folder, monkeypatch, arguments, words):
    monkeypatch.chdir(folder)
    before = sorted(folder.iterdir())
    done = invoke("filter", "robot.py:model", *arguments)
    assert done.exit_code in (1, 2)
    assert words in done.output or words in str(done.exception)
    assert sorted(folder.iterdir()) == before


def test_new_writes_a_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert invoke("new", "robot.py").exit_code == 0
    assert "nopf check robot.py:model" in (tmp_path / "robot.py").read_text()
    assert invoke("new", "robot.py").exit_code == 2
    assert invoke("new", "robot.txt").exit_code == 2


@pytest.mark.slow
def test_training_with_sensors_that_take_turns():
    """Each step has one of two sensors; the network is used, and beats the transition."""
    from tests import models

    model = models.linear(observation_noise=[0.1, 0.1])
    missing = np.arange(12)[:, None] % 2 == np.array([[0, 1]])
    recipe = nopf.Recipe.fast(base="skeleton", width=16, steps=300)
    proposal = nopf.train(model, 12, jax.random.key(0), recipe=recipe, missing=missing)
    assert proposal.features.masks
    ys = np.where(missing, np.nan, nopf.simulate(model, 12, jax.random.key(1)).observations)
    learned, blind = (
        float(nopf.ParticleFilter(model, p, 500).run(ys, key=jax.random.key(2)).ess.mean())
        for p in (proposal, None)
    )
    assert learned > 1.5 * blind
    with pytest.raises(ValueError, match=r"missing: expected shape \(12, 2\)"):
        nopf.train(model, 12, jax.random.key(0), missing=jnp.zeros((3, 2), bool))
