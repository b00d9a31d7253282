"""The benchmarks' models in NumPy, for libraries that work on arrays of particles."""

import itertools

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


class UnorderedRange(Model):
    """Benchmark 4."""

    anchors = np.array([[-4.4, -2.1, 0.0], [4.2, -1.3, 0.0], [-0.8, 3.8, 0.0], [4.7, 3.4, 0.0]])
    orders = np.array(list(itertools.permutations(range(4))))
    means = np.array(
        [
            (*place, 0.14, 0.18, 0.92, 0.08, 0.04, *([0.0] * 10), 1.0, 1.0)
            for place in [(0.10, -0.75, 1.55), (0.65, -0.30, 2.65)]
        ]
    )
    prior_std = np.array(
        [0.35, 0.32, 0.14, 8 * DEGREE, 8 * DEGREE, 0.16, 2.4 * DEGREE, 2.2 * DEGREE, 0.06]
        + [0.8 * DEGREE] * 2
        + [0.08] * 4
        + [0.06] * 3
        + [0.03, 0.020]
    )
    noise = np.array(
        [0.070, 0.070, 0.060, 0.8 * DEGREE, 0.7 * DEGREE, 0.070, 0.9 * DEGREE]
        + [0.8 * DEGREE, 0.006, 0.10 * DEGREE, 0.10 * DEGREE]
        + [0.008] * 4
        + [0.010] * 3
        + [0.006, 0.003]
    )
    observation_noise = np.array([0.055] * 4 + [0.045, 1 * DEGREE, 1 * DEGREE])

    def initial(self, random, n):
        """One of two places."""
        self.prior_mean = self.means[random.integers(2, size=n)]
        return super().initial(random, n)

    def transition(self, x, t):
        """Commanded flight with drift."""
        speed_command = 0.88 + 0.16 * np.sin(0.26 * t) + 0.05 * np.cos(0.11 * t)
        yaw_command = 0.020 + 0.16 * np.sin(0.31 * t) + 0.04 * np.cos(0.13 * t)
        pitch_command = 0.015 + 0.08 * np.sin(0.29 * t) + 0.03 * np.cos(0.10 * t)
        px, py, pz, yaw, pitch, speed, yaw_rate, pitch_rate = x[:, :8].T
        level = speed * np.cos(pitch)
        new = x.copy()
        new[:, 0] = px + 0.1 * (level * np.cos(yaw) + x[:, 15])
        new[:, 1] = py + 0.1 * (level * np.sin(yaw) + x[:, 16])
        new[:, 2] = pz + 0.1 * (speed * np.sin(pitch) + x[:, 17])
        new[:, 3] = yaw + 0.1 * yaw_rate
        new[:, 4] = pitch + 0.1 * pitch_rate
        new[:, 5] = speed + 1.7 * (speed_command - speed) * 0.1
        new[:, 6] = yaw_rate + 2.1 * (yaw_command - yaw_rate) * 0.1
        new[:, 7] = pitch_rate + 2.3 * (pitch_command - pitch_rate) * 0.1
        return new

    def observation(self, x):
        """Ranges in the order of the anchors, then odometry."""
        apart = x[:, None, :3] - self.anchors
        ranges = x[:, 19:] * np.sqrt(np.sum(apart**2, axis=2)) + x[:, 11:15]
        odometry = [x[:, 18] * x[:, 5] + x[:, 8], x[:, 6] + x[:, 9], x[:, 7] + x[:, 10]]
        return np.concatenate([ranges, np.stack(odometry, axis=1)], axis=1)

    def log_likelihood(self, y, x):
        """The mean over all orders in which the ranges may have come."""
        expected = self.observation(x)
        fit = -0.5 * ((y[None, :4, None] - expected[:, None, :4]) / self.observation_noise[0]) ** 2
        by_order = np.sum(fit[:, np.arange(4), self.orders], axis=2)
        odometry = (y[None, 4:] - expected[:, 4:]) / self.observation_noise[4:]
        constant = np.sum(np.log(self.observation_noise)) + 0.5 * y.size * np.log(2 * np.pi)
        mixed = np.logaddexp.reduce(by_order, axis=1) - np.log(len(self.orders))
        return mixed - 0.5 * np.sum(odometry**2, axis=1) - constant


MODELS = {
    "sensor-bias": SensorBias,
    "range-bearing": RangeBearing,
    "range-only": RangeOnly,
    "unordered-range": UnorderedRange,
}


class Matrices:
    """Benchmark 1 as matrices, for Kalman filters. The prior is at time zero, the first observation
    a step later; `first_mean` and `first_cov` are those of that step, before it."""

    transition = np.array([[1, 0.1, 0], [0, 1, 0], [0, 0, 1]])
    observation = np.array([[1.0, 0, 0], [0, 1, 1]])
    noise = np.diag(SensorBias.noise**2)
    observation_noise = np.diag(SensorBias.observation_noise**2)
    prior_mean = SensorBias.prior_mean
    prior_cov = np.diag(SensorBias.prior_std**2)
    first_mean = transition @ prior_mean
    first_cov = transition @ prior_cov @ transition.T + noise
