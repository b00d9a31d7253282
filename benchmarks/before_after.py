"""Times of filters in two versions of nopf, alternating in one run.

    .venv/bin/python benchmarks/before_after.py --before ../other/src --filters bpf,lpf,nopf

Two processes, one for each tree, run the same filters on the same data in turn; what is printed is
the median of the ratios of neighbouring runs, after over before, with its quartiles. The learned
proposals are trained once, with the tree given as `--before`, and used by both.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

WORKER = """
import sys, time
import jax
import nopf
from nopf.benchmarks import BENCHMARKS

def make(name, short, proposal):
    case = BENCHMARKS[name]
    if hasattr(case, "make_filter"):
        return case.make_filter(short, None, proposal)
    return nopf.benchmarks.make_filter(short, case, None, proposal)

for line in sys.stdin:
    order, name, short, file = line.split()
    case = BENCHMARKS[name]
    if order == "train":
        nopf.train(case.model, case.horizon, jax.random.key(0)).save(file)
        print(0.0, flush=True)
        continue
    if order == "make":
        learned = nopf.NeuralProposal.load(file, case.model) if short == "nopf" else None
        flt = make(name, short, learned)
        ys = case.simulate(1).observations
    started = time.perf_counter()
    posterior = flt.run(ys, key=jax.random.key(0))
    jax.block_until_ready((posterior.mean, posterior.ess))
    print(time.perf_counter() - started, float(posterior.ess.mean()), flush=True)
"""


class Tree:
    """A process that runs the filters of one source tree."""

    def __init__(self, source: Path):
        environment = os.environ | {"PYTHONPATH": str(source)}
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )

    def ask(self, *words: str) -> list[float]:
        """What the process answers to an order."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(" ".join(words) + "\n")
        self.process.stdin.flush()
        return [float(word) for word in self.process.stdout.readline().split()]


def main() -> None:
    """Prints a line for each benchmark and filter."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, required=True, help="the src folder to compare with")
    parser.add_argument("--after", type=Path, default=Path(__file__).parents[1] / "src")
    parser.add_argument("--filters", default="bpf,lpf,nopf")
    parser.add_argument(
        "--benchmarks", default="sensor-bias,range-bearing,range-only,unordered-range"
    )
    parser.add_argument("--repeats", type=int, default=15)
    given = parser.parse_args()
    before, after = Tree(given.before), Tree(given.after)
    with tempfile.TemporaryDirectory() as folder:
        for name in given.benchmarks.split(","):
            for short in given.filters.split(","):
                if (name, short) == ("unordered-range", "lpf"):
                    continue  # it does not apply
                file = str(Path(folder) / f"{name}.nopf")
                if short == "nopf":
                    before.ask("train", name, short, file)
                firsts = [tree.ask("make", name, short, file) for tree in (before, after)]
                times = np.array(
                    [
                        [tree.ask("run", name, short, file)[0] for tree in (before, after)]
                        for _ in range(given.repeats)
                    ]
                )
                low, ratio, high = np.quantile(times[:, 1] / times[:, 0], [0.25, 0.5, 0.75])
                one, other = np.median(times, axis=0)
                print(
                    f"{name:16} {short:5} {one:8.4f} s -> {other:8.4f} s, ratio {ratio:.3f} "
                    f"({low:.3f} to {high:.3f}); first run {firsts[0][0]:.1f} -> "
                    f"{firsts[1][0]:.1f} s; ESS {firsts[0][1]:.0f} -> {firsts[1][1]:.0f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
