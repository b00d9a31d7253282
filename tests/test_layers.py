"""Each package imports only from those to its left, and eagerly."""

import ast
from pathlib import Path

import pytest

import nopf

SOURCE = Path(nopf.__file__).parent
# Left to right, as CONTRIBUTING.md has it.
FIRST = ("compiling", "words", "crowd", "layout", "keys", "notebook")
LEFT = ("gaussian", "arguments", "steps", "trigonometry", "space", "plots", "robust")
MIDDLE = ("noise", "likelihood", "unordered", "functions", "model", "simulate", "linear")
TOOLS = ("marginal", "resampling", "recipe", "files", "cache")
RIGHT = ("proposals", "filters", "metrics", "training", "catalogue", "benchmarks")
ORDER = [*FIRST, *LEFT, *MIDDLE, *TOOLS, *RIGHT, "recording", "report", "command"]
ENTRIES = ("__init__", "__main__")  # these hand on what the others have
# These need libraries that are optional, so they are imported when they are needed.
OPTIONAL = ("report",)


def room(file: Path) -> str:
    return file.relative_to(SOURCE).parts[0].removesuffix(".py")


def arrows():
    """(module, line, room it is in, room it imports from, whether that is inside a function)."""
    for file in sorted(SOURCE.rglob("*.py")):
        if (file.parent == SOURCE and file.stem in ENTRIES) or "templates" in file.parts:
            continue
        tree = ast.parse(file.read_text())
        # What only type checkers read is not imported at all.
        bodies = [node.body if isinstance(node, ast.If) else [node] for node in tree.body]
        eager = {id(node) for body in bodies for node in body}
        for node in ast.walk(tree):
            names = []
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("nopf"):
                parts = node.module.split(".")
                names = [parts[1]] if len(parts) > 1 else [alias.name for alias in node.names]
            elif isinstance(node, ast.Import):
                names = [a.name.split(".")[1] for a in node.names if a.name.startswith("nopf.")]
            for name in names:
                yield file.relative_to(SOURCE), node.lineno, room(file), name, id(node) not in eager


def test_every_room_has_its_place():
    rooms = {room(file) for file in SOURCE.rglob("*.py")} - {*ENTRIES, "templates"}
    assert rooms == set(ORDER)


def test_no_arrow_points_to_the_right():
    found = list(arrows())
    assert len(found) > 200  # the test sees the arrows
    wrong = [
        f"{file}:{line} ({here} imports {there})"
        for file, line, here, there, _ in found
        if there in ORDER and ORDER.index(there) > ORDER.index(here)
    ]
    assert not wrong


def test_nothing_is_imported_late():
    late = [
        f"{file}:{line} ({there})"
        for file, line, _, there, lazy in arrows()
        if lazy and there not in OPTIONAL
    ]
    assert not late


def test_the_contributors_page_has_the_same_order():
    page = SOURCE.parents[1] / "CONTRIBUTING.md"
    if not page.exists():
        pytest.skip("not in a source tree")
    text = page.read_text()
    start = text.index("compiling →")
    written = text[start : text.index("\n\n", start)].replace("→", " ").split()
    assert written == ORDER
