"""Writes estimates: as CSV, JSON lines or Parquet."""

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nopf.files import write_whole
from nopf.recording.columns import DataError

KIND = "kind"  # of a row: estimate or forecast


def csv_header(names: Sequence[str]) -> str:
    """One line of names, in quotes where they need them."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(names)
    return line.getvalue()


def _digits(value: float) -> str:
    """Nine digits tell numbers of single precision apart; one of double precision gets more."""
    with np.errstate(over="ignore"):
        single = float(np.float32(value)) == value
    return f"{value:.9g}" if single else f"{value:.15g}"


def format_csv(values: np.ndarray) -> str:
    """One line; empty where there is no number. Times, which come first, keep all their digits."""
    cells = ["" if np.isnan(value) else _digits(value) for value in values[1:]]
    return ",".join([repr(float(values[0])), *cells])


def csv_table(names: Sequence[str], rows: np.ndarray, kinds: Sequence[str] | None = None) -> str:
    """Estimates as CSV; with a last column `kind` if some rows are forecasts."""
    if kinds is None:
        lines = [csv_header(names), *(format_csv(row) for row in rows)]
    else:
        lines = [csv_header([*names, KIND])]
        lines += [f"{format_csv(row)},{kind}" for row, kind in zip(rows, kinds, strict=True)]
    return "\n".join(lines) + "\n"


def format_json(names: Sequence[str], values: np.ndarray) -> str:
    """One line; null where there is no number."""
    return json.dumps(dict(zip(names, plain(values), strict=True)))


def plain(values: np.ndarray) -> list[float | None]:
    """The numbers of a row of estimates for JSON, as CSV has them: None where there is none."""
    rounded = [float(_digits(value)) if np.isfinite(value) else None for value in values[1:]]
    return [float(values[0]), *rounded]


def write_estimates(
    file: Path, names: Sequence[str], rows: np.ndarray, kinds: Sequence[str] | None = None
) -> None:
    """Writes estimates, whole or not at all: Parquet if the file is called so, otherwise CSV."""
    if file.suffix == ".parquet":
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            raise DataError(
                f"{file}: writing Parquet needs pyarrow: python -m pip install 'nopf[tables]'"
            ) from None
        buffer = io.BytesIO()
        columns: dict[str, Any] = dict(zip(names, rows.T, strict=True))
        columns |= {} if kinds is None else {KIND: list(kinds)}
        pyarrow.parquet.write_table(pyarrow.table(columns), buffer)
        write_whole(file, buffer.getvalue())
        return
    write_whole(file, csv_table(names, rows, kinds).encode())
