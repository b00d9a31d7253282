"""The commands together, and what happens if one fails."""

import ast
import importlib
import importlib.resources
import os
import sys
from typing import Annotated, Any

import typer
import typer.core
import typer.main

import nopf
from nopf.command.compiled import keep_compiled

# In the order of the help. A command is a file of its own, imported when it is called: JAX takes
# its time.
COMMANDS = ("train", "bench", "sweep", "report", "new", "check", "filter")


class Commands(typer.core.TyperGroup):
    """The commands by their names; only the one that is called is imported."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        return typer.core.TyperCommand(cmd_name, help=_summary(cmd_name))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        if command is None:
            return name, command, rest
        # Before the command imports JAX: that a compilation was slow is nothing that a user has to
        # act on, and errors come as exceptions.
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        if ctx.params["cache"]:
            keep_compiled()
        module = importlib.import_module(f"nopf.command.{command.name}")
        alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        alone.command(command.name)(getattr(module, f"{command.name}_command"))
        return name, typer.main.get_command(alone), rest


def _summary(command: str) -> str:
    """The first paragraph of what a command says of itself, without importing it."""
    source = importlib.resources.files("nopf.command").joinpath(f"{command}.py")
    tree = ast.parse(source.read_text(encoding="utf-8"))
    said = {n.name: ast.get_docstring(n) for n in tree.body if isinstance(n, ast.FunctionDef)}
    return (said[f"{command}_command"] or "").partition("\n\n")[0]


app = typer.Typer(
    cls=Commands,
    help="Particle filters that learn where to put their particles.",
    no_args_is_help=True,
    add_completion=False,
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
        typer.Option("--version", callback=_say_version, is_eager=True, help="Say which this is."),
    ] = False,
    cache: Annotated[
        bool,
        typer.Option(
            "--cache/--no-cache",
            help="Keep compiled code in the user's cache directory, so that the next call is "
            "faster. NOPF_CACHE=off turns it off too; NOPF_CACHE=FOLDER keeps it there.",
        ),
    ] = True,
) -> None:
    """Options of all commands; what they ask for is done where a command is called."""


def main() -> None:
    """Runs the command; turns what the library raises into one line and exit code 1."""
    try:
        app()
    except (ValueError, TypeError, ArithmeticError, OSError) as error:
        print(f"nopf: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("nopf: interrupted", file=sys.stderr)
        sys.exit(130)
