"""Draws estimates, paths and training curves on axes of matplotlib, which is imported when used."""

import math
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from nopf.gaussian import shown
from nopf.space import Space

COLOUR = "#0072B2"
LEVEL_90 = -2 * math.log(0.1)  # χ² with two degrees of freedom
ELLIPSES = 15  # of a path; more would hide it
# Names by which two states are known to be a place.
PLACES = (
    ("x", "y"),
    ("px", "py"),
    ("pos_x", "pos_y"),
    ("position_x", "position_y"),
    ("east", "north"),
)


@runtime_checkable
class Estimates(Protocol):
    """What is needed of a posterior."""

    @property
    def times(self) -> Any: ...
    @property
    def mean(self) -> Any: ...
    @property
    def cov(self) -> Any: ...
    @property
    def quantiles(self) -> Any: ...
    @property
    def ess(self) -> Any: ...
    @property
    def space(self) -> Space: ...
    @property
    def state_names(self) -> tuple[str, ...]: ...
    @property
    def quantile_levels(self) -> tuple[float, ...]: ...


def new_axes(rows: int, width: float, height: float, **settings: Any) -> np.ndarray:
    """Axes one below the other, of a figure that notebooks and `matplotlib.pyplot.show()` show."""
    try:
        from matplotlib import pyplot
    except ImportError:
        raise ImportError(
            "plots need matplotlib; install it with: pip install 'nopf[plots]'"
        ) from None
    _, axes = pyplot.subplots(
        rows, 1, figsize=(width, height), squeeze=False, layout="constrained", **settings
    )
    return axes[:, 0]


