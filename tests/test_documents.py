"""What the project promises in writing: the code of all documents, the pins."""

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import nopf

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


def blocks(document):
    """Language and text of each fenced block that is meant to be run."""
    text = (ROOT / document).read_text()
    return re.findall(r"^```(python|sh)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


CODE = {
    (str(path.relative_to(ROOT)), language)
    for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))
    for language, _ in blocks(path)
}
LONG = {("docs/training.md", "python"), ("docs/index.md", "sh")}  # both train proposals in full
# One process for the Python of a page: what is compiled for one block serves the next.
RUN_BLOCKS = """
import json, sys
for number, block in enumerate(json.load(sys.stdin), 1):
    exec(compile(block, f"Python block {number}", "exec"), {})
"""


@pytest.mark.parametrize(
    ("document", "language"),
    [pytest.param(*code, marks=pytest.mark.slow if code in LONG else ()) for code in sorted(CODE)],
)
def test_code_in_documents_runs(document, language, tmp_path):
    texts = [text for found, text in blocks(document) if found == language]
    commands, here = tmp_path / "bin", tmp_path / "here"
    commands.mkdir()
    here.mkdir()
    for name, how in {"python": "", "nopf": " -c 'from nopf.command import main; main()'"}.items():
        (commands / name).write_text(f'#!/bin/sh\nexec {sys.executable}{how} "$@"\n')
        (commands / name).chmod(0o755)
    environment = os.environ | {
        "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
        "NOPF_CACHE": str(tmp_path / "cache"),
    }
    command, given = ["bash", "-euo", "pipefail", "-c", "\n".join(texts)], ""
    if language == "python":
        command, given = [sys.executable, "-W", "error", "-c", RUN_BLOCKS], json.dumps(texts)
    done = subprocess.run(
        command,
        input=given,
        cwd=here,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_lines_of_the_package_run():
    """`help(nopf)` begins with the ten lines of the first page, which are run there."""
    code = [line for line in nopf.__doc__.splitlines() if line.startswith("    ") or not line]
    lines = textwrap.dedent("\n".join(code)).strip()
    (first,) = [text for language, text in blocks("docs/index.md") if language == "python"]
    assert lines == first.strip()
    assert len(lines.splitlines()) > 10


def test_several_sensors():
    """What the documentation says the example prints, up to rounding on another machine: by that a
    mean may just fall below the number of draws that are warned of."""
    done = run("examples/several_sensors.py")
    assert done.returncode == 0, done.stderr
    written = (ROOT / "docs/figures/several_sensors.txt").read_text().splitlines()
    printed = [line for line in done.stdout.splitlines() if "independent draws" not in line]
    assert printed[0] == written[0]
    assert len(printed) == len(written) == 5
    errors = []
    for line, expected in zip(printed[1:], written[1:], strict=True):
        assert line.split()[:-2] == expected.split()[:-2]
        errors.append(float(line.split()[-2]))
        assert abs(errors[-1] - float(expected.split()[-2])) < 0.05
    assert errors[0] == min(errors)


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
    lambda: nopf.ParticleFilter(model, ess_threshold=None),
    lambda: nopf.ParticleFilter(model, quantiles=None),
    lambda: nopf.StudentT("4"),
    lambda: nopf.Outliers(None, None),
    lambda: nopf.calibration(model, 5, jax.random.key(0)),
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
        "ess_threshold",
        "quantiles",
        "freedom",
        "rate",
        "flt",
    ]
    assert [line.split(":")[0] for line in lines] == names
    assert all("expected" in line and "got" in line for line in lines)
