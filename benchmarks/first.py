"""Seconds from the start of a process to the first result: cold, and with what was compiled kept.

    .venv/bin/python benchmarks/first.py

Each is a process of its own; the observations are read from a file. Warm runs find what the first
has compiled, in a folder that lasts as long as this script.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CODE = """
import sys
import numpy as np
import jax
import nopf
from nopf.benchmarks import BENCHMARKS
short, name, particles, file = sys.argv[1:]
flt = BENCHMARKS[name].make_filter(short, int(particles))
print(flt.run(np.load(file), key=jax.random.key(0)).mean[-1])
"""
SAVE = """
import sys, numpy
from nopf.benchmarks import BENCHMARKS
numpy.save(sys.argv[2], BENCHMARKS[sys.argv[1]].simulate(0).observations)
"""


def seconds(arguments: list[str], cache: Path | None) -> float:
    """Of one process."""
    kept = {
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    environment = os.environ | (kept if cache else {})
    started = time.perf_counter()
    subprocess.run(arguments, check=True, env=environment, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def main() -> None:
    """Prints one line a filter, then the command's."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--benchmark", default="range-bearing")
    parser.add_argument("--filters", default="bpf,lpf,mlpf")
    parser.add_argument("--particles", type=int, default=10_000)
    parser.add_argument("--train", default="range-only", help="a benchmark; empty to leave it out")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/ys.npy"
        subprocess.run([sys.executable, "-c", SAVE, given.benchmark, file], check=True)
        for short in given.filters.split(","):
            order = [sys.executable, "-c", CODE, short, given.benchmark, str(given.particles), file]
            cold = seconds(order, None)
            seconds(order, Path(folder, "compiled"))
            warm = seconds(order, Path(folder, "compiled"))
            print(f"{short:6} cold {cold:5.1f} s   warm {warm:5.1f} s", flush=True)
        command = [sys.executable, "-c", "from nopf.command import main; main()"]
        print(f"--help {seconds([*command, '--help'], None):5.2f} s", flush=True)
        if given.train:
            train = [*command, "train", given.train, "--out", f"{folder}/one.nopf"]
            environment = {"NOPF_CACHE": f"{folder}/command"}
            os.environ.update(environment)
            cold = seconds(train, None)
            Path(f"{folder}/one.nopf").unlink()
            warm = seconds(train, None)
            print(f"train  cold {cold:5.1f} s   warm {warm:5.1f} s", flush=True)


if __name__ == "__main__":
    main()
