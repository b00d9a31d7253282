"""A ground robot with wheel odometry, and radio ranges to four anchors that answer one at a time.

    python examples/labyrinth_uwb.py FOLDER     with Indoor_UWB_Input.txt and Indoor_UWB_GT.txt

The recording is "Indoor UWB" of TU Chemnitz (Tim Pfeifer, CC BY-SA 4.0), part of libRSF. Ranges are
biased and now and then far off; the model says so: a bias that all anchors share is part of the
state, and the noise is robust. Prints the position error of several filters for several numbers of
particles, against the true positions that came with the recording.
"""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from uwb import Drive, main

import nopf

ANCHORS = {
    105: (-0.02, -0.01),
    107: (-0.02, 2.365),
    108: (2.385, 2.36),
    109: (2.385, -0.005),
}  # metres; those of the file are checked against these
HALF_TRACK = 0.0785  # half the distance between the wheels, metres


def load(folder: Path) -> Drive:
    """Reads the two files of the recording."""
    measured, wheels = [], []
    places = list(ANCHORS)
    for line in (folder / "Indoor_UWB_Input.txt").read_text().splitlines():
        kind, *cells = line.split()
        numbers = [float(cell) for cell in cells]
        if kind == "range2":
            time, distance, _, x, y, anchor, _ = numbers
            if not np.allclose(ANCHORS[int(anchor)], (x, y), atol=1e-6):
                raise ValueError(f"anchor {int(anchor)} is at {(x, y)} in the file")
            row = np.full(len(places), np.nan)
            row[places.index(int(anchor))] = distance
            measured.append((time, row))
        elif kind == "odom2diff":
            # The readme says right, left; the data say left, right.
            wheels.append((numbers[0], numbers[1], numbers[2]))
    times, ranges = np.array([t for t, _ in measured]), np.stack([row for _, row in measured])
    lines = (folder / "Indoor_UWB_GT.txt").read_text().splitlines()
    truth = np.array([[float(cell) for cell in line.split()[2:4]] for line in lines])
    speeds = np.array(wheels)[:, 1:]
    # Row k of the odometry drives from step k to step k + 1.
    before = np.concatenate([np.zeros((1, 2)), speeds[:-1]])
    return Drive(times, ranges, truth, before)


def transition(x: Any, step: nopf.Step) -> Any:
    """Differential drive: along the heading in the middle of the step."""
    px, py, heading, bias = x
    left, right = step.control
    speed, turn = (left + right) / 2, (right - left) / (2 * HALF_TRACK)
    middle = heading + step.dt * turn / 2
    return jnp.stack(
        [
            px + step.dt * speed * jnp.cos(middle),
            py + step.dt * speed * jnp.sin(middle),
            heading + step.dt * turn,
            bias,
        ]
    )


def observation(x: Any, step: nopf.Step) -> Any:
    """Ranges to all anchors; those that were silent are missing in the data."""
    places = np.array(list(ANCHORS.values()))
    return jnp.hypot(places[:, 0] - x[0], places[:, 1] - x[1]) + x[3]


model = nopf.StateSpaceModel(
    # Somewhere in the room, roughly in which direction, and ranges that tend to be too long.
    prior=nopf.Gaussian([1.2, 1.2, 3.0, 0.1], [0.7, 0.7, 0.5, 0.1]),
    transition=transition,
    process_noise=lambda step: jnp.sqrt(step.dt) * jnp.array([0.03, 0.03, 0.1, 0.01]),
    observation=observation,
    observation_noise=[0.07] * 4,
    robust=nopf.StudentT(4),
    state_names=("x", "y", "heading", "bias"),
    state_angles=("heading",),
    observation_names=tuple(f"range_{anchor}" for anchor in ANCHORS),
    control_names=("left", "right"),
    dt=0.128,
)


if __name__ == "__main__":
    main("Position error on the labyrinth recording.", model, load, "Indoor_UWB_Input.txt")
