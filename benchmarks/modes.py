"""What a learned proposal gains from several Gaussians, and without a gradient.

    .venv/bin/python benchmarks/modes.py

Two models. The growth model measures the square of its state, so that x and −x look alike: filters
of 200 particles with one Gaussian, with what `nopf.train` chooses by itself, and the bootstrap
filter. And a robot that measures the height of the ground, looked up in a grid: the likelihood has
no gradient. Each line has the standard deviation of the log-evidence over repeated runs, mean and
largest over some series, and the effective sample size.
"""

import argparse
import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np

import nopf

GRID = np.linspace(0, 20, 201)
EAST, NORTH = np.meshgrid(GRID, GRID, indexing="ij")
HEIGHT = 3 * np.sin(EAST / 2) + 2 * np.cos(NORTH / 3) + 0.3 * EAST - 0.2 * NORTH


def growth() -> nopf.StateSpaceModel:
    """Its measurement does not tell x from −x."""
    return nopf.StateSpaceModel(
        prior=nopf.Gaussian([0.0], [np.sqrt(5)]),
        transition=lambda x, step: (
            x / 2 + 25 * x / (1 + x**2) + 8 * jnp.cos(1.2 * jnp.asarray(step.index, float))
        ),
        process_noise=[np.sqrt(10)],
        observation=lambda x, step: x**2 / 20,
        observation_noise=[1.0],
    )


def ground() -> nopf.StateSpaceModel:
    """A walk over a map of heights, which are looked up."""

    def height(x: jax.Array) -> jax.Array:
        cell = jnp.clip(jnp.round(x * 10), 0, 200).astype(int)
        return jnp.asarray(HEIGHT)[cell[0], cell[1]][None]

    def log_prob(y: jax.Array, x: jax.Array, step: nopf.Step) -> jax.Array:
        return -0.5 * jnp.sum(((y - height(x)) / 0.1) ** 2)

    return nopf.StateSpaceModel(
        prior=nopf.Gaussian([6.0, 6.0], [1.0, 1.0]),
        transition=lambda x, step: x + 0.1,
        process_noise=[0.4, 0.4],
        observation_log_prob=log_prob,
        observation_sample=lambda key, x, step: height(x) + 0.1 * jax.random.normal(key, (1,)),
    )


def line(name: str, model: nopf.StateSpaceModel, proposal: nopf.Proposal, given: int) -> None:
    """One filter of so many particles."""
    flt = nopf.ParticleFilter(model, proposal, given, quantiles=(), health=False)
    spreads, sizes = [], []
    for seed in range(6):
        ys = np.asarray(nopf.simulate(model, 50, jax.random.key(seed)).observations)
        runs = flt.run_batch(np.repeat(ys[None], 100, axis=0), key=jax.random.key(1))
        spreads.append(np.std(np.asarray(runs.log_evidence, float), ddof=1))
        sizes.append(float(jnp.mean(jnp.asarray(runs.ess))))
    quality = nopf.quality(proposal, model, jax.random.key(5), horizon=50)
    print(
        f"{name:24} sd of log-evidence {np.mean(spreads):5.2f}, largest {np.max(spreads):5.2f}; "
        f"ESS {np.mean(sizes):5.0f} of {given}, "
        f"{100 * quality.fraction_of_limit.mean():3.0f} % of the limit",
        flush=True,
    )


def main() -> None:
    """Trains, and prints a line a filter."""
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    for name, model, particles in [("growth", growth(), 200), ("ground", ground(), 1000)]:
        print(name)
        line("bootstrap", model, nopf.ParticleFilter(model).proposal, particles)
        for recipe, what in [(nopf.Recipe.fast(components=1), "one Gaussian"), (None, "chosen")]:
            started = time.perf_counter()
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                proposal = nopf.train(model, 50, jax.random.key(0), recipe=recipe)
            for warning in caught:
                print(f"({warning.message})")
            seconds = time.perf_counter() - started
            count = proposal.recipe.components or 1
            line(f"{what}: {count} in {seconds:.0f} s", model, proposal, particles)


if __name__ == "__main__":
    main()
