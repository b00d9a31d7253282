"""The commands together, and what happens if one fails."""

import sys

import typer

from nopf.benchmarks.cluster import ClusterError
from nopf.command.bench import bench_command
from nopf.command.check import check_command
from nopf.command.filter import filter_command
from nopf.command.new import new_command
from nopf.command.options import say
from nopf.command.report import report_command
from nopf.command.sweep import sweep_command
from nopf.command.train import train_command

app = typer.Typer(
    help="Particle filters that learn where to put their particles.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
# In the order of the help.
app.command("train")(train_command)
app.command("bench")(bench_command)
app.command("sweep")(sweep_command)
app.command("report")(report_command)
app.command("new")(new_command)
app.command("check")(check_command)
app.command("filter")(filter_command)


def main() -> None:
    """Runs the command; turns what the library raises into one line and exit code 1."""
    try:
        app()
    except (ValueError, TypeError, ArithmeticError, OSError, ClusterError) as error:
        say(str(error))
        sys.exit(1)
    except KeyboardInterrupt:
        say("interrupted")
        sys.exit(130)
