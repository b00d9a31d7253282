"""The learned proposal on the paper's benchmarks: training time, sample size, filter time.

Trains a proposal for each benchmark, then runs the bootstrap filter, the learned one and others in
turn, in one process, on the same data. Compilation counts for training, which a user waits for,
and not for the filters, as in the paper. Scores are compared seed by seed.
"""

import argparse
import json
import sys
import time

import jax
import numpy as np

import nopf
from nopf.benchmarks import BENCHMARKS


def measure(name: str, others: list[str], seeds: int, repeats: int, recipe: nopf.Recipe) -> dict:
    """Figures of one benchmark."""
    case = BENCHMARKS[name]
    started = time.perf_counter()
    proposal = nopf.train(case.model, case.horizon, jax.random.key(0), recipe=recipe)
    training = time.perf_counter() - started
    filters: dict[str, nopf.Filter] = {
        "nopf": nopf.ParticleFilter(case.model, proposal, case.particles)
    }
    for other in dict.fromkeys(["bpf", *others]):
        try:
            filters[other] = case.make_filter(other)
        except ValueError as error:
            print(f"  {other} does not apply: {error}", file=sys.stderr)
    paths = [case.simulate(seed) for seed in range(seeds)]
    ess: dict[str, list[float]] = {short: [] for short in filters}
    scores: dict[str, list[dict]] = {short: [] for short in filters}
    for short, flt in filters.items():
        for seed, path in enumerate(paths):
            posterior = flt.run(
                path.observations, key=jax.random.key(1000 + seed), keep="particles"
            )
            assert posterior.ess is not None
            ess[short].append(float(posterior.ess.mean()))
            scores[short].append(
                nopf.metrics.evaluate(jax.random.key(seed), case.model, posterior, path)
            )
    seconds = {short: float("inf") for short in filters}
    for attempt in range(repeats + 1):
        for short, flt in filters.items():
            started = time.perf_counter()
            jax.block_until_ready(flt.run(paths[0].observations, key=jax.random.key(1)).mean)
            if attempt:
                seconds[short] = min(seconds[short], time.perf_counter() - started)
    result: dict = {
        "benchmark": name,
        "particles": case.particles,
        "base": proposal.recipe.base,
        "training_seconds": training,
        "training_steps": int(proposal.history[-1, 0]),
        "filters": {},
    }
    for short in filters:
        row = {
            "ess": float(np.mean(ess[short])),
            "ess_std": float(np.std(ess[short], ddof=1)) if seeds > 1 else None,
            "ess_worst": min(ess[short]),
            "seconds": seconds[short],
            "ratio": seconds[short] / seconds["bpf"],
            "ess_per_second": float(np.mean(ess[short])) / seconds[short],
        }
        for metric in ("es", "pnll"):
            ours = np.array([score[metric] for score in scores["nopf"]])
            theirs = np.array([score[metric] for score in scores[short]])
            row[metric] = float(theirs.mean())
            # Negative: the learned proposal scores better. In standard errors over the seeds.
            apart = ours - theirs
            spread = apart.std(ddof=1) / np.sqrt(seeds) if seeds > 1 else np.nan
            row[f"{metric}_nopf_minus"] = float(apart.mean())
            row[f"{metric}_standard_error"] = float(spread)
        result["filters"][short] = row
    return result


def main() -> int:
    """Measures what is asked for and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("benchmarks", nargs="*", help=f"some of {', '.join(BENCHMARKS)}, or all")
    parser.add_argument("--others", default="opf,lpf", help="filters to compare with, with commas")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3, help="the best of these counts")
    parser.add_argument("--paper", action="store_true", help="the published recipe")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    unknown = [name for name in options.benchmarks if name not in BENCHMARKS]
    if unknown:
        parser.error(f"unknown benchmark {unknown[0]!r}: expected {', '.join(BENCHMARKS)}")
    others = [short for short in options.others.split(",") if short]
    results = []
    for name in options.benchmarks or BENCHMARKS:
        recipe = nopf.Recipe.paper(name) if options.paper else nopf.Recipe.fast()
        found = measure(name, others, options.seeds, options.repeats, recipe)
        results.append(found)
        if options.json:
            continue
        print(
            f"{name}, N = {found['particles']}, {options.seeds} seeds; {found['base']} base, "
            f"{found['training_steps']} steps in {found['training_seconds']:.1f} s"
        )
        bootstrap = found["filters"]["bpf"]["ess_per_second"]
        for short, row in found["filters"].items():
            spread = "" if row["ess_std"] is None else f" ± {row['ess_std']:.4g}"
            print(
                f"  {short:5s} ESS {row['ess']:.5g}{spread}, worst {row['ess_worst']:.5g}; "
                f"{row['seconds']:.3f} s, {row['ratio']:.2f} × bpf; "
                f"ESS/s {row['ess_per_second'] / bootstrap:.3g} × bpf; "
                f"ES {row['es']:.4g} (nopf {row['es_nopf_minus']:+.2g} ± "
                f"{row['es_standard_error']:.2g}), PNLL {row['pnll']:.4g} "
                f"(nopf {row['pnll_nopf_minus']:+.2g} ± {row['pnll_standard_error']:.2g})",
                flush=True,
            )
    if options.json:
        print(json.dumps(results, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
