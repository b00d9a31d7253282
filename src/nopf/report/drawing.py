"""Draws every figure of a folder of results."""

from pathlib import Path

from matplotlib.figure import Figure

from nopf.benchmarks import BENCHMARKS
from nopf.benchmarks.results import Cell, Results
from nopf.benchmarks.tables import tabulate
from nopf.report.figures import (
    additional_figure,
    ess_figure,
    save,
    snapshot_figure,
    state_figure,
    sweep_figure,
    table_figure,
)
from nopf.report.numbers import main_particles

TRAJECTORIES = ("kf", "enkf", "bpf", "nopf")
SNAPSHOTS = ("enkf", "bpf", "nopf")


def draw_all(results: Results, folder: Path, form: str) -> list[Path]:
    """Writes the figures that these results allow, and says which.

    Args:
        results: the results.
        folder: where the figures go; made if need be.
        form: svg, png or pdf.
    """
    folder.mkdir(parents=True, exist_ok=True)
    drawn, everything = [], {}

    def keep(name: str, figure: Figure) -> None:
        file = folder / f"{name}.{form}"
        save(figure, file)
        drawn.append(file)

    for name in results.benchmarks():
        case, rows = BENCHMARKS[name], results.rows(name)
        if not rows:
            continue
        if len({row["particles"] for row in rows}) > 1:
            keep(f"{name}-sweep", sweep_figure(rows))
        particles = main_particles(case, rows)
        usual = [row for row in rows if row["particles"] == particles]
        everything[name] = usual
        keep(f"{name}-table", table_figure(tabulate(usual)))
        if any(row["ess_path"] for row in usual):
            keep(f"{name}-ess", ess_figure(usual))
        linear = case.plane != ("x", "y")
        traces = {
            short: trace
            for short in (TRAJECTORIES if linear else SNAPSHOTS)
            if (trace := results.trace(Cell(name, short, particles, 0))) is not None
        }
        if linear and traces:
            keep(f"{name}-states", state_figure(case, traces))
        elif set(traces) - {"enkf"}:
            keep(f"{name}-snapshots", snapshot_figure(case, traces))
            if case.height is not None:
                plane = (case.plane[0], case.height)
                keep(f"{name}-snapshots-{case.height}", snapshot_figure(case, traces, plane=plane))
    if any(row["made"] is not None for rows in everything.values() for row in rows):
        keep("additional-metrics", additional_figure(everything))
    return drawn
