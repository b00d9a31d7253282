"""A robot on a line with a drifting velocity sensor: bootstrap particle filter against Kalman.

Simulates the paper's first benchmark, filters it twice, prints how well each did and draws the
three states with their 90 % intervals.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import jax
import numpy as np

import nopf
from nopf import metrics
from nopf.benchmarks import sensor_bias


def score(flt: nopf.Filter, path: nopf.Trajectories, seed: int) -> dict[str, float | None]:
    """The paper's seven metrics, and the log-evidence."""
    ys = path.observations
    filter_key, metrics_key = jax.random.split(jax.random.key(seed))
    jax.block_until_ready(flt.run(ys, key=filter_key).mean)  # compiles
    started = time.perf_counter()
    jax.block_until_ready(flt.run(ys, key=filter_key).mean)
    seconds = time.perf_counter() - started
    posterior = flt.run(ys, key=filter_key, keep="particles")
    return metrics.evaluate(metrics_key, flt.model, posterior, path) | {"wt": seconds}


def print_table(scores: dict[str, dict[str, float | None]]) -> None:
    """One row a filter; an arrow says which way is better."""
    columns = {
        "nmse": ("NMSE ↓", "{:.4f}"),
        "pnll": ("PNLL ↓", "{:.4f}"),
        "es": ("ES ↓", "{:.4f}"),
        "ess": ("ESS ↑", "{:.0f}"),
        "wt": ("time [s] ↓", "{:.4f}"),
        "made": ("MADE ↓", "{:.4f}"),
        "picp": ("PICP → 0.9", "{:.3f}"),
        "log_evidence": ("log-evidence", "{:.2f}"),
    }
    print(f"{'':18s}" + "".join(f"{title:>13s}" for title, _ in columns.values()))
    for name, values in scores.items():
        cells = [
            "–" if (value := values[column]) is None else form.format(value)
            for column, (_, form) in columns.items()
        ]
        print(f"{name:18s}" + "".join(f"{cell:>13s}" for cell in cells))


def draw(path: nopf.Trajectories, posteriors: dict[str, nopf.Posterior], file: Path) -> None:
    """Truth, means and 90 % intervals of every state over time."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    names = sensor_bias.model.state_names
    figure, panels = plt.subplots(len(names), 1, figsize=(8, 8), sharex=True, layout="constrained")
    colours = {"Kalman (exact)": "tab:blue", "Bootstrap": "tab:orange"}
    for i, (name, panel) in enumerate(zip(names, panels, strict=True)):
        for label, posterior in posteriors.items():
            low, high = np.asarray(posterior.quantiles[:, 0, i]), posterior.quantiles[:, 2, i]
            t, colour = posterior.times, colours[label]
            panel.fill_between(t, low, np.asarray(high), color=colour, alpha=0.2, lw=0)
            panel.plot(t, posterior.mean[:, i], color=colour, lw=1.5, label=label)
        panel.plot(t, path.states[:, i], color="black", lw=1.5, ls="--", label="truth")
        panel.set_ylabel(name)
        panel.grid(alpha=0.3)
    panels[0].set_title("Sensor bias: posterior means and 90 % intervals")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    panels[-1].set_xlabel("time [s]")
    unfinished = file.with_name(f".{file.name}.part")
    figure.savefig(unfinished, dpi=150, format=file.suffix.lstrip(".") or "png")
    unfinished.replace(file)
    plt.close(figure)


def main(arguments: list[str] | None = None) -> int:
    """Runs the demonstration; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=3, help="of the simulated truth and data")
    parser.add_argument("--particles", type=int, default=2000, help="of the bootstrap filter")
    parser.add_argument(
        "--out", type=Path, default=Path("demo/sensor_bias.png"), help="the picture (png, svg, pdf)"
    )
    parser.add_argument("--json", action="store_true", help="print results as JSON")
    options = parser.parse_args(arguments)
    benchmark = sensor_bias.benchmark
    path = benchmark.simulate(options.seed)
    try:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        filters: dict[str, nopf.Filter] = {
            "Kalman (exact)": nopf.KalmanFilter(benchmark.model, particles=2000),
            "Bootstrap": nopf.ParticleFilter(benchmark.model, particles=options.particles),
        }
    except (OSError, ValueError) as error:
        print(f"sensor_bias: {error}", file=sys.stderr)
        return 2

    scores = {name: score(flt, path, options.seed) for name, flt in filters.items()}
    key = jax.random.key(options.seed)
    posteriors = {name: flt.run(path.observations, key=key) for name, flt in filters.items()}
    try:
        draw(path, posteriors, options.out)
    except (OSError, ValueError) as error:
        print(f"sensor_bias: cannot write {options.out}: {error}", file=sys.stderr)
        return 2
    if options.json:
        settings = {"seed": options.seed, "particles": options.particles, "plot": str(options.out)}
        print(json.dumps(settings | {"filters": scores}, indent=2))
        return 0
    print(
        f"{benchmark.title}: {benchmark.horizon} observations, seed {options.seed}, "
        f"{options.particles} particles\n"
    )
    print_table(scores)
    exact, found = (posteriors[name] for name in ("Kalman (exact)", "Bootstrap"))
    apart = np.abs(np.asarray(found.mean - exact.mean)) / np.asarray(exact.std)
    print(
        f"\nThe bootstrap filter's mean is on average {apart.mean():.2f} posterior standard "
        f"deviations from the exact one."
    )
    print(f"Picture: {options.out}")
    print("Try next: a thousand particles more or fewer with --particles, other data with --seed.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
