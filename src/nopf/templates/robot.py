"""A robot that drives in a plane and measures its distance to three beacons.

Change this model to describe your own system. Then run

python TEMPLATE                               simulates a drive and writes run.csv
nopf check TEMPLATE:model --data run.csv      looks for mistakes and advises a filter
nopf filter TEMPLATE:model --data run.csv --out states.csv --plot states.html
"""

import jax
import jax.numpy as jnp
import numpy as np

import nopf

BEACONS = np.array([[0.0, 0.0], [6.0, 0.0], [3.0, 5.0]])  # metres
landmarks = BEACONS  # nopf filter marks these on its map

# Each function is written for one state x. `step` has index, time, dt (seconds since the last
# measurement) and control (the commands over that time: here speed and turn rate).


def transition(x, step):
    """The next state, without noise."""
    px, py, heading = x
    speed, turn = step.control
    return jnp.stack(
        [
            px + step.dt * speed * jnp.cos(heading),
            py + step.dt * speed * jnp.sin(heading),
            heading + step.dt * turn,
        ]
    )


def process_noise(step):
    """Standard deviations of the motion around the commands; they grow with the time between
    measurements. (Numbers instead of a function would be added once per step.)"""
    return jnp.sqrt(step.dt) * jnp.array([0.05, 0.05, 0.05])


def observation(x, step):
    """The measurements without noise: the distances to the beacons."""
    return jnp.hypot(BEACONS[:, 0] - x[0], BEACONS[:, 1] - x[1])


model = nopf.StateSpaceModel(
    prior=nopf.Gaussian(mean=[1.0, 1.0, 0.0], std=[0.5, 0.5, 0.3]),  # before the first measurement
    transition=transition,
    process_noise=process_noise,
    observation=observation,
    observation_noise=[0.1, 0.1, 0.1],  # metres
    robust=nopf.Outliers(rate=0.02, scale=10),  # 2 % outliers with 10 times the noise; optional
    state_names=("x", "y", "heading"),
    state_angles=("heading",),  # in radians
    observation_names=("range_1", "range_2", "range_3"),  # columns of your recordings
    control_names=("speed", "turn"),
    dt=0.1,  # seconds between measurements, if a recording has no column of times
)


def controls(steps):
    """Commands of a typical drive. `nopf check` and `nopf train` use them to simulate."""
    time = model.dt * np.arange(steps)
    return np.stack([np.full(steps, 0.8), 0.6 * np.sin(0.4 * time)], axis=1)


if __name__ == "__main__":
    truth = nopf.simulate(model, 200, jax.random.key(0), controls=controls(200))
    # In a simulation the true states are known. With --truth, nopf filter compares its estimates
    # with them.
    parts = [truth.steps.time, controls(200), truth.observations, truth.states]
    columns = np.column_stack(parts)
    names = ["time", *model.control_names, *model.observation_names]
    names += [f"true_{name}" for name in model.state_names]
    np.savetxt("run.csv", columns, "%.6g", ",", header=",".join(names), comments="")
    print("run.csv: 200 measurements of a simulated drive")
