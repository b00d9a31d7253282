"""A cart outdoors that four radio anchors see from one side: ranges only, no odometry.

    python examples/hanyang_uwb.py FOLDER     with A3.csv, A5.csv, A9.csv, A12.csv, trajectory.csv

The recording is one case of the Hanyang outdoor UWB data (Apache-2.0, doi 10.5281/zenodo.15226105).
The anchors are within three metres of each other and the cart goes fifty metres away, so that its
place along the line of sight is known well and across it hardly; now and then a range is many
metres off.
"""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from uwb import Drive, main

import nopf

ANCHORS = {
    3: (2.5775, 0.87, 1.97),
    5: (2.5775, -0.87, 1.97),
    9: (2.5775, -0.87, 0.5),
    12: (0.69, 0.87, 0.5),
}  # metres
TAG_HEIGHT = 1.0  # not in the data: what fits best
TOGETHER = 0.03  # seconds within which ranges count as one measurement


def load(folder: Path) -> Drive:
    """Reads the five files; ranges that belong together become one row."""
    found = []
    for column, (anchor, place) in enumerate(ANCHORS.items()):
        table = np.genfromtxt(folder / f"A{anchor}.csv", delimiter=",", skip_header=1)
        if not np.allclose(table[:, 3:6], place, atol=1e-6):
            raise ValueError(f"A{anchor}.csv: the anchor is not at {place}")
        found += [(stamp * 1e-9, column, distance) for stamp, distance in table[:, [1, 6]]]
    found.sort()
    times: list[float] = []
    rows: list[np.ndarray] = []
    for time, column, distance in found:
        if not times or time - times[-1] > TOGETHER or not np.isnan(rows[-1][column]):
            times.append(time)
            rows.append(np.full(len(ANCHORS), np.nan))
        rows[-1][column] = distance
    track = np.genfromtxt(folder / "trajectory.csv", delimiter=",", skip_header=1)
    known = track[:, 0] * 1e-9
    at, ranges = np.array(times), np.array(rows)
    inside = (at >= known[0]) & (at <= known[-1])
    at, ranges = at[inside], ranges[inside]
    truth = np.stack([np.interp(at, known, track[:, k]) for k in (1, 2)], axis=1)
    return Drive(at - at[0], ranges, truth)


def transition(x: Any, step: nopf.Step) -> Any:
    """Straight on at the same speed."""
    px, py, vx, vy = x
    return jnp.stack([px + step.dt * vx, py + step.dt * vy, vx, vy])


def observation(x: Any, step: nopf.Step) -> Any:
    """Distances in space; the tag keeps its height."""
    places = np.array(list(ANCHORS.values()))
    rise = places[:, 2] - TAG_HEIGHT
    return jnp.sqrt((places[:, 0] - x[0]) ** 2 + (places[:, 1] - x[1]) ** 2 + rise**2)


model = nopf.StateSpaceModel(
    prior=nopf.Gaussian([-2.5, -4.0, 0.0, 0.0], [1.0, 1.0, 0.5, 0.5]),
    transition=transition,
    process_noise=lambda step: jnp.sqrt(step.dt) * jnp.array([0.05, 0.05, 0.4, 0.4]),
    observation=observation,
    observation_noise=[0.15] * 4,
    robust=nopf.StudentT(3),
    state_names=("x", "y", "vx", "vy"),
    observation_names=tuple(f"range_{anchor}" for anchor in ANCHORS),
    dt=0.1,
)

if __name__ == "__main__":
    main("Position error on a case of the Hanyang recordings.", model, load, "trajectory.csv")
