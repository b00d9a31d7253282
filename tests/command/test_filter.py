"""`nopf filter` as a user calls it."""

import json
import subprocess
import sys

import jax
import numpy as np
import pytest

import nopf
from nopf.files import read_arrays, write_arrays
from nopf.recording import read_recording
from tests import geo, recordings
from tests.command.calling import invoke
from tests.command.calling import nopf as nopf_process
from tests.recordings import GOOD, MODEL
from tests.report.pages import unpacked


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("NOPF_CACHE", str(tmp_path / "cache"))
    (tmp_path / "robot.py").write_text(MODEL)
    (tmp_path / "run.csv").write_text(GOOD)
    return tmp_path


def test_estimates_are_the_filters(folder):
    model = recordings.model()
    done = invoke(
        *("filter", f"{folder}/robot.py:model", "--data", folder / "run.csv", "--filter", "bpf"),
        *("--particles", 200, "--out", folder / "out.csv", "--json", "--plot", folder / "p.html"),
    )
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["steps"] == 3
    lines = (folder / "out.csv").read_text().splitlines()
    names = lines[0].split(",")
    assert names[:6] == ["time", "place_mean", "place_std", "place_q05", "place_q50", "place_q95"]
    assert names[-5:] == ["nominal_p_value", "ess", "log_evidence", "p_value", "drift"]
    assert names.index("place_error") == 11
    table = np.array([[float(cell) for cell in line.split(",")] for line in lines[1:]])
    recording = read_recording(folder / "run.csv", model)
    posterior = nopf.ParticleFilter(model, None, 200).run(
        recording.observations,
        key=jax.random.key(0),
        times=recording.times,
        controls=recording.controls,
        start=9.5,
    )
    np.testing.assert_allclose(table[:, 0], recording.times)
    np.testing.assert_allclose(table[:, 1], posterior.mean[:, 0], rtol=1e-5)
    np.testing.assert_allclose(table[:, 10], posterior.quantiles[:, 2, 1], rtol=1e-5)
    np.testing.assert_allclose(table[:, 11], posterior.error[:, 0], rtol=1e-4)
    np.testing.assert_allclose(table[:, -4], posterior.ess, rtol=1e-5)
    np.testing.assert_allclose(table[:, -3], posterior.log_evidence_increments, rtol=1e-4)
    page = (folder / "p.html").read_text()
    assert "<h1>run.csv, filtered with " in page
    assert "src=" not in page.split("<script")[0]


def test_truth_says_how_near_and_the_page_has_a_verdict(folder):
    """Of what `nopf new` makes: a model with landmarks, and a drive whose truth is known."""
    done = invoke("new", folder / "own.py")
    assert done.exit_code == 0, done.output
    subprocess.run([sys.executable, "own.py"], cwd=folder, check=True, capture_output=True)
    given = [
        *("filter", f"{folder}/own.py:model", "--data", folder / "run.csv", "--filter", "bpf"),
        *("--truth", "true_x,true_y,heading=true_heading", "--out", folder / "out.csv"),
    ]
    done = invoke(*given, "--particles", 300, "--json", "--plot", folder / "p.html")
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert set(said["truth"]) == {"x", "y", "heading"}
    assert 0 < said["truth"]["x"]["rmse"] < 0.5
    assert said["truth"]["x"]["rows"] == 200
    assert said["verdict"] in ("trust it", "look here", "do not trust it")
    page = (folder / "p.html").read_text()
    assert f">{said['verdict'].capitalize()}.</p>" in page
    (drawn,) = [plot for plot in unpacked(page, "plots")["plots"] if plot["kind"] == "map"]
    assert {"landmarks", "truth", "90 % ellipses"} <= {line["name"] for line in drawn["data"]}
    done = invoke(*given, "--particles", 300)
    assert "x: RMSE " in done.output
    assert f": {said['verdict']}" in done.output


