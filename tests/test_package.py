"""What is published: the source archive, the wheel that is built from it, what they say of nopf."""

import email
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

import nopf

ROOT = Path(__file__).parent.parent
BUILD = "from setuptools import build_meta; build_meta.build_sdist('dist')"
# As with a checkout that is not there: -S leaves out the environment's own nopf, and its libraries
# come after the wheel.
ALONE = """
import sys
installed, *libraries = sys.argv[1:]
sys.path = [installed, *sys.path[1:], *libraries]
import importlib.metadata

(command,) = importlib.metadata.distribution("nopf").entry_points
main = command.load()

def call(*arguments):
    sys.argv = [command.name, *arguments]
    try:
        main()
    except SystemExit as end:
        assert not end.code, end.code

call("--version")
call("new", "robot.py")
import jax, nopf
model = nopf.StateSpaceModel(nopf.Gaussian([0.0], [1.0]), lambda x, step: x, [0.1],
                             lambda x, step: x, [0.1])
truth = nopf.simulate(model, 5, jax.random.key(0))
posterior = nopf.ParticleFilter(model, particles=100).run(truth.observations, key=jax.random.key(1))
print(nopf.__file__, abs(posterior.mean - truth.states).max() < 0.5, sep="\\n")
"""


def run(*command, cwd=ROOT):
    return subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False
    )


def done(*command, cwd=ROOT):
    result = run(*command, cwd=cwd)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def pip(*arguments, python=sys.executable):
    return python, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments


@pytest.fixture(scope="module")
def files():
    """What belongs to the project, as git has it."""
    listed = run("git", "ls-files", "--cached", "--others", "--exclude-standard")
    if listed.returncode:
        pytest.skip("not in a checkout, so there is nothing to compare with")
    return {name for name in listed.stdout.splitlines() if (ROOT / name).is_file()}


@pytest.fixture(scope="module")
def archive(files, tmp_path_factory):
    """The source archive of a fresh clone, so that nothing of this folder gets in."""
    clone = tmp_path_factory.mktemp("clone")
    for name in files:
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, clone / name)
    done(sys.executable, "-c", BUILD, cwd=clone)
    (found,) = (clone / "dist").iterdir()
    return found


@pytest.fixture(scope="module")
def wheel(archive, tmp_path_factory):
    """The wheel that pip builds from the source archive alone."""
    folder = tmp_path_factory.mktemp("wheel")
    build = ("--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir", folder)
    done(*pip("wheel", *build, archive))
    (found,) = folder.iterdir()
    return found


@pytest.fixture(scope="module")
def metadata(wheel):
    with zipfile.ZipFile(wheel) as opened:
        (name,) = [name for name in opened.namelist() if name.endswith(".dist-info/METADATA")]
        return email.message_from_bytes(opened.read(name))


def test_the_source_archive_is_the_checkout(archive, files):
    with tarfile.open(archive) as opened:
        members = [member.name for member in opened.getmembers() if member.isfile()]
    held = {name.split("/", 1)[1] for name in members}
    made = {"PKG-INFO", "setup.cfg"} | {name for name in held if ".egg-info/" in name}
    assert held - made == files


def test_the_wheel_holds_the_package_and_nothing_else(wheel, files):
    with zipfile.ZipFile(wheel) as opened:
        held = {name for name in opened.namelist() if ".dist-info/" not in name}
    assert held == {name.removeprefix("src/") for name in files if name.startswith("src/")}
    assert "nopf/py.typed" in held


def test_the_wheel_works_without_the_checkout(wheel, tmp_path):
    installed, here = tmp_path / "installed", tmp_path / "here"
    here.mkdir()
    done(*pip("install", "--no-index", "--no-deps", "--target", installed, wheel))
    libraries = {sysconfig.get_paths()[kind] for kind in ("purelib", "platlib")}
    alone = (sys.executable, "-I", "-S", "-c", ALONE, installed, *sorted(libraries))
    lines = done(*alone, cwd=here).splitlines()
    assert lines[0] == f"nopf {nopf.__version__}"
    assert Path(lines[-2]).is_relative_to(installed)
    assert lines[-1] == "True"
    assert (here / "robot.py").read_text().count("nopf.") > 2


@pytest.mark.slow
def test_the_wheel_works_in_an_empty_environment(wheel, tmp_path):
    """With its dependencies and none of the optional libraries, as a new user has it."""
    if run(*pip("download", "--no-deps", "--dest", tmp_path, "lazy_loader")).returncode:
        pytest.skip("pip cannot reach packages")
    done(sys.executable, "-m", "venv", tmp_path / "new")
    programs = tmp_path / "new" / ("Scripts" if sys.platform == "win32" else "bin")
    pins = ("--constraint", ROOT / "requirements.txt")
    done(*pip("install", *pins, wheel, python=programs / "python"))
    installed = done(*pip("list", python=programs / "python"))
    assert "matplotlib" not in installed
    assert done(programs / "nopf", "--version") == f"nopf {nopf.__version__}\n"
    done(programs / "nopf", "new", "robot.py", cwd=tmp_path)
    done(programs / "python", "robot.py", cwd=tmp_path)
    data = ("--data", "run.csv", "--filter", "bpf", "--out", "states.csv")
    done(programs / "nopf", "filter", "robot.py:model", *data, cwd=tmp_path)
    rows = [(tmp_path / name).read_text().splitlines() for name in ("run.csv", "states.csv")]
    assert len(rows[0]) == len(rows[1]) > 10


def test_what_the_wheel_says_of_itself(metadata):
    assert metadata["Name"] == "nopf"
    assert metadata["Version"] == nopf.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["License-File"] == "LICENSE"
    assert metadata.get_payload().startswith("# nopf")
    assert len(metadata["Keywords"].split(",")) > 3
    assert not [name for name in metadata if "url" in name.lower() or name == "Home-page"]
    versions = re.findall(r"Python :: 3\.(\d+)", "\n".join(metadata.get_all("Classifier")))
    assert metadata["Requires-Python"] == f">=3.{min(versions, key=int)}"
    # What is classified as a licence would be refused beside the expression.
    assert "License ::" not in str(metadata)


def test_the_citation_is_of_this_version(metadata):
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= set(citation)
    assert citation["version"] == nopf.__version__
    assert citation["license"] == metadata["License-Expression"]
    assert citation["keywords"] == metadata["Keywords"].split(",")
    assert metadata["Summary"].lower() in citation["title"]
    (paper,) = citation["references"]
    # The name that README calls it by.
    assert paper["title"].split(":")[0] in (ROOT / "README.md").read_text()


def test_hooks_are_what_make_test_begins_with():
    repositories = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert [repository["repo"] for repository in repositories] == ["local"]
    entries = [hook["entry"] for hook in repositories[0]["hooks"]]
    first = re.search(r"^test: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert entries == [f"make {target}" for target in first[1].split()]
