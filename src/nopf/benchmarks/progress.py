"""The progress bar of what is counted: on a terminal only."""

import sys
from typing import Any

import rich.progress
from rich.console import Console


class Counted:
    """Shows how many are done, and the time left. Starts when first told something: training has
    its own.

    Args:
        what: is counted.
        show: whether to; None for "if standard error is a terminal".
    """

    def __init__(self, what: str, show: bool | None = None):
        self._bar = rich.progress.Progress(
            rich.progress.TextColumn(what),
            rich.progress.BarColumn(),
            rich.progress.MofNCompleteColumn(),
            rich.progress.TimeRemainingColumn(),
            console=Console(stderr=True),
            speed_estimate_period=86_400,  # a cell may take minutes
            disable=not (sys.stderr.isatty() if show is None else show),
        )
        self._task: rich.progress.TaskID | None = None

    def __enter__(self) -> "Counted":
        return self

    def __exit__(self, *_: Any) -> None:
        self._bar.stop()

    def __call__(self, done: int, total: int) -> None:
        if self._task is None:
            self._bar.start()
            self._task = self._bar.add_task("", total=total, completed=done)
        self._bar.update(self._task, completed=done)