def test_without_a_filter_one_is_chosen_said_and_kept(folder, monkeypatch):
    """The model is linear, so that the exact filter is right, and nothing else is tried."""
    command = [
        *("filter", f"{folder}/robot.py:model", "--data", folder / "run.csv"),
        *("--out", folder / "out.csv"),
    ]
    done = invoke(*command, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["filter"] == "kf"
    assert "Use the Kalman filter (--filter kf)" in done.stderr
    named = folder / "named.csv"
    assert invoke(*command[:-1], named, "--filter", "kf").exit_code == 0
    assert named.read_bytes() == (folder / "out.csv").read_bytes()
    again = invoke(*command)
    assert "--filter kf, which was chosen for this model and data before" in again.stderr
    (kept,) = (folder / "cache" / "choices").iterdir()
    kept.write_text('{"filter": "rm"}')  # as good as none
    assert "Use the Kalman filter" in invoke(*command).stderr
    monkeypatch.setenv("NOPF_CACHE", "off")
    assert "Use the Kalman filter" in invoke(*command).stderr


def test_start_is_the_time_of_the_prior(folder):
    model = recordings.model()
    command = (
        "filter",
        f"{folder}/robot.py:model",
        "--data",
        folder / "run.csv",
        "--filter",
        "bpf",
    )
    done = invoke(*command, "--particles", 200, "--start", 8.0, "--list-warnings")
    assert done.exit_code == 0, done.output
    recording = read_recording(folder / "run.csv", model)
    posterior = nopf.ParticleFilter(model, None, 200).run(
        recording.observations,
        key=jax.random.key(0),
        times=recording.times,
        controls=recording.controls,
        start=8.0,
    )
    cells = [line.split(",") for line in done.stdout.splitlines()]
    found = [float(row[cells[0].index("place_mean")]) for row in cells[1:]]
    np.testing.assert_allclose(found, posterior.mean[:, 0], rtol=1e-5)
    live = stream(folder, GOOD, "-", "--filter", "bpf", "--start", 8.0)
    assert live.stdout == done.stdout
    late = invoke(*command, "--start", 11)
    assert late.exit_code == 2
    assert "expected a time no later than the first row's (10)" in " ".join(late.output.split())
    (folder / "bare.csv").write_text("gps,speed\n1.0,0.5\n")
    bare = invoke(*command[:3], folder / "bare.csv", *command[4:], "--start", 1)
    assert bare.exit_code == 2


def test_recover_is_for_particles(folder, monkeypatch):
    command = ("filter", f"{folder}/robot.py:model", "--data", folder / "run.csv")
    done = invoke(*command, "--filter", "enkf", "--recover", 0.1)
    assert done.exit_code == 2
    assert "no weighted particles" in " ".join(done.output.split())
    assert invoke(*command, "--filter", "bpf", "--recover", 0.1).exit_code == 0
    tried = []
    monkeypatch.setattr(
        "nopf.command.request.pick", lambda *given: tried.extend(given[-1]) or "bpf"
    )
    assert invoke(*command, "--recover", 0.1).exit_code == 0
    assert "bpf" in tried
    assert "kf" not in tried  # it has no particles


def stream(folder, text, *more):
    arguments = ["filter", f"{folder}/robot.py:model", *more, "--particles", 200]
    return nopf_process(*arguments, input=text)


def test_a_live_stream_gives_the_same_as_a_recording(folder):
    whole = invoke(
        *("filter", f"{folder}/robot.py:model", "--data", folder / "run.csv"),
        *("--filter", "lpf", "--particles", 200),
    )
    live = stream(folder, GOOD, "-", "--filter", "lpf")
    assert live.returncode == 0, live.stderr
    assert live.stdout == whole.stdout
    rows = [line.split(",") for line in GOOD.splitlines()]
    objects = [
        json.dumps({n: float(c) for n, c in zip(rows[0], row, strict=True) if c and n != "note"})
        for row in rows[1:]
    ]
    as_json = stream(folder, "\n".join(objects) + "\n", "--data", "-", "--filter", "lpf")
    assert as_json.returncode == 0, as_json.stderr
    numbers = [list(json.loads(line).values()) for line in as_json.stdout.splitlines()]
    expected = [[float(cell) for cell in line.split(",")] for line in live.stdout.splitlines()[1:]]
    np.testing.assert_allclose(numbers, expected)
    bad = stream(folder, GOOD.replace("1.4", "far"), "-", "--filter", "lpf")
    assert bad.returncode == 2
    assert "standard input, row 4, column gps: expected a number" in bad.stderr
    assert len(bad.stdout.splitlines()) == 3  # what was right before is out


def test_what_is_read_is_not_written_over(folder):
    arguments = ("--filter", "bpf", "--data", folder / "run.csv")
    model = f"{folder}/robot.py:model"
    for command in (
        ("filter", model, *arguments, "--out", folder / "run.csv"),
        ("train", model, "--data", folder / "run.csv", "--out", folder / "run.csv"),
        ("train", model, "--data", folder / "run.csv", "--out", folder / "robot.py"),
    ):
        done = invoke(*command)
        assert done.exit_code == 2
        assert "is read here; name another file" in done.output
    for plot in (folder, folder / "no" / "x.svg"):
        done = invoke("filter", model, *arguments, "--plot", plot)
        assert done.exit_code == 2
    assert (folder / "run.csv").read_text() == GOOD
    assert (folder / "robot.py").read_text() == MODEL


def test_model_files_that_end_or_fail(tmp_path, monkeypatch):
    for text, words in [
        ("import sys\nsys.exit(0)", "line 2: SystemExit: 0"),
        ("import helper", "helper.py, line 3"),
    ]:
        (tmp_path / "helper.py").write_text("\n\ndef (")
        (tmp_path / "robot.py").write_text(text)
        done = invoke("filter", f"{tmp_path}/robot.py:model", "--data", "x.csv")
        assert done.exit_code == 2
        assert words in done.output
        monkeypatch.chdir(tmp_path)
        assert words in invoke("filter", "robot.py:model", "--data", "x.csv").output


@pytest.mark.slow
def test_without_a_proposal_one_is_trained_like_the_recording_and_kept(folder, monkeypatch):
    seen = []

    def quick(model, horizon, key, *, recipe, checkpoint, **data):
        seen.append({"horizon": horizon, **data})
        small = nopf.Recipe.fast(
            base="skeleton", width=4, steps=0, missing_rate=recipe.missing_rate
        )
        return nopf.train(model, horizon, key, recipe=small, **data)

    monkeypatch.setattr("nopf.training.to_file.train", quick)
    command = ["filter", f"{folder}/robot.py:model", "--data", folder / "run.csv"]
    command += ["--filter", "nopf"]
    first, second = (invoke(*command, "--particles", 50) for _ in range(2))
    assert first.exit_code == 0, first.output
    assert "training a proposal on 3 simulated steps" in first.stderr
    assert "trained for this model and data before" in second.stderr
    assert first.stdout == second.stdout
    (data,) = seen
    np.testing.assert_array_equal(data["times"], [10.0, 10.5, 11.2])
    np.testing.assert_array_equal(data["missing"], [[0, 0], [1, 0], [0, 1]])
    np.testing.assert_array_equal(data["controls"], [[1], [1], [0.5]])
    assert data["start"] == 9.5
    (kept,) = (folder / "cache" / "proposals").glob("*.nopf")
    header, arrays = read_arrays(kept, "nopf proposal")
    write_arrays(kept, "nopf proposal", header | {"horizon": 10**12}, arrays)
    third = invoke(*command, "--particles", 50)
    assert "that was kept cannot be used" in third.stderr
    assert "horizon: expected" in third.stderr
    assert third.stdout == first.stdout
    monkeypatch.setenv("NOPF_CACHE", "off")
    fourth = invoke(*command, "--particles", 50)
    assert "not kept, since NOPF_CACHE is off" in fourth.stderr
    assert fourth.stdout == first.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "a recording, or - for a live stream"),
        (["--data", "none.csv"], "cannot be read"),
        (["--data", "run.csv", "--filter", "bfp"], "did you mean bpf?"),
        (["--data", "run.csv", "--filter", "kf", "--proposal", "x.nopf"], "kf uses none"),
        (["--data", "run.csv", "--proposal", "run.csv"], "damaged or of another kind"),
        (["--data", "run.csv", "--observations", "gps"], "the model's observation has 2 numbers"),
        (["--data", "run.csv", "--plot", "x.gif"], "expected a name that ends in"),
        (["--data", "run.csv", "--json"], "standard output has the estimates; name a file"),
        (["--data", "-", "--out", "x.csv"], "--out is for recordings"),
        (["-", "--workers", "2", "--list-warnings"], "--list-warnings, --workers are for record"),
        (["-", "--smooth", "--forecast", "3"], "--smooth, --forecast are for recordings"),
        (["--data", "run.csv", "--smooth", "0"], "expected a number of rows, at least 1"),
        (["--data", "run.csv", "--time", "tiem"], "(did you mean time?)"),
        (["--data", "run.csv", "--truth", "plase=gps"], "(did you mean place?)"),
        (["--data", "text.parquet"], "not Parquet, although it is called so"),
        (["--data", "-", "--filter", "nopf"], "train on a recording first"),
    ],
)
def test_filter_mistakes_are_named(folder, monkeypatch, arguments, words):
    monkeypatch.chdir(folder)
    (folder / "text.parquet").write_text(GOOD)
    before = sorted(folder.iterdir())
    done = invoke("filter", "robot.py:model", *arguments)
    assert done.exit_code in (1, 2)
    assert words in done.output or words in str(done.exception)
    assert sorted(folder.iterdir()) == before


