"""Tables: means, spreads, and which cells are best."""

import csv
import io
import math
import re
from pathlib import Path

import pytest

from nopf.benchmarks.results import METRICS
from nopf.benchmarks.tables import published, tabulate

PAPER = Path(__file__).parents[3] / "shared" / "paper" / "learning-to-bias.tex"


def row(short, seed, **numbers):
    zero = dict.fromkeys(METRICS, 0.0)
    return {"benchmark": "range-only", "particles": 10_000, "filter": short, "seed": seed} | (
        zero | numbers
    )


ROWS = [
    row("enkf", 0, es=3.0, ess=None, picp=0.99),
    row("enkf", 1, es=5.0, ess=None, picp=0.99),
    row("bpf", 0, es=1.0, ess=10.0, picp=0.80),
    row("bpf", 1, es=2.0, ess=20.0, picp=0.90),
    row("nopf", 0, es=1.0, ess=90.0, picp=0.70),
    row("nopf", 1, es=1.5, ess=80.0, picp=0.60),
]


def test_mean_spread_and_the_best_two():
    table = tabulate(ROWS)
    assert table.title() == "range-only, N = 10000, 2 seeds"
    assert list(table.entries) == ["enkf", "bpf", "nopf"]
    es = {short: entries["es"] for short, entries in table.entries.items()}
    assert es["bpf"].mean == 1.5
    assert es["bpf"].std == pytest.approx(math.sqrt(0.5))
    assert [short for short, entry in es.items() if entry.best] == ["bpf", "nopf"]
    assert table.entries["enkf"]["ess"] is None
    assert table.entries["nopf"]["ess"].rank == 0
    # Coverage is best near 0.9: 0.85 and 0.99 are nearer than 0.65.
    picp = {short: entries["picp"].rank for short, entries in table.entries.items()}
    assert picp == {"bpf": 0, "enkf": 1, "nopf": 2}


def test_leading_are_the_best_and_what_cannot_be_told_from_it():
    """Seed by seed: what varies with the data alone tells nothing, and hides nothing."""
    data = [0.0, 5.0, 10.0, 15.0]  # how hard the seeds are

    def column(short, *apart, **numbers):
        errors = [d + a for d, a in zip(data, apart, strict=True)]
        return [row(short, seed, es=e, **numbers) for seed, e in enumerate(errors)]

    best = column("nopf", 1.0, 1.1, 0.9, 1.0, wt=1.0)
    even = column("lpf", 1.3, 0.8, 1.2, 0.9, wt=1.0)
    worse = column("bpf", 1.5, 1.4, 1.6, 1.5, wt=1.0)
    table = tabulate(best + even + worse)
    assert {short for short, own in table.entries.items() if own["es"].leading} == {"nopf", "lpf"}
    assert not any(own["wt"].leading for own in table.entries.values())  # all are the same
    assert not any(own["es"].leading for own in tabulate(best + even).entries.values())
    # One seed tells nothing.
    assert not any(own["es"].leading for own in tabulate([best[0], worse[0]]).entries.values())


def test_coverage_leads_when_it_is_near_nine_tenths():
    """On either side: 0.89 and 0.91 are nearer than 1."""
    columns = {"nopf": (0.89, 0.90), "lpf": (0.91, 0.93), "bpf": (1.0, 1.0), "enkf": (0.5, 0.52)}
    table = tabulate(
        [row(short, seed, picp=p) for short, own in columns.items() for seed, p in enumerate(own)]
    )
    leading = {short for short, own in table.entries.items() if own["picp"].leading}
    assert leading == {"nopf", "lpf"}


def test_one_seed_has_no_spread():
    table = tabulate(ROWS[:1])
    assert math.isnan(table.entries["enkf"]["es"].std)
    assert "| **3.0000** |" in table.markdown()
    assert "nan" not in table.text() + table.latex() + table.csv()


