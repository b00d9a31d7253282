"""What may come of an input: it works, or it is refused with one message; and how often it did."""

import collections
import math
import os
import traceback
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings

import nopf

HOME = str(Path(nopf.__file__).parent)
# What the command turns into one line; all else is a fault of nopf.
REFUSALS = (ValueError, TypeError, ArithmeticError, OSError)


class Wrong(AssertionError):
    """An input has done what no input may do."""


class Counts:
    """How many inputs of each kind were tried, refused and taken."""

    def __init__(self):
        self.refused, self.taken = collections.Counter(), collections.Counter()

    def table(self):
        rows = [("input", "tried", "refused with a message", "taken")]
        kinds = sorted(self.refused | self.taken)
        numbers = [(self.refused[kind], self.taken[kind]) for kind in kinds]
        total = tuple(map(sum, zip(*numbers, strict=True))) if numbers else (0, 0)
        for kind, (refused, taken) in zip((*kinds, "all"), (*numbers, total), strict=True):
            rows.append((kind, str(refused + taken), str(refused), str(taken)))
        return aligned(rows)


def aligned(rows):
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if at else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def expect(counts, kind, call):
    """Calls it: what comes is counted, or it is `Wrong`. Gives back what it returned, None if it
    was refused."""
    try:
        found = call()
    except Wrong:
        raise
    except REFUSALS as error:
        check_refusal(error)
        counts.refused[kind] += 1
        return None
    except Exception as error:
        raise Wrong(f"{kind}: raised {type(error).__name__}: {error}") from error
    counts.taken[kind] += 1
    return found


def check_refusal(error):
    """One line, said by nopf itself: not what NumPy or JAX say, which do not know the argument."""
    said = str(error)
    if not said.strip() or "\n" in said.strip():
        raise Wrong(f"not one line: {type(error).__name__}: {said}") from error
    if len(said) > 2000:
        raise Wrong(f"a message of {len(said)} characters: {said[:200]}…") from error
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, OSError) and error.filename is not None:
        return  # The system names the file.
    said_here = frames[-1].filename.startswith(HOME) and frames[-1].line.startswith("raise ")
    if not said_here:
        where = f"{frames[-1].filename}:{frames[-1].lineno}"
        raise Wrong(f"raised in {where}: {type(error).__name__}: {said}") from error


def check_estimates(rows, states):
    """`(T, columns)` as `estimate_rows` has them: all that is said of the states is a number."""
    rows = np.asarray(rows)
    if not np.isfinite(rows[:, : 1 + 5 * states]).all():
        raise Wrong(f"estimates that are no numbers: {rows}")
    evidence = rows[:, -3]
    if np.isnan(evidence).any() or (evidence == math.inf).any():
        raise Wrong(f"log-evidence that is no number: {evidence}")


def fuzz(inputs, first_seed, strategy, attempt):
    """Tries so many inputs; raises with the smallest that goes wrong."""

    @seed(first_seed)
    @settings(
        max_examples=inputs,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        print_blob=False,
        report_multiple_bugs=False,
    )
    @given(strategy)
    def each(given):
        attempt(given)

    each()


def content(folder):
    """Every file of a folder with what is in it."""
    found = {}
    for where, _, files in os.walk(folder):
        for name in files:
            file = Path(where, name)
            found[str(file.relative_to(folder))] = b"" if file.is_symlink() else file.read_bytes()
    return found
