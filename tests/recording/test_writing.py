"""Estimates: what is written."""

import csv
import json

import numpy as np
import pytest

from nopf.recording import csv_header, estimate_names, format_csv, format_json, write_estimates


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


def test_times_keep_all_their_digits():
    values = np.array([1718035203.35, np.float32(1 / 3)])
    assert format_csv(values) == "1718035203.35,0.333333343"
    assert json.loads(format_json(["time", "x"], values))["time"] == 1718035203.35


def test_numbers_of_double_precision_keep_their_digits():
    north = 5_000_000.123456
    assert format_csv(np.array([0.0, north])) == "0.0,5000000.123456"
    assert json.loads(format_json(["time", "north"], np.array([0.0, north])))["north"] == north
