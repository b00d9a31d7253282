"""Plots of a page of estimates: what they share, and how they get into the page."""

import html
import json
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from nopf.report.document import packed
from nopf.report.thin import short

NOTHING = "rgba(0,0,0,0)"
GREY = "#808890"
SETTINGS = {"displaylogo": False, "displayModeBar": False, "responsive": True}


class Plots:
    """The plots of a page. Arrays that several lines share, above all times, are kept once."""

    def __init__(self) -> None:
        self._arrays: list[list[float | None]] = []
        self._known: dict[bytes, int] = {}
        self._plots: list[dict[str, Any]] = []

    def array(self, values: np.ndarray) -> int:
        """Keeps numbers; where they are."""
        values = np.ascontiguousarray(values, np.float64)
        key = values.tobytes()
        if key not in self._known:
            self._known[key] = len(self._arrays)
            self._arrays.append(short(values))
        return self._known[key]

    def add(self, figure: go.Figure, kind: str) -> str:
        """Keeps a figure whose lines hold places of arrays; the element where it will be."""
        found = json.loads(figure.to_json())
        lines = [trace | {"x": trace["meta"][0], "y": trace["meta"][1]} for trace in found["data"]]
        for line in lines:
            del line["meta"]
        layout = found["layout"]
        layout.pop("template", None)  # Plotly's own is as good, and is not sent
        plot = {"data": lines, "layout": layout, "settings": SETTINGS, "kind": kind}
        self._plots.append(plot)
        number = len(self._plots) - 1
        height = figure.layout.height
        return f'<div class="plot" data-plot="{number}" style="height:{height}px"></div>'

    def packed(self, more: dict[str, Any]) -> str:
        """All of them for the page, with what else it needs."""
        content = {"arrays": self._arrays, "plots": self._plots} | more
        return packed("plots", json.dumps(content, separators=(",", ":"), allow_nan=False))

    def line(self, x: np.ndarray, y: np.ndarray, **look: Any) -> go.Scatter:
        """A line, or whatever `mode` says, through points."""
        look = {"mode": "lines", "hoverinfo": "x+y", "showlegend": False} | look
        return go.Scatter(meta=[self.array(x), self.array(y)], **look)


def stacked(titles: list[str], heights: list[float], span: tuple[float, float]) -> go.Figure:
    """Panels one below the other that share the time.

    Args:
        titles: one a panel.
        heights: in pixels.
        span: first and last time, the same for all plots of a page.
    """
    total = sum(heights) + 34 * len(titles) + 70
    figure = make_subplots(
        rows=len(titles),
        shared_xaxes=True,
        row_heights=heights,
        # Plotly takes what looks like HTML for HTML.
        subplot_titles=[html.escape(title, quote=False) for title in titles],
        vertical_spacing=min(30 / total, 0.9 / max(len(titles) - 1, 1)),
    )
    figure.update_annotations(font_size=13, x=0, xanchor="left")
    figure.update_layout(
        height=total,
        showlegend=False,
        margin={"l": 60, "r": 15, "t": 35, "b": 45},
        paper_bgcolor=NOTHING,
        plot_bgcolor=NOTHING,
        hovermode="closest",
    )
    figure.update_xaxes(range=list(span))
    figure.update_xaxes(title_text="time", row=len(titles))
    return figure


def band(
    plots: Plots, x: np.ndarray, low: np.ndarray, high: np.ndarray, colour: str
) -> list[go.Scatter]:
    """What is between two lines."""
    look = {"line": {"width": 0}, "hoverinfo": "skip"}
    return [
        plots.line(x, low, **look),
        plots.line(x, high, fill="tonexty", fillcolor=colour, **look),
    ]
