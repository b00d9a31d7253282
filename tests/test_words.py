"""Names in messages."""

import pytest

from nopf.words import did_you_mean, in_groups, listed


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ([f"range_{k}" for k in range(1, 35)], "range_1 … range_34"),
        (["x", "y", "heading"], "x, y, heading"),
        (["a1", "a2", "a3"], "a1, a2, a3"),
        (["a1", "a2", "a3", "a5"], "a1, a2, a3, a5"),
        (["a1", "b1", "a2", "b2", "a3", "b3", "a4", "b4"], "a1 … a4, b1 … b4"),
        (["time", *(f"r{k}" for k in range(8, 13)), "end"], "time, r8 … r12, end"),
        (["0", "1", "2", "3"], "0 … 3"),
        (["gps", "gps"], "gps, gps"),
        ([], ""),
    ],
)
def test_what_is_numbered_is_a_group(names, words):
    assert listed(names) == words


def test_groups_say_who_is_in_them():
    assert in_groups(["p1", "q", "p2", "p3", "p4"]) == [
        ("p1 … p4", [0, 2, 3, 4]),
        ("q", [1]),
    ]


def test_what_may_have_been_meant():
    assert did_you_mean("headng", ["x", "heading"]) == " (did you mean heading?)"
    assert did_you_mean("completely", ["x", "heading"]) == ""
