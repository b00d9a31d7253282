"""The progress bar of training: on a terminal and in a notebook, not where nobody looks."""

import sys
import time
from typing import Any

import numpy as np
import rich.progress
from rich.console import Console

from nopf import notebook

PAUSE = 0.2  # seconds between two pictures in a notebook


class Progress:
    """Shows how far training is, how well it does, and the time left.

    Args:
        show: whether to; None for "if standard error is a terminal, or this is a notebook".
    """

    def __init__(self, show: bool | None = None):
        in_notebook = show is not False and notebook.kernel() is not None
        self._shown = sys.stderr.isatty() or in_notebook if show is None else show
        self._bar = rich.progress.Progress(
            rich.progress.TextColumn("[progress.description]{task.description}"),
            rich.progress.BarColumn(),
            rich.progress.TaskProgressColumn(),
            rich.progress.TextColumn("{task.fields[state]}"),
            rich.progress.TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not self._shown or in_notebook,
        )
        self._task = self._bar.add_task("training", total=1.0, state="compiling")
        self._cell = notebook.Bar("training") if in_notebook else None
        self._next = 0.0

    def __enter__(self) -> "Progress":
        self._bar.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._bar.stop()

    def update(self, share: float, row: np.ndarray) -> None:
        """Moves the bar to `share`; `row` is the last one of the training curve."""
        state = f"loss {row[1]:.3f}, held out {row[2]:.3f}, ESS {100 * row[3]:.0f} %"
        self._bar.update(self._task, completed=share, state=state)
        if self._cell is not None and (share >= 1 or time.monotonic() >= self._next):
            self._cell.update(share, state)
            self._next = time.monotonic() + PAUSE

    def say(self, message: str) -> None:
        """A line above the bar."""
        if self._cell is not None:
            self._cell.say(message)
        elif self._shown:
            self._bar.console.print(message, highlight=False)
