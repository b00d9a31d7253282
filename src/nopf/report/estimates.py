"""A page of the estimates of one recording. Needs Plotly."""

import html
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from nopf.filters import Posterior
from nopf.report.figures import COLOURS

COLOUR = COLOURS["nopf"]


def estimates_page(posterior: Posterior) -> str:
    """States over time with 90 % intervals, how many particles count, and every warning."""
    names, levels = posterior.state_names, posterior.quantile_levels
    low, high = levels.index(min(levels)), levels.index(max(levels))
    time, mean, quantiles = (
        np.asarray(part, np.float64)
        for part in (posterior.times, posterior.mean, posterior.quantiles)
    )
    signs = {"ESS": posterior.ess, "p-value": posterior.p_value, "drift": posterior.drift}
    signs = {name: values for name, values in signs.items() if values is not None}
    titles = [*names, *signs]
    figure = make_subplots(
        rows=len(titles), shared_xaxes=True, subplot_titles=titles, vertical_spacing=0.04
    )
    for row, i in enumerate(range(len(names)), 1):
        edges = np.concatenate([quantiles[:, high, i], quantiles[::-1, low, i]])
        _add(figure, row, np.concatenate([time, time[::-1]]), edges, fill="toself", line_width=0)
        _add(figure, row, time, mean[:, i], line_color=COLOUR)
    for row, values in enumerate(signs.values(), len(names) + 1):
        _add(figure, row, time, np.asarray(values, np.float64), line_color="#777777")
    figure.update_layout(
        height=190 * len(titles) + 80, showlegend=False, margin={"l": 60, "r": 20, "t": 40, "b": 40}
    )
    figure.update_xaxes(title_text="time", row=len(titles))
    plot = figure.to_html(full_html=False, include_plotlyjs=True)
    said = "".join(f"<li>{html.escape(message)}</li>" for message in posterior.warnings())
    warnings = f"<ul>{said}</ul>" if said else "<p>No warnings.</p>"
    summary = f"{len(time)} steps, log-evidence {float(posterior.log_evidence):.2f}"
    if posterior.ess is not None:
        summary += f", mean ESS {float(posterior.ess.mean()):.0f}"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>nopf: estimates</title>
<link rel="icon" href="data:,">
<style>body {{ font: 16px/1.5 system-ui, sans-serif; margin: 1rem auto; max-width: 70rem;
padding: 0 1rem; background: white; color: #1b1f24; }}</style>
</head>
<body>
<h1>Estimates</h1>
<p>{summary}. Lines are means, bands hold {100 * (max(levels) - min(levels)):.0f} %.</p>
{warnings}
{plot}
</body>
</html>
"""


def _add(figure: Any, row: int, x: np.ndarray, y: np.ndarray, **look: Any) -> None:
    if "fill" in look:
        look["fillcolor"] = COLOUR + "33"
    trace = go.Scatter(x=x.tolist(), y=y.tolist(), mode="lines", hoverinfo="x+y", **look)
    figure.add_trace(trace, row=row, col=1)
