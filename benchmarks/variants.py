"""Variants of the paper's filters whose effective sample size differs from the published one.

UPF with jitter on the covariance that a particle carries, which starts at the prior's or at the
identity; and ISPF with fewer inner samples. The published value of each benchmark is the test: a
reading of the text has to fit all four. What is in the file already is not measured again.
"""

import argparse
import csv
from collections.abc import Iterator
from pathlib import Path
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
COLUMNS = ("benchmark", "filter", "variant", "ess", "std", "seeds")


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
    """Measures what is asked for and not known yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("benchmarks", nargs="*", default=list(BENCHMARKS))
    parser.add_argument("--filters", default="upf,ispf")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("results/paper/variants.csv"))
    options = parser.parse_args()
    known = set()
    if options.out.exists():
        with options.out.open(newline="") as rows:
            known = {(row["benchmark"], row["variant"]) for row in csv.DictReader(rows)}
    else:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(",".join(COLUMNS) + "\n")
    for name in options.benchmarks:
        case = BENCHMARKS[name]
        for label, short, proposal in variants(case, options.filters.split(",")):
            if (name, label) in known:
                continue
            flt = nopf.ParticleFilter(
                case.model, proposal, case.particles, quantiles=(), health=False
            )
            values = [ess(flt, case, seed) for seed in range(options.seeds)]
            mean, std = float(np.mean(values)), float(np.std(values, ddof=1))
            entry = Entry(mean, std, published=published()[name, short, "ess"])
            with options.out.open("a", newline="") as file:
                csv.writer(file).writerow([name, short, label, mean, std, len(values)])
            apart = entry.difference(len(values))
            print(f"{name}, {label}: {mean:.1f} ± {std:.1f}, {apart:+.1f} standard errors off")


if __name__ == "__main__":
    main()
