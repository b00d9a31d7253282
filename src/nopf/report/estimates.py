"""A page of the estimates of one recording. Needs Plotly."""

import datetime
import html
import json
import math
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from nopf.catalogue import COLOURS
from nopf.filters import Monitor, Posterior
from nopf.plots import bands, ellipse, plane_of
from nopf.report.document import UNPACK, document, packed_plotly

COLOUR = COLOURS["nopf"]
BEYOND = Monitor().drift
NOTHING = "rgba(0,0,0,0)"
SETTINGS = {"displaylogo": False, "displayModeBar": False, "responsive": True}
OUTLINES = 30  # ellipses of a map
MOST = 3000  # points of a line
# The plot takes on the page's colours, light or dark, and changes with them.
INK = """
const paint = () => {
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  for (const plot of document.querySelectorAll(".js-plotly-plot")) {
    const change = { "font.color": css("--ink") };
    for (const axis of Object.keys(plot.layout).filter((key) => /^[xy]axis/.test(key))) {
      change[axis + ".gridcolor"] = change[axis + ".zerolinecolor"] = css("--line");
    }
    Plotly.relayout(plot, change);
  }
};
draw().then(paint);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
"""


class About(NamedTuple):
    """Whose estimates these are: model, recording and filter, as the user names them."""

    model: str
    recording: str
    filter: str


# What a verdict means, and its colour.
VERDICTS = {
    "trust it": ("trust", "Nothing speaks against these estimates{}."),
    "look here": ("look", "The estimates are usable, but read this first:"),
    "do not trust it": ("doubt", "Something is wrong:"),
}


def estimates_page(
    posterior: Posterior,
    about: About | None = None,
    truth: dict[str, np.ndarray] | None = None,
    landmarks: np.ndarray | None = None,
) -> str:
    """A verdict with its reasons, a map where two states are a place, states over time with 90 %
    intervals, and the signs of health.

    Args:
        posterior: the estimates.
        about: what the title says.
        truth: `(T,)` true values of some states, by their names.
        landmarks: `(k, 2)` places to mark on the map.
    """
    levels = posterior.quantile_levels
    every, monitor = posterior.monitored()
    summed_up, verdict = monitor.summary(), posterior.verdict
    kind, meaning = VERDICTS[verdict]
    meaning = meaning.format("; what was noticed" if every else "")
    warnings = _list(summed_up)
    if len(every) > len(summed_up):
        warnings += f"<details><summary>All {len(every)}</summary>{_list(every)}</details>"
    summary = f"{len(posterior.times)} steps, log-evidence {float(posterior.log_evidence):.2f}"
    if posterior.ess is not None:
        summary += f", mean ESS {float(posterior.ess.mean()):.0f}"
        count = posterior.particle_count
        summary += "" if count is None else f" of {count} particles"
    angles = " Angles go on beyond ±π." if posterior.space.angles else ""
    title, subtitle = "Estimates", ""
    if about is not None:
        title = f"{about.recording}, filtered with {about.model}"
        today = datetime.date.today().isoformat()
        count = posterior.particle_count
        words = f"Filter {about.filter}" + ("" if count is None else f", {count} particles")
        words += f", {len(posterior.times)} steps, made on {today}"
        subtitle = f'<p class="faint">{html.escape(words)}</p>'
    body = f"""<h1>{html.escape(title)}</h1>
{subtitle}
<div class="verdict {kind}"><strong>{verdict.capitalize()}.</strong> {meaning}
{warnings if every else ""}</div>
{_map(posterior, truth or {}, landmarks)}
<p>{summary}. Draws tell how many independent draws of the posterior would give as good a mean of
the least known state: by n draws it may be off by 1/√n of its standard deviation. The ESS is how
many particles count at that step alone. The p-value says how surprising an
observation was{_tails(posterior)}; the drift, whether the last twenty or so were too surprising:
beyond the dotted lines the model is wrong. Lines are means, bands hold
{100 * (max(levels) - min(levels)):.0f} %.{angles}</p>
{_plot(posterior, truth or {})}
{packed_plotly()}
<script>{UNPACK}{INK}</script>"""
    return document(f"nopf: {title}", body)


def _list(messages: list[str]) -> str:
    return f"<ul>{''.join(f'<li>{html.escape(message)}</li>' for message in messages)}</ul>"


def _tails(posterior: Posterior) -> str:
    if posterior.tails is None:
        return ""
    return (
        " to the model with its heavy tails; in colour, to the same model without them, which is "
        "what tells outliers"
    )


