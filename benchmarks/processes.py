"""Particles spread over processes: the time of several on one core each, against one on one core.

    .venv/bin/python benchmarks/processes.py --processes 2 --particles 1000000

Each process is bound to a core of its own (Linux). They find each other by `jax.distributed` and
exchange particles at every step; all of them end up with the same estimates, which are compared
with those of the single process before anything is said of speed.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import time

import numpy as np


def work(process: int, processes: int, port: int, name: str, particles: int, repeats: int) -> None:
    """One process: prints what it found as JSON."""
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[process]})
    import jax

    if processes > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"localhost:{port}", processes, process)
    import nopf
    from nopf.benchmarks import BENCHMARKS

    case = BENCHMARKS[name]
    mesh = jax.make_mesh((processes,), ("particles",)) if processes > 1 else None
    flt = nopf.ParticleFilter(case.model, particles=particles, mesh=mesh)
    ys = np.load(f"{os.environ['NOPF_DATA']}/ys.npy")
    seconds, evidence = [], []
    for seed in range(repeats + 1):
        started = time.perf_counter()
        posterior = flt.run(ys, key=jax.random.key(seed))
        evidence.append(float(posterior.log_evidence))
        seconds.append(time.perf_counter() - started)
    found = {
        "seconds": float(np.median(seconds[1:])) / len(ys),
        "log_evidence": evidence,
        "mean": np.asarray(posterior.mean[-1], float).tolist(),
        "ess": float(np.mean(np.asarray(posterior.ess))),
    }
    print(json.dumps(found), flush=True)


def run(processes: int, name: str, particles: int, repeats: int, folder: str) -> list[dict]:
    """What each of so many processes found."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    code = "import sys; from processes import work; work(*map(int, sys.argv[1:4]), sys.argv[4], "
    code += "*map(int, sys.argv[5:]))"
    here = os.path.dirname(os.path.abspath(__file__))
    environment = os.environ | {"NOPF_DATA": folder, "PYTHONPATH": here}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code, *map(str, (i, processes, port, name, particles, repeats))],
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        for i in range(processes)
    ]
    answers = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        raise SystemExit("a process has failed; see above")
    return [json.loads(answer.splitlines()[-1]) for answer in answers]


def main() -> None:
    """Prints times and their ratio."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--benchmark", default="range-bearing")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--particles", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        code = "import sys, numpy; from nopf.benchmarks import BENCHMARKS; "
        code += "numpy.save(sys.argv[2], BENCHMARKS[sys.argv[1]].simulate(0).observations)"
        file = f"{folder}/ys.npy"
        subprocess.run([sys.executable, "-c", code, given.benchmark, file], check=True)
        settings = (given.benchmark, given.particles, given.repeats, folder)
        (alone,) = run(1, *settings)
        together = run(given.processes, *settings)
    for answer in together[1:]:
        if answer["mean"] != together[0]["mean"]:
            raise SystemExit("the processes do not agree")
    first = together[0]
    print(f"{given.benchmark}, N = {given.particles}, milliseconds a step")
    for label, answer in [("1 process", alone), (f"{given.processes} processes", first)]:
        print(
            f"{label:12} {1e3 * answer['seconds']:8.1f}   log-evidence "
            f"{np.mean(answer['log_evidence']):.2f} ± {np.std(answer['log_evidence'], ddof=1):.2f}"
            f"   ESS {answer['ess']:.4g}"
        )
    slowest = max(answer["seconds"] for answer in together)
    print(f"{alone['seconds'] / slowest:.2f} times faster")


if __name__ == "__main__":
    main()
