"""Whether filters know how far their means are off: `posterior.error` beside repeated runs.

    .venv/bin/python benchmarks/errors.py --filters bpf,lpf,mlpf --seeds 5 --runs 50

Each filter runs so many times on the same data, with another key each time. For each step and state
the error that a run tells (the median over runs) is divided by the standard deviation of the mean
between runs. Prints the median of this ratio over all steps, states and seeds, and the lowest and
the highest of any state; one is right. The first line of a benchmark is its number of particles.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np

import nopf
from nopf.benchmarks import BENCHMARKS


def ratios(
    name: str, short: str, seed: int, runs: int, particles: int, steps: int | None
) -> np.ndarray:
    """`(T, d)`: what the filter says over what it is."""
    benchmark = BENCHMARKS[name]
    flt = benchmark.make_filter(short, particles)
    key, start = jax.random.key(seed), benchmark.initial_state
    ys = nopf.simulate(
        benchmark.model, steps or benchmark.horizon, key, initial_state=start
    ).observations
    found = [flt.run(ys, key=jax.random.key(1000 + run)) for run in range(runs)]
    means = np.stack([np.asarray(posterior.mean) for posterior in found])
    errors = np.stack([np.asarray(posterior.error) for posterior in found])
    apart = np.asarray(benchmark.model.space.difference(jnp.asarray(means), jnp.asarray(means[:1])))
    spread = apart.std(axis=0, ddof=1)
    exact = spread < 1e-6  # rounding
    return np.where(exact, np.nan, np.median(errors, axis=0) / np.where(exact, 1, spread))


def main() -> None:
    """Prints one line a benchmark and filter."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--benchmarks", default="sensor-bias,range-bearing,range-only")
    parser.add_argument("--filters", default="bpf,lpf,alpf,mlpf,malpf")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--particles", type=int, help="the paper's if left out")
    parser.add_argument("--steps", type=int, help="of a series; the paper's if left out")
    given = parser.parse_args()
    for name in given.benchmarks.split(","):
        particles = given.particles or BENCHMARKS[name].particles
        print(f"{name}, {particles} particles", flush=True)
        for short in given.filters.split(","):
            found = np.stack(
                [
                    ratios(name, short, seed, given.runs, particles, given.steps)
                    for seed in range(given.seeds)
                ]
            )
            if np.isnan(found).all():
                print(f"  {short:6} exact")
                continue
            states = np.nanmedian(found, axis=(0, 1))
            print(
                f"  {short:6} median {np.nanmedian(found):.2f}   states {states.min():.2f} to "
                f"{states.max():.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
