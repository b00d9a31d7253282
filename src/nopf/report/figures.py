"""The paper's figures, each a function of results. Needs matplotlib."""

import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import scipy.stats
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from nopf.benchmarks.benchmark import Benchmark
from nopf.benchmarks.results import METRICS, Row, Trace
from nopf.benchmarks.tables import TARGET, TITLES, Table, words_of
from nopf.catalogue import COLOURS, LABELS, NAMES
from nopf.files import write_whole
from nopf.filters import Calibration, Posterior
from nopf.model import StateSpaceModel
from nopf.plots import draw_states, ellipse
from nopf.report.numbers import (
    LOGARITHMIC,
    against_particles,
    ess_over_time,
)
from nopf.simulate import Trajectories

LEADING = "#B5D4EC"


def save(figure: Figure, file: str | os.PathLike[str]) -> None:
    """Writes a figure, whole or not at all."""
    # Without a date and with fixed names inside, the same results give the same file.
    form = Path(file).suffix.lstrip(".")
    metadata = {"Date": None} if form == "svg" else None
    drawn = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "nopf"}):
        figure.savefig(drawn, format=form, dpi=130, metadata=metadata)
    write_whole(file, drawn.getvalue())


def state_figure(case: Benchmark, traces: Mapping[str, Trace]) -> Figure:
    """True and estimated states over time, with 90 % intervals."""
    names = case.model.state_names
    figure, panels = _panels(len(names), 1, 8, 2.1 * len(names) + 0.6, sharex=True)
    truth = next(iter(traces.values()))
    for i, (name, panel) in enumerate(zip(names, panels[:, 0], strict=True)):
        for short, trace in traces.items():
            colour, t = COLOURS[short], trace["time"]
            panel.fill_between(
                t, trace["low"][:, i], trace["high"][:, i], color=colour, alpha=0.15, lw=0
            )
            panel.plot(t, trace["mean"][:, i], color=colour, lw=1.4, label=LABELS[short])
        panel.plot(truth["time"], truth["truth"][:, i], "k--", lw=1.2, label="truth")
        panel.set_ylabel(name)
    panels[-1, 0].set_xlabel("time [s]")
    _legend(figure, panels[0, 0])
    return figure


def estimate_figure(posterior: Posterior) -> Figure:
    """Estimated states over time with 90 % intervals, how many particles count, and the drift."""
    names = posterior.state_names
    signs = [("drift", posterior.drift)]
    if posterior.ess is not None:
        signs.insert(0, ("ESS", posterior.ess))
    count = len(names) + len(signs)
    figure, panels = _panels(count, 1, 8, 1.7 * count + 0.6, sharex=True)
    draw_states(panels[: len(names), 0], posterior)
    for (name, values), panel in zip(signs, panels[len(names) :, 0], strict=True):
        panel.plot(posterior.times, np.asarray(values), color="0.3", lw=1)
        panel.set_ylabel(name)
    panels[-1, 0].set_xlabel("time")
    return figure


def trajectory_figure(model: StateSpaceModel, paths: Trajectories) -> Figure:
    """A few simulated trajectories: each state, and each observation, over time."""
    states, seen = np.array(paths.states), np.array(paths.observations)
    for values, space in ((states, model.space), (seen, model.observation_space)):
        angles = list(space.angles)
        values[..., angles] = np.unwrap(values[..., angles], axis=1)
    columns = [(model.state_names, states), (model.observation_names, seen)]
    rows = max(len(names) for names, _ in columns)
    figure, panels = _panels(rows, 2, 9, 1.7 * rows + 0.6, sharex=True)
    for c, (names, values) in enumerate(columns):
        for r, panel in enumerate(panels[:, c]):
            if r >= len(names):
                panel.set_axis_off()
                continue
            panel.plot(paths.steps.time, values[:5, :, r].T, lw=1)
            panel.set_ylabel(names[r])
        panels[len(names) - 1, c].set_xlabel("time")
    return figure


