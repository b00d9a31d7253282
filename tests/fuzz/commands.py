"""Command lines: odd options of every command, with files that are there or not."""

import contextlib
import io
import os
import sys
from unittest import mock

from hypothesis import strategies as st

from nopf.catalogue import NAMES
from nopf.command import (
    advice,
    bench,
    cells,
    check,
    many,
    one,
    report,
    request,
    stream,
    sweep,
    train,
)
from nopf.command.app import COMMANDS, main
from tests import recordings
from tests.fuzz.outcome import Wrong, content

WORK = {  # What takes its time: an input that comes so far was taken.
    train: ["train_to_file"],
    cells: ["run"],
    one: ["estimate"],
    many: ["estimate"],
    request: ["proposal_for"],
    stream: ["filter_live"],
    check: ["calibration", "set_up"],
    advice: ["check", "set_up"],
    report: [],
    bench: [],
    sweep: [],
}
BROKEN = {
    "syntax.py": "def (",
    "raises.py": "raise KeyError('x')",
    "exits.py": "raise SystemExit(3)",
    "empty.py": "",
    "deep.py": "def f(): return f()\nf()\n",
    "wrong.py": "import nopf\nmodel = nopf.StateSpaceModel(1, 2, 3)\n",
    "controls.py": recordings.MODEL.replace("jnp.ones((steps, 1))", "1 / 0"),
}
FILES = ["", ".", "..", "nowhere", "nowhere/x.csv", "run.csv", "robot.py", "folder", "file.nopf"]
FILES += [
    "out.csv",
    "out.parquet",
    "out.html",
    "out.svg",
    "x.nopf",
    "results",
    "bad.csv",
    "-",
    "--",
]
FILES += ["a" * 300, "x\0y", "link", "new.py", "/dev/null", "pipe"]
TARGETS = ["robot.py:model", "robot.py:model", "robot.py:model", "range-only", "robot.py", "a:b"]
TARGETS += [f"{name}:model" for name in BROKEN]
TARGETS += ["robot.py:nothing", "robot.py:jnp", "nowhere.py:model", ":", "", "folder.py:x"]
NUMBERS = [
    "0",
    "1",
    "2",
    "16",
    "-1",
    "1e3",
    "1.5",
    "nan",
    "inf",
    "-inf",
    "1e400",
    "x",
    "",
    "9" * 30,
]
NUMBERS += ["2147483648", "0x10", "1,2", "100,10", ",", "1_000", "١"]
WORDS = [*NAMES, "all", "", ",", "bpf,bpf", "nopf,", "fast", "paper", "auto", "csv", "json", "svg"]
WORDS += ["gps", "gps,odometer", "time", "speed", "x" * 50, "\ufeff", "range-only", "sensor-bias"]
OPTIONS = [
    "--out", "--data", "--horizon", "--recipe", "--base", "--components", "--steps",
    "--missing-rate", "--seed", "--filters", "--seeds", "--particles", "--workers", "--repeats",
    "--proposal", "--filter", "--plot", "--time", "--controls", "--observations", "--start",
    "--recover", "--format", "--figures", "--calibration", "--series", "--cluster", "--smooth",
    "--forecast", "--truth", "--run",
]  # fmt: skip
COLUMNS = ["--time", "--controls", "--observations"]
OWN = {
    "train": [*COLUMNS, *OPTIONS[:9]],
    "bench": ["--out", "--filters", "--seeds", "--particles", "--workers", "--repeats"],
    "sweep": ["--out", "--filters", "--seeds", "--particles", "--workers"],
    "report": ["--out", "--figures"],
    "check": [*COLUMNS, "--data", "--horizon", "--particles", "--seed", "--filter", "--plot"],
    "filter": [*COLUMNS, "--data", "--proposal", "--filter", "--particles", "--out", "--plot"],
}
OWN["filter"] += ["--smooth", "--forecast", "--truth", "--run"]
FLAGS = ["--json", "--fresh", "--against-paper", "--skip-bad", "--list-warnings", "--nothing"]
FLAGS += ["--help", "-h", "--version", "-x", "--out=", "--quiet", "--verbose", "--train"]
FLAGS += ["--smooth"]
PLACES = ("--out", "--data", "--proposal", "--plot")
COUNTS = ("--horizon", "--components", "--steps", "--missing-rate", "--seed", "--seeds")
COUNTS += ("--particles", "--workers", "--repeats", "--start", "--recover", "--series")
COUNTS += ("--smooth", "--forecast")
USUAL = {
    "train": ["robot.py:model", "--out", "x.nopf", "--horizon", "3"],
    "bench": ["range-only", "--out", "results", "--filters", "bpf", "--seeds", "1"],
    "sweep": ["range-only", "--out", "results", "--filters", "bpf", "--particles", "10,20"],
    "report": ["results"],
    "new": ["new.py"],
    "check": ["robot.py:model", "--horizon", "3"],
    "filter": ["robot.py:model", "--data", "run.csv", "--filter", "bpf", "--out", "out.csv"],
}


