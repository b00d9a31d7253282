"""The map of the page of estimates: the path in the plane, where two states are a place."""

import html

import numpy as np
import plotly.graph_objects as go

from nopf.plots import ellipse, plane_of
from nopf.report.panels import ALARM, COLOUR, Shown
from nopf.report.plotted import GREY, NOTHING
from nopf.report.thin import thin

OUTLINES = 30  # ellipses of a path


def plane(shown: Shown) -> list[int] | None:
    """The two states that are a place: those that the model names, or whose names say so."""
    posterior = shown.posterior
    try:
        return list(plane_of(posterior.state_names, posterior.plane))
    except ValueError:
        return None


def place_map(shown: Shown, own: list[int], landmarks: np.ndarray | None) -> str:
    """The path with ellipses, truth, landmarks and forecast."""
    posterior, plots = shown.posterior, shown.plots
    names = [posterior.state_names[i] for i in own]
    path, cov = np.asarray(posterior.mean, np.float64)[:, own], np.asarray(posterior.cov)
    lines = []

    def line(points: np.ndarray, name: str, **look: object) -> None:
        look = {"showlegend": True, "name": name} | look
        lines.append(plots.line(points[:, 0], points[:, 1], **look))

    def outlines(centres: np.ndarray, covs: np.ndarray, count: int) -> np.ndarray:
        drawn = []
        for t in np.unique(np.linspace(0, len(centres) - 1, count).astype(int)):
            drawn += [ellipse(centres[t], covs[t][np.ix_(own, own)]), np.full((1, 2), np.nan)]
        return np.concatenate(drawn)

    line(outlines(path, cov, OUTLINES), "90 % ellipses", line={"color": COLOUR + "88", "width": 1})
    if set(names) <= set(shown.truth):
        true = np.stack([shown.truth[name] for name in names], axis=1)
        line(thin(true), "truth", line={"color": GREY, "dash": "dot", "width": 2})
    line(thin(path), "mean", line={"color": COLOUR, "width": 2})
    for point, name, symbol in [(path[:1], "start", "circle"), (path[-1:], "end", "square")]:
        look = {"color": COLOUR, "symbol": symbol, "size": 10}
        line(point, name, mode="markers", marker=look)
    if landmarks is not None:
        look = {"color": "#E69F00", "symbol": "triangle-up", "size": 12}
        line(landmarks, "landmarks", mode="markers", marker=look)
    if shown.forecast is not None:
        ahead = np.asarray(shown.forecast.mean, np.float64)[:, own]
        covs = np.asarray(shown.forecast.cov)
        whole = np.concatenate([path[-1:], ahead])
        line(thin(whole), "forecast", line={"color": ALARM, "dash": "dash", "width": 2})
        thin_line = {"color": ALARM + "88", "width": 1}
        line(outlines(ahead, covs, 5), "its 90 % ellipses", line=thin_line)
    figure = go.Figure(lines)
    figure.update_layout(
        height=520,
        margin={"l": 60, "r": 15, "t": 20, "b": 50},
        paper_bgcolor=NOTHING,
        plot_bgcolor=NOTHING,
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom"},
    )
    titles = [html.escape(name, quote=False) for name in names]
    figure.update_xaxes(title_text=titles[0])
    figure.update_yaxes(title_text=titles[1], scaleanchor="x")
    return plots.add(figure, "map")
