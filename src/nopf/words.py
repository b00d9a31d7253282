"""Names in messages: which may have been meant, and many of them in few words."""

import difflib
from collections.abc import Iterable, Sequence

LEAST_GROUP = 4  # names that are worth a group


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """After a word that is not known: the one that may have been meant, in brackets."""
    near = difflib.get_close_matches(word, list(known), 1, 0.5)
    return f" (did you mean {near[0]}?)" if near else ""


def in_groups(names: Sequence[str]) -> list[tuple[str, list[int]]]:
    """Names, with those that are numbered as one: "range_1 … range_34", also if others are between
    them. Four or more make a group. With each goes which names are in it."""
    groups: list[list[int]] = []
    latest: dict[str, list[int]] = {}  # the group of a stem that the next number would go on
    for i, name in enumerate(names):
        stem, number = _numbered(name)
        group = latest.get(stem, [])
        if number is None or not group or _numbered(names[group[-1]])[1] != number - 1:
            groups.append([])
            group = latest[stem] = groups[-1]
        group.append(i)
    found: list[tuple[str, list[int]]] = []
    for group in groups:
        if len(group) < LEAST_GROUP:
            found += [(names[i], [i]) for i in group]
        else:
            found.append((f"{names[group[0]]} … {names[group[-1]]}", group))
    return found


def listed(names: Sequence[str], most: int | None = None) -> str:
    """Names with commas between them, those that are numbered in groups; of very many the first, if
    it is said how many are too many."""
    shown = [name for name, _ in in_groups(names)]
    return ", ".join(shown if most is None or len(shown) <= most else [*shown[: most - 1], "…"])


def _numbered(name: str) -> tuple[str, int | None]:
    stem = name.rstrip("0123456789")
    return stem, int(name[len(stem) :]) if len(stem) < len(name) else None
