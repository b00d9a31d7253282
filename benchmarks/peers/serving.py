"""A worker's side of peers.py: reads orders from standard input, answers in JSON lines."""

import json
import resource
import sys
import time

import numpy as np


def serve(prepare):
    """Answers each order `{"name", "filter", "particles", "data", "seed"}` with its results."""
    made, run = None, None
    for line in sys.stdin:
        order = json.loads(line)
        setting = order["name"], order["filter"], order["particles"]
        if setting != made:
            run, made = prepare(*setting, np.load(order["data"])), setting
        started = time.perf_counter()
        evidence, ess, mean = run(order["seed"])
        answer = {
            "seconds": time.perf_counter() - started,
            "log_evidence": float(evidence),
            "ess": float(ess),
            "mean": np.asarray(mean, float).tolist(),
            "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }
        print(json.dumps(answer), flush=True)
