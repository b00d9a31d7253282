"""What the two examples with radio ranges share: filters side by side, and their errors."""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import nopf


class Drive(NamedTuple):
    """A recording.

    Attributes:
        times: `(T,)` seconds.
        ranges: `(T, anchors)`, NaN for anchors that were silent.
        truth: `(T, 2)` true positions.
        controls: `(T, u)`, or None.
    """

    times: np.ndarray
    ranges: np.ndarray
    truth: np.ndarray
    controls: np.ndarray | None = None


def filters(model: nopf.StateSpaceModel, drive: Drive) -> dict[str, Callable[[int], nopf.Filter]]:
    """By name, a function from a number of particles to a filter."""
    steps = min(len(drive.times), 300)
    proposal = nopf.train(
        model,
        steps,
        jax.random.key(0),
        times=drive.times[:steps],
        controls=None if drive.controls is None else drive.controls[:steps],
        start=drive.times[0] - model.dt,
        missing=np.isnan(drive.ranges[:steps]),
    )
    return {
        "bpf": lambda n: nopf.ParticleFilter(model, None, n),
        "enkf": lambda n: nopf.EnsembleKalmanFilter(model, n),
        "lpf": lambda n: nopf.ParticleFilter(model, nopf.LinearisedProposal(), n),
        "nopf": lambda n: nopf.ParticleFilter(model, proposal, n),
    }


def error(
    flt: nopf.Filter, drive: Drive, seed: int, after: float = 0.0
) -> tuple[float, float | None]:
    """Root mean square of the position error in metres, from `after` seconds on, and mean ESS."""
    posterior = flt.run(
        drive.ranges,
        key=jax.random.key(seed),
        times=drive.times,
        controls=drive.controls,
        start=drive.times[0] - flt.model.dt,
    )
    apart = (np.asarray(posterior.mean)[:, :2] - drive.truth)[drive.times - drive.times[0] >= after]
    ess = None if posterior.ess is None else float(posterior.ess.mean())
    return float(np.sqrt(np.mean(np.sum(apart**2, axis=1)))), ess


def main(
    description: str, model: nopf.StateSpaceModel, load: Callable[[Path], Drive], needed: str
) -> None:
    """Reads the command line and prints the position errors."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("folder", type=Path, help="where the recording is")
    parser.add_argument("--particles", default="100,1000,10000", help="with commas")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--after", type=float, default=0.0, help="seconds that do not count")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if not (given.folder / needed).is_file():
        sys.exit(f"{given.folder}: expected the recording there, but it has no {needed}")
    drive = load(given.folder)
    rows: list[dict[str, Any]] = []
    for name, make in filters(model, drive).items():
        for particles in map(int, given.particles.split(",")):
            flt = make(particles)
            found = [error(flt, drive, seed, given.after) for seed in range(given.seeds)]
            errors = [rmse for rmse, _ in found]
            counts = [ess for _, ess in found if ess is not None]
            mean, worst = float(np.mean(errors)), max(errors)
            ess = float(np.mean(counts)) if counts else None
            row = {"filter": name, "particles": particles, "rmse": mean, "worst": worst, "ess": ess}
            rows.append(row)
            if not given.json:
                count = "" if ess is None else f"   ESS {ess:.0f}"
                centimetres = f"{100 * mean:7.1f} cm   worst {100 * worst:7.1f} cm"
                print(f"{name:5} N {particles:6}   {centimetres}{count}", flush=True)
    if given.json:
        print(json.dumps(rows))
