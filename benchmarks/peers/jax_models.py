"""The benchmarks' models in plain JAX, for one particle, as a user would write them by hand."""

import jax
import jax.numpy as jnp
import numpy as np
from numpy_models import LANDMARKS, RangeBearing, RangeOnly, SensorBias, UnorderedRange


class Model:
    """Functions of one particle; constants are those of the NumPy models."""

    def __init__(self, constants):
        self.constants = constants

    def initial(self, key):
        """A draw of the prior."""
        std = self.constants.prior_std
        return self.constants.prior_mean + std * jax.random.normal(key, std.shape)

    def move(self, key, x, t):
        """One step, with its noise."""
        return self.transition(x, t) + self.constants.noise * jax.random.normal(key, x.shape)

    def log_likelihood(self, y, x):
        """Of one observation."""
        apart = y - self.observation(x)
        angular = np.isin(np.arange(len(y)), self.constants.angles)
        if angular.any():
            apart = jnp.where(angular, wrap(apart), apart)
        return jnp.sum(jax.scipy.stats.norm.logpdf(apart, 0.0, self.constants.observation_noise))


def wrap(angle):
    """To (−π, π]."""
    return angle - 2 * jnp.pi * jnp.ceil((angle - jnp.pi) / (2 * jnp.pi))


class SensorBiasModel(Model):
    """Benchmark 1."""

    def transition(self, x, t):
        """Constant velocity."""
        return jnp.array([x[0] + 0.1 * x[1], x[1], x[2]])

    def observation(self, x):
        """Position, and a biased velocity."""
        return jnp.array([x[0], x[1] + x[2]])


class RangeBearingModel(Model):
    """Benchmark 2."""

    def transition(self, x, t):
        """First-order response of speed and turn rate to commands."""
        speed_command = 0.85 + 0.20 * jnp.sin(0.33 * t) + 0.08 * jnp.cos(0.07 * t)
        turn_command = 0.02 + 0.42 * jnp.sin(0.21 * t) + 0.12 * jnp.cos(0.09 * t)
        px, py, heading, speed, turn, speed_bias, turn_bias = x
        return jnp.array(
            [
                px + 0.1 * speed * jnp.cos(heading),
                py + 0.1 * speed * jnp.sin(heading),
                heading + 0.1 * turn,
                speed + 2.0 * (speed_command - speed) * 0.1,
                turn + 2.7 * (turn_command - turn) * 0.1,
                speed_bias,
                turn_bias,
            ]
        )

    def observation(self, x):
        """Range and bearing of each landmark, then odometry."""
        px, py, heading, speed, turn, speed_bias, turn_bias = x
        dx, dy = LANDMARKS[:, 0] - px, LANDMARKS[:, 1] - py
        seen = jnp.stack([jnp.sqrt(dx**2 + dy**2), jnp.arctan2(dy, dx) - heading], axis=1)
        return jnp.concatenate([seen.ravel(), jnp.array([speed + speed_bias, turn + turn_bias])])


class RangeOnlyModel(Model):
    """Benchmark 3."""

    def initial(self, key):
        """One of two places."""
        which, noise = jax.random.split(key)
        std = self.constants.prior_std
        mean = jnp.asarray(self.constants.means)[jax.random.randint(which, (), 0, 2)]
        return mean + std * jax.random.normal(noise, std.shape)

    def transition(self, x, t):
        """A unicycle."""
        px, py, heading, speed, turn, *biases = x
        return jnp.array(
            [
                px + 0.1 * speed * jnp.cos(heading),
                py + 0.1 * speed * jnp.sin(heading),
                heading + 0.1 * turn,
                speed,
                turn,
                *biases,
            ]
        )

    def observation(self, x):
        """Biased range to the origin, and biased odometry."""
        distance = jnp.sqrt(x[0] ** 2 + x[1] ** 2) + x[5]
        return jnp.array([distance, x[3] + x[6], x[4] + x[7]])


class UnorderedRangeModel(Model):
    """Benchmark 4."""

    initial = RangeOnlyModel.initial

    def transition(self, x, t):
        """Commanded flight with drift."""
        speed_command = 0.88 + 0.16 * jnp.sin(0.26 * t) + 0.05 * jnp.cos(0.11 * t)
        yaw_command = 0.020 + 0.16 * jnp.sin(0.31 * t) + 0.04 * jnp.cos(0.13 * t)
        pitch_command = 0.015 + 0.08 * jnp.sin(0.29 * t) + 0.03 * jnp.cos(0.10 * t)
        px, py, pz, yaw, pitch, speed, yaw_rate, pitch_rate = x[:8]
        level = speed * jnp.cos(pitch)
        moved = jnp.array(
            [
                px + 0.1 * (level * jnp.cos(yaw) + x[15]),
                py + 0.1 * (level * jnp.sin(yaw) + x[16]),
                pz + 0.1 * (speed * jnp.sin(pitch) + x[17]),
                yaw + 0.1 * yaw_rate,
                pitch + 0.1 * pitch_rate,
                speed + 1.7 * (speed_command - speed) * 0.1,
                yaw_rate + 2.1 * (yaw_command - yaw_rate) * 0.1,
                pitch_rate + 2.3 * (pitch_command - pitch_rate) * 0.1,
            ]
        )
        return jnp.concatenate([moved, x[8:]])

    def observation(self, x):
        """Ranges in the order of the anchors, then odometry."""
        apart = x[:3] - self.constants.anchors
        ranges = x[19] * jnp.sqrt(jnp.sum(apart**2, axis=1)) + x[11:15]
        odometry = jnp.array([x[18] * x[5] + x[8], x[6] + x[9], x[7] + x[10]])
        return jnp.concatenate([ranges, odometry])

    def log_likelihood(self, y, x):
        """The mean over all orders in which the ranges may have come."""
        expected, std = self.observation(x), self.constants.observation_noise
        fit = jax.scipy.stats.norm.logpdf(y[:4, None], expected[None, :4], std[0])
        by_order = jnp.sum(fit[np.arange(4), self.constants.orders], axis=1)
        odometry = jnp.sum(jax.scipy.stats.norm.logpdf(y[4:], expected[4:], std[4:]))
        return jax.nn.logsumexp(by_order) - np.log(len(by_order)) + odometry


MODELS = {
    "sensor-bias": SensorBiasModel(SensorBias()),
    "range-bearing": RangeBearingModel(RangeBearing()),
    "range-only": RangeOnlyModel(RangeOnly()),
    "unordered-range": UnorderedRangeModel(UnorderedRange()),
}
