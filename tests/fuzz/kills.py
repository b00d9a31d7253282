"""Commands that are killed at any moment and given again: they end as if nothing had happened."""

import collections
import concurrent.futures
import csv
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from nopf.files import PART, read_arrays
from tests import recordings
from tests.fuzz.outcome import Wrong, aligned, content

CODE = "from nopf.command import main; main()"
LONGEST = 300  # seconds that a command may take
MODEL = "robot.py:model"
COMMANDS = {
    "train": ["train", MODEL, "--horizon=3", "--steps=40", "--out=x.nopf"],
    "bench": ["bench", "sensor-bias", "--filters=kf,bpf", "--seeds=3", "--particles=50"],
    "filter": [
        "filter",
        MODEL,
        "--data=run.csv",
        "--filter=bpf",
        "--particles=50",
        "--out=out.csv",
    ],
    "report": ["report", "results"],
}
KINDS = {".nopf": "nopf proposal", ".part": "nopf checkpoint", ".trace": "nopf trace"}
TIMES = ("wt", "seconds", "compile_seconds", "run_seconds", "date")


class Kills:
    """Undisturbed runs, and killed ones beside them.

    Args:
        folder: where.
        commands: which of them.
        seed: of the moments.
    """

    def __init__(self, folder, commands=tuple(COMMANDS), seed=0):
        self.folder, self.random = Path(folder), random.Random(seed)
        self.commands = commands
        self.killed, self.resumed = collections.Counter(), collections.Counter()
        self.left = 0  # files that were being written
        self.compiled = self.folder / "compiled"
        self.whole, self.seconds = {}, {}
        for name in commands:
            place = self._place(f"whole-{name}", name)
            self._run(name, place)  # compiles
            shutil.rmtree(place)
            place = self._place(f"whole-{name}", name)
            started = time.perf_counter()
            self._run(name, place)
            self.seconds[name] = time.perf_counter() - started
            self.whole[name] = said_by(place)

    def _place(self, called, name):
        place = self.folder / called
        place.mkdir()
        (place / "robot.py").write_text(recordings.MODEL)
        (place / "run.csv").write_text(recordings.GOOD)
        if name == "report":
            made = self.folder / "made"
            if not made.exists():
                made.mkdir()
                self._run("bench", made)
            shutil.copytree(made / "results", place / "results")
        return place

    def _start(self, name, place):
        environment = os.environ | {
            "JAX_COMPILATION_CACHE_DIR": str(self.compiled),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
            "NOPF_CACHE": str(place / ".cache"),
        }
        return subprocess.Popen(
            [sys.executable, "-c", CODE, *COMMANDS[name]],
            cwd=place,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def _run(self, name, place):
        process = self._start(name, place)
        _, said = process.communicate(timeout=LONGEST)
        if process.returncode != 0:
            raise Wrong(f"{name}: ended with {process.returncode}: {said}")

    def once(self, number):
        """Kills a command one to three times, and lets it end: (command, kills, whether there was
        something to go on with)."""
        name = self.commands[number % len(self.commands)]
        place = self._place(f"{name}-{number}", name)
        kills, went_on, before = 0, False, said_by(place).keys()
        for _ in range(self.random.choice([1, 1, 1, 2, 3])):
            # Most of the time goes by before the first file is written.
            moment = self.seconds[name] * self.random.triangular(0.2, 1.05, 1.0)
            process = self._start(name, place)
            try:
                process.wait(moment)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
            process.communicate()
            kills += process.returncode == -signal.SIGKILL
            self._check_whole_files(name, place)
            self.left += sum(Path(file).name.startswith(PART) for file in content(place))
            went_on = went_on or said_by(place).keys() > before
        self._run(name, place)
        if said_by(place) != self.whole[name]:
            wrong = {
                file
                for file in {*said_by(place), *self.whole[name]}
                if said_by(place).get(file) != self.whole[name].get(file)
            }
            raise Wrong(f"{name}: after a kill other results in {sorted(wrong)}")
        shutil.rmtree(place)
        return name, kills, went_on

    def _check_whole_files(self, name, place):
        """Right after a kill: what is there under its own name is whole, and can be read."""
        found = said_by(place)
        for file in ("out.csv", "results/report.html", "x.nopf"):
            if file in found and found[file] != self.whole[name][file]:
                raise Wrong(f"{name}: after a kill {file} is not whole")

    def run(self, count):
        """So many kills, on as many cores as there are."""
        done, number = 0, 0
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            while done < count:
                batch = range(number, number + max(len(self.commands), os.cpu_count() or 1))
                for name, kills, went_on in pool.map(self.once, batch):
                    self.killed[name] += kills
                    self.resumed[name] += went_on
                    done += kills
                number = batch.stop

    def table(self):
        rows = [("command", "kills", "found something to go on with")]
        rows += [(n, str(self.killed[n]), str(self.resumed[n])) for n in self.commands]
        rows.append(("all", str(self.killed.total()), str(self.resumed.total())))
        return f"{aligned(rows)}\n{self.left} unfinished files left, which are deleted in a day"


def said_by(place):
    """What a command has written, but for how long it took and when."""
    found = {}
    for name, text in content(place).items():
        file = Path(name)
        if file.parts[0] == ".cache" or "__pycache__" in file.parts or file.name.startswith(PART):
            continue
        if file.suffix == ".json":
            text = _timeless(json.loads(text))
        elif file.name == "metrics.csv":
            rows = list(csv.DictReader(io.StringIO(text.decode())))
            text = _timeless(rows)
        elif file.suffix in KINDS:  # safetensors writes its header in any order
            header, arrays = read_arrays(place / file, KINDS[file.suffix])
            text = header, {name: array.tobytes() for name, array in arrays.items()}
        elif file.stem == "table":
            text = None  # has the times of the rows
        found[name] = text
    return found


def _timeless(tree):
    if isinstance(tree, dict):
        return {name: _timeless(value) for name, value in tree.items() if name not in TIMES}
    return [_timeless(entry) for entry in tree] if isinstance(tree, list) else tree


def kill(count, seed, commands=tuple(COMMANDS)):
    """Kills so many, and says how it went; raises if one ends otherwise than it should."""
    with tempfile.TemporaryDirectory(prefix="nopf-kills-") as folder:
        kills = Kills(folder, commands, seed)
        kills.run(count)
        return kills.table()