class Reached(BaseException):
    """The work has begun."""


@st.composite
def lines(draw):
    """A command line: what is usual, with some of it left out, changed or added."""
    command = draw(st.sampled_from(COMMANDS))
    words = list(USUAL[command]) if draw(st.integers(0, 5)) else []
    if words and draw(st.booleans()):
        targets = {"report": FILES, "new": FILES}.get(command, [*TARGETS, *WORDS])
        words[0] = draw(st.sampled_from(targets))
    if words and draw(st.integers(0, 4)) == 0:
        del words[draw(st.integers(0, len(words) - 1))]
    for _ in range(draw(st.integers(0, 3))):
        if draw(st.integers(0, 3)) == 0:
            words.append(draw(st.sampled_from(FLAGS)))
            continue
        option = draw(st.sampled_from([*OPTIONS, *OWN.get(command, []) * 4]))
        usual = FILES if option in PLACES else NUMBERS if option in COUNTS else WORDS
        any_word = st.sampled_from([*FILES, *NUMBERS, *WORDS])
        words += [option, draw(st.one_of(st.sampled_from(usual), any_word))]
    if draw(st.integers(0, 20)) == 0:
        command = draw(st.sampled_from(["", "trian", "--no-cache", "--version", "nopf"]))
    return [command, *words]


class CommandLines:
    """Runs each in a folder of its own, up to where the work begins."""

    def __init__(self, counts, folder):
        self.counts, self.folder = counts, folder / "commands"
        self.folder.mkdir()
        files = BROKEN | {"robot.py": recordings.MODEL, "run.csv": recordings.GOOD}
        files |= {"bad.csv": "a,b\n1,2\n", "file.nopf": "no proposal"}
        for name, text in files.items():
            (self.folder / name).write_text(text)
        (self.folder / "folder").mkdir()
        (self.folder / "folder.py").mkdir()
        (self.folder / "link").symlink_to("nothing")
        os.environ["NOPF_CACHE"] = "off"
        self.before = content(self.folder)

    def line(self, words):
        said, code = io.StringIO(), 0
        reached = False
        words = [word.replace("\0", "") for word in words]  # No system passes these on.
        with contextlib.ExitStack() as stack:
            for module, names in WORK.items():
                for name in names:
                    stack.enter_context(mock.patch.object(module, name, side_effect=Reached))
            stack.enter_context(mock.patch.object(sys, "argv", ["nopf", "--no-cache", *words]))
            stack.enter_context(mock.patch.object(sys, "stdin", io.StringIO(recordings.GOOD)))
            stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
            stack.enter_context(contextlib.redirect_stderr(said))
            stack.enter_context(contextlib.chdir(self.folder))
            path = list(sys.path)
            try:
                main()
            except SystemExit as ended:
                code = 0 if ended.code is None else ended.code
            except Reached:
                reached = True
            except Exception as error:
                raise Wrong(f"raised {type(error).__name__}: {error}") from error
            finally:
                sys.path[:] = path
        if code not in (0, 1, 2) or "Traceback" in said.getvalue():
            raise Wrong(f"ended with {code}: {said.getvalue()}")
        if code and not said.getvalue().strip():
            raise Wrong(f"ended with {code} and said nothing")
        if code == 1 and len(said.getvalue().strip().splitlines()) > 3:
            raise Wrong(f"said more than a line: {said.getvalue()}")
        after = content(self.folder)
        changed = {name for name in before_or(after, self.before) if "__pycache__" not in name}
        if code and changed:
            raise Wrong(f"ended with {code}, and has written {sorted(changed)}")
        self._clean(after)
        kind = f"command line, {words[0] if words[0] in COMMANDS else 'none'}"
        if code and not reached:
            self.counts.refused[kind] += 1
        else:
            self.counts.taken[kind] += 1

    def _clean(self, after):
        for name in after:
            if name not in self.before:
                (self.folder / name).unlink()
        for where, _, _ in os.walk(self.folder, topdown=False):
            if os.path.basename(where) not in ("commands", "folder", "folder.py"):
                with contextlib.suppress(OSError):
                    os.rmdir(where)

    def kinds(self):
        return [(lines(), self.line, 6)]


def before_or(after, before):
    """Files that are not as they were."""
    return {name for name in {*after, *before} if after.get(name) != before.get(name)}
