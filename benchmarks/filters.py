"""Wall time of every filter on the paper's benchmarks, as a ratio to the bootstrap filter.

All filters of a benchmark run in turn, in one process, on the same data: the ratio of their best
times is steadier than either. Compilation is left out, as in the paper.
"""

import argparse
import json
import sys
import time

import jax
import numpy as np

from nopf.benchmarks import BENCHMARKS

FILTERS = "bpf,enkf,opf,apf,nupf,lpf,upf,ispf"


def measure(benchmark: str, filters: list[str], seeds: int, repeats: int) -> list[dict]:
    """Best seconds of a run, and mean effective sample size over seeds, filter by filter."""
    case = BENCHMARKS[benchmark]
    paths = [case.simulate(seed) for seed in range(seeds)]
    rows: list[dict] = []
    made = {}
    for name in filters:
        try:
            made[name] = case.make_filter(name)
        except ValueError as error:
            rows.append({"benchmark": benchmark, "filter": name, "refused": str(error)})
    ess: dict[str, list[float]] = {name: [] for name in made}
    for name, flt in made.items():
        for seed, path in enumerate(paths):
            posterior = flt.run(path.observations, key=jax.random.key(1000 + seed))
            jax.block_until_ready(posterior.mean)
            ess[name].append(float("nan") if posterior.ess is None else float(posterior.ess.mean()))
    seconds = {name: float("inf") for name in made}
    for _ in range(repeats):
        for name, flt in made.items():
            started = time.perf_counter()
            jax.block_until_ready(flt.run(paths[0].observations, key=jax.random.key(1000)).mean)
            seconds[name] = min(seconds[name], time.perf_counter() - started)
    for name in made:
        rows.append(
            {
                "benchmark": benchmark,
                "filter": name,
                "particles": case.particles,
                "seconds": seconds[name],
                "ratio": seconds[name] / seconds["bpf"],
                "ess": float(np.mean(ess[name])),
                "ess_std": float(np.std(ess[name], ddof=1)) if seeds > 1 else None,
                "ess_worst": min(ess[name]),
            }
        )
    return rows


def main() -> int:
    """Measures what is asked for and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("benchmarks", nargs="*", help=f"some of {', '.join(BENCHMARKS)}, or all")
    parser.add_argument("--filters", default=FILTERS, help="short names, with commas")
    parser.add_argument("--seeds", type=int, default=1, help="trajectories for the sample size")
    parser.add_argument("--repeats", type=int, default=3, help="the best of these counts")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    filters = list(dict.fromkeys(["bpf", *options.filters.split(",")]))
    everything = []
    unknown = [name for name in options.benchmarks if name not in BENCHMARKS]
    if unknown:
        parser.error(f"unknown benchmark {unknown[0]!r}: expected {', '.join(BENCHMARKS)}")
    for benchmark in options.benchmarks or BENCHMARKS:
        rows = measure(benchmark, filters, options.seeds, options.repeats)
        everything += rows
        if options.json:
            continue
        print(f"{benchmark}, N = {BENCHMARKS[benchmark].particles}, {options.seeds} seeds")
        for row in rows:
            if "refused" in row:
                print(f"  {row['filter']:5s} does not apply")
                continue
            spread = "" if row["ess_std"] is None else f" ± {row['ess_std']:.4g}"
            print(
                f"  {row['filter']:5s} {row['seconds']:9.3f} s {row['ratio']:8.2f} × bpf"
                f"   ESS {row['ess']:.5g}{spread}, worst {row['ess_worst']:.4g}",
                flush=True,
            )
    if options.json:
        print(json.dumps(everything, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
