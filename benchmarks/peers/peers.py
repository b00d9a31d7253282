"""nopf's filters beside those of other libraries: same model, data, N, resampling.

    make bench-peers
    make bench-peers PEERS="--benchmarks range-bearing --particles 1000,10000,100000"
    make bench-peers PEERS="--filters kalman,enkf --particles 1000"

Bootstrap filters on the four benchmarks; Kalman and ensemble Kalman filters on the linear one. Each
library runs in a process and an environment of its own; runs alternate, and the first of each, in
which things are compiled, is timed apart, from the start of the process. Before anything is said of
speed, evidence and posterior mean are compared with nopf's. Prints a table in Markdown and writes
it, if asked to; with `--plot` also a picture.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
# The Python of each library's environment, and the filters that it has.
LIBRARIES = {
    "nopf": (".venv-peers", ("bootstrap", "kalman", "enkf")),
    "cuthbert": (".venv-peers", ("bootstrap", "kalman", "enkf")),
    "particles": (".venv-peers-numpy", ("bootstrap", "kalman")),
    "dynamax": (".venv-peers", ("kalman",)),
    "filterpy": (".venv-peers-numpy", ("kalman", "enkf")),
}
LINEAR = "sensor-bias"


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


def compare(name: str, kind: str, particles: int, repeats: int, folder: Path) -> list[dict]:
    """The table's rows of one benchmark, filter and number of particles."""
    data = folder / f"{name}.npy"
    if not data.exists():
        code = (
            "import sys, numpy; from nopf.benchmarks import BENCHMARKS; "
            "numpy.save(sys.argv[2], BENCHMARKS[sys.argv[1]].simulate(0).observations)"
        )
        python = ROOT / LIBRARIES["nopf"][0] / "bin" / "python"
        subprocess.run([str(python), "-c", code, name, str(data)], check=True)
    steps = len(np.load(data))
    order = {"name": name, "filter": kind, "particles": particles, "data": str(data), "seed": 0}
    able = [library for library, (_, filters) in LIBRARIES.items() if kind in filters]
    workers = {library: Worker(library, order) for library in able}
    for seed in range(1, repeats + 1):
        for worker in workers.values():
            worker.answers.append(worker.ask(order | {"seed": seed}))
    rows = []
    own = workers["nopf"]
    for library, worker in workers.items():
        evidence = worker.values("log_evidence")
        # The logarithm of an unbiased estimate is biased, by half its variance.
        slack = 0.5 * max(evidence.var(ddof=1), own.values("log_evidence").var(ddof=1))
        disagreement(f"{library} on {name}: its log-evidence", evidence, own, "log_evidence", slack)
        means = worker.values("mean")
        if kind != "bootstrap":  # which on these benchmarks has too few draws to compare means
            disagreement(f"{library} on {name}: its last mean", means, own, "mean", 0)
        milliseconds = 1e3 * worker.values("seconds") / steps
        ratio = np.median(worker.values("seconds") / own.values("seconds"))
        low, high = np.quantile(milliseconds, [0.25, 0.75])
        row = {
            "benchmark": name,
            "filter": kind,
            "N": str(particles) if kind != "kalman" else "",
            "library": library,
            "ms a step (quartiles)": f"{np.median(milliseconds):.3g} ({low:.3g}–{high:.3g})",
            "time over nopf's": f"{ratio:.2f}",
            "first result, s": f"{worker.first:.1f}",
            "memory, MB": f"{worker.values('megabytes').max():.0f}",
            "log-evidence": _number(evidence.mean(), ".2f"),
            "ESS": _number(worker.values("ess").mean(), ".4g"),
        }
        rows.append(row)
        if len(rows) == 1 and not folder.joinpath("header").exists():
            folder.joinpath("header").touch()
            print(_line(row.keys()), _line("---" for _ in row), sep="\n", flush=True)
        print(_line(row.values()), flush=True)
        assert worker.process.stdin is not None
        worker.process.stdin.close()
        worker.process.wait()
    return rows


def disagreement(what: str, values: np.ndarray, own: Worker, name: str, slack: float) -> None:
    """Ends with a message if a library's values are not nopf's, as far as their spread allows."""
    reference = own.values(name)
    if np.isnan(values).all():
        return
    apart = np.abs(values.mean(axis=0) - reference.mean(axis=0))
    spread = np.hypot(values.std(axis=0, ddof=1), reference.std(axis=0, ddof=1))
    error = spread / np.sqrt(len(values))
    rounding = 1e-4 * (1 + np.abs(reference.mean(axis=0)))  # single precision
    if np.any(apart > 5 * error + slack + rounding):
        raise SystemExit(
            f"{what} is {np.max(apart):.3g} from nopf's, with a standard error of "
            f"{np.max(error):.2g}; the models are not the same"
        )


def plot(rows: list[dict], file: Path) -> None:
    """Time of a bootstrap step against N, one panel a benchmark."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    rows = [row for row in rows if row["filter"] == "bootstrap"]
    names = list(dict.fromkeys(row["benchmark"] for row in rows))
    figure, panels = plt.subplots(1, len(names), figsize=(3.2 * len(names), 3), squeeze=False)
    for panel, name in zip(panels[0], names, strict=True):
        for library in LIBRARIES:
            here = [row for row in rows if (row["benchmark"], row["library"]) == (name, library)]
            if here:
                times = [float(row["ms a step (quartiles)"].split()[0]) for row in here]
                panel.loglog([int(row["N"]) for row in here], times, "o-", label=library)
        panel.set(title=name, xlabel="particles")
    panels[0][0].set_ylabel("milliseconds a step")
    panels[0][0].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(file)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _number(value: float, form: str) -> str:
    return "–" if np.isnan(value) else format(value, form)


def main() -> None:
    """Runs all and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--benchmarks", default="sensor-bias,range-bearing,range-only,unordered-range"
    )
    parser.add_argument("--filters", default="bootstrap,kalman,enkf")
    parser.add_argument("--particles", default="1000,10000,100000,1000000")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path, help="a file for the table")
    parser.add_argument("--plot", type=Path, help="a file for the picture, .svg")
    arguments = parser.parse_args()
    counts = [int(count) for count in arguments.particles.split(",")]
    rows: list[dict] = []
    with tempfile.TemporaryDirectory() as folder:
        for kind in arguments.filters.split(","):
            names = arguments.benchmarks.split(",") if kind == "bootstrap" else [LINEAR]
            # A Kalman filter has no particles, and an ensemble in a loop of Python no end.
            some = {"kalman": [1], "enkf": [n for n in counts if n <= 10_000]}.get(kind, counts)
            for name, count in itertools.product(names, some):
                rows += compare(name, kind, count, arguments.repeats, Path(folder))
    if arguments.out is not None:
        table = [_line(rows[0].keys()), _line("---" for _ in rows[0])]
        table += [_line(row.values()) for row in rows]
        arguments.out.write_text("\n".join(table) + "\n")
        print(f"written to {arguments.out}", file=sys.stderr)
    if arguments.plot is not None:
        plot(rows, arguments.plot)


if __name__ == "__main__":
    main()
