"""The command `nopf`: one file a command."""

from nopf.command.app import main as main
