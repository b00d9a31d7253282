"""What the command does before JAX is there."""

import os
import stat
import subprocess
import sys

import pytest

from nopf.command.app import COMMANDS, Commands
from nopf.command.compiled import keep_compiled
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
        (["--version"], 0, "nopf 0.1.0"),
        (["becnh"], 2, "No such command"),
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
        assert "Usage" in invoke(name, "--help").stdout


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
