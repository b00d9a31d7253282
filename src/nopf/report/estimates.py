"""A page of the estimates of one recording. Needs Plotly."""

import html
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from nopf.catalogue import COLOURS
from nopf.filters import Monitor, Posterior
from nopf.plots import bands
from nopf.report.document import document

COLOUR = COLOURS["nopf"]
BEYOND = Monitor().drift
# The plot takes on the page's colours, light or dark, and changes with them.
INK = """
const paint = () => {
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const plot = document.querySelector(".js-plotly-plot");
  const change = { "font.color": css("--ink") };
  for (const axis of Object.keys(plot.layout).filter((key) => /^[xy]axis/.test(key))) {
    change[axis + ".gridcolor"] = change[axis + ".zerolinecolor"] = css("--line");
  }
  Plotly.relayout(plot, change);
};
paint();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
"""


def estimates_page(posterior: Posterior) -> str:
    """States over time with 90 % intervals, the signs of health, and every warning.

    Args:
        posterior: the estimates.
    """
    levels = posterior.quantile_levels
    summed_up, every = posterior.warnings(), posterior.warnings(every=True)
    warnings = _list(summed_up) if every else "<p>No warnings.</p>"
    if len(every) > len(summed_up):
        warnings += f"<details><summary>All {len(every)}</summary>{_list(every)}</details>"
    summary = f"{len(posterior.times)} steps, log-evidence {float(posterior.log_evidence):.2f}"
    if posterior.ess is not None:
        summary += f", mean ESS {float(posterior.ess.mean()):.0f}"
        count = posterior.particle_count
        summary += "" if count is None else f" of {count} particles"
    angles = " Angles go on beyond ±π." if posterior.space.angles else ""
    body = f"""<h1>Estimates</h1>
<p>{summary}. Draws tell how many independent draws of the posterior would give as good a mean of
the least known state: by n draws it may be off by 1/√n of its standard deviation. The ESS is how
many particles count at that step alone. The p-value says how surprising an
observation was{_tails(posterior)}; the drift, whether the last twenty or so were too surprising:
beyond the dotted lines the model is wrong. Lines are means, bands hold
{100 * (max(levels) - min(levels)):.0f} %.{angles}</p>
{warnings}
{_plot(posterior)}
<script>{INK}</script>"""
    return document("nopf: estimates", body)


def _list(messages: list[str]) -> str:
    return f"<ul>{''.join(f'<li>{html.escape(message)}</li>' for message in messages)}</ul>"


def _tails(posterior: Posterior) -> str:
    if posterior.tails is None:
        return ""
    return (
        " to the model with its heavy tails; in colour, to the same model without them, which is "
        "what tells outliers"
    )


def _plot(posterior: Posterior) -> str:
    names = posterior.state_names
    time = np.asarray(posterior.times, np.float64)
    mean, low, high = bands(posterior)
    draws = np.asarray(posterior.draws, np.float64)
    worth = np.min(np.where(np.isfinite(draws), draws, np.inf), axis=1)
    signs = {
        "draws": np.where(np.isinf(worth), np.nan, worth) if np.isfinite(worth).any() else None,
        "ESS": posterior.ess,
        "p-value": posterior.p_value,
        "drift": posterior.drift,
    }
    signs = {name: values for name, values in signs.items() if values is not None}
    titles = [*names, *signs]
    figure = make_subplots(
        rows=len(titles),
        shared_xaxes=True,
        # Plotly escapes what would end the script, and takes what looks like HTML for HTML.
        subplot_titles=[html.escape(title, quote=False) for title in titles],
        vertical_spacing=min(0.04, 0.4 / len(titles)),
    )
    p_value_row = len(names) + list(signs).index("p-value") + 1
    around = np.concatenate([time, time[::-1]])
    for i in range(len(names)):
        edges = np.concatenate([high[:, i], low[::-1, i]])
        _add(figure, i + 1, around, edges, fill="toself", line_width=0)
        _add(figure, i + 1, time, mean[:, i], line_color=COLOUR)
    for row, values in enumerate(signs.values(), len(names) + 1):
        _add(figure, row, time, np.asarray(values, np.float64), line_color="#777777")
    if posterior.tails is not None:
        nominal = np.asarray(posterior.nominal_p_value, np.float64)
        _add(figure, p_value_row, time, nominal, line_color=COLOUR, line_width=1)
    nothing = "rgba(0,0,0,0)"
    figure.update_layout(
        height=190 * len(titles) + 80,
        showlegend=False,
        margin={"l": 60, "r": 20, "t": 40, "b": 40},
        paper_bgcolor=nothing,
        plot_bgcolor=nothing,
    )
    figure.update_xaxes(title_text="time", row=len(titles))
    figure.update_yaxes(type="log", row=p_value_row, exponentformat="power")
    for limit in (-BEYOND, BEYOND):
        figure.add_hline(limit, row=len(titles), line={"dash": "dot", "color": "#777777"})
    settings = {"displaylogo": False, "displayModeBar": False, "responsive": True}
    return figure.to_html(full_html=False, include_plotlyjs=True, config=settings)


def _add(figure: Any, row: int, x: np.ndarray, y: np.ndarray, **look: Any) -> None:
    if "fill" in look:
        look["fillcolor"] = COLOUR + "33"
    trace = go.Scatter(x=x.tolist(), y=y.tolist(), mode="lines", hoverinfo="x+y", **look)
    figure.add_trace(trace, row=row, col=1)
