"""Live streams: rows as they come, and an estimate for each."""

from collections.abc import Callable, Iterator
from typing import IO

import jax
import numpy as np

from nopf.filters import Filter
from nopf.filters.posterior import estimate_rows
from nopf.model import StateSpaceModel
from nopf.recording.columns import Named
from nopf.recording.estimate import start_time
from nopf.recording.reading import Row, Skip, csv_rows, json_rows


def live_rows(
    where: str, stream: IO[str], model: StateSpaceModel, named: Named, skip: Skip | None = None
) -> tuple[Iterator[Row], str]:
    """Rows of a stream as they come, and whether it is "csv" or "json" lines."""
    coming = iter(stream.readline, "")
    first = next((line for line in coming if line.strip()), "").removeprefix("\ufeff")

    def lines() -> Iterator[str]:
        yield first
        yield from coming

    if first.lstrip().startswith("{"):
        return json_rows(where, lines(), model, named, skip), "json"
    return csv_rows(where, lines() if first else [], model, named, skip), "csv"


def filter_live(
    flt: Filter,
    rows: Iterator[Row],
    seed: int,
    warn: Callable[[str], None],
    start: float | None = None,
) -> Iterator[np.ndarray]:
    """Estimates, one for each row as it comes. Memory does not grow.

    Args:
        flt: the filter.
        rows: as they come.
        seed: of everything random.
        warn: is told what is wrong.
        start: the prior's time; one `dt` before the first row if left out.
    """
    monitor, state = flt.monitor(), None
    for row in rows:
        if state is None:
            begin = start_time(flt.model, row.time, start)
            state = flt.init(jax.random.key(seed), time=0.0 if begin is None else begin)
        state, info = flt.step(state, row.observation, time=row.time, control=row.control)
        info = jax.device_get(info)
        for message in monitor.look(info, int(state.index), float(state.time)):
            warn(message)
        series = jax.tree.map(lambda leaf: np.asarray(leaf)[None], info)
        yield estimate_rows(np.array([state.time], np.float64), series)[0]
