"""What the source of a command says of it: its summary, options and examples, without importing it,
since JAX takes its time. The help of all commands and the shell's completion need it."""

import ast
import functools
import importlib.resources
import inspect
from collections.abc import Callable, Iterable
from typing import Annotated, Any

import typer

from nopf.benchmarks import NAMES as BENCHMARKS


def summary(command: str) -> str:
    """The first paragraph of what a command says of itself."""
    return (ast.get_docstring(_function(command)) or "").partition("\n\n")[0]


def examples(command: str) -> list[str]:
    """Command lines that run as they are, in this order, in one folder."""
    return list(ast.literal_eval(_assigned(command)["EXAMPLES"]))


def completing(command: str) -> Callable[..., None]:
    """A function with the options and arguments of a command, for the shell to complete them."""
    parameters = [
        inspect.Parameter(one.arg, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=of_it)
        for one in _function(command).args.args
        if (of_it := _annotation(command, one)) is not None
    ]

    def nothing(**_: Any) -> None:
        pass

    nothing.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    nothing.__doc__ = summary(command)
    return nothing


def filter_names() -> tuple[str, ...]:
    """The short names of all filters, as the catalogue lists them."""
    calls = (node for node in ast.walk(_tree("nopf", "catalogue.py")) if isinstance(node, ast.Call))
    listed = (call for call in calls if getattr(call.func, "id", "") == "Listing")
    return tuple(str(ast.literal_eval(call.args[0])) for call in listed)


def _annotation(command: str, parameter: ast.arg) -> Any:
    """What typer is to know of a parameter."""
    node, home = parameter.annotation, command
    if isinstance(node, ast.Name):
        home = _home(command, node.id)
        node = _assigned(home)[node.id]
    assert isinstance(node, ast.Subscript)
    assert isinstance(node.slice, ast.Tuple)
    kind, call = node.slice.elts
    assert isinstance(call, ast.Call)
    written = ast.unparse(kind)
    means: Any = list[str] if written.startswith("list") else bool if written == "bool" else str
    words = [str(ast.literal_eval(word)) for word in call.args if isinstance(word, ast.Constant)]
    given = {one.arg: one.value for one in call.keywords}
    known: dict[str, Any] = {"help": _text(given["help"])} if "help" in given else {}
    if getattr(call.func, "attr", "") == "Argument":
        values = _values(command, _text(given.get("metavar")))
        return Annotated[means | None, typer.Argument(autocompletion=values, **known)]
    names = words or [f"--{parameter.arg.replace('_', '-')}"]
    if means is bool:
        return Annotated[bool, typer.Option(*names, **known)]
    return Annotated[
        means | None, typer.Option(*names, autocompletion=_values(command, names[0]), **known)
    ]


def _values(command: str, name: str) -> Callable[[str], list[str]]:
    """What completes the value of an option or argument; nothing leaves files to the shell."""
    known: Iterable[str] = ()
    if name == "--filters":
        return _with_commas
    if name == "--filter":
        known = [name for name in filter_names() if not name.endswith("-paper")]
        known += ["auto"] if command == "filter" else []
    elif name == "MODEL":
        known = BENCHMARKS
    elif name == "NAME…":
        known = (*BENCHMARKS, "all")
    return lambda incomplete: [word for word in known if word.startswith(incomplete)]


def _with_commas(incomplete: str) -> list[str]:
    before, comma, last = incomplete.rpartition(",")
    return [before + comma + name for name in filter_names() if name.startswith(last)]


def _text(node: ast.expr | None) -> str:
    """A text of the source; of an f-string what is fixed."""
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) or "…" for part in node.values)
    return str(node.value) if isinstance(node, ast.Constant) else ""


def _home(module: str, name: str) -> str:
    """The module of the command in which a name is assigned."""
    if name in _assigned(module):
        return module
    for node in _tree("nopf.command", f"{module}.py").body:
        if isinstance(node, ast.ImportFrom) and name in [alias.name for alias in node.names]:
            return (node.module or "").rpartition(".")[2]
    raise LookupError(f"{module}: nothing is called {name}")


@functools.cache
def _assigned(module: str) -> dict[str, ast.expr]:
    """What is assigned in a module of the command, by name."""
    return {
        target.id: node.value
        for node in _tree("nopf.command", f"{module}.py").body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _function(command: str) -> ast.FunctionDef:
    """The function that is the command."""
    (found,) = (
        node
        for node in _tree("nopf.command", f"{command}.py").body
        if isinstance(node, ast.FunctionDef) and node.name == f"{command}_command"
    )
    return found


@functools.cache
def _tree(package: str, file: str) -> ast.Module:
    source = importlib.resources.files(package).joinpath(file)
    return ast.parse(source.read_text(encoding="utf-8"))
