"""The benchmarks' models in NumPy, for libraries that work on arrays of particles."""

import numpy as np

DEGREE = np.pi / 180
LANDMARKS = np.array([[-4.5, 1.8], [3.8, 3.1], [-2.2, -3.8], [4.4, -2.6]])


def wrap(angle):
    """To (−π, π], near enough for a density."""
    return angle - 2 * np.pi * np.ceil((angle - np.pi) / (2 * np.pi))


class Model:
    """Functions of `(n, d)` arrays. `angles` are the coordinates of the observation that are."""

    angles = ()

    def initial(self, random, n):
        """Draws of the prior."""
        return self.prior_mean + self.prior_std * random.standard_normal((n, len(self.prior_std)))

    def move(self, x, t, random):
        """One step, with its noise."""
        return self.transition(x, t) + self.noise * random.standard_normal(x.shape)

    def log_likelihood(self, y, x):
        """Of one observation, for each particle."""
        apart = y[None] - self.observation(x)
        for i in self.angles:
            apart[:, i] = wrap(apart[:, i])
        white = apart / self.observation_noise
        constant = np.sum(np.log(self.observation_noise)) + 0.5 * y.size * np.log(2 * np.pi)
        return -0.5 * np.sum(white**2, axis=1) - constant


class SensorBias(Model):
    """Benchmark 1."""

    prior_mean = np.array([0.8, 0.2, -0.1])
    prior_std = np.full(3, np.sqrt(0.5))
    noise = np.full(3, 0.1)
    observation_noise = np.full(2, 0.1)

    def transition(self, x, t):
        """Constant velocity."""
        new = x.copy()
        new[:, 0] += 0.1 * x[:, 1]
        return new

    def observation(self, x):
        """Position, and a biased velocity."""
        return np.stack([x[:, 0], x[:, 1] + x[:, 2]], axis=1)


class RangeBearing(Model):
    """Benchmark 2."""

    prior_mean = np.array([-3.0, -2.0, 0.3, 0.7, 0.0, 0.08, -0.05])
    prior_std = np.array([0.40, 0.40, 10 * DEGREE, 0.12, 6 * DEGREE, 0.05, 2 * DEGREE])
    noise = np.array([0.20, 0.20, 1 * DEGREE, 0.40, 4 * DEGREE, 0.30, 0.20 * DEGREE])
    observation_noise = np.array([0.08, 1.5 * DEGREE] * 4 + [0.05, 1.2 * DEGREE])
    angles = (1, 3, 5, 7)

    def transition(self, x, t):
        """First-order response of speed and turn rate to commands."""
        speed_command = 0.85 + 0.20 * np.sin(0.33 * t) + 0.08 * np.cos(0.07 * t)
        turn_command = 0.02 + 0.42 * np.sin(0.21 * t) + 0.12 * np.cos(0.09 * t)
        px, py, heading, speed, turn, speed_bias, turn_bias = x.T
        return np.stack(
            [
                px + 0.1 * speed * np.cos(heading),
                py + 0.1 * speed * np.sin(heading),
                heading + 0.1 * turn,
                speed + 2.0 * (speed_command - speed) * 0.1,
                turn + 2.7 * (turn_command - turn) * 0.1,
                speed_bias,
                turn_bias,
            ],
            axis=1,
        )

    def observation(self, x):
        """Range and bearing of each landmark, then odometry."""
        px, py, heading, speed, turn, speed_bias, turn_bias = x.T
        seen = []
        for landmark_x, landmark_y in LANDMARKS:
            dx, dy = landmark_x - px, landmark_y - py
            seen += [np.sqrt(dx**2 + dy**2), np.arctan2(dy, dx) - heading]
        return np.stack([*seen, speed + speed_bias, turn + turn_bias], axis=1)


class RangeOnly(Model):
    """Benchmark 3."""

    means = np.array([(side * 3.0, 0.6, np.pi, 0.42, 0.02, 0.0, 0.0, 0.0) for side in (1, -1)])
    prior_std = np.array([0.70, 0.25, 8 * DEGREE, 0.16, 4 * DEGREE, 0.40, 0.12, 2 * DEGREE])
    noise = np.array([0.035, 0.035, 0.8 * DEGREE, 0.035, 1.2 * DEGREE, 0.012, 0.012, 0.2 * DEGREE])
    observation_noise = np.array([0.025, 0.04, 1 * DEGREE])

    def initial(self, random, n):
        """One of two places."""
        self.prior_mean = self.means[random.integers(2, size=n)]
        return super().initial(random, n)

    def transition(self, x, t):
        """A unicycle."""
        new = x.copy()
        new[:, 0] += 0.1 * x[:, 3] * np.cos(x[:, 2])
        new[:, 1] += 0.1 * x[:, 3] * np.sin(x[:, 2])
        new[:, 2] += 0.1 * x[:, 4]
        return new

    def observation(self, x):
        """Biased range to the origin, and biased odometry."""
        distance = np.sqrt(x[:, 0] ** 2 + x[:, 1] ** 2) + x[:, 5]
        return np.stack([distance, x[:, 3] + x[:, 6], x[:, 4] + x[:, 7]], axis=1)


MODELS = {"sensor-bias": SensorBias, "range-bearing": RangeBearing, "range-only": RangeOnly}
