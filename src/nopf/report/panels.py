"""States, measurements and signs of health over time, for the page of estimates."""

import dataclasses
from typing import Any

import numpy as np

from nopf.catalogue import COLOURS
from nopf.filters import Monitor, Posterior, Smoothed
from nopf.plots import bands
from nopf.report.plotted import GREY, Plots, band, stacked
from nopf.report.thin import extremes, points, thin

COLOUR = COLOURS["nopf"]
ALARM = "#D55E00"
BEYOND = Monitor().drift
# A normal number is as far out as this with the probability at which a monitor reports.
OUTLIER = float(np.sqrt(-2 * np.log(Monitor().p_value)))


@dataclasses.dataclass(frozen=True)
class Shown:
    """What a page is made of.

    Attributes:
        posterior: the estimates.
        truth: `(T,)` true values of some states, by their names.
        predicted: `(T, m)` what the measurements were predicted to be; None if that is unknown.
        smoothed: estimates given later measurements too, if there are any.
        forecast: what comes after the last measurement, if that was asked for.
        plots: of the page.
    """

    posterior: Posterior
    truth: dict[str, np.ndarray]
    predicted: np.ndarray | None
    smoothed: Smoothed | None
    forecast: Posterior | None
    plots: Plots

    @property
    def times(self) -> np.ndarray:
        return np.asarray(self.posterior.times, np.float64)

    @property
    def span(self) -> tuple[float, float]:
        """First and last time, the forecast's too."""
        last = self.posterior if self.forecast is None else self.forecast
        return float(self.times[0]), float(last.times[-1])

    @property
    def most(self) -> int:
        """Points a line: the more lines, the fewer."""
        states, seen = len(self.posterior.state_names), self.posterior.observations.shape[-1]
        return points(9 * states + 6 * seen + 10)

    def near(self, i: int, values: np.ndarray, to: np.ndarray) -> np.ndarray:
        """Values of a state, an angle on the same side as what it is compared with."""
        if i not in self.posterior.space.angles:
            return values
        return values - 2 * np.pi * np.round((values - to) / (2 * np.pi))


def states(shown: Shown) -> str:
    """Means and bands, truth and smoothed path, and the forecast."""
    posterior, plots = shown.posterior, shown.plots
    names, most = list(posterior.state_names), shown.most
    figure = stacked(names, [150.0] * len(names), shown.span)
    time = thin(shown.times, most)
    mean, low, high = bands(posterior)
    for i, name in enumerate(names):
        parts = [thin(part[:, i], most) for part in (low, high, mean)]
        lines = band(plots, time, parts[0], parts[1], COLOUR + "44")
        if name in shown.truth:
            true = shown.near(i, shown.truth[name], mean[:, i])
            look: dict[str, Any] = {"color": GREY, "dash": "dot", "width": 2}
            lines.append(plots.line(time, thin(true, most), line=look))
        if shown.smoothed is not None:
            after = shown.near(i, np.asarray(shown.smoothed.mean, np.float64)[:, i], mean[:, i])
            look = {"color": "#009E73", "width": 1.5, "dash": "dash"}
            lines.append(plots.line(time, thin(after, most), line=look))
        lines.append(plots.line(time, parts[2], line={"color": COLOUR, "width": 1.5}))
        if shown.forecast is not None:
            lines += _fan(shown, i, mean[-1, i], (low[-1, i], high[-1, i]))
        for line in lines:
            figure.add_trace(line, row=i + 1, col=1)
    return plots.add(figure, "time")


def _fan(shown: Shown, i: int, last: float, edges: tuple[float, float]) -> list[Any]:
    """The forecast of a state, from the last estimate on."""
    assert shown.forecast is not None
    forecast = shown.forecast
    mean, low, high = (part[:, i] for part in bands(forecast))
    turn = shown.near(i, mean[:1], np.array([last]))[0] - mean[0]
    time = np.concatenate([shown.times[-1:], np.asarray(forecast.times, np.float64)])
    mean, low, high = (
        thin(np.concatenate([[begin], part + turn]), shown.most)
        for begin, part in ((last, mean), (edges[0], low), (edges[1], high))
    )
    time = thin(time, shown.most)
    dashed = {"color": ALARM, "width": 1.5, "dash": "dash"}
    return [
        *band(shown.plots, time, low, high, ALARM + "33"),
        shown.plots.line(time, mean, line=dashed),
    ]


