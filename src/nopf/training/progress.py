"""The progress bar of training: on a terminal only."""

import sys
from typing import Any

import numpy as np
import rich.progress
from rich.console import Console


class Progress:
    """Shows how far training is, how well it does, and the time left.

    Args:
        show: whether to; None for "if standard error is a terminal".
    """

    def __init__(self, show: bool | None = None):
        self._shown = sys.stderr.isatty() if show is None else show
        self._bar = rich.progress.Progress(
            rich.progress.TextColumn("[progress.description]{task.description}"),
            rich.progress.BarColumn(),
            rich.progress.TaskProgressColumn(),
            rich.progress.TextColumn("{task.fields[state]}"),
            rich.progress.TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not self._shown,
        )
        self._task = self._bar.add_task("training", total=1.0, state="compiling")

    def __enter__(self) -> "Progress":
        self._bar.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._bar.stop()

    def update(self, share: float, row: np.ndarray) -> None:
        """Moves the bar to `share`; `row` is the last one of the training curve."""
        state = f"loss {row[1]:.3f}, held out {row[2]:.3f}, ESS {100 * row[3]:.0f} %"
        self._bar.update(self._task, completed=share, state=state)

    def say(self, message: str) -> None:
        """A line above the bar."""
        if self._shown:
            self._bar.console.print(message, highlight=False)
