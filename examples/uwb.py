"""What the two examples with radio ranges share: filters side by side, and their errors."""

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
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


def trained(model: nopf.StateSpaceModel, drive: Drive) -> nopf.NeuralProposal:
    """A proposal for the recording's times, controls and silences."""
    steps = min(len(drive.times), 300)
    return nopf.train(
        model,
        steps,
        jax.random.key(0),
        times=drive.times[:steps],
        controls=None if drive.controls is None else drive.controls[:steps],
        start=drive.times[0] - model.dt,
        missing=np.isnan(drive.ranges[:steps]),
    )


def make_filter(
    name: str, model: nopf.StateSpaceModel, drive: Drive
) -> Callable[[int], nopf.Filter]:
    """A function from a number of particles to the filter of this name."""
    if name == "enkf":
        return lambda n: nopf.EnsembleKalmanFilter(model, n)
    seen = nopf.marginalise(model) if name.startswith("m") else model
    proposal: nopf.Proposal | None = None
    if name.endswith("lpf"):
        proposal = nopf.LinearisedProposal()
    elif name == "nopf":
        proposal = trained(model, drive)
    return lambda n: nopf.ParticleFilter(seen, proposal, n)


class Error(NamedTuple):
    """How far off a run is: in metres, and squared over its own variance (1 if it is as sure as it
    should be); what it said of its means, and its warnings."""

    rmse: float
    over_variance: np.ndarray
    ess: float | None
    mean: np.ndarray
    std: np.ndarray
    warnings: list[str]


def error(flt: nopf.Filter, drive: Drive, seed: int, after: float = 0.0) -> Error:
    """Root mean square of the position error in metres, from `after` seconds on, and the rest."""
    posterior = flt.run(
        drive.ranges,
        key=jax.random.key(seed),
        times=drive.times,
        controls=drive.controls,
        start=drive.times[0] - flt.model.dt,
    )
    counts = drive.times - drive.times[0] >= after
    mean, std = (np.asarray(values)[counts] for values in (posterior.mean, posterior.std))
    apart = mean[:, :2] - drive.truth[counts]
    ess = None if posterior.ess is None else float(posterior.ess.mean())
    rmse = float(np.sqrt(np.mean(np.sum(apart**2, axis=1))))
    over_variance = np.mean((apart / std[:, :2]) ** 2, axis=0)
    return Error(rmse, over_variance, ess, mean, std, posterior.warnings())


def main(
    description: str, model: nopf.StateSpaceModel, load: Callable[[Path], Drive], needed: str
) -> None:
    """Reads the command line and prints the position errors."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("folder", type=Path, help="where the recording is")
    parser.add_argument("--particles", default="100,1000,10000", help="with commas")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--filters", default="bpf,enkf,lpf,nopf", help="also mbpf, mlpf")
    parser.add_argument(
        "--outliers", action="store_true", help="robust=Outliers(0.05, 10) instead of Student's t"
    )
    parser.add_argument("--after", type=float, default=0.0, help="seconds that do not count")
    parser.add_argument(
        "--warnings", action="store_true", help="those of the first seed, and the error beside them"
    )
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if not (given.folder / needed).is_file():
        sys.exit(f"{given.folder}: expected the recording there, but it has no {needed}")
    drive = load(given.folder)
    if given.outliers:
        robust: Any = model.likelihood
        robust = dataclasses.replace(robust, heavy=nopf.Outliers(0.05, 10.0))
        model = eqx.tree_at(lambda m: m.likelihood, model, robust)
    rows: list[dict[str, Any]] = []
    for name in given.filters.split(","):
        make = make_filter(name, model, drive)
        for particles in map(int, given.particles.split(",")):
            flt = make(particles)
            found = [error(flt, drive, seed, given.after) for seed in range(given.seeds)]
            rows.append({"filter": name, "particles": particles} | summary(model, found))
            if not given.json:
                print(line(rows[-1]), flush=True)
            if given.warnings and not given.json:
                east, north = found[0].over_variance
                print(f"      error²/variance {east:.2f} in x, {north:.2f} in y")
                print("".join(f"      {warning}\n" for warning in found[0].warnings), end="")
    if given.json:
        print(json.dumps(rows))


def summary(model: nopf.StateSpaceModel, found: list[Error]) -> dict[str, Any]:
    """Of runs on the same data: errors, and what their means are worth."""
    errors = [one.rmse for one in found]
    counts = [one.ess for one in found if one.ess is not None]
    row = {"rmse": float(np.mean(errors)), "worst": max(errors)}
    row["ess"] = float(np.mean(counts)) if counts else None  # type: ignore[assignment]
    if len(found) > 1:
        means, stds = np.stack([one.mean for one in found]), np.stack([one.std for one in found])
        by_state = np.median(nopf.metrics.draws(model.space, means, stds)[1:], axis=0)
        row["draws"] = dict(zip(model.state_names, by_state.tolist(), strict=True))  # type: ignore[assignment]
    return row


def line(row: dict[str, Any]) -> str:
    """A row in words."""
    errors = f"{100 * row['rmse']:7.1f} cm   worst {100 * row['worst']:7.1f} cm"
    count = "" if row["ess"] is None else f"   ESS {row['ess']:.0f}"
    draws = "".join(f" {name} {each:.3g}" for name, each in row.get("draws", {}).items())
    worth = f"   draws{draws}" if draws else ""
    return f"{row['filter']:5} N {row['particles']:6}   {errors}{count}{worth}"