def deviations(shown: Shown) -> str:
    """Bands, means and truth from the smoothed path, or from the mean itself where there is none,
    in units of the state's usual standard deviation: here bands can be seen."""
    posterior, plots, most = shown.posterior, shown.plots, shown.most
    names = list(posterior.state_names)
    figure = stacked(names, [120.0] * len(names), shown.span)
    time = thin(shown.times, most)
    mean, low, high = bands(posterior)
    std = np.asarray(posterior.std, np.float64)
    for i, name in enumerate(names):
        middle = mean[:, i]
        if shown.smoothed is not None:
            middle = shown.near(i, np.asarray(shown.smoothed.mean, np.float64)[:, i], middle)
        unit = float(np.median(std[:, i])) or 1.0
        parts = [thin((part[:, i] - middle) / unit, most) for part in (low, high, mean)]
        lines = band(plots, time, parts[0], parts[1], COLOUR + "44")
        lines.append(plots.line(time, parts[2], line={"color": COLOUR, "width": 1.5}))
        if name in shown.truth:
            apart = (shown.near(i, shown.truth[name], middle) - middle) / unit
            look = {"color": GREY, "width": 1}
            lines.append(plots.line(*extremes(shown.times, apart, most), line=look))
        for line in lines:
            figure.add_trace(line, row=i + 1, col=1)
    return plots.add(figure, "time")


def measurements(shown: Shown) -> tuple[str, int]:
    """Each sensor against what was predicted of it, and how far it was from that in standard
    deviations; and how many outliers are marked."""
    posterior, plots, most = shown.posterior, shown.plots, shown.most
    seen = np.asarray(posterior.observations, np.float64)
    apart = np.asarray(posterior.innovation, np.float64)
    if apart.shape != seen.shape:  # The filter was asked for no health.
        apart = np.full(seen.shape, np.nan)
    titles = [t for name in posterior.observation_names for t in (name, f"{name}: deviation")]
    figure = stacked(titles, [120.0, 70.0] * seen.shape[1], shown.span)
    count = 0
    for j in range(seen.shape[1]):
        row = 2 * j + 1
        dots = {"color": GREY, "size": 3}
        x, y = extremes(shown.times, seen[:, j], most)
        figure.add_trace(plots.line(x, y, mode="markers", marker=dots), row=row, col=1)
        if shown.predicted is not None:
            expected = thin(shown.predicted[:, j], most)
            line = plots.line(
                thin(shown.times, most), expected, line={"color": COLOUR, "width": 1.2}
            )
            figure.add_trace(line, row=row, col=1)
        far = np.abs(apart[:, j]) > OUTLIER
        count += int(far.sum())
        # The furthest, if there are more than can be told apart.
        kept = np.flatnonzero(far)
        kept = np.sort(kept[np.argsort(-np.abs(apart[kept, j]))][:most])
        rings = {"color": ALARM, "size": 8, "symbol": "circle-open", "line": {"width": 2}}
        for at, values in ((row, seen), (row + 1, apart)):
            if kept.size:
                ring = plots.line(shown.times[kept], values[kept, j], mode="markers", marker=rings)
                figure.add_trace(ring, row=at, col=1)
        x, y = extremes(shown.times, apart[:, j], most)
        figure.add_trace(plots.line(x, y, line={"color": GREY, "width": 1}), row=row + 1, col=1)
        for limit in (-2, 2):
            figure.add_hline(limit, row=row + 1, line={"dash": "dot", "color": GREY, "width": 1})
    return plots.add(figure, "time"), count


def signs(shown: Shown) -> str:
    """Draws, effective sample size, p-value and drift."""
    posterior, plots, most = shown.posterior, shown.plots, shown.most
    draws = np.asarray(posterior.draws, np.float64)
    worth = np.min(np.where(np.isfinite(draws), draws, np.inf), axis=1)
    found = {
        "draws": np.where(np.isinf(worth), np.nan, worth) if np.isfinite(worth).any() else None,
        "ESS": posterior.ess,
        "p-value": posterior.p_value,
        "drift": posterior.drift,
    }
    known = {name: values for name, values in found.items() if values is not None}
    figure = stacked(list(known), [120.0] * len(known), shown.span)
    for row, (name, values) in enumerate(known.items(), 1):
        spikes = extremes(shown.times, np.asarray(values, np.float64), most)
        figure.add_trace(plots.line(*spikes, line={"color": GREY, "width": 1.2}), row=row, col=1)
        if name == "p-value":
            figure.update_yaxes(type="log", row=row, exponentformat="power", nticks=4)
        if name == "p-value" and posterior.tails is not None:
            nominal = np.asarray(posterior.nominal_p_value, np.float64)
            look = {"color": COLOUR, "width": 1}
            line = plots.line(*extremes(shown.times, nominal, most), line=look)
            figure.add_trace(line, row=row, col=1)
    for limit in (-BEYOND, BEYOND):
        figure.add_hline(limit, row=len(known), line={"dash": "dot", "color": GREY})
    return plots.add(figure, "time")
