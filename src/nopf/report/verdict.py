"""What the numbers of a benchmark amount to, in sentences that are computed from them."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nopf.benchmarks import BENCHMARKS
from nopf.benchmarks.results import POSITION, Row
from nopf.benchmarks.tables import RATES, TARGET, Table, leaders, seeds_in_words, tabulate
from nopf.catalogue import LABELS, WORDS
from nopf.report.numbers import counts, main_particles

BASELINE = "bpf"
SAME = 1.02  # errors are the same to the reader if one is at most so many times the other
TOO_SURE = 0.5  # of the steps: less coverage of a 90 % region is named
# What each column of a table says, in plain words.
TOLD = {
    "nmse": "Squared error of the means of all states, relative to the size of the true states.",
    "pnll": "How improbable the next measurement was to the filter: minus the logarithm of its "
    "predicted density.",
    "es": "Energy score: how far the filter's distribution is from the truth, in all states "
    "together. It counts being too sure as well as being off.",
    "ess": "Effective sample size: how many of the particles count after one measurement. It does "
    "not know what earlier steps have lost.",
    "wt": "Seconds to filter one series, without compilation and training.",
    "made": "Distance from the truth to the nearest particle, whatever that weighs.",
    "picp": "How often the truth lies in the region that should hold it in 90 % of the steps. Less "
    "means that the filter is too sure of itself.",
    "position": "Root mean square distance of the mean from the true position, over all steps.",
    "draws_rate": "How many independent draws of the posterior would give means as good, per "
    "second of filtering: what a second buys. Median over states and steps.",
    "worst_rate": "The same for the state that is known worst.",
}


class Verdict(NamedTuple):
    """What a page says first.

    Attributes:
        headline: one sentence.
        basis: what it rests on.
        points: which filter is best for what.
    """

    headline: str
    basis: str
    points: list[str]


def verdict(rows: Sequence[Row]) -> Verdict:
    """Sums up the rows of one benchmark, of all numbers of particles."""
    case = BENCHMARKS[rows[0]["benchmark"]]
    usual = [row for row in rows if row["particles"] == main_particles(case, rows)]
    table = tabulate(usual)
    return Verdict(*_headline(rows, table), _points(table, usual))


def _headline(rows: Sequence[Row], table: Table) -> tuple[str, str]:
    """The nearest filter beside the bootstrap filter: by its position where there is a place and
    the two can be told apart by that, else by all states."""
    found = [_compared(rows, table, metric) for metric in (POSITION, "es")]
    scored = [one for one in found if one is not None]
    if not scored:
        return "These filters were not scored.", ""
    one = next((one for one in scored if one.apart), scored[0])
    best, metric, errors = one.best, one.metric, one.errors
    name = "the bootstrap filter" if best == BASELINE else f"nopf ({LABELS[best]})"
    said = f"With {table.particles:,} particles {name} "
    said += "knows the position to " if metric == POSITION else "is off by "
    said += _length(one.mean(best), metric)
    said += "" if metric == POSITION else " in all states together (energy score)"
    seeds = seeds_in_words(len(errors[best]))
    how = "Root mean square error of all steps, m" if metric == POSITION else "M"
    basis = f"{LABELS[best]}: {WORDS[best]}. {how}ean over {seeds}: "
    basis += f"{LABELS[best]} {_range(errors[best], metric)}"
    if best == BASELINE or BASELINE not in errors:
        return f"{said}.", f"{basis}."
    basis += f", {LABELS[BASELINE]} {_range(errors[BASELINE], metric)}."
    said += "; the bootstrap filter with as many "
    said += "to " if metric == POSITION else "by "
    said += _length(one.mean(BASELINE), metric)
    if not one.apart:
        return f"{said}; {seeds} cannot tell that from chance.", basis
    more, how = _factor(rows, table.particles, one)
    if one is not scored[0]:
        first = scored[0]
        how += f" By the position alone ({_length(first.mean(first.best), POSITION)} and "
        how += f"{_length(first.mean(BASELINE), POSITION)}) {seeds} cannot tell them apart."
    return f"{said}{more}.", f"{basis}{how}"


class Compared(NamedTuple):
    """The nearest filter by one metric.

    Attributes:
        metric: its name.
        best: the filter.
        errors: of all filters, by seed.
        apart: whether it can be told from the bootstrap filter.
    """

    metric: str
    best: str
    errors: dict[str, dict[int, float]]
    apart: bool

    def mean(self, short: str) -> float:
        """Of a filter, over the seeds."""
        return float(np.mean(list(self.errors[short].values())))


def _compared(rows: Sequence[Row], table: Table, metric: str) -> Compared | None:
    """The best; of those that cannot be told from it, that with most draws per second, where these
    were measured. None if no filter has this metric."""
    found = {short: _by_seed(rows, short, table.particles, metric) for short in table.entries}
    errors = {short: own for short, own in found.items() if own}
    if not errors:
        return None
    best = min(errors, key=lambda short: float(np.mean(list(errors[short].values()))))
    even = leaders(metric, errors) or list(errors)
    rates = {short: table.entries[short].get("draws_rate") for short in even}
    known = {short: entry.mean for short, entry in rates.items() if entry is not None}
    best = max(known, key=lambda short: known[short]) if known else best
    pair = {short: errors[short] for short in (best, BASELINE) if short in errors}
    return Compared(metric, best, errors, best != BASELINE and leaders(metric, pair) == [best])


def _factor(rows: Sequence[Row], own: int, one: Compared) -> tuple[str, str]:
    """How many more particles the bootstrap filter needs for the same, as far as that was tried,
    on the seeds that were."""
    ratios, said = {}, []
    for n in (n for n in counts(rows) if n > own):
        tried = _by_seed(rows, BASELINE, n, one.metric)
        shared = [seed for seed in tried if seed in one.errors[one.best]]
        if shared:
            near, reached = (
                float(np.mean([by_seed[seed] for seed in shared]))
                for by_seed in (one.errors[one.best], tried)
            )
            ratios[n] = reached / near
            said.append(
                f"with {n:,} particles {_length(reached, one.metric)}, "
                f"{LABELS[one.best]} {_length(near, one.metric)} on the same "
                f"{seeds_in_words(len(shared))}"
            )
    if not ratios:
        return "", ""
    how = f" {LABELS[BASELINE]} {'; '.join(said)}. “The same” is at most {SAME - 1:.0%} more."
    enough = [n for n in ratios if all(ratios[m] <= SAME for m in ratios if m >= n)]
    if not enough:
        factor = f"more than {max(ratios) / own:.0f} times"
    else:
        below = max([n for n in ratios if n < min(enough)], default=own)
        upto = f"{min(enough) / own:.0f} times"
        factor = f"at most {upto}" if below == own else f"between {below / own:.0f} and {upto}"
    return f", and needs {factor} as many for the same", how


def _by_seed(rows: Sequence[Row], short: str, particles: int, metric: str) -> dict[int, float]:
    return {
        row["seed"]: float(row[metric])
        for row in rows
        if (row["filter"], row["particles"]) == (short, particles) and row.get(metric) is not None
    }


def _range(errors: dict[int, float], metric: str) -> str:
    values = list(errors.values())
    if len(values) < 2:
        return "has one seed only"
    return f"from {_length(min(values), metric)} to {_length(max(values), metric)}"


def _length(value: float, metric: str) -> str:
    if metric != POSITION:
        return f"{value:.3g}"
    return f"{100 * value:.1f} cm" if value < 0.2 else f"{100 * value:.0f} cm"


def _points(table: Table, rows: Sequence[Row]) -> list[str]:
    """Which filter is best for what; a difference that may be an accident is not told."""
    few = min(table.seeds.values())
    if few < 2:
        return ["One seed only: which filter is best cannot be told from chance."]
    found = []
    for metric, what in [
        (POSITION, "Nearest to the true position"),
        ("es", "Nearest to the truth in all states (energy score)"),
        ("ess", "Most particles that count (ESS)"),
        ("draws_rate", "Most independent draws per second"),
        ("wt", "Fastest"),
    ]:
        of = {
            short: (entry.mean, entry.leading)
            for short, row in table.entries.items()
            if (entry := row.get(metric)) is not None
        }
        if len(of) < 2:
            continue
        ahead = [short for short, (_, leading) in of.items() if leading]
        if not ahead:
            found.append(f"{what}: {seeds_in_words(few)} cannot tell.")
            continue
        up = metric == "ess" or metric in RATES
        ahead.sort(key=lambda short: -of[short][0] if up else of[short][0])
        names = ", ".join(f"{LABELS[short]} ({_amount(metric, of[short][0])})" for short in ahead)
        others = [short for short in of if short not in ahead]
        next_best = (max if up else min)(others, key=lambda short: of[short][0])
        rest = f"then {LABELS[next_best]} ({_amount(metric, of[next_best][0])})"
        found.append(f"{what}: {names}; {rest}.")
    sure = [
        f"{LABELS[short]} ({entry.mean:.0%} of the steps)"
        for short, row in table.entries.items()
        if (entry := row["picp"]) is not None and entry.mean < TOO_SURE
    ]
    if sure:
        found.append(
            f"Too sure of itself, where {TARGET:.0%} of the steps should have the truth in the "
            f"filter's region: {', '.join(sure)}."
        )
    return found


def _amount(metric: str, value: float) -> str:
    if metric == POSITION:
        return _length(value, metric)
    if metric == "wt":
        return f"{value:.3g} s a run"
    return f"{value:.0f}" if metric == "ess" or metric in RATES else f"{value:.3g}"
