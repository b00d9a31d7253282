"""Draws docs/figures/demo.gif: the bootstrap filter beside nopf on the range-bearing benchmark.

.venv/bin/python docs/picture.py
"""

import argparse
import io
from pathlib import Path

import jax
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from nopf.benchmarks import BENCHMARKS
from nopf.files import write_whole
from nopf.plots import ellipse

PARTICLES, SEED = 1000, 0
SHOWN = 250  # particles of a panel
CLOSE = (0.9, 0.6)  # metres around the truth, in the panels below
FILTERS = {"bpf": ("bootstrap", "#FF8A3D"), "mlpf": ("nopf, marginalised", "#4FC3F7")}
# One dark card, so that it is legible on light pages as on dark ones.
LEGEND = (
    "★ truth   ▲ landmarks   grey: where particles are put   coloured: what is left by weight, "
    "and the estimate"
)
PAPER, INK, FAINT, PANEL = "#141A21", "#E6E9EE", "#8E99A6", "#1B232C"


def main() -> None:
    """Filters one simulated drive with both filters and draws a frame a step."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    folder = Path(__file__).parent / "figures"
    parser.add_argument("--out", type=Path, default=folder / "demo.gif", help="the picture")
    out = parser.parse_args().out
    case = BENCHMARKS["range-bearing"]
    path = case.simulate(SEED)
    truth = np.asarray(path.states)[:, :2]
    found = {}
    for short in FILTERS:
        flt = case.make_filter(short, PARTICLES)
        found[short] = flt.run(path.observations, key=jax.random.key(SEED), keep="particles")
    frames = [frame(t, truth, case.landmarks, found) for t in range(len(truth))]
    # One palette for all frames: colours that all share, and what does not change is not repeated.
    palette = frames[len(frames) // 2].quantize(64)
    packed = [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in frames]
    drawn = io.BytesIO()
    packed[0].save(
        drawn,
        "GIF",
        save_all=True,
        append_images=packed[1:],
        duration=[160] * (len(packed) - 1) + [2000],
        loop=0,
        optimize=True,
    )
    write_whole(out, drawn.getvalue())
    print(f"{out}: {len(frames)} frames, {out.stat().st_size / 1e6:.2f} MB")


def frame(t: int, truth: np.ndarray, landmarks: object, found: dict) -> Image.Image:
    """What both filters know at a step."""
    figure = Figure(figsize=(8.4, 6.4), layout="constrained", facecolor=PAPER)
    canvas = FigureCanvasAgg(figure)
    panels = figure.subplots(2, 2, height_ratios=[1, 1])
    for column, (short, (name, colour)) in enumerate(FILTERS.items()):
        posterior = found[short]
        mean = np.asarray(posterior.mean)[:, :2]
        error = np.sqrt(np.mean(np.sum((mean - truth)[: t + 1] ** 2, axis=1)))
        particles = np.asarray(posterior.particles[t])[:, :2]
        weights = np.exp(np.asarray(posterior.log_weights[t], np.float64))
        outline = ellipse(mean[t], np.asarray(posterior.cov[t])[:2, :2])
        for row, panel in enumerate(panels[:, column]):
            draw(panel, particles, weights, colour)
            panel.plot(*np.array(landmarks).T, "^", color=INK, ms=8)
            panel.plot(*truth[: t + 1].T, "-", color=INK, lw=1.6, label="truth")
            panel.plot(*mean[: t + 1].T, "-", color=colour, lw=1.6, label="estimate")
            panel.plot(*outline.T, color=colour, lw=1.2, ls=":")
            panel.plot(*truth[t], "*", color=INK, ms=13, mec=PAPER)
            panel.set_aspect("equal")
            if row == 0:
                panel.set_xlim(-6.0, 6.0)
                panel.set_ylim(-4.3, 3.7)
                corners = [[-1, 1, 1, -1, -1], [-1, -1, 1, 1, -1]]
                box = np.array(corners) * np.array(CLOSE)[:, None]
                panel.plot(*(truth[t][:, None] + box), color=FAINT, lw=0.8)
                words = f"{name}, {PARTICLES} particles"
                panel.set_title(words, color=colour, fontsize=13, fontweight="bold")
            else:
                panel.set_xlim(truth[t, 0] - CLOSE[0], truth[t, 0] + CLOSE[0])
                panel.set_ylim(truth[t, 1] - CLOSE[1], truth[t, 1] + CLOSE[1])
                words = f"position error so far: {100 * error:.0f} cm"
                panel.set_title(words, color=INK, fontsize=12)
            look(panel)
    figure.supxlabel(LEGEND, color=FAINT, fontsize=10)
    canvas.draw()
    width, height = canvas.get_width_height()
    return Image.frombuffer("RGBA", (width, height), canvas.buffer_rgba()).convert("RGB")


def draw(panel: object, particles: np.ndarray, weights: np.ndarray, colour: str) -> None:
    """Where particles were put, and what is left of them: the larger, the more they weigh."""
    every = particles[:: max(1, len(particles) // SHOWN)]
    panel.scatter(*every.T, s=3, color=FAINT, alpha=0.5, lw=0)
    heavy = weights > 0.2 / len(weights)
    size = np.clip(400 * weights[heavy], 4, 60)
    panel.scatter(*particles[heavy].T, s=size, color=colour, alpha=0.6, lw=0)


def look(panel: object) -> None:
    """No more than what is needed: a grid, no numbers."""
    panel.set_facecolor(PANEL)
    panel.grid(color="#2A343F", lw=0.6)
    panel.tick_params(length=0, labelbottom=False, labelleft=False)
    for spine in panel.spines.values():
        spine.set_color("#2A343F")


if __name__ == "__main__":
    main()
