"""Variants of the paper's filters whose effective sample size differs from the published one.

UPF with jitter on the covariance that a particle carries, which starts at the prior's or at the
identity; and ISPF with fewer inner samples. The published value of each benchmark is the test: a
reading of the text has to fit all four.
"""

import argparse
import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import nopf
from nopf.benchmarks import BENCHMARKS
from nopf.benchmarks.benchmark import Benchmark
from nopf.benchmarks.results import WINDOWS
from nopf.benchmarks.tables import Entry, published

JITTERS = (0.0, 1e-3, 2e-3, 3e-3)
CANDIDATES = (50, 100, 200)


class FromIdentity(nopf.UnscentedProposal):
    """Starts at the identity instead of the prior's covariance."""

    def initial_memory(self, model: nopf.StateSpaceModel) -> Any:
        return jnp.eye(model.space.size)


STARTS: dict[str, type[nopf.UnscentedProposal]] = {
    "prior": nopf.UnscentedProposal,
    "identity": FromIdentity,
}


def variants(case: Benchmark, filters: list[str]) -> Iterator[tuple[str, str, Any]]:
    """Label, short name of the published filter, and proposal."""
    if "upf" in filters:
        for start, kind in STARTS.items():
            for jitter in JITTERS:
                proposal = kind(case.tuning.stand_in_noise, jitter=jitter)
                yield f"UPF, jitter {jitter:g}, from the {start}", "upf", proposal
    if "ispf" in filters:
        for count in CANDIDATES:
            yield f"ISPF, {count} inner samples", "ispf", nopf.InnerSamplingProposal(count)


def ess(flt: nopf.ParticleFilter, case: Benchmark, seed: int) -> float:
    """Mean effective sample size of a run over the steps that the paper counts."""
    key, _ = jax.random.split(jax.random.fold_in(jax.random.key(seed), 1))  # as `nopf bench`
    found = flt.run(case.simulate(seed).observations, key=key).ess
    assert found is not None
    return float(np.mean(found[WINDOWS["paper"] :]))


def main() -> None:
    """Measures what is asked for and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("benchmarks", nargs="*", default=list(BENCHMARKS))
    parser.add_argument("--filters", default="upf,ispf")
    parser.add_argument("--seeds", type=int, default=10)
    options = parser.parse_args()
    print("| benchmark | variant | ESS | published | difference in standard errors |")
    print("|---|---|---:|---:|---:|")
    for name in options.benchmarks:
        case = BENCHMARKS[name]
        for label, short, proposal in variants(case, options.filters.split(",")):
            flt = nopf.ParticleFilter(
                case.model, proposal, case.particles, quantiles=(), health=False
            )
            values = [ess(flt, case, seed) for seed in range(options.seeds)]
            beside = published()[name, short, "ess"]
            std = float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
            entry = Entry(float(np.mean(values)), std, published=beside)
            apart = entry.difference(len(values))
            print(
                f"| {name} | {label} | {entry.mean:.1f} ± {std:.1f} | {beside[0]:.1f} ± "
                f"{beside[1]:.1f} | {'–' if apart is None else f'{apart:+.1f}'} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
