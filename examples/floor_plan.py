"""A robot with a laser scanner in a floor plan. It starts anywhere, and is carried away once.

    python examples/floor_plan.py                     three filters, with 500 and 5000 particles
    python examples/floor_plan.py --picture plan.png  draws the plan with particles as well

The likelihood is a likelihood field: the end of each beam should be near a wall. How far every
point of the plan is from the nearest wall is known beforehand, by a distance transform; between
its pixels it is interpolated, so that the likelihood has a gradient and a proposal can be trained.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.ndimage

import nopf

PLAN = """
########################################
#          #            #              #
#          #            #              #
#   ##     #            #     ####     #
#   ##     #            #     ####     #
#          #                           #
#                       #              #
#          #            #              #
#####  #########  ###############  #####
#                                      #
#                                      #
#                                      #
####  ###########################  #####
#             #            #           #
#             #     ##     #           #
#             #     ##     #           #
#                          #           #
#             #                     ####
#  ###        #            #        #  #
#  ###        #            #        #  #
#             #            #           #
#             #            #           #
########################################
"""
CELL = 0.25  # metres, the side of a character of the plan
FINE = 4  # pixels of the distance transform along that side
# The last line of the plan is in the south: rows count upwards, as y does.
WALL = np.array([[c == "#" for c in line] for line in PLAN.strip().splitlines()[::-1]])
FREE = np.argwhere(~WALL)[:, ::-1]  # column and row of each cell without a wall
WIDTH, HEIGHT = CELL * WALL.shape[1], CELL * WALL.shape[0]
# Metres to the nearest wall, for the middle of each pixel. Around the plan there is nothing, so
# that beams which would end far outside are far from any wall.
AROUND = 6  # cells
PIXELS = np.kron(np.pad(WALL, AROUND), np.ones((FINE, FINE), bool))
DISTANCE = scipy.ndimage.distance_transform_edt(~PIXELS) * CELL / FINE

BEAMS = np.linspace(-np.pi, np.pi, 16, endpoint=False)  # angles from the robot's heading
REACH = 5.0  # metres; a beam that meets nothing before that gives no range
NOISE = 0.03  # of a range that is simulated
SPREAD = 0.2  # of the distance from the wall, in the filter: the plan is not exact either
STRAY = 0.1  # share of the ranges that have nothing to do with the plan


def distance(place: Any) -> Any:
    """Metres from the nearest wall, interpolated between the four pixels around `place`."""
    at = (place[::-1] / CELL + AROUND) * FINE - 0.5
    last = jnp.array(DISTANCE.shape) - 1
    at = jnp.clip(at, 0.0, last - 1e-3)
    low = jnp.floor(at).astype(int)
    part = at - low
    field = jnp.asarray(DISTANCE, float)
    south, north = (
        field[row, low[1]] * (1 - part[1]) + field[row, low[1] + 1] * part[1]
        for row in (low[0], low[0] + 1)
    )
    return south * (1 - part[0]) + north * part[0]


class AnywhereFree:
    """Every pose without a wall is as likely as any other."""

    def sample(self, key: Any) -> Any:
        cell_key, place_key, heading_key = jax.random.split(key, 3)
        cell = jnp.asarray(FREE)[jax.random.randint(cell_key, (), 0, len(FREE))]
        place = CELL * (cell + jax.random.uniform(place_key, (2,)))
        heading = jax.random.uniform(heading_key, (1,), minval=-jnp.pi, maxval=jnp.pi)
        return jnp.concatenate([place, heading])

    def log_prob(self, x: Any) -> Any:
        column, row = jnp.floor(x[:2] / CELL).astype(int)
        inside = (x[0] >= 0) & (x[0] < WIDTH) & (x[1] >= 0) & (x[1] < HEIGHT)
        free = inside & ~jnp.asarray(WALL)[row, column]
        return jnp.where(free, -np.log(len(FREE) * CELL**2 * 2 * np.pi), -jnp.inf)


def transition(x: Any, step: nopf.Step) -> Any:
    """Along an arc, by the odometry; a robot that would drive into a wall stays where it is."""
    speed, turn = step.control
    middle = x[2] + step.dt * turn / 2
    place = x[:2] + step.dt * speed * jnp.stack([jnp.cos(middle), jnp.sin(middle)])
    place = jnp.where(distance(place) > 0.05, place, x[:2])
    return jnp.stack([place[0], place[1], x[2] + step.dt * turn])


def observation_log_prob(y: Any, x: Any, step: nopf.Step) -> Any:
    """The likelihood field; beams without a range (NaN) say nothing."""
    known = ~jnp.isnan(y)

    def from_wall(angle: Any, length: Any) -> Any:
        """How far from a wall the beam ends."""
        return distance(x[:2] + length * jnp.stack([jnp.cos(angle), jnp.sin(angle)]))

    apart = jax.vmap(from_wall)(x[2] + BEAMS, jnp.where(known, y, 0.0))
    near = jnp.exp(-0.5 * (apart / SPREAD) ** 2) / (SPREAD * np.sqrt(2 * np.pi))
    log_prob = jnp.log((1 - STRAY) * near + STRAY / REACH)
    # Neighbouring beams err together, by the same error of the plan: each counts for a half.
    total = 0.5 * jnp.sum(jnp.where(known, log_prob, 0.0))
    return jnp.where(distance(x[:2]) > 0, total, -30.0)  # No robot is in a wall.


def ranges(x: Any) -> Any:
    """What the beams measure without noise: each goes on by the distance to the nearest wall, until
    there is one."""

    def beam(angle: Any) -> Any:
        direction = jnp.stack([jnp.cos(angle), jnp.sin(angle)])

        def further(_: Any, length: Any) -> Any:
            return length + distance(x[:2] + length * direction)

        return jax.lax.fori_loop(0, 40, further, jnp.zeros(()))

    return jnp.minimum(jax.vmap(beam)(x[2] + BEAMS), REACH)


def observation_sample(key: Any, x: Any, step: nopf.Step) -> Any:
    """A scan with noise and strays."""
    noise_key, stray_key, range_key = jax.random.split(key, 3)
    true = ranges(x)
    seen = true + NOISE * jax.random.normal(noise_key, true.shape)
    stray = jax.random.bernoulli(stray_key, STRAY, true.shape)
    return jnp.where(stray, jax.random.uniform(range_key, true.shape) * true, seen)


model = nopf.StateSpaceModel(
    prior=AnywhereFree(),
    transition=transition,
    process_noise=[0.06, 0.06, 0.1],
    observation_log_prob=observation_log_prob,
    observation_sample=observation_sample,
    state_names=("x", "y", "heading"),
    state_angles=("heading",),
    observation_names=tuple(f"beam_{k}" for k in range(len(BEAMS))),
    control_names=("speed", "turn"),
    dt=0.4,
)


class Drive(NamedTuple):
    """A simulated drive: what the filter is given, and the truth.

    Attributes:
        ranges: `(T, beams)`.
        controls: `(T, 2)` odometry.
        truth: `(T, 3)` poses.
        carried: index of the first pose after the robot was carried away.
    """

    ranges: np.ndarray
    controls: np.ndarray
    truth: np.ndarray
    carried: int


# Columns and lines of the plan (counted from the top) that the robot drives through.
BEFORE = [
    (9, 19),
    (7, 15.5),
    (4.5, 14),
    (4.5, 10.5),
    (20, 10),
    (33.5, 10),
    (33.5, 6.5),
    (27, 5),
    (17, 5),
]
AFTER = [(31, 20), (33.5, 15), (33.5, 10), (16, 10), (15.5, 6), (20, 3)]


def drive(seed: int) -> Drive:
    """Along the first path, carried to the start of the second, and along that."""
    rng = np.random.default_rng(seed)
    poses, odometry = zip(*(_along(path) for path in (BEFORE, AFTER)), strict=True)
    truth, controls = np.concatenate(poses), np.concatenate(odometry)
    measured = controls * (1 + 0.05 * rng.standard_normal(controls.shape))
    keys = jax.random.split(jax.random.key(seed), len(truth))
    step = model.nominal_step()
    scan = jax.jit(jax.vmap(lambda key, x: observation_sample(key, x, step)))
    return Drive(np.asarray(scan(keys, truth)), measured, truth, len(poses[0]))


def _along(path: Sequence[tuple[float, float]]) -> tuple[np.ndarray, np.ndarray]:
    """Poses half a metre a second along a path with rounded corners, and the true odometry."""
    corners = CELL * (np.array(path) + 0.5)
    corners[:, 1] = HEIGHT - corners[:, 1]
    gone = np.insert(np.cumsum(np.hypot(*np.diff(corners, axis=0).T)), 0, 0.0)
    along = np.arange(0.0, gone[-1], 0.5 * model.dt)
    places = np.stack([np.interp(along, gone, corners[:, k]) for k in range(2)], axis=1)
    places = scipy.ndimage.gaussian_filter1d(places, 1.5, axis=0, mode="nearest")
    moved = np.diff(places, axis=0)
    heading = np.unwrap(np.arctan2(moved[:, 1], moved[:, 0]))
    controls = np.stack([np.hypot(*moved.T), np.diff(heading, prepend=heading[0])], axis=1)
    return np.column_stack([places[1:], heading]), controls / model.dt


def located(found: nopf.Posterior, truth: np.ndarray) -> np.ndarray:
    """`(T,)` metres between the mean and the truth."""
    return np.hypot(*(np.asarray(found.mean)[:, :2] - truth[:, :2]).T)


class Score(NamedTuple):
    """Of one run.

    Attributes:
        known: how many steps it took to know the place to `KNOWN` metres; None if it never did.
        again: the same after the robot was carried away, to the end of the drive.
        error: root mean square of the error while the robot was tracked, in metres.
        ess: share of the particles that count, at the same steps.
        draws: how many independent draws the mean of x or y is worth, at the same steps (median).
    """

    known: int | None
    again: int | None
    error: float
    ess: float
    draws: float


KNOWN = 0.5
SETTLED = 20  # steps after which the robot should be tracked


def score(flt: nopf.Filter, recorded: Drive, seed: int) -> Score:
    """How one run did."""
    found = flt.run(recorded.ranges, key=jax.random.key(seed), controls=recorded.controls)
    apart = located(found, recorded.truth)
    tracked = slice(SETTLED, recorded.carried)
    return Score(
        known=_lasting(apart[: recorded.carried]),
        again=_lasting(apart[recorded.carried :]),
        error=float(np.sqrt(np.mean(apart[tracked] ** 2))),
        ess=float(np.mean(np.asarray(found.ess)[tracked])) / flt.particles,  # type: ignore[attr-defined]
        draws=float(np.median(np.asarray(found.draws)[tracked, :2])),
    )


def _lasting(apart: np.ndarray) -> int | None:
    """The step from which on the place is known."""
    far = np.flatnonzero(apart > KNOWN)
    first = int(far[-1]) + 1 if len(far) else 0
    return first if first < len(apart) else None


def make_filter(name: str, particles: int, proposal: nopf.Proposal | None) -> nopf.Filter:
    """Filters that take any likelihood. All meet the first scan with draws of the whole plan until
    enough of them count (`first_step`), and a tenth of them is drawn anew when they are lost."""
    if name == "apf":
        return nopf.AuxiliaryFilter(model, None, particles, first_step=True, recover=0.1)
    if name == "ispf":
        proposal = nopf.InnerSamplingProposal(20)
    return nopf.ParticleFilter(model, proposal, particles, first_step=True, recover=0.1)


def draw(recorded: Drive, found: nopf.Posterior, file: Path) -> None:
    """The plan with the particles after the first scan, when lost, and when found again."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    assert found.particles is not None
    assert found.log_weights is not None
    apart = located(found, recorded.truth)
    away = recorded.carried
    again = away + (_lasting(apart[away:]) or 0)
    moments = [
        (0, "after the first scan"),
        (away - 1, "before it is carried away"),
        ((away + again) // 2, "lost"),
        (min(again + 1, len(apart) - 1), "found again"),
    ]
    figure, panels = pyplot.subplots(2, 2, figsize=(10, 6.4), layout="constrained")
    for (t, title), panel in zip(moments, panels.flat, strict=True):
        panel.imshow(WALL, cmap="Greys", origin="lower", extent=(0, WIDTH, 0, HEIGHT), vmax=1.6)
        first = 0 if t < away else away
        panel.plot(*recorded.truth[first : t + 1, :2].T, "k--", lw=1, label="truth")
        panel.plot(*recorded.truth[t, :2], "k*", ms=10)
        places = np.asarray(found.particles)[t, :, :2]
        panel.scatter(*places.T, s=4, c="#0072B2", alpha=0.4, lw=0, label="particles")
        panel.plot(*np.asarray(found.mean)[t, :2], "o", mfc="none", c="#D55E00", label="mean")
        panel.set_title(f"step {t + 1}: {title}", fontsize=10)
        panel.set_xticks([])
        panel.set_yticks([])
    panels[0, 0].legend(fontsize=8, loc="upper right")
    figure.savefig(file, dpi=80)
    pyplot.close(figure)


def line(name: str, particles: int, scores: list[Score]) -> str:
    """A row of the table: how often the place was known, and the rest as means."""

    def steps(found: list[int | None]) -> str:
        known = [one for one in found if one is not None]
        after = f", after {np.mean(known):.0f} steps" if known else ""
        return f"{len(known)} of {len(found)}{after}"

    tracked = [one for one in scores if one.known is not None and one.known <= SETTLED]
    said = "".join(
        f"{form.format(np.mean([getattr(one, what) for one in tracked]) * scale):>10}"
        for what, scale, form in [("error", 100, "{:.1f} cm"), ("ess", 100, "{:.0f} %")]
    )
    worth = np.mean([one.draws for one in tracked])
    start, again = (steps([getattr(one, what) for one in scores]) for what in ("known", "again"))
    return f"{name:6}{particles:>6}   {start:24}{again:24}{said}{worth:>10.0f}"


def main() -> None:
    """Reads the command line and prints a line a filter."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--filters", default="bpf,apf,nopf", help="with commas; also ispf")
    parser.add_argument("--particles", default="500,5000", help="with commas")
    parser.add_argument("--seeds", type=int, default=5, help="runs of each filter on the same data")
    parser.add_argument("--picture", type=Path, help="a file for a picture (bpf, most particles)")
    given = parser.parse_args()
    recorded = drive(seed=0)
    names, counts = given.filters.split(","), [int(n) for n in given.particles.split(",")]
    proposal = None
    if "nopf" in names:
        proposal = nopf.train(model, 60, jax.random.key(0), controls=recorded.controls)
        print(nopf.quality(proposal, model, jax.random.key(1), controls=recorded.controls[:60]))
    print(
        f"{'filter':6}{'N':>6}   {'knows the place':24}{'found again':24}"
        f"{'error':>10}{'ESS':>10}{'draws':>10}"
    )
    for particles in counts:
        for name in names:
            flt = make_filter(name, particles, proposal if name == "nopf" else None)
            scores = [score(flt, recorded, seed) for seed in range(given.seeds)]
            print(line(name, particles, scores), flush=True)
    if given.picture is not None:
        flt = make_filter("bpf", max(counts), None)
        key, controls = jax.random.key(0), recorded.controls
        found = flt.run(recorded.ranges, key=key, controls=controls, keep="particles")
        draw(recorded, found, given.picture)
        print(f"{given.picture}: the plan, with the particles at four moments")


if __name__ == "__main__":
    main()
