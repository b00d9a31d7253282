"""Benchmark 4: a vehicle in space hears four ranges without knowing which anchor sent which."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from nopf.benchmarks.benchmark import Benchmark
from nopf.catalogue import PAPER
from nopf.gaussian import LOG_2PI, Gaussian, GaussianMixture
from nopf.model import StateSpaceModel
from nopf.steps import Step
from nopf.unordered import UnorderedLikelihood

DEGREE = np.pi / 180
ANCHORS = np.array([[-4.4, -2.1, 0.0], [4.2, -1.3, 0.0], [-0.8, 3.8, 0.0], [4.7, 3.4, 0.0]])
SPEED_RESPONSE, YAW_RESPONSE, PITCH_RESPONSE = 1.7, 2.1, 2.3
RANGE_NOISE = 0.055
ODOMETRY_NOISE = (0.045, 1 * DEGREE, 1 * DEGREE)


def transition(x: Float[Array, "20"], step: Step) -> Float[Array, "20"]:
    """Commanded flight with drift; the twelve last states walk randomly."""
    px, py, pz, yaw, pitch, speed, yaw_rate, pitch_rate = x[:8]
    drift_x, drift_y, drift_z = x[15:18]
    t = step.index - 1  # commands follow the step count, not the clock
    speed_command = 0.88 + 0.16 * jnp.sin(0.26 * t) + 0.05 * jnp.cos(0.11 * t)
    yaw_command = 0.020 + 0.16 * jnp.sin(0.31 * t) + 0.04 * jnp.cos(0.13 * t)
    pitch_command = 0.015 + 0.08 * jnp.sin(0.29 * t) + 0.03 * jnp.cos(0.10 * t)
    level = speed * jnp.cos(pitch)
    moved = [
        px + step.dt * (level * jnp.cos(yaw) + drift_x),
        py + step.dt * (level * jnp.sin(yaw) + drift_y),
        pz + step.dt * (speed * jnp.sin(pitch) + drift_z),
        yaw + step.dt * yaw_rate,
        pitch + step.dt * pitch_rate,
        speed + SPEED_RESPONSE * (speed_command - speed) * step.dt,
        yaw_rate + YAW_RESPONSE * (yaw_command - yaw_rate) * step.dt,
        pitch_rate + PITCH_RESPONSE * (pitch_command - pitch_rate) * step.dt,
    ]
    return jnp.concatenate([jnp.stack(moved), x[8:]])


def ranges(x: Float[Array, "20"]) -> list[Float[Array, ""]]:
    """Biased and scaled range of each anchor, in the order of the anchors."""
    px, py, pz = x[:3]
    scale = x[19]
    return [
        scale * jnp.sqrt((px - ax) ** 2 + (py - ay) ** 2 + (pz - az) ** 2) + x[11 + j]
        for j, (ax, ay, az) in enumerate(ANCHORS)
    ]


def odometry(x: Float[Array, "20"]) -> list[Float[Array, ""]]:
    """Biased speed, yaw rate and pitch rate."""
    return [x[18] * x[5] + x[8], x[6] + x[9], x[7] + x[10]]


def sensors(x: Float[Array, "20"], step: Step) -> Float[Array, "7"]:
    """The noise-free observation: ranges in the order of the anchors, then odometry."""
    return jnp.stack([*ranges(x), *odometry(x)])


class UnorderedRanges(UnorderedLikelihood):
    """Four ranges that come in any order, then odometry.

    The density of any such likelihood, written for speed: averages over all 24 ways to match
    returns and anchors.
    """

    def __init__(self) -> None:
        noise = [RANGE_NOISE] * 4 + list(ODOMETRY_NOISE)
        super().__init__(sensors, noise, unordered=range(4), size=7)

    def log_prob(self, y: Float[Array, "7"], x: Float[Array, "20"], step: Step) -> Float[Array, ""]:
        # Without the barriers XLA computes each range anew for each of its uses: five times slower,
        # and a gradient that takes seconds.
        expected = jax.lax.optimization_barrier(jnp.stack(ranges(x)))
        fit = jax.lax.optimization_barrier(
            [[-0.5 * ((y[i] - expected[j]) / RANGE_NOISE) ** 2 for j in range(4)] for i in range(4)]
        )
        by_range = log_permanent(fit) - np.log(24) - 4 * (np.log(RANGE_NOISE) + 0.5 * LOG_2PI)
        noise = Gaussian(np.zeros(3), ODOMETRY_NOISE)
        return by_range + noise.log_prob(y[4:] - jnp.stack(odometry(x)))


def log_permanent(fit: list[list[Float[Array, ""]]]) -> Float[Array, ""]:
    """log Σ_π exp Σ_i fit[i][π(i)] over the permutations of four, stable for any entries.

    The first two rows take two columns in either order, the last two rows the other two: six pairs
    of columns, two orders each. Every factor is scaled by its larger term, so that 18 exponentials
    do for 24 products and none can overflow or lose the largest term.
    """
    best, ratio = [], []
    for a, b in itertools.combinations(range(4), 2):
        c, d = (k for k in range(4) if k not in (a, b))
        first, second = fit[0][a] + fit[1][b], fit[0][b] + fit[1][a]
        third, fourth = fit[2][c] + fit[3][d], fit[2][d] + fit[3][c]
        front, back = jnp.maximum(first, second), jnp.maximum(third, fourth)
        best.append(front + back)
        # The smaller term is the sum less the larger: unlike |a − b| it has a gradient at a tie.
        lesser = jnp.exp(first + second - 2 * front), jnp.exp(third + fourth - 2 * back)
        ratio.append((1 + lesser[0]) * (1 + lesser[1]))
    top = best[0]
    for value in best[1:]:
        top = jnp.maximum(top, value)
    total = sum(r * jnp.exp(b - top) for b, r in zip(best, ratio, strict=True))
    return top + jnp.log(total)


_REST = (0.14, 0.18, 0.92, 0.08, 0.04, *([0.0] * 10), 1.0, 1.0)

model = StateSpaceModel(
    prior=GaussianMixture(
        [0.5, 0.5],
        [(0.10, -0.75, 1.55, *_REST), (0.65, -0.30, 2.65, *_REST)],
        [0.35, 0.32, 0.14, 8 * DEGREE, 8 * DEGREE, 0.16, 2.4 * DEGREE, 2.2 * DEGREE, 0.06]
        + [0.8 * DEGREE] * 2
        + [0.08] * 4
        + [0.06] * 3
        + [0.03, 0.020],
    ),
    transition=transition,
    process_noise=[0.070, 0.070, 0.060, 0.8 * DEGREE, 0.7 * DEGREE, 0.070, 0.9 * DEGREE]
    + [0.8 * DEGREE, 0.006, 0.10 * DEGREE, 0.10 * DEGREE]
    + [0.008] * 4
    + [0.010] * 3
    + [0.006, 0.003],
    likelihood=UnorderedRanges(),
    state_names=(
        *("x", "y", "z", "yaw", "pitch", "speed", "yaw_rate", "pitch_rate"),
        *("speed_bias", "yaw_rate_bias", "pitch_rate_bias"),
        *("range_bias_1", "range_bias_2", "range_bias_3", "range_bias_4"),
        *("drift_x", "drift_y", "drift_z", "speed_scale", "range_scale"),
    ),
    state_angles=("yaw", "pitch"),
    dt=0.1,
)

benchmark = Benchmark(
    name="unordered-range",
    title="3D localization with unordered ranges",
    model=model,
    horizon=34,
    particles=50_000,
    tuning=dataclasses.replace(PAPER, stand_in_noise=(*([RANGE_NOISE] * 4), *ODOMETRY_NOISE)),
    height="z",
    landmarks=tuple(map(tuple, ANCHORS.tolist())),
)
