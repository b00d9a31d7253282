"""Recordings: what is read, and what is refused with row and column."""

import gzip
import json
import os
import subprocess

import jax
import numpy as np
import pytest

import nopf
from nopf.recording import DataError, Named, csv_rows, json_rows, read_recording
from tests import recordings
from tests.recordings import GOOD


@pytest.fixture
def model():
    return recordings.model()


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
    unsteered = nopf.benchmarks.BENCHMARKS["sensor-bias"].model
    two = Named(observations=["gps", "speed"], controls=["time"])
    with pytest.raises(DataError, match=r"--controls names columns, but the model reads no step\."):
        read_recording(file, unsteered, two)


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
        (
            "gps",
            "gsp",
            r"run\.csv: no column 'gps' \(did you mean gsp\?\); there are time, speed, gsp",
        ),
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