@pytest.fixture
def survey(tmp_path, monkeypatch):
    """A recording far from zero, its model and the exact answer."""
    monkeypatch.setenv("NOPF_CACHE", str(tmp_path / "cache"))
    ys = geo.recording(12)
    (tmp_path / "gps.py").write_text(geo.MODEL)
    rows = [",".join("" if np.isnan(y) else repr(float(y)) for y in row) for row in ys]
    (tmp_path / "gps.csv").write_text("\n".join(["gps_east,gps_north", *rows, ""]))
    return tmp_path, geo.kalman(ys)


def estimates(text):
    table = np.genfromtxt(text.splitlines(), delimiter=",", names=True)
    names = ("east", "north", "v_east", "v_north")
    mean, std = (
        np.stack([table[f"{n}_{part}"] for n in names], axis=1) for part in ("mean", "std")
    )
    return mean, std, table["log_evidence"].sum()


@pytest.mark.parametrize(
    ("name", "options", "live"),
    [
        ("far", ["--double"], False),
        ("far", ["--double"], True),
        ("near", [], False),
        ("near", [], True),
    ],
)
def test_far_from_zero_estimates_are_kalmans(survey, name, options, live):
    folder, (mean, std, evidence) = survey
    source = ["-"] if live else ["--data", folder / "gps.csv"]
    rows = (folder / "gps.csv").read_text() if live else None
    call = ("filter", f"{folder}/gps.py:{name}", *source, "--filter", "kf", *options)
    done = invoke(*call, input=rows)
    assert done.exit_code == 0, done.output
    assert "resolved" not in done.stderr
    found = estimates(done.stdout)
    atol = 1e-9 if options else 1e-5
    np.testing.assert_allclose(found[0], mean, rtol=0, atol=100 * atol if options else 2 * atol)
    np.testing.assert_allclose(found[1], std, rtol=1e-5)
    np.testing.assert_allclose(found[2], evidence, rtol=1e-5)
    assert not jax.config.jax_enable_x64


