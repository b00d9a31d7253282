"""Parquet data of many recordings: a column names the run that a row belongs to."""

import functools
import io
from pathlib import Path
from typing import Any

from nopf.model import StateSpaceModel
from nopf.recording.columns import DataError, Named, choose_columns
from nopf.recording.reading import Recording, gather, parquet_library, table_rows
from nopf.words import did_you_mean, listed

Run = str | int  # what names a run


def runs_of(path: Path, column: str) -> list[Run]:
    """The runs in a file or folder of Parquet, in the order of their first rows.

    Args:
        path: the file or the folder.
        column: the one that names the run.

    Raises:
        DataError: if there is none, or a row has none.
    """
    _opened.cache_clear()  # It may have been written anew.
    data = _opened(path, column)
    found: dict[Any, None] = {}
    try:
        for batch in data.to_batches(columns=[column]):  # in parts: it may be large
            found |= dict.fromkeys(batch.column(0).unique().to_pylist())
    except (parquet_library(path).ArrowException, OSError) as error:
        raise _damaged(path, error) from None
    for run in found:
        if not isinstance(run, str | int) or isinstance(run, bool) or run == "":
            raise DataError(
                f"{path}: column {column!r} must name the run of each row with a text or a whole "
                f"number; one row has {run!r}"
            )
    if not found:
        raise DataError(f"{path}: there is no row in it")
    return list(found)


def read_run(path: Path, column: str, run: Run, model: StateSpaceModel, named: Named) -> Recording:
    """The recording of one run; the other arguments and errors are those of `read_recording`.

    Args:
        path: the file or the folder.
        column: the one that names the run.
        run: which.
        model: what it shall be filtered with.
        named: columns that do not go by the model's names.
    """
    where = f"{path}, run {run}"
    columns = choose_columns(where, _opened(path, column).schema.names, model, named)
    return gather(where, table_rows(where, _rows(path, column, run, columns.every), columns))


def content_of(path: Path, column: str, run: Run) -> bytes:
    """All that a run holds, to see whether it has changed."""
    pyarrow = parquet_library(path)
    table, stream = _rows(path, column, run, None).combine_chunks(), io.BytesIO()
    with pyarrow.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table)
    return stream.getvalue()


def _rows(path: Path, column: str, run: Run, columns: list[str] | None) -> Any:
    pyarrow = parquet_library(path)
    data = _opened(path, column)
    try:
        return data.to_table(columns=columns, filter=pyarrow.dataset.field(column) == run)
    except (pyarrow.ArrowException, OSError) as error:
        raise _damaged(path, error) from None


@functools.lru_cache(maxsize=1)
def _opened(path: Path, column: str) -> Any:
    """The data, with a column that names the run; only its schema is read here."""
    pyarrow = parquet_library(path)
    try:
        data = pyarrow.dataset.dataset(path, format="parquet", partitioning="hive")
    except (pyarrow.ArrowException, OSError) as error:
        raise _damaged(path, error) from None
    found = data.schema.names
    if column not in found:
        raise DataError(
            f"{path}: no column {column!r}{did_you_mean(column, found)}; there are "
            f"{listed(found)}. Choose with --run"
        )
    return data


def _damaged(path: Path, error: Exception) -> DataError:
    reason = str(error).splitlines()[0]
    return DataError(
        f"{path}: expected Parquet, as a file or a folder of such files, since --run names a "
        f"column of them ({reason})"
    )
