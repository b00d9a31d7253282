"""How long the default and the published recipe take to a given effective sample size.

Trains one after the other on the same benchmark in one process. Training pauses now and then for a
filter run with the network of that moment, which does not count. Compilation is timed apart.
"""

import argparse
import json
import sys
import time

import jax
import numpy as np

import nopf
from nopf.benchmarks import BENCHMARKS
from nopf.training.objective import Conditions
from nopf.training.run import Trainer


def seconds_to(name: str, recipe: nopf.Recipe, target: float, seeds: int, limit: float) -> dict:
    """Training time until the mean ESS over some seeds reaches the target, or the limit is up.

    On the skeleton base, which both recipes can use: so that what is compared is the training.
    """
    case = BENCHMARKS[name]
    data = [case.simulate(seed).observations for seed in range(seeds)]
    started = time.perf_counter()
    paths = nopf.simulate(case.model, case.horizon, jax.random.key(1), batch=400)
    own = Conditions(case.model.steps(case.horizon), None, case.horizon)
    trainer = Trainer(case.model, own, recipe, "skeleton", jax.random.key(0), paths)
    trainer.round(trainer.begin())  # compiles
    compiling = time.perf_counter() - started
    started = time.perf_counter()
    run = trainer.begin()
    curve: list[tuple[float, int, float]] = []
    check = 0.0  # pauses grow with the time spent
    over = False
    while not over:
        run = trainer.round(run)
        spent = time.perf_counter() - started
        over = trainer.finished(run) or spent >= limit
        if spent < check and not over:
            continue
        flt = nopf.ParticleFilter(case.model, trainer.proposal(run), case.particles)
        sizes = []
        for seed, ys in enumerate(data):
            ess = flt.run(ys, key=jax.random.key(1000 + seed)).ess
            assert ess is not None
            sizes.append(float(ess.mean()))
        curve.append((spent, run.step, float(np.mean(sizes))))
        print(f"  {spent:6.1f} s, step {run.step}: ESS {curve[-1][2]:.0f}", file=sys.stderr)
        if curve[-1][2] >= target:
            break
        check = 1.15 * spent
        started = time.perf_counter() - spent
    reached = curve[-1][2] >= target
    return {"seconds": spent, "compiling": compiling, "reached": reached, "curve": curve}


def main() -> int:
    """Measures both and prints their ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("benchmark", nargs="?", default="range-only", choices=list(BENCHMARKS))
    parser.add_argument("--target", type=float, default=4140, help="the ESS to reach")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=1500, help="seconds for each recipe")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = {}
    for title, recipe in [
        ("fast", nopf.Recipe.fast()),
        ("paper", nopf.Recipe.paper(options.benchmark)),
    ]:
        found[title] = seconds_to(
            options.benchmark, recipe, options.target, options.seeds, options.limit
        )
    ratio = found["paper"]["seconds"] / found["fast"]["seconds"]
    if options.json:
        print(json.dumps(found | {"ratio": ratio}))
        return 0 if found["fast"]["reached"] else 1
    for title, one in found.items():
        how = "reached" if one["reached"] else "not reached"
        print(
            f"{title}: ESS {options.target:g} {how} in {one['seconds']:.1f} s of training, after "
            f"{one['compiling']:.1f} s of compilation (with the first round)"
        )
    if not found["fast"]["reached"]:
        return 1
    print(f"ratio {'' if found['paper']['reached'] else 'at least '}{ratio:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
