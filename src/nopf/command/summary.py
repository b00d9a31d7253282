"""The summary of many recordings: a table, and a page to look at."""

import csv
import html
import io
import urllib.parse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nopf.command.sources import SUMMARY
from nopf.files import write_whole

NUMBERS = ("steps", "ess", "draws", "log_evidence")
COLUMNS = ("recording", *NUMBERS, "verdict", "error")
COLOURS = {"trust it": "trust", "look here": "look", "do not trust it": "doubt"}


def write_summary(
    title: str, subtitle: str, names: Sequence[str], rows: list[dict[str, Any]], out: Path
) -> None:
    """`summary.csv`, and `index.html` to look at.

    Args:
        title: of the page.
        subtitle: with what.
        names: what the estimates of each recording are called.
        rows: what is known of each.
        out: the folder.
    """
    from nopf.report.document import document  # `report` is imported when it is needed

    states = list(dict.fromkeys(name for row in rows for name in row.get("truth") or ()))
    columns = [*COLUMNS, *(f"rmse_{name}" for name in states)]
    table = io.StringIO()
    writer = csv.DictWriter(table, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        near = {f"rmse_{name}": own["rmse"] for name, own in (row.get("truth") or {}).items()}
        writer.writerow(row | near)
    write_whole(out / f"{SUMMARY}.csv", table.getvalue().encode())
    lines = []
    for own, row in zip(names, rows, strict=True):
        verdict = row["error"] or row["verdict"]
        cells = [_number(row[column]) for column in NUMBERS]
        reasons = "".join(f"<li>{html.escape(text)}</li>" for text in row.get("warnings") or ())
        reasons = f"<ul>{reasons}</ul>" if reasons else ""
        linked = html.escape(row["recording"])
        if row["error"] is None:
            linked = f'<a href="{urllib.parse.quote(own + ".csv")}">{linked}</a>'
        kind = COLOURS.get(row["verdict"] or "", "doubt")
        told = f'<div class="verdict {kind}">{html.escape(verdict)}{reasons}</div>'
        shown = "".join(f"<td>{cell}</td>" for cell in (linked, *cells))
        lines.append(f'<tr>{shown}<td class="told">{told}</td></tr>')
    heads = ("recording", "steps", "mean ESS", "draws of the least known mean", "log-evidence", "")
    body = (
        f"<h1>{html.escape(title)}</h1>"
        f'<p class="faint">{html.escape(subtitle)}</p>'
        f"<table><thead><tr>{''.join(f'<th>{head}</th>' for head in heads)}</tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table>"
    )
    write_whole(out / "index.html", document("nopf: recordings", body).encode())


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.6g}"
