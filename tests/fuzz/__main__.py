"""Feeds nopf what no user would, and kills it: `python -m tests.fuzz --help`.

A process of its own, since the tests check the types of arguments before nopf does.
"""

import argparse
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=10_000, help="of all kinds together")
    parser.add_argument("--kills", type=int, default=100, help="of all commands together")
    parser.add_argument("--seed", type=int, default=0, help="the same seed, the same inputs")
    parser.add_argument("--only", help="a kind of input, or a command")
    asked = parser.parse_args()
    failures = 0
    if asked.inputs:
        failures += _inputs(asked)
    if asked.kills:
        from tests.fuzz.kills import COMMANDS, kill

        started = time.perf_counter()
        commands = [name for name in COMMANDS if not asked.only or asked.only == name]
        print(kill(asked.kills, asked.seed, commands))
        print(f"{time.perf_counter() - started:.0f} s")
    sys.exit(min(failures, 1))


def _inputs(asked):
    from tests.fuzz.arguments import Arguments
    from tests.fuzz.commands import CommandLines
    from tests.fuzz.kept import Kept
    from tests.fuzz.outcome import Counts, fuzz
    from tests.fuzz.recordings import Recordings

    warnings.simplefilter("ignore")
    counts, failures, started = Counts(), 0, time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="nopf-fuzz-") as folder:
        kinds = []
        for room in (Recordings, Arguments, Kept, CommandLines):
            kinds += room(counts, Path(folder)).kinds()
        if asked.only:
            kinds = [kind for kind in kinds if asked.only in kind[1].__qualname__.lower()]
        shares = sum(share for *_, share in kinds)
        for at, (strategy, attempt, share) in enumerate(kinds):
            began = time.perf_counter()
            try:
                fuzz(
                    max(1, round(asked.inputs * share / shares)), asked.seed + at, strategy, attempt
                )
            except Exception as error:
                failures += 1
                traceback.print_exception(error)
            print(f"{attempt.__qualname__}: {time.perf_counter() - began:.0f} s", file=sys.stderr)
    print(counts.table())
    print(f"{failures} kinds with a failure, {time.perf_counter() - started:.0f} s")
    return failures


if __name__ == "__main__":
    main()
