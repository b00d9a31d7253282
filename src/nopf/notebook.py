"""What a notebook shows instead of plain text: small tables, and how far something is."""

import html
import sys
from collections.abc import Iterable, Sequence
from typing import Any


def kernel() -> Any:
    """The shell of the Jupyter kernel that this runs in; None anywhere else."""
    # Whoever runs in a kernel has imported IPython.
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell if hasattr(shell, "kernel") else None


def table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    notes: Iterable[str] = (),
) -> str:
    """HTML of a table under a title, with a list of notes below; every text is escaped.

    Args:
        title: a line.
        columns: their headings.
        rows: a cell a column.
        notes: below the table.
    """

    def cells(kind: str, row: Sequence[Any]) -> str:
        return "".join(f"<{kind}>{html.escape(str(cell))}</{kind}>" for cell in row)

    head, body = cells("th", columns), "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    listed = "".join(f"<li>{html.escape(note)}</li>" for note in notes)
    below = f"<ul>{listed}</ul>" if listed else ""
    return (
        f"<div><b>{html.escape(title)}</b>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{below}</div>"
    )


class Bar:
    """A bar under a cell of a notebook. It needs no widgets: the text is replaced as it goes on."""

    def __init__(self, label: str):
        from IPython.display import HTML, display

        self._html, self._label, self._lines = HTML, label, list[str]()
        self._last = (0.0, "")
        self._shown = display(self._page(), display_id=True)

    def update(self, share: float, state: str) -> None:
        """Moves the bar to `share`, from 0 to 1, with a few words beside it."""
        self._last = (share, state)
        self._shown.update(self._page())

    def say(self, message: str) -> None:
        """A line above the bar."""
        self._lines.append(message)
        self._shown.update(self._page())

    def _page(self) -> Any:
        share, state = self._last
        lines = "".join(f"<div>{html.escape(line)}</div>" for line in self._lines)
        return self._html(
            f'<div>{lines}{html.escape(self._label)} <progress max="1" value="{share:.3f}">'
            f"</progress> {share:.0%} {html.escape(state)}</div>"
        )
