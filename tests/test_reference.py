"""The reference in docs/api: every public name once, and nothing of a class left out."""

import inspect
import re
from pathlib import Path

import pytest

import nopf

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs" / "api").glob("*.md"))
CLASSES = [name for name in nopf.__all__ if inspect.isclass(getattr(nopf, name))]


def test_every_name_is_on_one_page():
    written = [
        name
        for page in PAGES
        for name in re.findall(r"^::: nopf\.(\w+)$", page.read_text(), re.MULTILINE)
    ]
    assert sorted(written) == sorted(nopf.__all__)
    assert set(nopf.__all__) <= set(dir(nopf))


def test_every_page_can_be_found():
    menu, first = (ROOT / "mkdocs.yml").read_text(), (ROOT / "docs/api/index.md").read_text()
    for page in PAGES:
        assert f"api/{page.name}\n" in menu
        assert page.name == "index.md" or f"({page.name})" in first


def said(cls, name):
    """Whether the reference says what this member of a public class is.

    The site shows a member that has a docstring of its own. Fields are in the docstring of their
    class, and what a public base class says is on that class's place of the page.
    """
    for base in cls.__mro__:
        if getattr(nopf, base.__name__, None) is not base:
            continue
        member = vars(base).get(name)
        if (inspect.isroutine(member) or isinstance(member, property)) and member.__doc__:
            return True
        words = f"{base.__doc__} {vars(base).get('__init__', base).__doc__}"
        if re.search(rf"\b{name}\b", words):
            return True
    return False


@pytest.mark.parametrize("name", CLASSES)
def test_nothing_of_a_class_is_left_out(name):
    cls = getattr(nopf, name)
    members = {*vars(cls), *inspect.get_annotations(cls)}
    public = [member for member in members if not member.startswith("_")]
    assert [member for member in public if not said(cls, member)] == []


@pytest.mark.parametrize("name", ["metrics", *sorted(set(nopf.__all__) - set(CLASSES))])
def test_functions_say_what_they_do(name):
    found = getattr(nopf, name)
    of = vars(found) if inspect.ismodule(found) else {name: found}
    silent = [
        public
        for public, value in of.items()
        if not public.startswith("_")
        and callable(value)
        and getattr(value, "__module__", "").startswith("nopf")
        and not value.__doc__
    ]
    assert silent == []


def texts(name):
    """The docstrings that the site shows for a name."""
    found = getattr(nopf, name)
    members = vars(found).values() if not inspect.isroutine(found) else ()
    shown = [value for value in members if callable(value) or isinstance(value, property)]
    return [text for value in (found, *shown) if isinstance(text := value.__doc__, str)]


@pytest.mark.parametrize("name", nopf.__all__)
def test_every_argument_has_a_line_of_its_own(name):
    """Of `means, stds: …` the site makes one argument, with the second name for its type."""
    several = re.compile(r"^ +\w+(?:, \w+)+: ", re.MULTILINE)
    assert [found for text in texts(name) for found in several.findall(text)] == []