def bands(found: Estimates) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Means, lowest and highest quantiles, `(T, d)` each, to draw: angles go on beyond ±π."""
    levels = found.quantile_levels
    mean, quantiles = (np.array(part, np.float64) for part in (found.mean, found.quantiles))
    if not levels:  # The filter was asked for none.
        return _unwrapped(mean, found.space), mean, mean
    low, high = (quantiles[:, levels.index(pick(levels))] for pick in (min, max))
    angles = list(found.space.angles)
    whole = _unwrapped(mean, found.space)
    for edge in (low, high):
        apart = edge[:, angles] - mean[:, angles]
        edge[:, angles] = whole[:, angles] + apart - 2 * np.pi * np.round(apart / (2 * np.pi))
    return whole, low, high


def _unwrapped(values: np.ndarray, space: Space) -> np.ndarray:
    whole, angles = np.array(values), list(space.angles)
    whole[:, angles] = np.unwrap(whole[:, angles], axis=0)
    return whole


def ellipse(mean: Float[np.ndarray, "2"], cov: Float[np.ndarray, "2 2"]) -> np.ndarray:
    """`(k, 2)` outline that holds 90 % of a normal distribution in the plane."""
    values, vectors = np.linalg.eigh(cov)
    around = np.linspace(0, 2 * np.pi, 49)
    circle = np.stack([np.cos(around), np.sin(around)])
    return mean + (vectors @ (np.sqrt(LEVEL_90 * np.maximum(values, 0))[:, None] * circle)).T


def truth_of(found: Estimates, truth: Any) -> np.ndarray | None:
    """`(T, d)` true states: an array, or what `nopf.simulate` gave."""
    if truth is None:
        return None
    states = np.asarray(getattr(truth, "states", truth), np.float64)
    expected = (len(found.times), len(found.state_names))
    if states.shape != expected:
        raise ValueError(f"truth: expected shape {expected}, got {states.shape}")
    return states


def draw_states(panels: Any, found: Estimates, truth: np.ndarray | None = None) -> None:
    """One state a panel: mean, band and truth."""
    mean, low, high = bands(found)
    for i, (name, panel) in enumerate(zip(found.state_names, panels, strict=True)):
        panel.fill_between(found.times, low[:, i], high[:, i], color=COLOUR, alpha=0.2, lw=0)
        panel.plot(found.times, mean[:, i], color=COLOUR, lw=1.4, label="mean")
        if truth is not None:
            # An angle goes on beyond ±π on the same side as its estimate.
            apart = truth[:, i] - mean[:, i]
            turns = 2 * np.pi * np.round(apart / (2 * np.pi)) if i in found.space.angles else 0
            panel.plot(found.times, truth[:, i] - turns, "k--", lw=1, label="truth")
        panel.set_ylabel(name)
    if truth is not None:
        panels[0].legend(fontsize=9)


def has_plane(names: Sequence[str]) -> bool:
    """Whether the names of two states say that they are a place."""
    return any(set(pair) <= set(names) for pair in PLACES)


def plane_of(names: Sequence[str], plane: Any = None) -> tuple[int, int]:
    """Which two states are a place: those asked for, or those whose names say so."""
    if plane is None:
        for pair in PLACES:
            if set(pair) <= set(names):
                return names.index(pair[0]), names.index(pair[1])
        raise ValueError(
            "plane: no two states have names of a place (x and y, east and north, …); say which "
            f"with plane=(…, …), of {', '.join(names)}"
        )
    if isinstance(plane, str) or len(plane) != 2 or not set(plane) <= set(names):
        raise ValueError(f"plane: expected two of {', '.join(names)}, got {shown(plane)}")
    return names.index(plane[0]), names.index(plane[1])


def draw_map(
    panel: Any,
    found: Estimates,
    plane: tuple[int, int],
    truth: np.ndarray | None = None,
    landmarks: Any = None,
) -> None:
    """The path of the mean with 90 % ellipses, its start and its end; truth and landmarks."""
    own = list(plane)
    path, cov = np.asarray(found.mean)[:, own], np.asarray(found.cov)
    if truth is not None:
        panel.plot(*truth[:, own].T, "k--", lw=1, label="truth")
    panel.plot(*path.T, color=COLOUR, lw=1.4, label="mean")
    every = np.unique(np.linspace(0, len(path) - 1, ELLIPSES).astype(int))
    for number, t in enumerate(every):
        outline = ellipse(path[t], cov[t][np.ix_(own, own)])
        label = "90 % ellipse" if number == 0 else None
        panel.plot(*outline.T, color=COLOUR, lw=0.8, alpha=0.6, label=label)
    panel.plot(*path[0], "o", color=COLOUR, ms=6, label="start")
    panel.plot(*path[-1], "s", color=COLOUR, ms=6, label="end")
    if landmarks is not None:
        places = np.asarray(landmarks, np.float64)
        if places.ndim != 2 or places.shape[1] != 2:
            raise ValueError(f"landmarks: expected shape (k, 2), got {places.shape}")
        panel.plot(*places.T, "k^", ms=7, label="landmarks")
    panel.set_aspect("equal", adjustable="datalim")
    panel.set_xlabel(found.state_names[own[0]])
    panel.set_ylabel(found.state_names[own[1]])
    panel.legend(fontsize=9)


def draw_paths(
    times: np.ndarray,
    paths: Float[np.ndarray, "p t d"],
    space: Space,
    names: Sequence[str],
    plane: Any = None,
) -> np.ndarray:
    """Some paths: each state over time, and the plane in a panel of its own on the right.

    Args:
        times: `(t,)`.
        paths: the states.
        space: which of them are angles.
        names: of the states.
        plane: two names; found if left out, and left away if there are none.
    """
    found = plane_of(names, plane) if plane is not None or has_plane(names) else None
    count = len(names)
    height = 1.7 * count + 0.4
    axes = new_axes(count, 8.0 if found is None else 12.0, max(height, 4.0 * (found is not None)))
    whole = np.array(paths, np.float64)
    angles = list(space.angles)
    whole[..., angles] = np.unwrap(whole[..., angles], axis=1)
    for i, (name, panel) in enumerate(zip(names, axes, strict=True)):
        panel.plot(times, whole[:, :, i].T, lw=1)
        panel.set_ylabel(name)
        panel.sharex(axes[-1])
    axes[-1].set_xlabel("time")
    if found is None:
        return axes
    figure = axes[0].figure
    for row, panel in enumerate(axes):
        panel.set_subplotspec(figure.add_gridspec(count, 2)[row, 0])
    panel = figure.add_subplot(figure.add_gridspec(count, 2)[:, 1])
    for path in whole[..., list(found)]:
        (line,) = panel.plot(*path.T, lw=1)
        panel.plot(*path[0], "o", color=line.get_color(), ms=4)
    panel.set_aspect("equal", adjustable="datalim")
    panel.set_xlabel(names[found[0]])
    panel.set_ylabel(names[found[1]])
    return np.append(axes, panel)


def draw_history(panels: Any, history: Float[np.ndarray, "k 4"]) -> None:
    """The training curve: losses in the first panel, the held-out ESS in the second."""
    step, loss, held_out, fraction = np.asarray(history).T
    panels[0].plot(step, loss, color="0.5", lw=1, label="training")
    panels[0].plot(step, held_out, color=COLOUR, lw=1.4, label="held out")
    panels[0].set_ylabel("loss")
    panels[0].legend(fontsize=9)
    panels[1].plot(step, 100 * fraction, color=COLOUR, lw=1.4)
    panels[1].set_ylabel("held-out ESS, %")
    panels[1].set_xlabel("gradient step")