def test_noise_that_is_lost_far_from_zero_is_said_in_a_line(survey):
    folder, _ = survey
    done = invoke(
        *("filter", f"{folder}/gps.py:far", "--data", folder / "gps.csv"), "--filter", "kf"
    )
    (line,) = [line for line in done.stderr.splitlines() if "hardly resolved" in line]
    assert line.startswith("nopf: process_noise: the standard deviation 0.1 of north")


def test_a_proposal_of_single_precision_works_in_double(survey):
    """Of one run of 2000 particles: means within 0.3 of a standard deviation, six standard errors
    of one that is worth 400 draws."""
    folder, (mean, std, _) = survey
    model = geo.models()["near"]
    recipe = nopf.Recipe.fast(steps=20)
    nopf.train(model, 12, jax.random.key(0), recipe=recipe).save(folder / "gps.nopf")
    for name in ("far", "near"):
        done = invoke(
            *("filter", f"{folder}/gps.py:{name}", "--data", folder / "gps.csv", "--double"),
            *("--proposal", folder / "gps.nopf", "--particles", 2000),
        )
        if name == "far":
            assert done.exit_code == 2
            assert "prior gives other numbers" in done.stderr.replace("\n", " ")
    assert done.exit_code == 0, done.output
    found = estimates(done.stdout)
    assert np.all(np.abs(found[0] - mean) < 0.3 * std)
    np.testing.assert_allclose(found[1], std, rtol=0.2)


