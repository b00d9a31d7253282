"""Time and peak memory of the bootstrap filter on a benchmark, against N.

Each size runs in a process of its own, so that its peak memory is its own.
"""

import argparse
import json
import resource
import subprocess
import sys
import time


def measure(name: str, particles: int, horizon: int, repeats: int) -> dict[str, float]:
    """Seconds a step (best of `repeats`), and the peak resident memory of this process."""
    import jax

    import nopf
    from nopf.benchmarks import BENCHMARKS

    benchmark = BENCHMARKS[name]
    ys = benchmark.simulate(0).observations[:horizon]
    flt = nopf.ParticleFilter(benchmark.model, particles=particles)
    jax.block_until_ready(flt.run(ys, key=jax.random.key(0)).mean)
    seconds = []
    for seed in range(repeats):
        started = time.perf_counter()
        jax.block_until_ready(flt.run(ys, key=jax.random.key(seed)).mean)
        seconds.append(time.perf_counter() - started)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KiB on Linux, bytes on macOS
    return {
        "particles": particles,
        "milliseconds_per_step": 1e3 * min(seconds) / horizon,
        "peak_memory_mb": peak / (2**20 if sys.platform == "darwin" else 2**10),
    }


def main() -> int:
    """Measures all sizes and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--particles", default="10000,100000,1000000", help="sizes, with commas")
    parser.add_argument("--benchmark", default="sensor-bias")
    parser.add_argument("--horizon", type=int, default=60, help="how many observations at most")
    parser.add_argument("--repeats", type=int, default=5, help="the best of these counts")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.benchmark, options.one, options.horizon, options.repeats)))
        return 0
    rows = []
    for particles in options.particles.split(","):
        command = [sys.executable, __file__, "--one", particles, "--benchmark", options.benchmark]
        command += ["--horizon", str(options.horizon), "--repeats", str(options.repeats)]
        rows.append(json.loads(subprocess.run(command, check=True, capture_output=True).stdout))
    if options.json:
        print(json.dumps(rows, indent=2))
        return 0
    print(f"{'particles':>10s} {'ms a step':>10s} {'µs a particle':>14s} {'peak memory':>12s}")
    for row in rows:
        n, step = row["particles"], row["milliseconds_per_step"]
        print(f"{n:>10d} {step:>10.2f} {1e3 * step / n:>14.3f} {row['peak_memory_mb']:>9.0f} MB")
    first, last = rows[0], rows[-1]
    ratio = last["milliseconds_per_step"] / first["milliseconds_per_step"]
    print(
        f"{last['particles'] / first['particles']:.0f} times the particles: {ratio:.1f} × the time"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
