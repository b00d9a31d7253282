"""nopf's bootstrap filter beside that of other libraries: same model, data, N, resampling.

    make bench-peers
    make bench-peers PEERS="--benchmarks range-bearing --particles 1000,10000,100000"

Each library runs in a process and an environment of its own; runs alternate, and the first of each,
in which things are compiled, is timed apart, from the start of the process. Before anything is said
of speed, evidence and effective sample size are compared with nopf's. Prints a table in Markdown
and writes it, if asked to.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
# The Python of each library's environment, and the benchmarks that it can run.
LIBRARIES = {
    "nopf": (".venv-peers", None),
    "cuthbert": (".venv-peers", ("sensor-bias", "range-bearing", "range-only")),
    "particles": (".venv-peers-numpy", ("sensor-bias", "range-bearing", "range-only")),
}


class Worker:
    """A process that runs one library's filter."""

    def __init__(self, library: str, order: dict):
        python = ROOT / LIBRARIES[library][0] / "bin" / "python"
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        started = time.perf_counter()
        self.process = subprocess.Popen(
            [str(python), str(HERE / f"worker_{library}.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        self.answers = [self.ask(order)]
        self.first = time.perf_counter() - started
        self.answers.clear()

    def ask(self, order: dict) -> dict:
        """One run."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("a worker has died; see above")
        return json.loads(line)

    def values(self, name: str) -> np.ndarray:
        """Of all runs but the first."""
        return np.array([answer[name] for answer in self.answers])


def compare(name: str, particles: int, repeats: int, folder: Path) -> list[str]:
    """The table's rows of one benchmark and number of particles."""
    data = folder / f"{name}.npy"
    if not data.exists():
        code = (
            "import sys, numpy; from nopf.benchmarks import BENCHMARKS; "
            "numpy.save(sys.argv[2], BENCHMARKS[sys.argv[1]].simulate(0).observations)"
        )
        python = ROOT / LIBRARIES["nopf"][0] / "bin" / "python"
        subprocess.run([str(python), "-c", code, name, str(data)], check=True)
    steps = len(np.load(data))
    order = {"name": name, "particles": particles, "data": str(data), "seed": 0}
    able = [lib for lib, (_, only) in LIBRARIES.items() if only is None or name in only]
    workers = {library: Worker(library, order) for library in able}
    for seed in range(1, repeats + 1):
        for worker in workers.values():
            worker.answers.append(worker.ask(order | {"seed": seed}))
    rows = []
    own = workers["nopf"]
    for library, worker in workers.items():
        evidence = worker.values("log_evidence")
        apart = evidence.mean() - own.values("log_evidence").mean()
        spread = np.hypot(evidence.std(ddof=1), own.values("log_evidence").std(ddof=1))
        error = spread / np.sqrt(repeats)
        if library != "nopf" and abs(apart) > 5 * error + 0.5 * spread**2:
            raise SystemExit(
                f"{library} on {name}: its log-evidence is {apart:.2f} from nopf's, with a "
                f"standard error of {error:.2f}; the models are not the same"
            )
        milliseconds = 1e3 * worker.values("seconds") / steps
        ratio = np.median(worker.values("seconds") / own.values("seconds"))
        low, high = np.quantile(milliseconds, [0.25, 0.75])
        rows.append(
            f"| {name} | {particles} | {library} | {np.median(milliseconds):.3g} "
            f"({low:.3g}–{high:.3g}) | {ratio:.2f} | {worker.first:.1f} | "
            f"{worker.values('megabytes').max():.0f} | {evidence.mean():.2f} | "
            f"{worker.values('ess').mean():.4g} |"
        )
        print(rows[-1], flush=True)
        assert worker.process.stdin is not None
        worker.process.stdin.close()
        worker.process.wait()
    return rows


COLUMNS = (
    *("benchmark", "N", "library", "ms a step (quartiles)", "time over nopf's"),
    *("first result, s", "memory, MB", "log-evidence", "ESS"),
)
HEADER = f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|"


def main() -> None:
    """Runs all and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--benchmarks", default="sensor-bias,range-bearing,range-only")
    parser.add_argument("--particles", default="1000,10000,100000,1000000")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path, help="a file for the table")
    arguments = parser.parse_args()
    print(HEADER, flush=True)
    rows = [HEADER]
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.benchmarks.split(","):
            for count in map(int, arguments.particles.split(",")):
                rows += compare(name, count, arguments.repeats, Path(folder))
    if arguments.out is not None:
        arguments.out.write_text("\n".join(rows) + "\n")
        print(f"written to {arguments.out}", file=sys.stderr)


if __name__ == "__main__":
    main()
