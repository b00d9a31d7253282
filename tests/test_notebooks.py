"""The notebooks: as files they hold no outputs, and their cells run in order."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "notebooks"
QUICK = "robot_with_beacons"
NAMES = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
# Without Jupyter: a cell is a piece of Python. Warnings are errors; nothing is drawn on a screen.
RUN = """
import json, sys
import matplotlib
matplotlib.use("agg")
names = {"__name__": "__main__"}
for number, source in json.load(sys.stdin):
    exec(compile(source, f"cell {number}", "exec"), names)
"""


def cells(name):
    return json.loads((FOLDER / f"{name}.ipynb").read_text())["cells"]


def test_there_are_six():
    assert len(NAMES) == 6
    assert QUICK in NAMES


@pytest.mark.parametrize("name", NAMES)
def test_notebooks_are_kept_without_outputs(name):
    whole = json.loads((FOLDER / f"{name}.ipynb").read_text())
    assert (whole["nbformat"], whole["nbformat_minor"]) == (4, 5)
    assert whole["metadata"]["kernelspec"]["name"] == "python3"
    assert whole["cells"][0]["source"][0].startswith("# ")
    assert len({cell["id"] for cell in whole["cells"]}) == len(whole["cells"])
    for cell in whole["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == QUICK else pytest.mark.slow) for name in NAMES]
)
def test_notebooks_run(name):
    sources = [
        (number, "".join(cell["source"]))
        for number, cell in enumerate(cells(name), 1)
        if cell["cell_type"] == "code"
    ]
    assert len(sources) > 3
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", RUN],
        input=json.dumps(sources),
        cwd=FOLDER,
        env=os.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
