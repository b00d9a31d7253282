"""A robot that drives in a plane and measures its distance to three beacons. Change it to yours.

python TEMPLATE                               simulates a drive and writes run.csv
nopf check TEMPLATE:model --data run.csv      is the model sound, and which filter suits it?
nopf filter TEMPLATE:model --data run.csv --out states.csv --plot states.svg
"""

import jax
import jax.numpy as jnp
import numpy as np

import nopf

BEACONS = np.array([[0.0, 0.0], [6.0, 0.0], [3.0, 5.0]])  # metres
landmarks = BEACONS  # nopf filter marks these on its map

# All functions are for one state. `step` has index, time, dt (seconds since the last measurement)
# and control (what was commanded over that time: here speed and turn rate).


def transition(x, step):
    """Where the robot goes, without noise."""
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
    """Standard deviations of what the commands leave open; they grow with the time between
    measurements. (Numbers instead of a function would be added once a step.)"""
    return jnp.sqrt(step.dt) * jnp.array([0.05, 0.05, 0.05])


def observation(x, step):
    """What the sensors would say without noise: the distances to the beacons."""
    return jnp.hypot(BEACONS[:, 0] - x[0], BEACONS[:, 1] - x[1])


model = nopf.StateSpaceModel(
    prior=nopf.Gaussian(mean=[1.0, 1.0, 0.0], std=[0.5, 0.5, 0.3]),  # before the first measurement
    transition=transition,
    process_noise=process_noise,
    observation=observation,
    observation_noise=[0.1, 0.1, 0.1],  # metres
    robust=nopf.Outliers(rate=0.02, scale=10),  # now and then a range is far off; or leave it out
    state_names=("x", "y", "heading"),
    state_angles=("heading",),  # radians; wrapped everywhere
    observation_names=("range_1", "range_2", "range_3"),  # columns of your recordings
    control_names=("speed", "turn"),
    dt=0.1,  # seconds between measurements, where a recording has no times
)


def controls(steps):
    """Commands of a typical drive, for simulations: `nopf check` and `nopf train` look for this."""
    time = model.dt * np.arange(steps)
    return np.stack([np.full(steps, 0.8), 0.6 * np.sin(0.4 * time)], axis=1)


if __name__ == "__main__":
    truth = nopf.simulate(model, 200, jax.random.key(0), controls=controls(200))
    # Where the robot truly was is known here, so that --truth can say how near the estimates are.
    parts = [truth.steps.time, controls(200), truth.observations, truth.states]
    columns = np.column_stack(parts)
    names = ["time", *model.control_names, *model.observation_names]
    names += [f"true_{name}" for name in model.state_names]
    np.savetxt("run.csv", columns, "%.6g", ",", header=",".join(names), comments="")
    print("run.csv: 200 measurements of a simulated drive")
