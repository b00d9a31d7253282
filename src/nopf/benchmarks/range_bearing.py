"""Benchmark 2: a robot in the plane sees range and bearing of four known landmarks."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from nopf.benchmarks.benchmark import Benchmark
from nopf.gaussian import Gaussian
from nopf.model import StateSpaceModel
from nopf.space import wrap_angle
from nopf.steps import Step

DEGREE = np.pi / 180
LANDMARKS = np.array([[-4.5, 1.8], [3.8, 3.1], [-2.2, -3.8], [4.4, -2.6]])
SPEED_RESPONSE, TURN_RESPONSE = 2.0, 2.7


def transition(x: Float[Array, "7"], step: Step) -> Float[Array, "7"]:
    """First-order response of speed and turn rate to commands; the biases walk randomly."""
    px, py, heading, speed, turn, speed_bias, turn_bias = x
    t = step.index - 1  # commands follow the step count, not the clock
    speed_command = 0.85 + 0.20 * jnp.sin(0.33 * t) + 0.08 * jnp.cos(0.07 * t)
    turn_command = 0.02 + 0.42 * jnp.sin(0.21 * t) + 0.12 * jnp.cos(0.09 * t)
    return jnp.stack(
        [
            px + step.dt * speed * jnp.cos(heading),
            py + step.dt * speed * jnp.sin(heading),
            heading + step.dt * turn,
            speed + SPEED_RESPONSE * (speed_command - speed) * step.dt,
            turn + TURN_RESPONSE * (turn_command - turn) * step.dt,
            speed_bias,
            turn_bias,
        ]
    )


def observation(x: Float[Array, "7"], step: Step) -> Float[Array, "10"]:
    """Range and bearing of each landmark in turn, then biased odometry."""
    px, py, heading, speed, turn, speed_bias, turn_bias = x
    seen = []
    for landmark_x, landmark_y in LANDMARKS:
        dx, dy = landmark_x - px, landmark_y - py
        seen += [jnp.sqrt(dx**2 + dy**2), wrap_angle(jnp.arctan2(dy, dx) - heading)]
    return jnp.stack([*seen, speed + speed_bias, turn + turn_bias])


model = StateSpaceModel(
    prior=Gaussian(
        [-3.0, -2.0, 0.3, 0.7, 0.0, 0.08, -0.05],
        [0.40, 0.40, 10 * DEGREE, 0.12, 6 * DEGREE, 0.05, 2 * DEGREE],
    ),
    transition=transition,
    process_noise=[0.20, 0.20, 1 * DEGREE, 0.40, 4 * DEGREE, 0.30, 0.20 * DEGREE],
    observation=observation,
    observation_noise=[0.08, 1.5 * DEGREE] * 4 + [0.05, 1.2 * DEGREE],
    state_names=("x", "y", "heading", "speed", "turn", "speed_bias", "turn_bias"),
    state_angles=("heading",),
    observation_angles=(1, 3, 5, 7),
    dt=0.1,
)

benchmark = Benchmark(
    name="range-bearing",
    title="2D localization with range and bearing",
    model=model,
    horizon=50,
    particles=10_000,
    landmarks=tuple((float(x), float(y)) for x, y in LANDMARKS),
)
