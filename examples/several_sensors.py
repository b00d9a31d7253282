"""A robot with a compass, a position fix and a beacon, each at its own pace, and wheel odometry.

    python examples/several_sensors.py              how far off is it, with and without each sensor
    python examples/several_sensors.py run.csv      writes the merged recording as well
    nopf filter examples/several_sensors.py:model --data run.csv --filter lpf --plot run.html

Every sensor has a log with times of its own. Merged, there is one row a time at which anything was
measured; sensors that said nothing then have an empty cell. Between two rows the wheels drove: the
control of a row is the mean of what they measured since the row before.
"""

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import nopf

BEACON = np.array([4.0, 6.0])  # metres
SENSORS = {"compass": ("heading",), "fix": ("fix_x", "fix_y"), "beacon": ("range",)}


def transition(x: Any, step: nopf.Step) -> Any:
    """Along an arc: the heading in the middle of the interval."""
    px, py, heading = x
    speed, turn = step.control
    middle = heading + step.dt * turn / 2
    return jnp.stack(
        [
            px + step.dt * speed * jnp.cos(middle),
            py + step.dt * speed * jnp.sin(middle),
            heading + step.dt * turn,
        ]
    )


def observation(x: Any, step: nopf.Step) -> Any:
    """What all sensors would say; those that were silent are missing in the data."""
    px, py, heading = x
    return jnp.stack([heading, px, py, jnp.hypot(BEACON[0] - px, BEACON[1] - py)])


model = nopf.StateSpaceModel(
    prior=nopf.Gaussian([0.0, 0.0, 0.0], [1.0, 1.0, 0.5]),
    transition=transition,
    # Intervals differ, so the noise has to grow with them.
    process_noise=lambda step: jnp.sqrt(step.dt) * jnp.array([0.05, 0.05, 0.03]),
    observation=observation,
    observation_noise=[0.1, 0.8, 0.8, 0.15],
    state_names=("x", "y", "heading"),
    state_angles=("heading",),
    observation_names=tuple(column for columns in SENSORS.values() for column in columns),
    observation_angles=(0,),
    control_names=("speed", "turn"),
    dt=0.2,
)


def drive(seed: int) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """A simulated drive of a minute.

    Returns:
        One log a sensor, with times in the first column; the log of the wheels at 20 Hz: times,
        speed, turn rate; the true path at the same times: x, y, heading.
    """
    rng = np.random.default_rng(seed)
    dt, steps = 0.05, 1200
    times = dt * np.arange(1, steps + 1)
    wheels = np.stack([times, np.full(steps, 0.6), 0.5 * np.sin(0.3 * times)], axis=1)
    path = np.zeros((steps, 3))
    x = np.zeros(3)
    for k, (_, speed, turn) in enumerate(wheels):
        middle = x[2] + dt * turn / 2
        x = x + dt * np.array([speed * np.cos(middle), speed * np.sin(middle), turn])
        path[k] = x = x + np.sqrt(dt) * np.array([0.05, 0.05, 0.03]) * rng.standard_normal(3)

    def log(gap: float, measure: Any) -> np.ndarray:
        """Rows about `gap` seconds apart, never at quite the same pace."""
        kept = np.unique(np.cumsum(rng.uniform(0.7, 1.3, int(60 / gap)) * gap / dt).astype(int))
        rows = kept[kept < steps]
        return np.column_stack([times[rows], *measure(path[rows])])

    def noisy(values: np.ndarray, sd: float) -> np.ndarray:
        return values + sd * rng.standard_normal(values.shape)

    logs = {
        "compass": log(0.2, lambda p: [noisy(p[:, 2], 0.1)]),
        "fix": log(1.0, lambda p: [noisy(p[:, 0], 0.8), noisy(p[:, 1], 0.8)]),
        "beacon": log(
            0.35, lambda p: [noisy(np.hypot(BEACON[0] - p[:, 0], BEACON[1] - p[:, 1]), 0.15)]
        ),
    }
    return logs, wheels, path


def merge(logs: dict[str, np.ndarray], wheels: np.ndarray) -> tuple[Any, Any, Any]:
    """One row a time at which anything was measured: times, controls, observations."""
    times = np.unique(np.concatenate([log[:, 0] for log in logs.values()]))
    ys = np.full((len(times), len(model.observation_names)), np.nan)
    for sensor, log in logs.items():
        columns = [model.observation_names.index(column) for column in SENSORS[sensor]]
        ys[np.searchsorted(times, log[:, 0])[:, None], columns] = log[:, 1:]
    # Means over each interval, as differences of the integral.
    length = np.diff(wheels[:, 0], prepend=0.0)
    driven = np.cumsum(wheels[:, 1:] * length[:, None], axis=0)
    known, driven = np.insert(wheels[:, 0], 0, 0.0), np.vstack([np.zeros(2), driven])
    at = np.stack([np.interp(times, known, driven[:, k]) for k in range(2)], axis=1)
    since = np.diff(times, prepend=0.0)[:, None]
    controls = np.diff(at, axis=0, prepend=np.zeros((1, 2))) / since
    return times, controls, ys


def error(times: Any, controls: Any, ys: Any, truth: Any) -> float:
    """Root mean square of the position error, in metres."""
    flt = nopf.AuxiliaryFilter(model, nopf.LinearisedProposal(), particles=5000)
    posterior = flt.run(ys, key=jax.random.key(1), times=times, controls=controls)
    for warning in posterior.warnings():
        print(warning)
    apart = np.asarray(posterior.mean)[:, :2] - truth
    return float(np.sqrt(np.mean(np.sum(apart**2, axis=1))))


def main() -> None:
    """Prints the position error with all sensors, and without each."""
    logs, wheels, path = drive(seed=0)
    times, controls, ys = merge(logs, wheels)
    truth = path[np.searchsorted(wheels[:, 0], times), :2]
    counts = ", ".join(f"{sensor} {len(log)}" for sensor, log in logs.items())
    print(f"{len(times)} rows: {counts}")
    print(f"all sensors        {error(times, controls, ys, truth):.2f} m")
    for sensor, columns in SENSORS.items():
        without = ys.copy()
        without[:, [model.observation_names.index(column) for column in columns]] = np.nan
        print(f"without {sensor:10} {error(times, controls, without, truth):.2f} m")
    if len(sys.argv) > 1:
        names = ["time", *model.control_names, *model.observation_names]
        rows = [
            ",".join("" if np.isnan(cell) else f"{cell:.9g}" for cell in row)
            for row in np.column_stack([times, controls, ys])
        ]
        Path(sys.argv[1]).write_text("\n".join([",".join(names), *rows]) + "\n")


if __name__ == "__main__":
    main()
