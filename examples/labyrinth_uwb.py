"""A ground robot with wheel odometry, and radio ranges to four anchors that answer one at a time.

    python examples/labyrinth_uwb.py FOLDER     with Indoor_UWB_Input.txt and Indoor_UWB_GT.txt

The recording is "Indoor UWB" of TU Chemnitz (Tim Pfeifer, CC BY-SA 4.0), part of libRSF. Ranges are
biased and now and then far off; the model says so: a bias that all anchors share is part of the
state, and the noise is robust. Prints the position error of several filters for several numbers of
particles, against the ground truth that came with the recording.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import nopf

ANCHORS = {
    105: (-0.02, -0.01),
    107: (-0.02, 2.365),
    108: (2.385, 2.36),
    109: (2.385, -0.005),
}  # metres; those of the file are checked against these
HALF_TRACK = 0.0785  # half the distance between the wheels, metres


class Drive(NamedTuple):
    """The recording: times, one row of ranges a step with NaN for anchors that were silent, the
    speeds of the left and the right wheel that led to each step, and the true positions."""

    times: np.ndarray
    ranges: np.ndarray
    wheels: np.ndarray
    truth: np.ndarray


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
    return Drive(times, ranges, before, truth)


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


def filters(drive: Drive) -> dict[str, Any]:
    """By name, a function from a number of particles to a filter."""
    proposal = nopf.train(
        model,
        len(drive.times),
        jax.random.key(0),
        times=drive.times,
        controls=drive.wheels,
        missing=np.isnan(drive.ranges),
    )
    return {
        "bpf": lambda n: nopf.ParticleFilter(model, None, n),
        "enkf": lambda n: nopf.EnsembleKalmanFilter(model, n),
        "lpf": lambda n: nopf.ParticleFilter(model, nopf.LinearisedProposal(), n),
        "nopf": lambda n: nopf.ParticleFilter(model, proposal, n),
    }


def error(flt: Any, drive: Drive, seed: int) -> tuple[float, float | None]:
    """Root mean square of the position error over the drive, in metres, and the mean ESS."""
    posterior = flt.run(
        drive.ranges, key=jax.random.key(seed), times=drive.times, controls=drive.wheels
    )
    apart = np.asarray(posterior.mean)[:, :2] - drive.truth
    ess = None if posterior.ess is None else float(posterior.ess.mean())
    return float(np.sqrt(np.mean(np.sum(apart**2, axis=1)))), ess


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description="Position error on the labyrinth recording.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--particles", default="100,1000,10000")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if not (given.folder / "Indoor_UWB_Input.txt").is_file():
        sys.exit(f"{given.folder}: no Indoor_UWB_Input.txt there")
    drive = load(given.folder)
    rows: list[list[Any]] = []
    for name, make in filters(drive).items():
        for particles in map(int, given.particles.split(",")):
            flt = make(particles)
            found = [error(flt, drive, seed) for seed in range(given.seeds)]
            errors = [rmse for rmse, _ in found]
            counts = [ess for _, ess in found if ess is not None]
            mean, worst = float(np.mean(errors)), max(errors)
            ess = float(np.mean(counts)) if counts else None
            rows.append([name, particles, mean, worst, ess])
            if not given.json:
                count = "" if ess is None else f"   ESS {ess:.0f}"
                centimetres = f"{100 * mean:6.1f} cm   worst {100 * worst:6.1f} cm"
                print(f"{name:5} N {particles:6}   {centimetres}{count}", flush=True)
    if given.json:
        names = ("filter", "particles", "rmse", "worst", "ess")
        print(json.dumps([dict(zip(names, row, strict=True)) for row in rows]))


if __name__ == "__main__":
    main()