def test_every_format_says_the_same():
    table = tabulate(ROWS)
    assert "| **1.5000 ± 0.7071** |" in table.markdown()
    assert "1.5000 ± 0.7071*" in table.text()
    assert r"\boldmath $1.5000 \pm 0.7071$" in table.latex()
    lines = {
        (line["filter"], line["metric"]): line for line in csv.DictReader(io.StringIO(table.csv()))
    }
    assert float(lines["bpf", "es"]["mean"]) == 1.5
    assert lines["bpf", "es"]["best"] == "1"
    assert ("enkf", "ess") not in lines
    assert table.numbers()["filters"]["bpf"]["es"]["mean"] == 1.5
    assert len({line.count("|") for line in table.markdown().splitlines()}) == 1
    assert len({line.count("&") for line in table.latex().splitlines() if "&" in line}) == 1


def test_published_values_stand_beside():
    table = tabulate(ROWS)
    assert "[4140.0 ± 345.6]" in table.markdown(against_paper=True)
    assert "4140" not in table.markdown()
    assert "1525.8024" in table.csv(against_paper=True)
    # By hand: two seeds here, ten in the paper.
    entry = table.entries["bpf"]["ess"]
    error = math.sqrt(entry.std**2 / 2 + entry.published[1] ** 2 / 10)
    expected = (entry.mean - entry.published[0]) / error
    assert table.numbers()["filters"]["bpf"]["ess"]["difference"] == pytest.approx(expected)
    assert f",{expected:.2f}" in table.csv(against_paper=True)
    fewer = tabulate([one | {"particles": 100} for one in ROWS])
    assert "4140" not in fewer.markdown(against_paper=True)


def test_a_filter_with_fewer_seeds_says_so():
    table = tabulate(ROWS[:5])
    assert "| NOPF (1 seed) |" in table.markdown()
    assert "| BPF |" in table.markdown()


def test_mixed_rows_are_refused():
    with pytest.raises(ValueError, match="one benchmark"):
        tabulate([*ROWS, row("bpf", 2) | {"particles": 20}])


@pytest.mark.skipif(not PAPER.exists(), reason="the paper's source is not here")
def test_published_tables_are_the_papers():
    text = PAPER.read_text()
    sections = re.findall(r"\\label\{tab:adx-results-[a-z-]+\}(.*?)\\end\{tabular\}", text, re.S)
    names = ["sensor-bias", "range-bearing", "range-only", "unordered-range"]
    found = {}
    for name, section in zip(names, sections, strict=True):
        for line in section.splitlines():
            short, *cells = (part.strip() for part in line.split("&"))
            if len(cells) == 7 and "textbf" not in short:
                for metric, cell in zip(METRICS, cells, strict=True):
                    numbers = re.findall(r"-?\d+\.\d+", cell)
                    if numbers:
                        found[name, short.lower(), metric] = tuple(map(float, numbers))
    assert found == published()
    assert len(found) == 204


def test_a_narrow_terminal_has_columns_of_filters():
    """Nothing is lost, nothing is wider than it, and what is marked stays marked."""
    table = tabulate(ROWS)
    wide = table.text()
    assert max(map(len, wide.splitlines())) > 80
    assert table.text(width=200) == wide
    for width in (80, 60):
        text = table.text(width=width)
        assert max(map(len, text.splitlines())) <= width
        assert text.count("*") == wide.count("*")
        assert text.count("±") == wide.count("±")
        blocks = [block.splitlines() for block in text.split("\n\n")]
        assert [name for block in blocks for name in block[0].split()] == ["EnKF", "BPF", "NOPF"]
        for block in blocks:
            at = block[0].find("BPF")
            if at >= 0:
                (line,) = [line for line in block if line.startswith("ES ")]
                assert line[at:].startswith("1.5000 ± 0.7071*")
    bold = table.text(bold=True, width=80)
    assert bold.count("\033[1m") == wide.count("*")
