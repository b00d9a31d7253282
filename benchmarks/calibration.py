"""Whether filters are as sure as they should be, on the four benchmarks.

    .venv/bin/python benchmarks/calibration.py

Simulation-based calibration (`nopf.calibration`): true states are ranked among draws of the
posterior. Each line has the smallest p-value over the states, times their number: below 0.01 the
filter is not calibrated, and what is wrong is said of the worst state. Beside it is the share of
truths in the middle 90 % of their posteriors, of the state where it is furthest from that.
"""

import argparse
import time
import warnings

import jax
import numpy as np

import nopf
from nopf.benchmarks import BENCHMARKS

FILTERS = ("bpf", "opf", "lpf", "alpf", "mlpf", "malpf", "nopf")
BRIEF = nopf.Recipe(steps=100)  # However good a proposal is, the weights make the answer right.


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--benchmarks", default=",".join(BENCHMARKS))
    parser.add_argument("--filters", default=",".join(FILTERS))
    parser.add_argument("--series", type=int, default=200)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--particles", type=int, default=2000)
    options = parser.parse_args()
    print(f"{options.series} series of {options.steps} steps, {options.particles} particles\n")
    for name in options.benchmarks.split(","):
        benchmark = BENCHMARKS[name]
        for short in options.filters.split(","):
            proposal = None
            if short.endswith("nopf"):
                with warnings.catch_warnings(action="ignore"):  # that it was brief
                    proposal = nopf.train(
                        benchmark.model, options.steps, jax.random.key(0), recipe=BRIEF
                    )
            try:
                flt = benchmark.make_filter(short, options.particles, proposal)
            except ValueError:  # It does not fit the model.
                continue
            began = time.perf_counter()
            found = nopf.calibration(flt, options.steps, jax.random.key(1), series=options.series)
            spent = time.perf_counter() - began
            worst = int(np.argmin(found.p_value))
            p_value = min(1.0, float(found.p_value[worst]) * len(found.p_value))
            cover = found.coverage[np.argmax(np.abs(found.coverage - 0.9))]
            verdict = f"{found.state_names[worst]}: {found.verdicts[worst]}"
            print(
                f"{name:16} {short:6} p {p_value:7.2g}  {100 * cover:3.0f} %  {spent:5.1f} s"
                f"  {verdict if p_value < 0.01 else ''}",
                flush=True,
            )


if __name__ == "__main__":
    main()
