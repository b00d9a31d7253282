"""`nopf new`: a model to start from."""

import importlib.resources
from pathlib import Path
from typing import Annotated

import typer

from nopf.command.options import check_writable
from nopf.files import write_whole

EXAMPLES = (
    "nopf new robot.py",
    "python robot.py",
    "nopf check robot.py:model --data run.csv",
)

File = Annotated[Path, typer.Argument(help="The file to write, for example robot.py.")]


def new_command(
    file: File,
) -> None:
    """Writes a model to start from, with comments: a robot that measures distances."""
    if file.suffix != ".py":
        raise typer.BadParameter(f"{file}: expected a name that ends in .py")
    if file.exists():
        raise typer.BadParameter(f"{file} exists already; name another file")
    check_writable(file, "FILE")
    template = importlib.resources.files("nopf") / "templates" / "robot.py"
    text = template.read_text(encoding="utf-8").replace("TEMPLATE", file.as_posix())
    write_whole(file, text.encode())
    print(f"{file} is written. Now run: python {file}")
    print(f"Then run: nopf check {file}:model --data run.csv")
