"""The sentences that a page begins with, from made-up numbers."""

import pytest

from nopf.benchmarks import BENCHMARKS
from nopf.benchmarks.results import METRICS
from nopf.report.numbers import main_particles
from nopf.report.verdict import verdict


def rows(short, particles, position, es=(1.0, 1.0, 1.0), **numbers):
    """One row a seed."""
    zero = dict.fromkeys(METRICS, 1.0) | {"picp": 0.9} | numbers
    return [
        {"benchmark": "range-bearing", "filter": short, "particles": particles, "seed": seed}
        | zero
        | {"position": own, "es": score}
        for seed, (own, score) in enumerate(zip(position, es, strict=True))
    ]


NEAR = rows("mlpf", 1000, (0.04, 0.05, 0.06), ess=800.0)
FAR = rows("bpf", 1000, (0.20, 0.22, 0.21), ess=2.0, picp=0.01)


def test_the_headline_has_the_numbers_of_the_run():
    found = verdict(NEAR + FAR)
    assert found.headline == (
        "With 1,000 particles nopf (MLPF) knows the position to 5.0 cm; the bootstrap filter with "
        "as many to 21 cm."
    )
    assert "MLPF from 4.0 cm to 6.0 cm, BPF from 20 cm to 22 cm" in found.basis
    assert "Nearest to the true position: MLPF (5.0 cm); then BPF (21 cm)." in found.points
    assert any(
        point.startswith("Too sure of itself") and "BPF (1%" in point for point in found.points
    )


@pytest.mark.parametrize(
    ("tried", "words"),
    [
        ({10_000: 0.06, 100_000: 0.055}, "needs more than 100 times as many"),
        ({10_000: 0.06, 100_000: 0.0505}, "needs between 10 and 100 times as many"),
        ({10_000: 0.05, 100_000: 0.049}, "needs at most 10 times as many"),
        # One that is as near by chance, and with more particles is not, does not count.
        ({10_000: 0.05, 100_000: 0.06}, "needs more than 100 times as many"),
    ],
)
def test_how_many_more_the_bootstrap_filter_needs(tried, words):
    more = [row for n, error in tried.items() for row in rows("bpf", n, (error,) * 3)]
    assert words in verdict(NEAR + FAR + more).headline


def test_only_seeds_that_were_run_with_both_are_compared():
    """The first two seeds of MLPF have 4.5 cm: 5 cm is more than that."""
    more = rows("bpf", 10_000, (0.05, 0.05, 0.05))[:2]
    assert "more than 10 times" in verdict(NEAR + FAR + more).headline


def test_a_difference_by_chance_is_called_that():
    even = rows("bpf", 1000, (0.03, 0.09, 0.05))
    found = verdict(NEAR + even)
    assert "3 seeds cannot tell that from chance" in found.headline
    assert "Nearest to the true position: 3 seeds cannot tell." in found.points
    one = verdict([NEAR[0], FAR[0]])
    assert "1 seed cannot tell that from chance" in one.headline
    assert one.points == ["One seed only: which filter is best cannot be told from chance."]


def test_where_positions_do_not_tell_all_states_do():
    near = rows("mlpf", 1000, (0.04, 0.05, 0.06), es=(0.20, 0.21, 0.22))
    even = rows("bpf", 1000, (0.03, 0.09, 0.05), es=(0.40, 0.42, 0.41))
    found = verdict(near + even)
    assert "is off by 0.21 in all states together (energy score)" in found.headline
    assert found.headline.endswith("the bootstrap filter with as many by 0.41.")


def test_the_bootstrap_filter_may_be_the_best():
    found = verdict(rows("mlpf", 1000, (0.3, 0.3, 0.31)) + FAR)
    assert found.headline == (
        "With 1,000 particles the bootstrap filter knows the position to 21 cm."
    )


def test_of_filters_as_near_the_one_with_more_draws_per_second_is_named():
    lpf = rows("lpf", 1000, (0.04, 0.05, 0.06), draws=10.0, draws_worst=1.0, run_seconds=1.0)
    alpf = rows("alpf", 1000, (0.04, 0.05, 0.061), draws=30.0, draws_worst=1.0, run_seconds=1.0)
    assert "nopf (ALPF)" in verdict(lpf + alpf + FAR).headline


def test_of_two_that_cannot_be_told_apart_the_one_with_more_draws_is_named():
    slow = {"draws_worst": 1.0, "run_seconds": 1.0}
    lpf = rows("lpf", 1000, (0.04, 0.05, 0.06), draws=10.0, **slow)
    bpf = rows("bpf", 1000, (0.041, 0.05, 0.061), draws=100.0, **slow)
    assert "the bootstrap filter knows the position" in verdict(lpf + bpf).headline


def test_shown_are_the_particles_with_which_most_filters_ran():
    case = BENCHMARKS["range-bearing"]
    assert main_particles(case, NEAR + FAR + rows("bpf", 10_000, (1.0,) * 3)) == 1000
    assert main_particles(case, FAR + rows("bpf", 10_000, (1.0,) * 3)) == 10_000  # the paper's
    assert main_particles(case, FAR + rows("bpf", 300, (1.0,) * 3)) == 1000
