"""The benchmarks' models in plain JAX, for one particle, as a user would write them by hand."""

import jax
import jax.numpy as jnp
import numpy as np
from numpy_models import LANDMARKS, RangeBearing, RangeOnly, SensorBias


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


MODELS = {
    "sensor-bias": SensorBiasModel(SensorBias()),
    "range-bearing": RangeBearingModel(RangeBearing()),
    "range-only": RangeOnlyModel(RangeOnly()),
}
