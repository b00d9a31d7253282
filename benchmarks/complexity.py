"""Milliseconds a step of every filter, against the number of particles and the two dimensions.

On random linear-Gaussian models, so that every filter applies. Prints the Markdown table of
docs/filters.md.
"""

import argparse
import sys
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

import nopf

BASE = {"particles": 10_000, "d": 4, "m": 4}
CASES = [BASE, BASE | {"particles": 40_000}, BASE | {"d": 8}, BASE | {"m": 8}]
FILTERS: dict[str, Callable[[nopf.StateSpaceModel, int], nopf.Filter]] = {
    "bpf": lambda model, n: nopf.ParticleFilter(model, None, n),
    "enkf": lambda model, n: nopf.EnsembleKalmanFilter(model, n),
    "apf": lambda model, n: nopf.AuxiliaryFilter(model, None, n),
    "nupf": lambda model, n: nopf.ParticleFilter(model, nopf.NudgedProposal(n), n),
    "opf": lambda model, n: nopf.ParticleFilter(model, nopf.OptimalProposal(), n),
    "lpf": lambda model, n: nopf.ParticleFilter(model, nopf.LinearisedProposal(), n),
    "upf": lambda model, n: nopf.ParticleFilter(model, nopf.UnscentedProposal(), n),
    "nopf": lambda model, n: nopf.ParticleFilter(model, untrained(model), n),
    "ispf": lambda model, n: nopf.ParticleFilter(model, nopf.InnerSamplingProposal(), n),
}


def untrained(model: nopf.StateSpaceModel) -> nopf.NeuralProposal:
    """Costs what a trained one does."""
    recipe = nopf.Recipe.fast(base="skeleton", steps=0)
    return nopf.train(model, 1, jax.random.key(0), recipe=recipe)


def random_model(d: int, m: int) -> nopf.StateSpaceModel:
    """A stable model with random matrices."""
    draw = np.random.default_rng(0)
    a = 0.9 * np.linalg.qr(draw.normal(size=(d, d)))[0]
    h = draw.normal(size=(m, d))
    return nopf.StateSpaceModel(
        prior=nopf.Gaussian(np.zeros(d), np.ones(d)),
        transition=lambda x, step: jnp.asarray(a) @ x,
        process_noise=0.3 * np.ones(d),
        observation=lambda x, step: jnp.asarray(h) @ x,
        observation_noise=0.5 * np.ones(m),
    )


def milliseconds(flt: nopf.Filter, steps: int, repeats: int) -> float:
    """Best time of a step, without compilation."""
    ys = nopf.simulate(flt.model, steps, jax.random.key(0)).observations
    best = float("inf")
    for attempt in range(repeats + 1):
        started = time.perf_counter()
        jax.block_until_ready(flt.run(ys, key=jax.random.key(attempt)).mean)
        if attempt:
            best = min(best, time.perf_counter() - started)
    return 1e3 * best / steps


def main() -> int:
    """Measures all cases and prints a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--filters", default=",".join(FILTERS), help="short names, with commas")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3, help="the best of these counts")
    options = parser.parse_args()
    titles = [f"N {c['particles']:,}, d_x {c['d']}, d_y {c['m']}" for c in CASES]
    print("| filter | " + " | ".join(titles) + " |")
    print("|---|" + "---:|" * len(CASES), flush=True)
    for name in options.filters.split(","):
        cells = []
        for case in CASES:
            flt = FILTERS[name](random_model(case["d"], case["m"]), case["particles"])
            cells.append(f"{milliseconds(flt, options.steps, options.repeats):.3g} ms")
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
