"""Reads recordings: from CSV, JSON lines or Parquet to observations, times and controls."""

import csv
import gzip
import io
import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nopf.model import StateSpaceModel
from nopf.recording.columns import (
    BY_MODEL,
    Columns,
    DataError,
    Named,
    choose_columns,
    is_time,
    observed,
)
from nopf.words import listed

PLAIN = re.compile(r"[\s0-9a-zA-Z.+-]*", re.ASCII)  # what numbers are written with
LARGEST = 3e38  # what single precision holds
Skip = Callable[[str], None]


class Recording(NamedTuple):
    """What was measured.

    Attributes:
        observations: `(T, m)`, NaN where a cell is empty.
        times: `(T,)`, or None if there is no column of times.
        controls: `(T, u)`, or None.
        start: the prior's time; one `dt` of the model before the first row if None.
        truth: `(T,)` true values of some states, by their names; NaN where a cell is empty.
    """

    observations: np.ndarray
    times: np.ndarray | None
    controls: np.ndarray | None
    start: float | None = None
    truth: dict[str, np.ndarray] | None = None


class Row(NamedTuple):
    """One observation of a recording."""

    observation: np.ndarray
    time: float | None
    control: np.ndarray | None
    truth: dict[str, float]


def read_recording(
    file: str | os.PathLike[str], model: StateSpaceModel, named: Named = BY_MODEL
) -> Recording:
    """Reads a recording: CSV (also with semicolons or tabs, also packed with gzip) or Parquet.

    Args:
        file: where it is.
        model: what it shall be filtered with.
        named: columns that do not go by the model's names. Times may be missing; they are in
            `time`, `t` or `timestamp` if there is one.

    Raises:
        DataError: if a column is missing, or a cell is no number, or times go backwards.
    """
    path = Path(file)
    try:
        # Opened once, and only peeked into: it may be a pipe.
        with path.open("rb") as stream:
            magic = stream.peek(4)[:4]
            if magic == b"PAR1":
                return gather(str(file), _parquet_rows(path, model, named))
            if path.suffix.lower() == ".parquet":
                raise DataError(
                    f"{file}: not Parquet, although it is called so (it begins with {magic!r}); "
                    "if it is CSV, rename it to .csv"
                )
            packed = magic[:2] == b"\x1f\x8b"
            content: Any = gzip.GzipFile(fileobj=stream) if packed else stream
            lines = io.TextIOWrapper(content, "utf-8-sig", newline="")
            return gather(str(file), csv_rows(str(file), lines, model, named))
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{file}: the gzip file is damaged or cut short ({error})") from None
    except UnicodeDecodeError as error:
        bad = error.object[error.start : error.end]
        raise DataError(
            f"{file}: expected CSV (text in UTF-8), gzip or Parquet; {error.reason} ({bad!r})"
        ) from None
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror})") from None


def csv_rows(
    where: str,
    lines: Iterable[str],
    model: StateSpaceModel,
    named: Named = BY_MODEL,
    skip: Skip | None = None,
) -> Iterator[Row]:
    """The rows of CSV text, one by one as lines come; the first line has the names.

    Args:
        where: the file, for messages.
        lines: its lines.
        model: the model.
        named: columns that do not go by the model's names.
        skip: is told of rows that cannot be read, which are then left out; if None, the first one
            is raised.
    """
    delimiter, names = ",", list[str]()
    parser: _Parser | None = None

    def read(number: int, line: str) -> Row | None:
        cells = _cells(where, number, line, delimiter)
        if len(cells) == len(names):
            assert parser is not None
            return parser.parse(number, dict(zip(names, cells, strict=True)))
        if any(cell.strip() for cell in cells):
            raise DataError(f"{where}, row {number}: expected {len(names)} cells, got {len(cells)}")
        return None

    for number, line in enumerate(lines, 1):
        if not line.strip("\r\n") or (parser is None and not line.strip()):
            continue
        if parser is None:
            delimiter = max(",;\t", key=line.count)
            names = [name.strip() for name in _cells(where, number, line, delimiter)]
            parser = _Parser(where, choose_columns(where, names, model, named))
            continue
        row = _attempt(read, number, line, skip)
        if row is not None:
            yield row
    if parser is None:
        raise DataError(f"{where}: empty; expected a line of column names, then one a measurement")


def json_rows(
    where: str,
    lines: Iterable[str],
    model: StateSpaceModel,
    named: Named = BY_MODEL,
    skip: Skip | None = None,
) -> Iterator[Row]:
    """The rows of JSON lines, as `csv_rows` does; what is null or left out is missing."""
    parser: _Parser | None = None

    def read(number: int, line: str) -> Row:
        nonlocal parser
        try:
            cells = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where}, row {number}: not JSON ({error})") from None
        if not isinstance(cells, dict):
            raise DataError(f"{where}, row {number}: expected a JSON object, got {line.strip()!r}")
        if parser is None:
            # Sensors take turns: what the first line does not have may come later.
            wanted = observed(model, named)
            if not any(name in cells for name in wanted):
                raise DataError(
                    f"{where}, row {number}: none of {listed(wanted)}; there are "
                    f"{listed(list(cells))}. Choose with --observations, or name them in the model"
                )
            known = [*cells, *(name for name in wanted if name not in cells)]
            parser = _Parser(where, choose_columns(where, known, model, named))
        used = (*parser.columns.controls, *parser.columns.observations)
        if parser.columns.time is None and any(is_time(n) and n not in used for n in cells):
            raise DataError(f"{where}, row {number}: a time, but the rows before had none")
        return parser.parse(number, cells)

    for number, line in enumerate(lines, 1):
        row = _attempt(read, number, line, skip) if line.strip() else None
        if row is not None:
            yield row


