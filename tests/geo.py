"""A walker seen by GPS far from zero, and the exact answer."""

import numpy as np

EAST, NORTH = 500_000.0, 5_000_000.0  # single precision has a number every 0.03, and every 0.5
PRIOR, PROCESS, GPS = [5.0, 5.0, 1.0, 1.0], [0.1, 0.1, 0.1, 0.1], [0.5, 0.5]
MODEL = f"""
import jax.numpy as jnp, nopf
def make(at=(0.0, 0.0), **changes):
    settings = dict(
        prior=nopf.Gaussian([*at, 0.0, 0.0], {PRIOR}),
        transition=lambda x, step: jnp.concatenate([x[:2] + x[2:], x[2:]]),
        process_noise={PROCESS},
        observation=lambda x, step: x[:2], observation_noise={GPS},
        state_names=("east", "north", "v_east", "v_north"),
        observation_names=("gps_east", "gps_north"))
    return nopf.StateSpaceModel(**(settings | changes))
far = make(({EAST}, {NORTH}))
near = make(origin={{"east": {EAST}, "north": {NORTH}, "gps_east": {EAST}, "gps_north": {NORTH}}})
"""


def models():
    found = {}
    exec(MODEL, found)
    return found


def recording(steps=40):
    """Positions, absolute, that were simulated without nopf; some are missing."""
    random, ys = np.random.default_rng(0), []
    x = random.normal(size=4) * PRIOR
    for _ in range(steps):
        x = np.concatenate([x[:2] + x[2:], x[2:]]) + random.normal(size=4) * PROCESS
        ys.append(x[:2] + random.normal(size=2) * GPS)
    ys = np.array(ys) + np.array([EAST, NORTH])
    ys[7:10, 1] = np.nan
    return ys


def kalman(ys):
    """Means, standard deviations and log-evidence in double precision: textbook, east and north
    by themselves."""
    means, variances, evidence = np.zeros((len(ys), 4)), np.zeros((len(ys), 4)), 0.0
    motion = np.array([[1.0, 1.0], [0.0, 1.0]])
    for axis, place in enumerate((EAST, NORTH)):
        own = [axis, axis + 2]
        mean, cov = np.array([place, 0.0]), np.diag(np.square(PRIOR)[own])
        for t, y in enumerate(ys[:, axis]):
            mean, cov = motion @ mean, motion @ cov @ motion.T + np.diag(np.square(PROCESS)[own])
            if not np.isnan(y):
                variance, off = cov[0, 0] + GPS[axis] ** 2, y - mean[0]
                evidence -= 0.5 * (off**2 / variance + np.log(2 * np.pi * variance))
                mean, cov = (
                    mean + cov[:, 0] / variance * off,
                    cov - np.outer(cov[:, 0], cov[0]) / variance,
                )
            means[t, own], variances[t, own] = mean, np.diag(cov)
    return means, np.sqrt(variances), evidence
