"""The examples with real recordings, where those are at hand."""

import importlib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nopf

DATA = Path(__file__).parent.parent.parent / "shared" / "data"


def example(monkeypatch, name):
    monkeypatch.syspath_prepend(Path(__file__).parent.parent / "examples")
    return importlib.import_module(name)


def recording(*parts):
    folder = DATA.joinpath(*parts)
    if not folder.is_dir():
        pytest.skip(f"the recording is not at hand: no {'/'.join(parts)} in shared/data")
    return folder


def test_labyrinth(monkeypatch):
    labyrinth = example(monkeypatch, "labyrinth_uwb")
    drive = labyrinth.load(recording("labyrinth_uwb"))
    # Anchors answer one at a time.
    assert set(np.sum(~np.isnan(drive.ranges), axis=1)) == {1}
    assert drive.ranges.shape[1] == 4
    error, flt = example(monkeypatch, "uwb").error, nopf.ParticleFilter(labyrinth.model, None, 1000)
    found = error(flt, drive, 0).rmse
    assert found < 0.13  # five seeds gave 0.09 m on average
    # The readme of the recording has the wheels the wrong way round: so would the robot turn.
    swapped = error(flt, drive._replace(controls=drive.controls[:, ::-1]), 0).rmse
    assert swapped > 2 * found


def test_hanyang(monkeypatch):
    hanyang = example(monkeypatch, "hanyang_uwb")
    drive = hanyang.load(recording("hanyang_uwb", "LOS", "A", "Case_1"))
    assert np.all(np.diff(drive.times) > 0)
    assert not np.isnan(drive.ranges).all(axis=1).any()
    error, flt = example(monkeypatch, "uwb").error, nopf.ParticleFilter(hanyang.model, None, 1000)
    beginning = type(drive)(drive.times[:800], drive.ranges[:800], drive.truth[:800])
    found = error(flt, beginning, 0).rmse
    assert nopf.marginalise(hanyang.model).linear_states == ("vx", "vy")
    assert found < 1.3  # 1.01 m was seen here; 0.83 m over the whole drive, by five seeds


def test_a_folder_without_the_recording_is_named(monkeypatch, tmp_path, capsys):
    labyrinth, uwb = example(monkeypatch, "labyrinth_uwb"), example(monkeypatch, "uwb")
    monkeypatch.setattr("sys.argv", ["labyrinth_uwb.py", str(tmp_path)])
    with pytest.raises(SystemExit, match=r"no Indoor_UWB_Input\.txt"):
        uwb.main("", labyrinth.model, labyrinth.load, "Indoor_UWB_Input.txt")


@pytest.fixture
def floor_plan(monkeypatch):
    return example(monkeypatch, "floor_plan")


def test_beams_in_a_floor_plan_end_where_walls_are(floor_plan):
    """Against small steps along each beam, until there is a wall."""
    away = np.arange(0, floor_plan.REACH, 0.01)
    scan = jax.jit(floor_plan.ranges)

    def walked(x, y, angle):
        places = np.array([x, y]) + away[:, None] * [np.cos(angle), np.sin(angle)]
        outside = np.array(floor_plan.WALL.shape)[::-1] - 1  # All around there are walls.
        cells = np.clip(np.floor(places / floor_plan.CELL).astype(int), 0, outside)
        hit = np.flatnonzero(floor_plan.WALL[cells[:, 1], cells[:, 0]])
        return away[hit[0]] if len(hit) else floor_plan.REACH

    compared = 0
    for x, y, heading in [(2.5, 1.2, 0.4), (5.0, 3.1, 0.0), (8.6, 4.2, -2.0)]:
        found = np.asarray(scan(jnp.array([x, y, heading])))
        for angle, length in zip(heading + floor_plan.BEAMS, found, strict=True):
            # A beam that grazes a corner may end there or pass it by: pixels are 6 cm wide.
            near = [walked(x, y, angle + turn) for turn in (-0.06, -0.03, 0.0, 0.03, 0.06)]
            if max(near) - min(near) < 0.5:
                compared += 1
                assert min(near) - 0.1 < length < max(near) + 0.1
    assert compared > 30  # of 48


def test_the_prior_of_a_floor_plan_is_everywhere_but_in_walls(floor_plan):
    prior = floor_plan.AnywhereFree()
    drawn = jax.jit(jax.vmap(prior.sample))(jax.random.split(jax.random.key(0), 4000))
    log_prob = jax.jit(jax.vmap(prior.log_prob))
    area = np.sum(~floor_plan.WALL) * floor_plan.CELL**2
    np.testing.assert_allclose(log_prob(drawn), -np.log(area * 2 * np.pi), rtol=1e-5)
    inside_walls = jnp.full((4000, 3), 0.1)
    assert np.all(np.asarray(log_prob(inside_walls)) == -np.inf)
    # The eastern half has its share, to 4 standard errors.
    east = floor_plan.FREE[:, 0] >= 20
    share = np.mean(np.asarray(drawn[:, 0]) >= 20 * floor_plan.CELL)
    assert abs(share - east.mean()) < 4 * np.sqrt(0.25 / 4000)


@pytest.mark.slow
def test_a_robot_in_a_floor_plan_is_found_and_found_again(floor_plan, tmp_path):
    recorded = floor_plan.drive(seed=0)
    flt = floor_plan.make_filter("apf", 500, None)
    found = flt.run(
        recorded.ranges, key=jax.random.key(0), controls=recorded.controls, keep="particles"
    )
    apart = floor_plan.located(found, recorded.truth)
    tracked = slice(floor_plan.SETTLED, recorded.carried)
    assert apart[tracked].max() < floor_plan.KNOWN
    assert apart[recorded.carried : recorded.carried + 5].min() > 1  # carried to another room
    assert apart[-5:].max() < floor_plan.KNOWN
    floor_plan.draw(recorded, found, tmp_path / "plan.png")
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")