def _attempt(
    read: Callable[[int, str], Row | None], number: int, line: str, skip: Skip | None
) -> Row | None:
    try:
        return read(number, line)
    except DataError as error:
        if skip is None:
            raise
        skip(str(error))
        return None


def _cells(where: str, number: int, line: str, delimiter: str) -> list[str]:
    # Line by line: a quote that is not closed must not swallow what follows.
    try:
        (cells,) = csv.reader([line.rstrip("\r\n")], delimiter=delimiter, strict=True)
    except csv.Error as error:
        raise DataError(
            f"{where}, row {number}: not CSV ({error}); quotes must be closed in their line"
        ) from None
    return cells


class _Parser:
    """Turns cells into numbers, and remembers the last time."""

    def __init__(self, where: str, columns: Columns):
        self.where, self.columns = where, columns
        self.last: tuple[int, float] | None = None

    def parse(self, number: int, cells: dict[str, Any]) -> Row:
        def numbers(names: Sequence[str], may_miss: bool) -> np.ndarray:
            return np.array([self._number(number, name, cells, may_miss) for name in names])

        time = None
        if self.columns.time is not None:
            time = self._number(number, self.columns.time, cells, False)
            if self.last is not None and time < self.last[1]:
                raise DataError(
                    f"{self.where}, row {number}, column {self.columns.time}: times must not go "
                    f"backwards, but {time!r} comes after {self.last[1]!r} (row {self.last[0]})"
                )
            self.last = (number, time)
        control = numbers(self.columns.controls, False) if self.columns.controls else None
        names = self.columns.truth
        truth = dict(zip(names, numbers(list(names.values()), True), strict=True))
        return Row(numbers(self.columns.observations, True), time, control, truth)

    def _number(self, number: int, name: str, cells: dict[str, Any], may_miss: bool) -> float:
        cell = cells.get(name)
        where = f"{self.where}, row {number}, column {name}"
        if cell is None or (isinstance(cell, str) and not cell.strip()):
            if may_miss:
                return np.nan
            raise DataError(f"{where}: empty; only observations may be missing")
        try:
            # float() would also take 1_0 and digits of other scripts.
            if isinstance(cell, bool) or (isinstance(cell, str) and not PLAIN.fullmatch(cell)):
                raise ValueError
            value = float(cell)
        except (TypeError, ValueError, OverflowError):
            raise DataError(f"{where}: expected a number, got {cell!r}") from None
        if np.isnan(value) and may_miss:
            return value
        if not abs(value) < LARGEST:
            raise DataError(f"{where}: expected a finite number, got {cell!r}")
        return value


def _parquet_rows(path: Path, model: StateSpaceModel, named: Named) -> Iterator[Row]:
    pyarrow = parquet_library(path)
    try:
        found = pyarrow.parquet.read_schema(path).names
        columns = choose_columns(str(path), found, model, named)
        table = pyarrow.parquet.read_table(path, columns=columns.every)
    except (pyarrow.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{path}: the Parquet file is damaged or cut short ({reason})") from None
    return table_rows(str(path), table, columns)


def parquet_library(path: Path) -> Any:
    """pyarrow, with what reads Parquet."""
    try:
        import pyarrow
        import pyarrow.dataset
        import pyarrow.parquet
    except ImportError:
        raise DataError(
            f"{path}: reading Parquet needs pyarrow: python -m pip install 'nopf[tables]'"
        ) from None
    return pyarrow


def table_rows(where: str, table: Any, columns: Columns) -> Iterator[Row]:
    """The rows of a table of pyarrow."""
    parser = _Parser(where, columns)
    values = {name: table.column(name).to_pylist() for name in table.column_names}
    for number in range(table.num_rows):
        yield parser.parse(number + 1, {name: column[number] for name, column in values.items()})


def gather(where: str, rows: Iterator[Row]) -> Recording:
    """A recording of rows.

    Args:
        where: the file, for messages.
        rows: what it holds.
    """
    collected = list(rows)
    if not collected:
        raise DataError(f"{where}: expected at least one row of measurements below the names")
    observations, times, controls, truths = zip(*collected, strict=True)
    return Recording(
        np.stack(observations),
        None if times[0] is None else np.array(times),
        None if controls[0] is None else np.stack(controls),
        truth={name: np.array([truth[name] for truth in truths]) for name in truths[0]} or None,
    )
