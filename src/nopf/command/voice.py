"""What a command says beside its result; how much, --quiet and --verbose say."""

import sys
import time

QUIET, USUAL, VERBOSE = range(3)


class Voice:
    """How much is said.

    Attributes:
        level: one of `QUIET`, `USUAL` and `VERBOSE`.
        begun: when the command began, in seconds of a clock that never goes back.
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """A command begins."""
        self.level, self.begun = USUAL, time.monotonic()

    @property
    def seconds(self) -> float:
        """Since the command began."""
        return time.monotonic() - self.begun

    @property
    def bars(self) -> bool | None:
        """Whether bars show progress; None for "on a terminal only"."""
        return False if self.level == QUIET else None


voice = Voice()


def complain(message: str) -> None:
    """What went wrong: one line, however quiet the command is."""
    print(f"nopf: {message}", file=sys.stderr)


def say(message: str) -> None:
    """What a user should know: one line, unless the command is quiet."""
    if voice.level > QUIET:
        complain(message)


def tell(message: str) -> None:
    """What is being done: one line with the seconds so far, if the command is verbose."""
    if voice.level >= VERBOSE:
        complain(f"{voice.seconds:.1f} s: {message}")