@pytest.fixture(scope="module")
def exact():
    """The recording of these tests, its exact posterior, smoothed, and two steps ahead."""
    model = recordings.model()
    flt = nopf.KalmanFilter(model)
    speed, times = np.array([[1.0], [1.0], [0.5]]), np.array([10.0, 10.5, 11.2])
    ys = np.array([[0.5, 0.6], [np.nan, 1.1], [1.4, np.nan]])
    posterior = flt.run(ys, times=times, controls=speed, start=9.5)
    ahead = flt.forecast(posterior, 2, times=[11.8, 12.4], controls=[[0.5], [0.5]])
    return posterior, flt.smooth(posterior), ahead


def columns(text):
    lines = [line.split(",") for line in text.splitlines()]
    return {name: [line[k] for line in lines[1:]] for k, name in enumerate(lines[0])}


def numbers(cells):
    return np.array([float(cell) for cell in cells])


def test_smoothed_and_forecast_are_kalmans(folder, exact):
    """In the file, in JSON, and beside the truth, which counts no forecast. Rows are 0.6 apart in
    the median, and the last control is held."""
    posterior, smoothed, ahead = exact
    command = ["filter", f"{folder}/robot.py:model", "--data", folder / "run.csv", "--filter", "kf"]
    command += ["--smooth", "--forecast", 2, "--truth", "place=gps", "--out", folder / "out.csv"]
    done = invoke(*command, "--json")
    assert done.exit_code == 0, done.output
    table = columns((folder / "out.csv").read_text())
    assert table["kind"] == ["estimate"] * 3 + ["forecast"] * 2
    np.testing.assert_allclose(numbers(table["time"]), [10, 10.5, 11.2, 11.8, 12.4])
    said = json.loads(done.stdout)
    for i, name in enumerate(("place", "bias")):
        for part in ("mean", "std"):
            column = numbers(table[f"{name}_{part}"])
            np.testing.assert_allclose(column[:3], getattr(posterior, part)[:, i], rtol=1e-5)
            np.testing.assert_allclose(column[3:], getattr(ahead, part)[:, i], rtol=1e-5)
            assert said["forecast"][f"{name}_{part}"] == list(column[3:])
            cells = table[f"{name}_smoothed_{part}"]
            np.testing.assert_allclose(numbers(cells[:3]), getattr(smoothed, part)[:, i], rtol=1e-5)
            assert cells[3:] == ["", ""]
            assert said["smoothed"]["states"][name][part] == list(numbers(cells[:3]))
    assert said["steps"] == 3
    error = np.array([0.5, 1.4]) - np.asarray(smoothed.mean)[[0, 2], 0]
    assert said["smoothed"]["truth"]["place"]["rmse"] == pytest.approx(np.sqrt(np.mean(error**2)))
    assert "the forecast uses the controls of the last row" in done.stderr
    words = invoke(*command, "--start", 8.0)
    assert "place, smoothed: RMSE " in words.stdout
    assert columns((folder / "out.csv").read_text())["place_mean"] != table["place_mean"]


