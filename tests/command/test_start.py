"""What the command does before JAX is there."""

import importlib
import os
import shlex
import stat
import subprocess
import sys

import pytest

from nopf.catalogue import NAMES
from nopf.command.app import COMMANDS, Commands, typer_command
from nopf.command.compiled import keep_compiled
from nopf.command.outline import completing, examples, filter_names
from tests.command.calling import invoke

SAYS_JAX = """
import sys
from nopf.command import main
sys.argv = ["nopf", *sys.argv[1:]]
try:
    main()
except SystemExit as end:
    print("exit", end.code)
print("jax" in sys.modules)
"""


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--help"], 0, "tabulates seven metrics"),
        (["-h"], 0, "tabulates seven metrics"),
        (["--version"], 0, "nopf 0.1.0"),
        (["becnh"], 2, "Did you mean 'bench'?"),
        (["--cach"], 2, "(did you mean --cache?)"),
    ],
)
def test_answers_without_jax(arguments, code, words):
    done = subprocess.run(
        [sys.executable, "-c", SAYS_JAX, *arguments], capture_output=True, text=True, check=True
    )
    assert words in done.stdout + done.stderr
    assert done.stdout.splitlines()[-2:] == [f"exit {code}", "False"]


def test_every_command_is_there():
    group = Commands(name="nopf", commands={})
    for name in COMMANDS:
        assert group.get_command(None, name).help
        help = invoke(name, "--help").stdout
        assert "Usage" in help
        assert help == invoke(name, "-h").stdout
        for line in ("Examples:", *examples(name), "--quiet", "--verbose"):
            assert line in help
        assert all(len(line) < 79 for line in examples(name))  # none is broken in a terminal


def test_an_option_that_is_not_there_is_likened_to_one():
    assert "(did you mean --smooth?)" in invoke("filter", "a.py:b", "--smoot").output


def own(name):
    return getattr(importlib.import_module(f"nopf.command.{name}"), f"{name}_command")


@pytest.mark.parametrize("name", COMMANDS)
def test_the_source_of_a_command_tells_its_options(name):
    one, other = (
        {(*p.opts, *p.secondary_opts): getattr(p, "is_flag", None) for p in command.params}
        for command in (typer_command(name, completing(name)), typer_command(name, own(name)))
    )
    assert one == other


def test_the_source_of_the_catalogue_tells_the_filters():
    assert filter_names() == NAMES


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_are_read_as_they_are_meant(name):
    """Their options are there, and so are the files that they read."""
    made = {"robot.py"} if name == "new" else {"robot.py", "run.csv", "results"}
    for line in examples(name):
        words = shlex.split(line.rpartition("| ")[2].partition(" >")[0])
        if words[0] == "python":
            assert words[1] in made
            made.add("run.csv")
            continue
        assert words[0] == "nopf"
        command = typer_command(words[1], own(words[1]))
        given = command.make_context(words[1], words[2:]).params
        if "target" in given:
            assert given["target"] == "robot.py:model"
        for source in ("data", "recording", "proposal"):
            assert str(given.get(source) or "robot.py") in made
        made.add(str(given.get("out")))


def test_cheap_examples_run(tmp_path, monkeypatch):
    monkeypatch.setenv("NOPF_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    make, simulate, _ = examples("new")
    assert invoke(*shlex.split(make)[1:]).exit_code == 0
    subprocess.run([sys.executable, *simulate.split()[1:]], check=True, capture_output=True)
    (line,) = [line for line in examples("filter") if "--truth" in line]
    done = invoke(*shlex.split(line)[1:], "--particles", 50)
    assert done.exit_code == 0, done.output
    assert "x: RMSE" in done.stderr


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("nopf ", COMMANDS),
        ("nopf filter --sm", ["--smooth"]),
        ("nopf filter sensor-bias --filter ml", ["mlpf"]),
        ("nopf bench --filters kf,mb", ["kf,mbpf"]),
        ("nopf bench range-o", ["range-only"]),
        ("nopf train sens", ["sensor-bias"]),
        ("nopf filter sensor-bias --data ru", []),  # the shell completes files
    ],
)
def test_the_shell_completes(line, words):
    asked = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    done = subprocess.run(
        [sys.executable, "-c", SAYS_JAX],
        env=os.environ | asked | {"_NOPF_COMPLETE": "complete_bash"},
        capture_output=True,
        text=True,
        check=True,
    )
    *found, code, jax = done.stdout.splitlines()
    assert [word for word in found if word] == list(words), done.stderr
    assert (code, jax) == ("exit 0", "False")


def test_completion_can_be_installed():
    assert "--install-completion" in invoke("-h").stdout


@pytest.fixture
def environment(monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith(("JAX_", "NOPF_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "linux")
    before = dict(os.environ)
    yield tmp_path
    for name in set(os.environ) - set(before):
        del os.environ[name]


def test_the_cache_is_the_users_own(environment):
    keep_compiled()
    folder = environment / "nopf" / "compiled"
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == str(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert int(os.environ["JAX_COMPILATION_CACHE_MAX_SIZE"]) < 2**30


def test_the_cache_can_be_elsewhere_or_off(environment, monkeypatch):
    monkeypatch.setenv("NOPF_CACHE", "off")
    keep_compiled()
    assert "JAX_COMPILATION_CACHE_DIR" not in os.environ
    monkeypatch.setenv("NOPF_CACHE", str(environment / "mine"))
    keep_compiled()
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == str(environment / "mine" / "compiled")


def test_what_jax_was_told_stays(environment, monkeypatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "elsewhere")
    keep_compiled()
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == "elsewhere"
    assert not (environment / "nopf").exists()


def test_no_cache_where_none_can_be(environment, monkeypatch):
    (environment / "file").write_text("")
    monkeypatch.setenv("NOPF_CACHE", str(environment / "file" / "below"))
    keep_compiled()
    assert "JAX_COMPILATION_CACHE_DIR" not in os.environ


def test_a_command_keeps_what_it_compiles(tmp_path):
    """Also with the option in front, and not with --no-cache."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
    code = "from nopf.command import main; main()"
    for arguments, kept in [(["--no-cache"], False), ([], True)]:
        folder = tmp_path / f"kept-{kept}"
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments, "filter", "sensor-bias", "--help"],
            env=clean | {"NOPF_CACHE": str(folder)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert folder.exists() == kept
