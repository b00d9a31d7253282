"""A filter live: time of one step, and memory over a long stream.

python benchmarks/latency.py                    median and 99th percentile on range-bearing
python benchmarks/latency.py --stream 100000    so many observations through `nopf filter -`
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np

import nopf
from nopf.benchmarks import BENCHMARKS

STEPS = 2000
CODE = "from nopf.command import main; main()"


def latencies(particles: int, steps: int) -> Iterator[tuple[str, np.ndarray]]:
    """Seconds of each step, after the first, filter by filter."""
    case = BENCHMARKS["range-bearing"]
    proposal = nopf.train(case.model, case.horizon, jax.random.key(0))
    ys = np.asarray(case.simulate(0).observations)
    for name, how in [("bpf", None), ("lpf", nopf.LinearisedProposal()), ("nopf", proposal)]:
        flt = nopf.ParticleFilter(case.model, how, particles)
        state, taken = flt.init(jax.random.key(1)), []
        for t in range(steps):
            # The same series again and again: the clock goes on, so that it is one stream.
            started = time.perf_counter()
            state, info = flt.step(state, ys[t % len(ys)])
            jax.block_until_ready(info.mean)
            taken.append(time.perf_counter() - started)
        yield name, np.array(taken[10:])


def stream(count: int, every: int) -> None:
    """Resident memory of `nopf filter -` as observations come; then the same as a recording."""
    command = [sys.executable, "-c", CODE, "filter", "sensor-bias", "--filter", "bpf"]
    command += ["--particles", "300"]
    model = BENCHMARKS["sensor-bias"].model
    ys = np.asarray(nopf.simulate(model, count, jax.random.key(0)).observations)
    lines = ["{:.9g},{:.9g}\n".format(*y) for y in ys]
    found = []
    with subprocess.Popen(
        [*command, "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("y0,y1\n")
        process.stdin.flush()
        found.append(process.stdout.readline())
        started = time.perf_counter()
        for t, line in enumerate(lines, 1):
            process.stdin.write(line)
            process.stdin.flush()
            found.append(process.stdout.readline())
            assert found[-1]
            if t % every == 0:
                status = Path(f"/proc/{process.pid}/status").read_text()
                resident = int(status.split("VmRSS:")[1].split()[0]) / 1024
                pace = 1e3 * (time.perf_counter() - started) / t
                print(f"{t:8} observations   {resident:8.1f} MB   {pace:.2f} ms each", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        recording, out = Path(folder, "run.csv"), Path(folder, "states.csv")
        recording.write_text("y0,y1\n" + "".join(lines))
        subprocess.run([*command, "--data", recording, "--out", out], check=True)
        same = out.read_text() == "".join(found)
    print("the same estimates as from a recording" if same else "NOT the same as from a recording")


def main() -> None:
    """Prints one or the other."""
    parser = argparse.ArgumentParser(description="Latency and memory of a live filter.")
    parser.add_argument("--particles", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--stream", type=int, metavar="OBSERVATIONS")
    given = parser.parse_args()
    if given.stream:
        stream(given.stream, max(1, given.stream // 10))
        return
    print(f"range-bearing, N = {given.particles}, {given.steps} steps: milliseconds a step")
    for name, taken in latencies(given.particles, given.steps):
        median, late = 1e3 * np.percentile(taken, [50, 99])
        print(f"{name:5} median {median:6.2f}   99th percentile {late:6.2f}", flush=True)


if __name__ == "__main__":
    main()