def test_smoothing_by_particles_is_near_kalmans(folder, exact):
    """Of 400 particles and 500 trajectories: a mean within 0.4 of a standard deviation, more than
    five standard errors of one that is worth 200 draws. With a lag of two rows all count here."""
    _, smoothed, _ = exact
    command = ["filter", f"{folder}/robot.py:model", "--data", folder / "run.csv"]
    command += ["--filter", "bpf", "--particles", 400]
    whole, lagged, plain = (invoke(*command, *more) for more in (["--smooth"], ["--smooth", 2], []))
    for done in (whole, lagged):
        assert done.exit_code == 0, done.output
        table = columns(done.stdout)
        found = np.stack([numbers(table[f"{n}_smoothed_mean"]) for n in ("place", "bias")], axis=1)
        assert np.all(np.abs(found - smoothed.mean) < 0.4 * smoothed.std)
    assert "kind" not in table
    filtered = columns(plain.stdout)
    assert {name: table[name] for name in filtered} == filtered  # the same, with more beside it


def test_what_cannot_be_smoothed_says_so(folder):
    command = ["filter", f"{folder}/robot.py:model", "--data", folder / "run.csv"]
    done = invoke(*command, "--filter", "kf", "--smooth", 1, "--out", folder / "out.csv")
    assert done.exit_code == 2
    assert "the exact smoother of kf uses all observations" in " ".join(done.output.split())
    silent = MODEL.replace("jnp.array([0.3, 0.3])", "jnp.array([0.3, 0.0])")
    (folder / "robot.py").write_text(silent)
    done = invoke(*command, "--filter", "bpf", "--smooth", "--out", folder / "out.csv")
    assert done.exit_code == 2
    assert "some states have no noise of their own" in " ".join(done.output.split())
    assert not (folder / "out.csv").exists()


def test_forecasts_are_marked_in_parquet_too(folder):
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is in the tables extra")
    command = ["filter", f"{folder}/robot.py:model", "--data", folder / "run.csv", "--filter", "kf"]
    assert invoke(*command, "--forecast", 1, "--out", folder / "out.parquet").exit_code == 0
    kinds = parquet.read_table(folder / "out.parquet").column("kind").to_pylist()
    assert kinds == ["estimate"] * 3 + ["forecast"]


def test_quiet_says_nothing_and_verbose_says_what_is_done(folder):
    """Before the command or after it; errors come in any case."""
    (folder / "bare.csv").write_text("gps,odometer,speed\n1,1,1\n1,2,1\n1,1,0\n")
    call = ("filter", f"{folder}/robot.py:model", "--data", folder / "bare.csv", "--filter", "kf")
    call += ("--out", folder / "out.csv")
    usual = invoke(*call)
    assert "no column of times" in usual.stderr
    for words in (("--quiet", *call), (*call, "--quiet")):
        done = invoke(*words)
        assert done.exit_code == 0
        assert done.stderr == ""
        assert done.stdout == usual.stdout
    done = invoke("--verbose", *call)
    assert done.stdout == usual.stdout
    for part in ("s: reading the model ", "s: compiling kf for 3 rows", "functions compiled in "):
        assert part in done.stderr
    assert usual.stderr.strip() in done.stderr
    assert "give only one of the two" in invoke("--quiet", *call, "--verbose").output
    lost = invoke(*call[:3], folder / "none.csv", "--quiet")
    assert "cannot be read" in lost.stderr
