"""Runs a notebook from the first cell to the last, and writes it with its outputs.

    python -m notebooks notebooks/your_own_data.ipynb demo/notebooks

A cell that fails ends it with the error, as does one that takes more than five minutes.
"""

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient


def main(source: Path, folder: Path) -> None:
    """Runs `source` in its own folder; the same with outputs goes to `folder`."""
    notebook = nbformat.read(source, as_version=4)
    here = {"metadata": {"path": str(source.parent)}}
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources=here).execute()
    nbformat.write(notebook, folder / source.name)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
