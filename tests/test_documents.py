"""What the project promises in writing: the README's code, the demonstration, the pins."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def run(*command, cwd=ROOT, **environment):
    return subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "document",
    [
        "README.md",
        pytest.param("docs/training.md", marks=pytest.mark.slow),
        pytest.param("docs/data.md", marks=pytest.mark.slow),
    ],
)
def test_code_in_documents_runs(document, tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        done = run("-W", "error", "-c", block, cwd=tmp_path)
        assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_demonstration(tmp_path):
    picture = tmp_path / "new" / "picture.png"
    pytest.importorskip("matplotlib", reason="matplotlib is in the plots extra")
    done = run("examples/sensor_bias.py", "--json", "--particles", "1000", "--out", str(picture))
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    kalman, bootstrap = result["filters"]["Kalman (exact)"], result["filters"]["Bootstrap"]
    assert kalman["ess"] is None
    assert 100 < bootstrap["ess"] < 1000
    assert abs(kalman["log_evidence"] - bootstrap["log_evidence"]) < 10
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert [p.name for p in picture.parent.iterdir()] == ["picture.png"]


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--particles", "0"], ["--out", "README.md/x.png"]])
def test_demonstration_refuses_in_one_message(arguments):
    done = run("examples/sensor_bias.py", *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("sensor_bias: ")
    assert "Traceback" not in done.stderr


def test_pins_are_plain():
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert len(pins) > 20
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9][A-Za-z0-9.]*", pin) for pin in pins)


@pytest.mark.slow
def test_a_million_particles_fit_in_memory():
    """Below 1.5 GB with the history off, on the sensor-bias benchmark."""
    done = run("benchmarks/scaling.py", "--particles", "1000000", "--horizon", "6", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[0]["peak_memory_mb"] < 1500


WRONG_TYPES = """
import jax, nopf
from nopf.benchmarks.sensor_bias import model
for make in [
    lambda: nopf.StateSpaceModel(3, None, 1.0),
    lambda: nopf.StateSpaceModel(nopf.Gaussian([0.0], [1.0]), "f", 1.0),
    lambda: nopf.Gaussian([0.0, 0.0], 1.0).log_prob(jax.numpy.zeros((5, 2))),
    lambda: nopf.ParticleFilter(42),
    lambda: nopf.ParticleFilter(model).init(1),
    lambda: nopf.ParticleFilter(model, particles=1.5),
    lambda: nopf.ParticleFilter(model, "bootstrap"),
    lambda: nopf.ParticleFilter(model, resampling="systematic"),
    lambda: nopf.simulate(model, 2.5, jax.random.key(0)),
    lambda: nopf.ParticleFilter(model).run([[0.0, 0.0]], key=jax.random.key(0), keep="all"),
]:
    try:
        make()
    except (TypeError, ValueError) as error:
        print(error)
"""


def test_wrong_types_are_named_without_the_type_checker_of_the_tests():
    lines = run("-c", WRONG_TYPES).stdout.splitlines()
    names = [
        "prior",
        "transition",
        "x",
        "model",
        "key",
        "particles",
        "proposal",
        "resampling",
        "horizon",
        "keep",
    ]
    assert [line.split(":")[0] for line in lines] == names
    assert all("expected" in line and "got" in line for line in lines)
