"""The command as a user calls it: here, or in a process of its own."""

import subprocess
import sys

from typer.testing import CliRunner

from nopf.command.app import app

CODE = "from nopf.command import main; main()"


def invoke(*arguments, **options):
    return CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "300"}, **options)


def nopf(*arguments, **options):
    command = [sys.executable, "-c", CODE, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)