def _map(posterior: Posterior, truth: dict[str, np.ndarray], landmarks: np.ndarray | None) -> str:
    """The path in the plane, where two states have names of a place."""
    try:
        plane = list(plane_of(posterior.state_names))
    except ValueError:
        return ""
    names = [posterior.state_names[i] for i in plane]
    path, cov = np.asarray(posterior.mean, np.float64)[:, plane], np.asarray(posterior.cov)
    figure = go.Figure()

    def line(points: np.ndarray, name: str, **look: Any) -> None:
        look = {"mode": "lines", "showlegend": True} | look
        figure.add_trace(
            go.Scatter(x=_short(points[:, 0]), y=_short(points[:, 1]), name=name, **look)
        )

    outlines = []
    for t in np.unique(np.linspace(0, len(path) - 1, OUTLINES).astype(int)):
        outline = ellipse(path[t], cov[t][np.ix_(plane, plane)])
        outlines += [outline, np.full((1, 2), np.nan)]
    line(np.concatenate(outlines), "90 % ellipses", line={"color": COLOUR + "88", "width": 1})
    if set(names) <= set(truth):
        true = np.stack([truth[name] for name in names], axis=1)
        line(thin(true), "truth", line={"color": "#777777", "dash": "dot", "width": 2})
    line(thin(path), "mean", line={"color": COLOUR, "width": 2})
    line(
        path[:1], "start", mode="markers", marker={"color": COLOUR, "symbol": "circle", "size": 10}
    )
    line(path[-1:], "end", mode="markers", marker={"color": COLOUR, "symbol": "square", "size": 10})
    if landmarks is not None:
        look = {"color": "#E69F00", "symbol": "triangle-up", "size": 12}
        line(landmarks, "landmarks", mode="markers", marker=look)
    figure.update_layout(
        height=520,
        margin={"l": 60, "r": 20, "t": 20, "b": 50},
        paper_bgcolor=NOTHING,
        plot_bgcolor=NOTHING,
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom"},
    )
    shown = [html.escape(name, quote=False) for name in names]
    figure.update_xaxes(title_text=shown[0])
    figure.update_yaxes(title_text=shown[1], scaleanchor="x")
    return _placed(figure)


def _placed(figure: go.Figure) -> str:
    """Where a plot will be, and what it shows."""
    found = json.loads(figure.to_json())
    drawn = {"data": found["data"], "layout": found["layout"], "settings": SETTINGS}
    text = json.dumps(drawn, separators=(",", ":")).replace("<", "\\u003c")
    height = figure.layout.height
    return (
        f'<div class="plot" style="height:{height}px"></div>'
        f'<script type="application/json">{text}</script>'
    )


def thin(values: np.ndarray) -> np.ndarray:
    """Every so many rows, and the last: more than a few thousand the eye cannot tell apart."""
    every = -(-len(values) // MOST)
    return values if every == 1 else np.concatenate([values[:-1:every], values[-1:]])


def _extremes(time: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The lowest and the highest of every so many rows: a step that stands out stays."""
    every = -(-2 * len(values) // MOST)
    if every <= 2:
        return time, values
    rows = []
    for begin in range(0, len(values), every):
        own = values[begin : begin + every]
        if not np.all(np.isnan(own)):
            rows += sorted({begin + int(np.nanargmin(own)), begin + int(np.nanargmax(own))})
    return time[rows], values[rows]


def _short(values: np.ndarray) -> list[float | None]:
    """Six digits of each value, or of the range of all where these are more: times since 1970 and
    coordinates far from zero differ in their last digits only."""
    values = np.asarray(values, np.float64)
    finite = values[np.isfinite(values)]
    least = 6 - _magnitude(float(np.ptp(finite))) if finite.size else 0
    return [
        round(v, max(least, 6 - _magnitude(v))) if np.isfinite(v) else None for v in values.tolist()
    ]


def _magnitude(value: float) -> int:
    """Digits before the decimal point; of zero it needs none."""
    return math.floor(math.log10(abs(value))) + 1 if value else 6


def _plot(posterior: Posterior, truth: dict[str, np.ndarray]) -> str:
    names = posterior.state_names
    every_time = np.asarray(posterior.times, np.float64)
    time = thin(every_time)
    mean, low, high = (thin(values) for values in bands(posterior))
    truth = {name: thin(values) for name, values in truth.items()}
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
        if names[i] in truth:
            apart = truth[names[i]] - mean[:, i]
            turn = 2 * np.pi * np.round(apart / (2 * np.pi)) if i in posterior.space.angles else 0
            look = {"color": "#777777", "dash": "dot"}
            _add(figure, i + 1, time, truth[names[i]] - turn, line=look)
    for row, values in enumerate(signs.values(), len(names) + 1):
        spikes = _extremes(every_time, np.asarray(values, np.float64))
        _add(figure, row, *spikes, line_color="#777777")
    if posterior.tails is not None:
        nominal = np.asarray(posterior.nominal_p_value, np.float64)
        spikes = _extremes(every_time, nominal)
        _add(figure, p_value_row, *spikes, line_color=COLOUR, line_width=1)
    figure.update_layout(
        height=190 * len(titles) + 80,
        showlegend=False,
        margin={"l": 60, "r": 20, "t": 40, "b": 40},
        paper_bgcolor=NOTHING,
        plot_bgcolor=NOTHING,
    )
    figure.update_xaxes(title_text="time", row=len(titles))
    figure.update_yaxes(type="log", row=p_value_row, exponentformat="power")
    for limit in (-BEYOND, BEYOND):
        figure.add_hline(limit, row=len(titles), line={"dash": "dot", "color": "#777777"})
    return _placed(figure)


def _add(figure: Any, row: int, x: np.ndarray, y: np.ndarray, **look: Any) -> None:
    if "fill" in look:
        look["fillcolor"] = COLOUR + "33"
    trace = go.Scatter(x=_short(x), y=_short(y), mode="lines", hoverinfo="x+y", **look)
    figure.add_trace(trace, row=row, col=1)
