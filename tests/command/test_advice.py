"""Advice, and the mistakes that a look at a model finds."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

import nopf
from nopf.catalogue import make_filter
from nopf.command import advice, request, trials
from nopf.command.advice import check
from nopf.command.app import app
from nopf.command.trials import Trial, advise
from nopf.recording import Recording
from nopf.training.to_file import Series
from tests import models, recordings
from tests.command.calling import invoke

QUICK = nopf.Recipe.fast(base="skeleton", width=8, steps=50)


@pytest.fixture
def no_trials(monkeypatch):
    monkeypatch.setattr(advice, "set_up", lambda *_: None)
    monkeypatch.setattr(trials, "_try", lambda flt, name, *rest: Trial(name, 10.0, 5.0, 1.0))


def problems(**changes):
    report, *_ = check(models.unicycle(**changes), Series(20), 50, 0, True, QUICK)
    return " | ".join(report.problems)


@pytest.mark.slow
def test_angles_that_are_not_declared_are_found(no_trials):
    assert problems() == ""
    assert 'state_angles=("heading",)' in problems(state_angles=())
    assert "observation_angles=(1,)" in problems(
        observation_angles=(),
        observation=lambda x, step: (
            models.unicycle_observation(x, step)
            .at[1]
            .set(jnp.arctan2(jnp.sin(x[2]), jnp.cos(x[2])))
        ),
    )
    winding = problems(
        transition=lambda x, step: models.unicycle_transition(x, step).at[0].add(0.1 * x[2])
    )
    assert "heading is declared an angle, but the model changes" in winding


def test_gradients_that_are_not_finite_are_found(no_trials):
    def observation(x, step):
        return jnp.stack([jnp.sqrt(jnp.maximum(x[0], 0)), x[1]])

    assert "the gradient of the log-likelihood is not finite" in problems(
        observation=observation, observation_angles=()
    )


@pytest.mark.parametrize(
    ("tried", "words"),
    [
        ([("kf", None, 1), ("bpf", 500, 1), ("lpf", 800, 1)], "Use the Kalman filter"),
        ([("bpf", 600, 1), ("lpf", 880, 1), ("nopf", 880, 1.1)], "Use the bootstrap filter"),
        ([("bpf", 100, 1), ("lpf", 300, 3), ("nopf", 200, 2)], "Use the bootstrap filter"),
        ([("bpf", 1, 1), ("lpf", 700, 4), ("nopf", 700, 5)], "Use the linearised proposal"),
        ([("bpf", 1, 1), ("lpf", 700, 4), ("nopf", 720, 4)], "Use the linearised proposal"),
        ([("bpf", 1, 1), ("lpf", 700, 4), ("nopf", 700, 2)], "Use the learned proposal"),
        ([("bpf", 30, 1), ("nopf", 300, 3)], "Use the learned proposal"),
        ([("bpf", 30, 1)], "Use the bootstrap filter"),
        ([("lpf", 30, 1), ("mlpf", 40, 1)], "Use the linearised proposal (--filter lpf"),
        (
            [("bpf", 1, 1), ("lpf", 7, 1), ("mlpf", 300, 2), ("nopf", 9, 1)],
            "Use the linearised proposal, with linear states solved exactly (--filter mlpf)",
        ),
        (
            [("bpf", 1, 1), ("lpf", 7, 1), ("alpf", 15, 1), ("mlpf", 9, 1)],
            "Use the linearised proposal with look-ahead (--filter alpf)",
        ),
        ([("bpf", 1, 1), ("lpf", 7, 1), ("mlpf", 9, 1)], "Use the linearised proposal (--filter l"),
    ],
)
def test_advice(tried, words):
    """By draws for the time."""
    made = [Trial(name, draws, draws, ms) for name, draws, ms in tried]
    assert advise(made).startswith(words)


def test_check_prints_what_it_found(no_trials, tmp_path, monkeypatch):
    monkeypatch.setenv("NOPF_CACHE", "off")
    plot = tmp_path / "paths.svg"
    arguments = ["check", "sensor-bias", "--horizon", "10", "--plot", str(plot)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "nothing wrong found" in done.stdout
    assert "Use the Kalman filter" in done.stdout
    assert plot.stat().st_size > 1000
    done = CliRunner().invoke(app, [*arguments, "--json"])
    assert json.loads(done.stdout)["advice"].startswith("Use the Kalman filter")


def test_check_says_whether_a_filter_is_calibrated(tmp_path):
    """One that is exact, and one with ten particles, which is too certain."""
    plot = tmp_path / "ranks.svg"
    few = ["check", "sensor-bias", "--calibration", "--horizon", "5", "--series", "100"]
    done = CliRunner().invoke(app, [*few, "--filter", "kf", "--plot", str(plot)])
    assert done.exit_code == 0, done.output
    assert done.stdout.count(" calibrated\n") == 3
    assert "The test with 100 series found nothing wrong." in done.stdout
    assert "<svg" in plot.read_text()
    few += ["--filter", "bpf", "--particles", "10"]
    done = CliRunner().invoke(app, few)
    assert done.exit_code == 0, done.output
    assert "NOT CALIBRATED in position, velocity, bias: " in done.stdout
    done = CliRunner().invoke(app, [*few, "--json"])
    found = json.loads(done.stdout)["calibration"]
    assert (found["filter"], found["particles"], found["series"]) == ("bpf", 10, 100)
    assert list(found["states"]) == ["position", "velocity", "bias"]
    for state in found["states"].values():
        assert state["verdict"].startswith("too certain")
        assert sum(state["histogram"]) == 100
        assert state["p_value"] < 1e-3
        assert state["coverage"] < 0.8
        assert not state["is_calibrated"]


def test_check_calibrates_the_filter_that_it_advises(monkeypatch):
    monkeypatch.setattr(advice, "UNTRAINED", ("kf",))
    monkeypatch.setenv("NOPF_CACHE", "off")
    arguments = ["check", "sensor-bias", "--calibration", "--horizon", "5", "--series", "100"]
    done = CliRunner().invoke(app, [*arguments, "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["advised"] == found["calibration"]["filter"] == "kf"


def test_check_has_a_filter_for_its_calibration_only():
    done = CliRunner().invoke(app, ["check", "sensor-bias", "--filter", "bpf"])
    assert done.exit_code == 2
    assert "needs --calibration" in done.output


def test_the_look_ahead_of_the_best_is_tried_and_nothing_beside_an_exact_filter(monkeypatch):
    draws = {"bpf": 10, "lpf": 50, "alpf": 80, "mlpf": 500, "malpf": 900, "nopf": 60}

    def tried(**own):
        names = []

        def attempt(flt, name, *rest):
            names.append(name)
            return Trial(name, None if name == "kf" else 1.0, (draws | own)[name], 1.0)

        def make(name):
            if name == "kf" and "kf" not in own:
                raise ValueError("model: is not linear")

        monkeypatch.setattr(trials, "_try", attempt)
        found = trials.try_all([*trials.UNTRAINED, "nopf"], make, None, None)
        return names, trials.best_of(found.trials).name, found.refused

    every = ["bpf", "lpf", "mlpf", "malpf", "nopf"]
    assert tried() == (every, "malpf", {"kf": "is not linear"})
    names, best, _ = tried(mlpf=51)
    assert (names[3], best) == ("alpf", "alpf")
    assert tried(kf=None) == (["kf"], "kf", {})


def test_filters_are_tried_on_a_series_like_the_recording(monkeypatch):
    seen = []

    def tried(names, make, series, key):
        seen.append(series)
        return trials.Tried([Trial("bpf", 1.0, 1.0, 1.0)], {}, {}, [])

    monkeypatch.setattr(advice, "try_all", tried)
    monkeypatch.setenv("NOPF_CACHE", "off")
    model = recordings.model()
    times, speed = 9 + np.cumsum(np.full(150, 0.3)), np.linspace(0, 1, 150)[:, None]
    ys = np.where(np.arange(300).reshape(150, 2) % 7 == 0, np.nan, 1.0)
    recording = Recording(ys, times, speed, 8.5)
    said = []
    assert advice.pick(model, recording, 50, 0, said.append) == "bpf"
    (series,) = seen
    np.testing.assert_array_equal(np.isnan(series.ys), np.isnan(ys[:100]))
    np.testing.assert_array_equal(series.times, times[:100])
    np.testing.assert_array_equal(series.controls, speed[:100])
    assert series.start == 8.5
    advice.pick(model, None, 50, 0, said.append)
    assert seen[1].ys.shape == (100, 2)
    assert not np.isnan(seen[1].ys).any()
    assert any("--filter nopf trains one" in line for line in said)


def test_a_filter_that_jax_cannot_differentiate_for_is_left_out():
    @jax.custom_vjp
    def sensor(x):
        return x

    sensor.defvjp(lambda x: (x, None), lambda _, g: (g,))
    model = models.linear(observation=lambda x, step: sensor(models.linear_observation(x, step)))
    path = nopf.simulate(model, 6, jax.random.key(0))
    series = trials.Tryout(path.observations, None, None, None)

    def make(name):
        return make_filter(name, model, 20)

    found = trials.try_all(["bpf", "lpf"], make, series, jax.random.key(1))
    assert list(found.filters) == ["bpf"]
    assert "\n" not in found.refused["lpf"]


@pytest.fixture
def robot(tmp_path, monkeypatch):
    """A linear model and a recording; filters are tried with few particles, as many as fit."""
    monkeypatch.setenv("NOPF_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "robot.py").write_text(recordings.MODEL)
    rows = [f"{10 + 0.5 * t},1,{0.5 * t},{0.5 * t if t % 3 else ''}" for t in range(6)]
    (tmp_path / "run.csv").write_text("\n".join(["time,speed,gps,odometer", *rows, ""]))
    return tmp_path


def test_check_and_filter_name_the_same_filter(robot, monkeypatch):
    """On the same series, whoever tries first; and what check says last counts."""
    best, seen = "lpf", []

    def tried(flt, name, series, key, training):
        seen.append(np.asarray(series.ys))
        return Trial(name, 10.0, 100.0 if name == best else 1.0, 1.0)

    monkeypatch.setattr(trials, "_try", tried)
    for module in (advice, request):
        monkeypatch.setattr(module, "UNTRAINED", ("bpf", "lpf"))
    filtered = ["filter", "robot.py:model", "--data", "run.csv", "--particles", 50]
    checked = ["check", "robot.py:model", "--data", "run.csv", "--particles", 50]
    first = invoke(*filtered)
    assert "(--filter lpf)" in first.stderr, first.output
    own = len(seen)
    done = invoke(*checked)
    assert done.exit_code == 0, done.output
    assert "(--filter lpf)" in done.stdout
    np.testing.assert_array_equal(seen[0], seen[own])
    np.testing.assert_array_equal(np.isnan(seen[0][:, 1]), [True, False, False] * 2)
    best = "bpf"
    assert "(--filter bpf)" in invoke(*checked).stdout
    assert (
        "--filter bpf, which was chosen for this model and data before" in invoke(*filtered).stderr
    )


def test_check_trains_only_when_asked(robot, monkeypatch):
    made = []
    monkeypatch.setattr(trials, "_try", lambda flt, name, *_: Trial(name, 1.0, 1.0, 1.0))

    def make(model, name, *_):
        made.append(name)
        if name == "kf":
            raise ValueError("not for this test")

    monkeypatch.setattr(advice, "set_up", make)
    done = invoke("check", "robot.py:model", "--horizon", 5)
    assert "A learned proposal may be better: --train tries one." in " ".join(done.stdout.split())
    assert "nopf" not in made
    invoke("check", "robot.py:model", "--horizon", 5, "--train")
    assert made[-1] == "nopf"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--data", "run.csv", "--horizon", "9"], "the recording gives the number of steps"),
        (["--time", "when"], "options that name columns are for a recording"),
        (["--data", "run.csv", "--time", "tim"], "no column 'tim' (did you mean time?)"),
        (["--data", "run.csv", "--observations", "gps"], "has 2 numbers, but 1 columns"),
    ],
)
def test_check_looks_at_the_columns_first(robot, arguments, words):
    done = invoke("check", "robot.py:model", *arguments)
    assert done.exit_code == 2
    assert words in " ".join(done.output.split())


def test_check_says_where_recording_and_model_differ(robot, no_trials):
    text = (robot / "run.csv").read_text().splitlines()
    milliseconds = [",".join([str(500 * t), *row.split(",")[1:]]) for t, row in enumerate(text[1:])]
    (robot / "run.csv").write_text("\n".join([text[0], *milliseconds, ""]))
    done = invoke("check", "robot.py:model", "--data", "run.csv")
    assert done.exit_code == 1
    assert "PROBLEM: run.csv: rows are about 500 apart" in " ".join(done.stdout.split())
    assert max(map(len, done.stdout.splitlines())) <= 300


def test_many_columns_are_said_in_groups(no_trials, monkeypatch):
    """Thirty sensors take a line, and no list of them; all fits 80 columns."""
    monkeypatch.setenv("NOPF_CACHE", "off")
    model = nopf.StateSpaceModel(
        prior=nopf.Gaussian([0.0], [1.0]),
        transition=lambda x, step: x,
        process_noise=[0.1],
        observation=lambda x, step: jnp.arange(30.0) + x[0],
        observation_noise=[0.1] * 30,
        observation_names=[f"range_{k + 1}" for k in range(30)],
    )
    report, *_ = check(model, Series(8), 20, 0)
    (line,) = [text for text in report.findings if "range_" in text and "simulated" in text]
    low, high = (float(word) for word in line.split("range_30 ")[1].split(" to "))
    assert low < 0 < 29 < high + 1
    assert line.count("range_") == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("sensor-bias", ["kf"]),
        ("range-bearing", ["mlpf", "malpf"]),
        ("range-only", ["mlpf", "malpf"]),
        ("unordered-range", ["mlpf", "malpf"]),
    ],
)
def test_advice_is_right_on_the_benchmarks(name, right):
    done = CliRunner().invoke(app, ["check", name, "--json"])
    assert done.exit_code == 0, done.output
    advice = json.loads(done.stdout)["advice"]
    assert any(f"--filter {short})" in advice for short in right), advice
