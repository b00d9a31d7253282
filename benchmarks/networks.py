"""The smallest network that does: accuracy and time of learned proposals against their size.

    .venv/bin/python benchmarks/networks.py --benchmarks unordered-range --sizes 64x3,32x2,16x2

Trains one proposal for each size (width x depth) with the same key and filters with the paper's N.
Prints the mean ESS over seeds, the time of the filter over that of the bootstrap filter (runs
alternate; the median of the ratios), and the seconds of training.
"""

import argparse
import time

import jax
import numpy as np

import nopf
from nopf.benchmarks import BENCHMARKS


def seconds(flt: nopf.ParticleFilter, ys: jax.Array, key: jax.Array) -> tuple[float, float]:
    """Of one run, and its mean ESS."""
    started = time.perf_counter()
    posterior = flt.run(ys, key=key)
    jax.block_until_ready((posterior.mean, posterior.ess))
    taken = time.perf_counter() - started
    assert posterior.ess is not None
    return taken, float(posterior.ess.mean())


def main() -> None:
    """Prints a line for each benchmark and size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--benchmarks", default=",".join(BENCHMARKS))
    parser.add_argument("--sizes", default="64x3,64x2,48x2,32x2,24x2,16x2")
    parser.add_argument("--base", default="auto", help="auto, skeleton or linearised")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--key", type=int, default=0)
    arguments = parser.parse_args()
    for name in arguments.benchmarks.split(","):
        case = BENCHMARKS[name]
        plain = nopf.ParticleFilter(case.model, particles=case.particles)
        data = [case.simulate(seed).observations for seed in range(arguments.seeds)]
        for size in arguments.sizes.split(","):
            width, depth = map(int, size.split("x"))
            recipe = nopf.Recipe(width=width, depth=depth, base=arguments.base)
            started = time.perf_counter()
            key = jax.random.key(arguments.key)
            proposal = nopf.train(case.model, case.horizon, key, recipe=recipe)
            training = time.perf_counter() - started
            learned = nopf.ParticleFilter(case.model, proposal, case.particles)
            keys = [jax.random.fold_in(jax.random.key(1), seed) for seed in range(len(data))]
            for flt in (plain, learned):  # compiles
                seconds(flt, data[0], keys[0])
            runs = [
                (seconds(plain, ys, at), seconds(learned, ys, at))
                for ys, at in zip(data, keys, strict=True)
            ]
            ratio = np.median([after[0] / before[0] for before, after in runs])
            ess = np.array([after[1] for _, after in runs])
            print(
                f"{name:16} {size:6} {proposal.recipe.base:10} ESS {ess.mean():7.0f} "
                f"(± {ess.std(ddof=1) / len(ess) ** 0.5:.0f})  time over bootstrap {ratio:.2f}  "
                f"training {training:.0f} s, {int(proposal.history[-1, 0])} steps",
                flush=True,
            )


if __name__ == "__main__":
    main()
