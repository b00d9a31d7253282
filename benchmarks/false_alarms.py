"""How often warnings are given where nothing is wrong.

    .venv/bin/python benchmarks/false_alarms.py

Data simulated from the model itself, filtered with that model: a walk that is pulled back to zero,
seen through several kinds of observations. Each line counts, per 10 000 steps, how often each kind
of warning began, and tests whether the p-values are uniform (Kolmogorov and Smirnov, every seventh
step, since filters of one series share their particles).
"""

import argparse
import collections
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats
from jax.scipy.stats import norm, poisson

import nopf

WARNINGS = {  # What is counted, and the words that tell it
    "does not explain": "does not explain",
    "too large": "noise is probably too large",
    "persist": "errors persist",
    "few particles": "particles have probably lost",
    "far out": "far from what was predicted",
}


def walk(**observation: Any) -> nopf.StateSpaceModel:
    """Seen in one way or another."""
    return nopf.StateSpaceModel(
        prior=nopf.Gaussian([0.0], [1.0]),
        transition=lambda x, step: 0.95 * x,
        process_noise=[0.3],
        **observation,
    )


def yes_or_no(offset: float) -> nopf.StateSpaceModel:
    """Ones with a probability that grows with the state; the smaller the offset, the rarer."""
    return walk(
        observation_log_prob=lambda y, x, step: jax.nn.log_sigmoid(
            jnp.where(y[0] > 0.5, 1, -1) * (x[0] + offset)
        ),
        observation_sample=lambda key, x, step: jnp.where(
            jax.random.bernoulli(key, jax.nn.sigmoid(x[0] + offset), (1,)), 1.0, 0.0
        ),
    )


def count(key: jax.Array, x: jax.Array, mean: float) -> jax.Array:
    """Of events in a step."""
    return jnp.asarray(jax.random.poisson(key, mean * jnp.exp(x[0])), x.dtype)


def counts(mean: float) -> nopf.StateSpaceModel:
    """Of events, as many on average where the state is zero."""
    return walk(
        observation_log_prob=lambda y, x, step: poisson.logpmf(y[0], mean * jnp.exp(x[0])),
        observation_sample=lambda key, x, step: count(key, x, mean)[None],
    )


def counts_and_values() -> nopf.StateSpaceModel:
    """One observation of each kind."""

    def draw(key: jax.Array, x: jax.Array, step: nopf.Step) -> jax.Array:
        one, other = jax.random.split(key)
        return jnp.stack([count(one, x, 0.3), x[0] + 0.5 * jax.random.normal(other)])

    return walk(
        observation_log_prob=lambda y, x, step: (
            poisson.logpmf(y[0], 0.3 * jnp.exp(x[0])) + norm.logpdf(y[1], x[0], 0.5)
        ),
        observation_sample=draw,
    )


def values(**robust: Any) -> nopf.StateSpaceModel:
    """The state itself, with noise."""
    return walk(observation=lambda x, step: x, observation_noise=[0.5], **robust)


MODELS = {
    "Gaussian": values(),
    "Bernoulli": yes_or_no(0.0),
    "Bernoulli, rare": yes_or_no(-5.0),
    "Poisson": counts(0.3),
    "Poisson and Gaussian": counts_and_values(),
    "Student's t": values(robust=nopf.StudentT(3.0)),
    "mixture": values(robust=nopf.Outliers(0.05, 10.0)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--series", type=int, default=40)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--particles", type=int, default=500)
    options = parser.parse_args()
    print(f"{options.series} series of {options.steps} steps, {options.particles} particles\n")
    print(
        f"{'observations':22}" + "".join(f"{name:>18}" for name in WARNINGS) + f"{'uniform p':>12}"
    )
    for number, (name, model) in enumerate(MODELS.items()):
        keys = jax.random.split(jax.random.key(number))
        data = nopf.simulate(model, options.steps, keys[0], batch=options.series)
        flt = nopf.ParticleFilter(model, particles=options.particles)
        posterior = flt.run_batch(data.observations, key=keys[1])
        info = jax.tree.map(np.asarray, posterior.info)
        begun: collections.Counter[str] = collections.Counter()
        for series in range(options.series):
            monitor = flt.monitor()
            for step in range(options.steps):
                now = jax.tree.map(lambda leaf: leaf[series, step], info)  # noqa: B023
                for text, _ in monitor.begun(now, step + 1, float(step + 1)):
                    begun.update(kind for kind, words in WARNINGS.items() if words in text)
        scale = 10_000 / (options.series * options.steps)
        found = np.ravel(posterior.p_value)[::7]
        # They are ranks among 128, so spread each evenly over its own.
        found = (
            found - np.where(found >= 1 / 128, np.random.default_rng(0).random(len(found)), 0) / 128
        )
        uniform = scipy.stats.kstest(found, "uniform").pvalue
        rates = "".join(f"{begun[kind] * scale:18.2g}" for kind in WARNINGS)
        print(f"{name:22}{rates}{uniform:12.2g}", flush=True)


if __name__ == "__main__":
    main()
