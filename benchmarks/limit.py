"""Where the time of a step goes, and how far that is from what the machine can do.

    .venv/bin/python benchmarks/limit.py --benchmark range-bearing --particles 100000

First the machine: the speed of a large matrix product and of a copy. Then each part of a step by
itself, in a loop of its own so that starting it does not count, and the whole step as a filter runs
it. Bytes are those that a part has to read and write at least once; what it moves beyond that stays
in caches or is waste.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import nopf
from nopf.benchmarks import BENCHMARKS
from nopf.filters.moving import Ancestors, fitted, move_all
from nopf.filters.posterior import Info
from nopf.layout import by_column

LOOP, REPEATS = 10, 7


def seconds(function: Callable[..., Any], *arguments: Any) -> float:
    """Of one call, the median over repeats; after one that compiles."""
    jax.block_until_ready(function(*arguments))
    taken = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        taken.append(time.perf_counter() - started)
    return float(np.median(taken))


def milliseconds(part: Callable[..., Any], *arguments: Any) -> float:
    """Of one part, which is given the number of the round, so that none is left out."""

    @jax.jit
    def rounds(*arguments: Any) -> Any:
        def one(total: Any, i: Any) -> Any:
            leaves = jax.tree.leaves(part(i, *arguments))
            return total + sum(jnp.sum(jnp.ravel(leaf)[:1].astype(float)) for leaf in leaves), None

        return jax.lax.scan(one, jnp.zeros(()), jnp.arange(LOOP))[0]

    return 1e3 * seconds(rounds, *arguments) / LOOP


def machine() -> tuple[float, float]:
    """GFLOP/s of a large matrix product, and GB/s of a copy that no cache holds."""
    size = 2048
    square = jnp.ones((size, size))
    flops = 2 * size**3 / seconds(jax.jit(lambda a: a @ a), square)
    long = jnp.ones(50_000_000)
    traffic = 2 * long.nbytes / seconds(jax.jit(lambda a: a + 1), long)
    return flops / 1e9, traffic / 1e9


def parts(model: Any, n: int, ys: Any, proposal: Any) -> dict[str, tuple[float, float]]:
    """Milliseconds of each part of a step, and the bytes that it needs."""
    key, step, y = jax.random.key(0), model.nominal_step(3), jnp.asarray(ys[2])
    d, k = model.space.size, model.noise_size
    draw = jax.jit(lambda: by_column(jax.vmap(model.sample_prior)(jax.random.split(key, n))))
    states, noise = draw(), jax.jit(lambda: by_column(jax.random.normal(key, (n, k))))()
    log_weights = jax.nn.log_softmax(jax.random.normal(key, (n,)))
    word = 4 * n

    def shifted(x: Any, i: Any) -> Any:
        return by_column(x + 1e-9 * i)

    def move(i: Any, x: Any, z: Any) -> Any:
        return by_column(jax.vmap(lambda a, b: model.move(a, b, step))(shifted(x, i), z))

    def weigh(i: Any, x: Any) -> Any:
        return jax.vmap(lambda a: model.log_likelihood(y, a, step))(shifted(x, i))

    def resample(i: Any, w: Any, x: Any) -> Any:
        return by_column(x)[nopf.systematic(jax.random.fold_in(key, i), w + 1e-9 * i)]

    def summary(i: Any, w: Any, x: Any) -> Any:
        nothing = jnp.zeros(())
        return Info.of_particles(
            model, shifted(x, i), w, (0.05, 0.5, 0.95), log_evidence_increment=nothing, ess=nothing
        )

    def numbers(i: Any) -> Any:
        return jax.random.normal(jax.random.fold_in(key, i), (k, n))

    found = {
        "random numbers": (milliseconds(numbers), k * word),
        "model: motion": (milliseconds(move, states, noise), (2 * d + k) * word),
        "model: likelihood": (milliseconds(weigh, states), (d + 1) * word),
        "resampling": (milliseconds(resample, log_weights, states), (2 * d + 1) * word),
        "summaries": (milliseconds(summary, log_weights, states), (d + 1) * word),
    }
    if proposal is not None:

        def law(i: Any, x: Any, w: Any) -> Any:
            ancestors = Ancestors(shifted(x, i), w, None)
            return fitted(proposal, model, ancestors, y, step).laws

        def moved(i: Any, x: Any, w: Any) -> Any:
            ancestors = Ancestors(shifted(x, i), w, None)
            return move_all(proposal, model, jax.random.fold_in(key, i), ancestors, y, step)

        fit = milliseconds(law, states, log_weights)
        found["fit of the law"] = (fit, 2 * (d + k) * word)
        whole = milliseconds(moved, states, log_weights)
        found["fit, draw and weigh together"] = (whole, (3 * d + 2 * k) * word)
    return found


def network_flops(proposal: nopf.NeuralProposal) -> int:
    """Of one evaluation for one particle."""
    leaves = jax.tree.leaves(proposal.network)
    return sum(2 * leaf.size for leaf in leaves if leaf.ndim == 2)


def main() -> None:
    """Prints the machine, then a table a filter."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--benchmark", default="range-bearing")
    parser.add_argument("--particles", type=int, default=100_000)
    parser.add_argument("--filters", default="bpf,lpf,nopf")
    given = parser.parse_args()
    flops, bandwidth = machine()
    print(f"matrix product {flops:.0f} GFLOP/s, copy {bandwidth:.1f} GB/s")
    case = BENCHMARKS[given.benchmark]
    ys = np.asarray(case.simulate(0).observations)
    for short in given.filters.split(","):
        proposal: Any = None
        if short == "lpf":
            proposal = nopf.LinearisedProposal()
        elif short == "nopf":
            proposal = nopf.train(case.model, case.horizon, jax.random.key(0))
        try:
            flt = nopf.ParticleFilter(case.model, proposal, given.particles)
        except ValueError as error:
            print(f"\n{short}: {error}")
            continue
        used = None if proposal is None else flt.proposal
        whole = 1e3 * seconds(lambda f=flt: f.run(ys, key=jax.random.key(1)).mean) / len(ys)
        print(f"\n{short}, {given.benchmark}, N = {given.particles}: {whole:.2f} ms a step")
        print(f"{'':30}      ms   share   needed MB   GB/s   of copy")
        for name, (taken, needed) in parts(case.model, given.particles, ys, used).items():
            rate = needed / taken / 1e6
            print(
                f"{name:30}{taken:8.2f}{100 * taken / whole:7.0f} %{needed / 1e6:12.1f}"
                f"{rate:7.1f}{100 * rate / bandwidth:8.0f} %"
            )
        if isinstance(proposal, nopf.NeuralProposal) and not flt.proposal.idle:  # type: ignore[attr-defined]
            work = network_flops(proposal) * given.particles
            print(
                f"network: {work / 1e6:.0f} MFLOP a step, {work / flops / 1e6:.2f} ms at the peak"
            )


if __name__ == "__main__":
    main()
