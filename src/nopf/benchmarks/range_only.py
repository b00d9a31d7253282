"""Benchmark 3: a robot in the plane sees one biased range, so it may be on either side."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from nopf.benchmarks.benchmark import Benchmark
from nopf.gaussian import GaussianMixture
from nopf.model import StateSpaceModel
from nopf.steps import Step

DEGREE = np.pi / 180


def transition(x: Float[Array, "8"], step: Step) -> Float[Array, "8"]:
    """A unicycle whose speed, turn rate and biases walk randomly."""
    px, py, heading, speed, turn, range_bias, speed_bias, turn_bias = x
    return jnp.stack(
        [
            px + step.dt * speed * jnp.cos(heading),
            py + step.dt * speed * jnp.sin(heading),
            heading + step.dt * turn,
            speed,
            turn,
            range_bias,
            speed_bias,
            turn_bias,
        ]
    )


def observation(x: Float[Array, "8"], step: Step) -> Float[Array, "3"]:
    """Biased range to the origin, and biased odometry."""
    px, py, _, speed, turn, range_bias, speed_bias, turn_bias = x
    return jnp.stack([jnp.sqrt(px**2 + py**2) + range_bias, speed + speed_bias, turn + turn_bias])


MEANS = (
    (3.0, 0.6, np.pi, 0.42, 0.02, 0.0, 0.0, 0.0),
    (-3.0, 0.6, np.pi, 0.42, 0.02, 0.0, 0.0, 0.0),
)

model = StateSpaceModel(
    prior=GaussianMixture(
        [0.5, 0.5],
        MEANS,
        [0.70, 0.25, 8 * DEGREE, 0.16, 4 * DEGREE, 0.40, 0.12, 2 * DEGREE],
    ),
    transition=transition,
    process_noise=[
        0.035,
        0.035,
        0.8 * DEGREE,
        0.035,
        1.2 * DEGREE,
        0.012,
        0.012,
        0.2 * DEGREE,
    ],
    observation=observation,
    observation_noise=[0.025, 0.04, 1 * DEGREE],
    state_names=("x", "y", "heading", "speed", "turn", "range_bias", "speed_bias", "turn_bias"),
    state_angles=("heading",),
    dt=0.1,
)

benchmark = Benchmark(
    name="range-only",
    title="2D localization with one biased range",
    model=model,
    horizon=59,
    particles=10_000,
    initial_state=MEANS[0],
    landmarks=((0.0, 0.0),),
)
