"""Options that several commands have, and checks of what they are given."""

import contextlib
import shutil
import tempfile
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from nopf.benchmarks import BENCHMARKS
from nopf.command.voice import complain, say
from nopf.files import FileError, target_of
from nopf.model import StateSpaceModel
from nopf.recording import DataError, Named, Recording, read_recording
from nopf.words import did_you_mean

Model = Annotated[
    str,
    typer.Argument(metavar="MODEL", help=f"FILE.py:OBJECT, or one of {', '.join(BENCHMARKS)}."),
]
TimeColumn = Annotated[
    str | None,
    typer.Option("--time", help="Column of times. If left out: time, t or timestamp."),
]
ControlColumns = Annotated[
    str | None,
    typer.Option(
        "--controls", help="Columns of controls, separated by commas. If left out: the model's."
    ),
]
ObservationColumns = Annotated[
    str | None,
    typer.Option(
        "--observations",
        help="Columns of the observation, separated by commas. If left out: the model's.",
    ),
]
Seed = Annotated[
    int,
    typer.Option(min=0, max=2**31 - 1, help="Of random numbers: the same seed, the same results."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def show(text: str) -> None:
    """A sentence of the result, in lines that fit the terminal (80 columns where there is none)."""
    print(textwrap.fill(text, shutil.get_terminal_size().columns, break_on_hyphens=False))


@contextlib.contextmanager
def warnings_said() -> Iterator[None]:
    """Inside, warnings come as lines, as all that a command says; each once."""
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.showwarning = lambda message, *_, **__: say(str(message))
        yield


def named_columns(
    time: str | None, controls: str | None, observations: str | None, truth: str | None = None
) -> Named:
    """Columns from the command line, with commas taken apart."""
    driven, seen, true = (
        None if names is None else tuple(name.strip() for name in names.split(","))
        for names in (controls, observations, truth)
    )
    return Named(time, driven, seen, true or ())


def recording_of(file: Path, model: StateSpaceModel, columns: Named) -> Recording:
    """The recording that `--data` names."""
    try:
        return read_recording(file, model, columns)
    except DataError as error:
        raise typer.BadParameter(str(error), param_hint="--data") from None


def check_known(hint: str, given: Sequence[str], known: Sequence[str]) -> None:
    """Refuses words that are not among the known ones; says which may have been meant."""
    for word in given:
        if word not in known:
            raise typer.BadParameter(
                f"{word!r}{did_you_mean(word, known)} is none of {', '.join(known)}",
                param_hint=hint,
            )


def check_writable(file: Path, option: str, *read: str | Path | None) -> None:
    """Refuses a file that cannot be written, or that is one of those that are read."""
    try:
        target = target_of(file)
    except (FileError, OSError) as error:
        raise typer.BadParameter(str(error), param_hint=option) from None
    others = [Path(other) for other in read if other]
    if file.exists() and any(other.exists() and file.samefile(other) for other in others):
        raise typer.BadParameter(f"{file} is read here; name another file", param_hint=option)
    try:
        with tempfile.TemporaryFile(dir=target.parent):
            pass
    except OSError as error:
        raise typer.BadParameter(
            f"{target.parent}: cannot be written to ({error.strerror})", param_hint=option
        ) from None


def check_plot(plot: Path | None, allowed: tuple[str, ...]) -> None:
    """Refuses a picture that cannot be drawn."""
    if plot is None:
        return
    if plot.suffix not in allowed:
        raise typer.BadParameter(
            f"{plot}: expected a name that ends in {', '.join(allowed)}", param_hint="--plot"
        )
    check_writable(plot, "--plot")
    check_pictures()


def check_pictures() -> None:
    """Refuses to go on without what pictures need."""
    try:
        import matplotlib.figure  # noqa: F401
        import plotly  # noqa: F401
    except ImportError:
        complain("plots need matplotlib and Plotly: python -m pip install 'nopf[plots]'")
        raise typer.Exit(1) from None