def calibration_figure(found: Calibration) -> Figure:
    """How often the truth has a rank in each tenth, by state, and how often it should have."""
    names, counts = found.state_names, found.histogram
    series, bins = len(found.ranks), len(counts)
    columns = min(4, len(names))
    rows = -(-len(names) // columns)
    figure, panels = _panels(rows, columns, 2.6 * columns + 0.6, 2.3 * rows + 1.0, sharey=True)
    low, high = scipy.stats.binom(series, 1 / bins).ppf([0.005, 0.995])
    places = (np.arange(bins) + 0.5) * 100 / bins
    for i, panel in enumerate(panels.flat):
        if i >= len(names):
            panel.set_axis_off()
            continue
        good, word = found.is_calibrated[i], found.verdicts[i].partition(":")[0]
        colour = COLOURS["nopf" if good else "bpf"]
        panel.axhspan(low, high, color="0.5", alpha=0.25, lw=0)
        panel.axhline(series / bins, color="0.35", lw=1)
        panel.bar(places, counts[:, i], 0.9 * 100 / bins, color=colour, alpha=0.75)
        panel.set_title(f"{names[i]}: {word}", fontsize=10, color="black" if good else colour)
        panel.set_xlim(0, 100)
        panel.set_xticks([0, 50, 100])
        panel.set_axisbelow(True)
        if i % columns == 0:
            panel.set_ylabel("series")
        if i + columns >= len(names):
            panel.set_xlabel("rank of the truth [%]")
    band = mpl.patches.Patch(color="0.5", alpha=0.25, lw=0)
    words = "of a calibrated filter 99 % of the bars end in this band"
    figure.legend([band], [words], loc="outside lower center", fontsize=9)
    return figure


def snapshot_figure(
    case: Benchmark,
    traces: Mapping[str, Trace],
    at: Sequence[int] | None = None,
    plane: tuple[str, str] | None = None,
) -> Figure:
    """Particles, truth and landmarks at some steps; the ensemble Kalman filter as an ellipse.

    Args:
        case: the benchmark.
        traces: by filter; "enkf" is drawn over the others.
        at: steps, counted from 1; 0 is the prior. The prior and three of them if left out.
        plane: two of the states that the benchmark shows; its plane if left out.
    """
    horizon = case.horizon
    at = at or [0, horizon // 4, horizon // 2, horizon]
    plane = plane or case.plane
    own = [case.shown.index(name) for name in plane]
    states = [case.shown_indices[i] for i in own]
    clouds = {short: trace for short, trace in traces.items() if short not in ("enkf", "kf")}
    ellipses = traces.get("enkf")
    figure, panels = _panels(len(clouds), len(at), 2.9 * len(at), 2.8 * len(clouds) + 0.5)
    for row, (short, trace) in enumerate(clouds.items()):
        truth = np.concatenate([trace["start"][None], trace["truth"]])[:, states]
        times = np.concatenate([[0.0], trace["time"]])
        for column, step in enumerate(at):
            panel = panels[row, column]
            cloud = trace["kept"][step - 1] if step else trace["prior"]
            panel.scatter(*cloud[:, own].T, s=5, color=COLOURS[short], alpha=0.5, lw=0)
            panel.plot(*truth[: step + 1].T, "k-", lw=1, alpha=0.5)
            panel.plot(*truth[step], "k*", ms=10, mec="white")
            if case.landmarks:
                panel.plot(*np.array(case.landmarks)[:, own].T, "k^", ms=6)
            if ellipses is not None:
                outline = ellipse(*_moments(ellipses, step, own, states))
                panel.plot(*outline.T, color=COLOURS["enkf"], lw=1.5)
            if row == 0:
                panel.set_title(f"t = {times[step]:.1f} s", fontsize=10)
            if column == 0:
                panel.set_ylabel(f"{LABELS[short]}\n{plane[1]}")
            if row == len(clouds) - 1:
                panel.set_xlabel(plane[0])
    if plane == ("x", "y"):
        for panel in panels.flat:
            panel.set_aspect("equal", adjustable="datalim")
    handles = _snapshot_legend(case, ellipses is not None)
    figure.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=9)
    return figure


def _moments(
    trace: Trace, step: int, own: list[int], states: list[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance in a plane; those of the prior's draws at step 0."""
    if step:
        return trace["mean"][step - 1, states], trace["cov"][step - 1][np.ix_(own, own)]
    prior = trace["prior"][:, own]
    return prior.mean(axis=0), np.cov(prior.T)


def _snapshot_legend(case: Benchmark, ellipses: bool) -> list[Any]:
    def line(label: str, **look: Any) -> Any:
        return mpl.lines.Line2D([], [], label=label, **look)

    handles = [
        line("truth", color="k", marker="*", ls="", ms=9),
        line("particles, by weight", color="0.5", marker=".", ls=""),
    ]
    if case.landmarks:
        handles.append(line("landmarks", color="k", marker="^", ls=""))
    if ellipses:
        handles.append(line("EnKF, 90 % ellipse", color=COLOURS["enkf"]))
    return handles


def table_figure(table: Table) -> Figure:
    """A table as a picture; the best of a column is shaded where it can be told from others."""
    figure, ((panel,),) = _panels(1, 1, 13, 0.42 * len(table.entries) + 0.9)
    panel.axis("off")
    words = [
        [words_of(metric, entry) for metric, entry in row.items()] for row in table.entries.values()
    ]
    colours = [
        [LEADING if entry is not None and entry.leading else "white" for entry in row.values()]
        for row in table.entries.values()
    ]
    drawn = panel.table(
        cellText=words,
        cellColours=colours,
        rowLabels=[table.label(short) for short in table.entries],
        colLabels=table.titles(),
        cellLoc="center",
        loc="center",
    )
    drawn.auto_set_font_size(False)
    drawn.set_fontsize(8.5)
    drawn.scale(1, 1.6)
    for i, row in enumerate(table.entries.values()):
        for j, entry in enumerate(row.values()):
            if entry is not None and entry.best:
                drawn[i + 1, j].get_text().set_fontweight("bold")
    panel.set_title(table.title(), fontsize=11)
    return figure


def additional_figure(rows: Mapping[str, Sequence[Row]]) -> Figure:
    """Distance to the nearest particle and joint coverage, one column a benchmark."""
    figure, panels = _panels(2, len(rows), 3.4 * len(rows), 5.4)
    for column, (benchmark, found) in enumerate(rows.items()):
        for row, metric in enumerate(("made", "picp")):
            panel = panels[row, column]
            values = {
                short: [r[metric] for r in found if r["filter"] == short and r[metric] is not None]
                for short in NAMES
            }
            values = {short: column for short, column in values.items() if column}
            if not values:
                continue
            boxes = panel.boxplot(
                list(values.values()),
                tick_labels=[LABELS[short] for short in values],
                patch_artist=True,
                medianprops={"color": "black"},
            )
            for box, short in zip(boxes["boxes"], values, strict=True):
                box.set_facecolor(COLOURS[short])
                box.set_alpha(0.6)
            panel.tick_params(axis="x", rotation=60, labelsize=8)
            if column == 0:
                panel.set_ylabel(TITLES[metric])
            if metric == "picp":
                panel.axhline(TARGET, color="k", lw=1, ls="--")
                panel.set_ylim(-0.03, 1.03)
        panels[0, column].set_title(benchmark, fontsize=10)
    return figure


def sweep_figure(rows: Sequence[Row]) -> Figure:
    """Every metric against the number of particles; bands are one standard deviation of seeds."""
    figure, panels = _panels(2, 4, 14, 6.2)
    for panel, metric in zip(panels.flat, METRICS, strict=False):
        for short in NAMES:
            points = against_particles(rows, short, metric)
            if not points:
                continue
            n, mean, low, high = np.array(points).T
            panel.plot(n, mean, "o-", ms=3, lw=1.4, color=COLOURS[short], label=LABELS[short])
            panel.fill_between(n, low, high, color=COLOURS[short], alpha=0.15, lw=0)
        panel.set_xscale("log")
        if metric in LOGARITHMIC:
            panel.set_yscale("log")
        elif metric == "pnll":
            # Scores of filters that are lost may be in the hundreds; few ticks where none is.
            if max(map(abs, panel.get_ylim())) > 10:
                panel.set_yscale("symlog", linthresh=10)
        else:
            panel.axhline(TARGET, color="k", lw=1, ls="--")
        panel.set_xlabel("N")
        panel.set_title(TITLES[metric], fontsize=10)
    panels.flat[-1].axis("off")
    _legend(figure, panels[0, 0])
    return figure


def ess_figure(rows: Sequence[Row]) -> Figure:
    """Effective sample size over time: the median of the seeds, and their range."""
    figure, ((panel,),) = _panels(1, 1, 8, 4)
    for short in NAMES:
        values = ess_over_time(rows, short)
        if values is None:
            continue
        low, middle, high = values
        steps = np.arange(1, len(middle) + 1)
        panel.plot(steps, middle, color=COLOURS[short], lw=1.5, label=LABELS[short])
        panel.fill_between(steps, low, high, color=COLOURS[short], alpha=0.15, lw=0)
    panel.set_yscale("log")
    panel.set_xlabel("step")
    panel.set_ylabel("ESS")
    _legend(figure, panel)
    return figure


def _panels(rows: int, columns: int, width: float, height: float, **settings: Any) -> Any:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(rows, columns, squeeze=False, **settings)
    for panel in panels.flat:
        panel.grid(alpha=0.25)
    return figure, panels


def _legend(figure: Figure, panel: Any) -> None:
    handles, labels = panel.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(6, len(labels) or 1))
