"""Ways to damage bytes and JSON, for every kind of file."""

import copy
import math

from hypothesis import strategies as st

ODD_NUMBERS = st.sampled_from(
    [0, -1, 1, 3, 2**31, 2**63, 10**400, -(2**40), 0.5, 1e-320, 1e39, -1e308, math.nan, math.inf]
)
ODD_JSON = st.one_of(
    ODD_NUMBERS,
    st.none(),
    st.booleans(),
    st.text(max_size=6),
    st.recursive(
        st.one_of(st.none(), st.integers(-5, 5), st.text(max_size=3)),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)
        ),
        max_leaves=6,
    ),
)
DEEP = "[" * 5000 + "]" * 5000


@st.composite
def damaged(draw, whole):
    """Bytes that are not quite `whole`: cut short, changed, taken out, put in, doubled."""
    way = draw(st.sampled_from(["cut", "change", "take", "put", "double", "random", "none"]))
    at = draw(st.integers(0, max(0, len(whole) - 1)))
    if way == "none":
        return whole
    if way == "cut":
        return whole[:at]
    if way == "random":
        return draw(st.binary(max_size=60))
    if way == "double":
        return whole + whole[at:]
    if way == "take":
        return whole[:at] + whole[at + draw(st.integers(1, 40)) :]
    some = draw(st.binary(min_size=1, max_size=8))
    kept = len(some) if way == "change" else 0
    return whole[:at] + some + whole[at + kept :]


def _places(tree, path=()):
    yield path
    if isinstance(tree, dict):
        for key in tree:
            yield from _places(tree[key], (*path, key))
    elif isinstance(tree, list):
        for at in range(min(len(tree), 3)):
            yield from _places(tree[at], (*path, at))


@st.composite
def changed(draw, tree):
    """A JSON object of which one to three entries are gone, or something else."""
    tree = copy.deepcopy(tree)
    for _ in range(draw(st.integers(1, 3))):
        places = [path for path in _places(tree) if path]
        if not places:
            break
        *way, last = draw(st.sampled_from(places))
        inner = tree
        for step in way:
            inner = inner[step]
        if draw(st.integers(0, 3)):
            inner[last] = draw(ODD_JSON)
        else:
            del inner[last]
    return tree
