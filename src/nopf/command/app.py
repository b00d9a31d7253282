"""The commands together, and what happens if one fails."""

import contextlib
import functools
import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer
import typer.core
import typer.main

import nopf
from nopf.command.compiled import keep_compiled, watch_compiling
from nopf.command.outline import completing, examples, summary
from nopf.command.voice import QUIET, VERBOSE, complain, tell, voice
from nopf.words import did_you_mean

# In the order of the help. A command is a file of its own, imported when it is called: JAX takes
# its time.
COMMANDS = ("train", "bench", "sweep", "report", "new", "check", "filter")
HELP = {"help_option_names": ["-h", "--help"]}
# Options that may do without their value, which is a whole number; and what they mean then.
MAY_STAND_ALONE = {"--smooth": "all"}

Quiet = Annotated[
    bool, typer.Option("--quiet", help="Print results and errors only: no notes, no progress bars.")
]
Verbose = Annotated[
    bool, typer.Option("--verbose", help="Print each stage, and how long it has taken.")
]


@contextlib.contextmanager
def _one_suggestion() -> Iterator[None]:
    """Of an option that does not exist, says which one may have been meant, and not three."""
    try:
        yield
    except Exception as error:
        known = getattr(error, "possibilities", None)
        if known:
            error.message += did_you_mean(error.option_name, known)  # type: ignore[attr-defined]
            error.possibilities = None  # type: ignore[attr-defined]
        raise


class Command(typer.core.TyperCommand):
    """A command some of whose options may do without their value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        given: list[str] = []
        for word, after in zip(args[:end], [*args[1:end], ""], strict=False):
            given.append(word)
            alone = MAY_STAND_ALONE.get(word)
            if alone is not None and after != alone and not re.fullmatch(r"-?\d+", after):
                given.append(alone)
        with _one_suggestion():
            return super().parse_args(ctx, [*given, *args[end:]])


class Commands(typer.core.TyperGroup):
    """The commands by their names; only the one that is called is imported."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = dict.fromkeys(COMMANDS)  # type: ignore[assignment] # names to suggest

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with _one_suggestion():
            return super().parse_args(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        return typer.core.TyperCommand(cmd_name, help=summary(cmd_name))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        if command is None or name is None:
            return name, command, rest
        if ctx.resilient_parsing:  # The shell asks how to go on.
            return name, typer_command(name, completing(name)), rest
        # Before the command imports JAX: that a compilation was slow is nothing that a user has to
        # act on, and errors come as exceptions.
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        if ctx.params["cache"]:
            keep_compiled()
        module = importlib.import_module(f"nopf.command.{name}")
        run = getattr(module, f"{name}_command")
        return name, typer_command(name, run), rest


def typer_command(name: str, run: Callable[..., Any]) -> Any:
    """A command of its own, with the options that all have, and its examples.

    Args:
        name: of the command.
        run: what it does; its parameters are arguments and options.
    """
    lines = ["Examples:", *examples(name)]
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    alone.command(name, cls=Command, context_settings=HELP, epilog="\n\n".join(lines))(_heard(run))
    return typer.main.get_command(alone)


def _heard(run: Callable[..., Any]) -> Callable[..., Any]:
    """A command that may be told to be quiet or verbose after its name, too."""
    own = inspect.signature(run, eval_str=True)
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=kind)
        for name, kind in (("quiet", Quiet), ("verbose", Verbose))
    ]

    @functools.wraps(run)
    def heard(*given: Any, quiet: bool, verbose: bool, **named: Any) -> Any:
        _set_voice(quiet, verbose)
        with _timed():
            return run(*given, **named)

    parameters = [*own.parameters.values(), *more]
    heard.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    return heard


def _set_voice(quiet: bool, verbose: bool) -> None:
    if (quiet or voice.level == QUIET) and (verbose or voice.level == VERBOSE):
        raise typer.BadParameter("give only one of the two", param_hint="--quiet, --verbose")
    if quiet or verbose:
        voice.level = QUIET if quiet else VERBOSE


@contextlib.contextmanager
def _timed() -> Iterator[None]:
    """Says at the end how long all took, and compiling of it, if the command is verbose."""
    if voice.level < VERBOSE or "jax" not in sys.modules:
        yield
        return
    with watch_compiling() as compiled:
        try:
            yield
        finally:
            tell(f"end; {compiled}")


app = typer.Typer(
    cls=Commands,
    help="Particle filters that learn where to put their particles.",
    epilog="Begin with:\n\n" + "\n\n".join(examples("new")),
    no_args_is_help=True,
    context_settings=HELP,
    pretty_exceptions_enable=False,
)


def _say_version(wanted: bool) -> bool:
    if wanted:
        print(f"nopf {nopf.__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def prepare(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_say_version, is_eager=True, help="Print the version."),
    ] = False,
    cache: Annotated[
        bool,
        typer.Option(
            "--cache/--no-cache",
            help="Keep compiled code in the user's cache directory, so that the next command is "
            "faster. NOPF_CACHE=off also turns this off; NOPF_CACHE=FOLDER keeps it in FOLDER.",
        ),
    ] = True,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Options of all commands; what they ask for is done where a command is called."""
    voice.begin()
    _set_voice(quiet, verbose)


def main() -> None:
    """Runs the command; turns what the library raises into one line and exit code 1."""
    try:
        app()
    except (ValueError, TypeError, ArithmeticError, OSError) as error:
        complain(str(error))
        sys.exit(1)
    except MemoryError as error:
        complain(f"there is not enough memory for that; ask for fewer ({error})")
        sys.exit(1)
    except KeyboardInterrupt:
        complain("interrupted")
        sys.exit(130)
