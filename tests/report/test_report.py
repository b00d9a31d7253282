"""The page in a real browser, and the figures."""

import dataclasses
import json
import shutil
from html.parser import HTMLParser

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from matplotlib.figure import Figure
from typer.testing import CliRunner

import nopf
from nopf import plots
from nopf.benchmarks import BENCHMARKS, range_only, sensor_bias
from nopf.benchmarks.results import FORMAT, Cell, Results
from nopf.benchmarks.runner import plan, run
from nopf.catalogue import CATALOGUE, LEARNED
from nopf.command.app import app
from nopf.files import FileError, write_arrays
from nopf.report import figures, numbers, thin
from nopf.report import page as page_module
from nopf.report.drawing import draw_all
from nopf.report.estimates import estimates_page
from nopf.report.page import page, training_in_words
from tests import models
from tests.report.pages import look_at_all, unpacked, wait


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Two benchmarks, two numbers of particles, an untrained network on the linearised fit."""
    with pytest.MonkeyPatch.context() as patch:
        quick = nopf.Recipe.fast(base="linearised", steps=0)
        patch.setattr(nopf.Recipe, "fast", classmethod(lambda cls, **changes: quick))
        folder = Results(tmp_path_factory.mktemp("report") / "results")
        cells = plan(["sensor-bias"], ["kf", "enkf", "bpf", "nopf"], 2, [200])[0]
        cells += plan(["sensor-bias"], ["bpf"], 2, [40])[0]
        cells += plan(["range-only"], ["enkf", "bpf"], 1, [200])[0]
        run(folder, cells)
        file = folder.folder / "report.html"
        file.write_text(page(folder))
        yield folder


FIRST_CLOUD = "document.querySelector('.plot[data-kind=cloud]')"


def test_the_page_works_in_a_browser(results, browser):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    browser.get((results.folder / "report.html").as_uri())
    wait(browser, f"{FIRST_CLOUD}.data !== undefined")

    def cloud():
        return browser.execute_script(f"return Array.from({FIRST_CLOUD}.data[1].x)")

    # The slider moves the cloud, by keyboard too.
    trace = results.trace(Cell("sensor-bias", "bpf", 200, 0))
    np.testing.assert_allclose(cloud(), trace["kept"][0, :, 0], rtol=1e-3, atol=1e-4)
    slider = browser.find_element(By.CSS_SELECTOR, ".player input")
    slider.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    np.testing.assert_allclose(cloud(), trace["kept"][2, :, 0], rtol=1e-3, atol=1e-4)
    trail = browser.execute_script(f"return Array.from({FIRST_CLOUD}.data[4].x)")
    across = BENCHMARKS["sensor-bias"].shown_indices[0]
    np.testing.assert_allclose(trail, trace["mean"][:3, across], rtol=1e-3, atol=1e-4)
    shown = browser.find_elements(By.CSS_SELECTOR, "#sensor-bias .plot[data-kind=cloud]")
    labels = [plot.get_attribute("data-filter") for plot in shown]
    assert labels == ["bpf", "nopf", "enkf", "kf"]
    assert browser.find_element(By.CSS_SELECTOR, ".player output").text == "0.3 s"
    slider.send_keys(Keys.END)
    np.testing.assert_allclose(cloud(), trace["kept"][-1, :, 0], rtol=1e-3, atol=1e-4)
    button = browser.find_element(By.CSS_SELECTOR, ".player button")
    button.click()
    assert button.text == "Pause"
    wait(browser, "Number(document.querySelector('.player input').value) >= 3")
    button.click()
    assert button.text == "Play"

    # Sorting sorts, both ways, and leaves what has no number at the end.
    def column(index):
        cells = browser.find_elements(
            By.CSS_SELECTOR, f"#sensor-bias tbody tr > :nth-child({index})"
        )
        return [cell.get_attribute("data-value") for cell in cells]

    heading = browser.find_elements(By.CSS_SELECTOR, "#sensor-bias th button")[4]
    heading.send_keys(Keys.ENTER)
    up = column(5)
    assert up[2:] == ["", ""]
    assert float(up[0]) < float(up[1])
    heading.click()
    assert column(5) == [up[1], up[0], "", ""]
    assert heading.find_element(By.XPATH, "..").get_attribute("aria-sort") == "descending"

    # Every plot is drawn once it is looked at, of every benchmark; the sweep follows its choice.
    look_at_all(browser)
    browser.find_element(By.CSS_SELECTOR, ".tab").click()
    sweep = "document.querySelector('.plot[data-kind=sweep]').data.find((t) => t.name === 'BPF')"
    assert browser.execute_script(f"return Array.from({sweep}.x)") == [40, 200]
    browser.execute_script(
        "const s = document.querySelector('select[data-benchmark]'); s.value = 'es';"
        "s.dispatchEvent(new Event('change'))"
    )
    rows = results.rows("sensor-bias")
    expected = [mean for _, mean, _, _ in numbers.against_particles(rows, "bpf", "es")]
    assert browser.execute_script(f"return Array.from({sweep}.y)") == pytest.approx(expected)

    # A phone: nothing but tables is wider than the screen.
    browser.set_window_size(500, 900)
    wait(browser, "document.documentElement.scrollWidth <= window.innerWidth")
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
    loaded = "performance.getEntriesByType('resource').filter((r) => !r.name.startsWith('data:'))"
    assert browser.execute_script(f"return {loaded}.length") == 0


def luminance(colour):
    """Relative, after WCAG, of a colour like rgb(1, 2, 3)."""
    parts = [float(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))


def test_dark_mode(results, browser):
    """Text, in the page and in its plots, stands out from the page by 7 to 1 in both modes."""
    browser.get((results.folder / "report.html").as_uri())
    wait(browser, f"{FIRST_CLOUD}.data !== undefined")
    pages = {}
    for mode in ("light", "dark"):
        media = {"features": [{"name": "prefers-color-scheme", "value": mode}]}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        wait(browser, f"matchMedia('(prefers-color-scheme: {mode})').matches")
        style = "getComputedStyle(document.body)"
        title = f"getComputedStyle({FIRST_CLOUD}.querySelector('.gtitle')).fill"
        if mode == "dark":  # Plots follow the page as soon as they have the time.
            wait(browser, f"{title} !== '{words[1]}'")
        pages[mode] = luminance(browser.execute_script(f"return {style}.backgroundColor"))
        words = browser.execute_script(f"return [{style}.color, {title}]")
        for colour in words:
            low, high = sorted([luminance(colour), pages[mode]])
            assert (high + 0.05) / (low + 0.05) > 7, (mode, colour)
    assert pages["dark"] < 0.1 < 0.9 < pages["light"]


class Words(HTMLParser):
    """The text of a page, and the addresses that it would load."""

    def __init__(self):
        super().__init__()
        self.words, self.sources = [], []

    def handle_starttag(self, tag, attributes):
        self.sources += [
            value
            for name, value in attributes
            if name == "src" or (name == "href" and tag == "link")
        ]

    def handle_data(self, data):
        self.words.append(data)


def test_numbers_are_text_and_nothing_is_loaded(results):
    parser = Words()
    parser.feed((results.folder / "report.html").read_text())
    assert [source for source in parser.sources if not source.startswith("data:")] == []
    text = " ".join(parser.words)
    for row in results.rows("range-only"):
        assert f"{row['es']:.4f}" in text
    assert "1 seed." in text


def test_the_position_error_is_that_of_the_path(results):
    """Only where states are a place."""
    for row in results.rows("range-only"):
        trace = results.trace(Cell("range-only", row["filter"], 200, 0))
        apart = (trace["mean"] - trace["truth"])[:, :2]
        assert row["position"] == pytest.approx(np.sqrt(np.mean(np.sum(apart**2, axis=1))), 1e-5)
    assert not any("position" in row for row in results.rows("sensor-bias"))


def test_filters_that_share_a_proposal_share_a_sentence(monkeypatch):
    """Named are the filters that there are rows of."""
    record = {"seconds": 3.2, "steps": 150, "base": "skeleton"}
    monkeypatch.setattr(Results, "training", lambda self, name, recipe: record)

    def said(*filters):
        rows = [{"filter": short} for short in filters]
        return training_in_words(Results("nowhere"), "sensor-bias", rows)

    how = "trained in 3 s (150 steps, skeleton base)."
    assert said("bpf") == ""
    assert said("nopf") == f" NOPF was {how}"
    assert said("nopf-paper", "anopf", "nopf") == (
        f" NOPF and ANOPF were {how} NOPF (paper) was {how}"
    )


def test_figures(results, tmp_path):
    drawn = draw_all(results, tmp_path / "figures", "svg")
    assert {file.stem for file in drawn} == {
        *("sensor-bias-sweep", "sensor-bias-table", "sensor-bias-ess", "sensor-bias-states"),
        *("range-only-table", "range-only-ess", "range-only-snapshots", "additional-metrics"),
    }
    again = draw_all(results, tmp_path / "again", "svg")
    for one, two in zip(drawn, again, strict=True):
        assert one.read_bytes() == two.read_bytes()
    assert not list(tmp_path.glob("*/.*"))


def test_a_planted_link_does_not_lead_a_figure_elsewhere(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / ".a.svg.part").symlink_to(victim)
    (tmp_path / ".nopf-part-a.svg").symlink_to(victim)
    figures.save(Figure(), tmp_path / "a.svg")
    assert victim.read_text() == "mine"
    assert "<svg" in (tmp_path / "a.svg").read_text()


def test_ellipse_holds_ninety_percent():
    mean, cov = np.array([1.0, -1.0]), np.array([[2.0, 0.8], [0.8, 0.5]])
    outline = plots.ellipse(mean, cov) - mean
    squares = np.sum(outline * np.linalg.solve(cov, outline.T).T, axis=1)
    np.testing.assert_allclose(scipy.stats.chi2.cdf(squares, 2), 0.9, rtol=1e-9)


@pytest.mark.slow
def test_snapshots_show_the_benchmark(results):
    case = BENCHMARKS["range-only"]
    traces = {short: results.trace(Cell("range-only", short, 200, 0)) for short in ("enkf", "bpf")}
    figure = figures.snapshot_figure(case, traces, at=[1, 59])
    assert len(figure.axes) == 2
    star = figure.axes[1].lines[1]
    np.testing.assert_allclose(
        np.ravel(star.get_xydata()), traces["bpf"]["truth"][58, :2], rtol=1e-6
    )


def test_snapshots_begin_with_the_prior_and_have_other_planes():
    """A made-up trace: what is drawn where, in the plane in which the modes of the benchmark
    differ."""
    case = BENCHMARKS["unordered-range"]
    rng, steps, states = np.random.default_rng(0), case.horizon, case.model.space.size
    trace = {
        "time": 0.1 * np.arange(1, steps + 1),
        "truth": rng.normal(size=(steps, states)),
        "mean": rng.normal(size=(steps, states)),
        "cov": np.broadcast_to(np.eye(3), (steps, 3, 3)),
        "kept": rng.normal(size=(steps, 20, 3)),
        "start": rng.normal(size=states),
        "prior": rng.normal(size=(20, 3)),
    }
    figure = figures.snapshot_figure(case, {"bpf": trace, "enkf": trace}, plane=("x", "z"))
    first, *_, last = figure.axes
    assert (first.get_title(), last.get_title()) == ("t = 0.0 s", "t = 3.4 s")
    assert (last.get_xlabel(), first.get_ylabel()) == ("x", "BPF\nz")
    for panel, cloud, star in [
        (first, trace["prior"], trace["start"]),
        (last, trace["kept"][-1], trace["truth"][-1]),
    ]:
        np.testing.assert_allclose(panel.collections[0].get_offsets(), cloud[:, [0, 2]])
        np.testing.assert_allclose(np.ravel(panel.lines[1].get_xydata()), star[[0, 2]])
        np.testing.assert_allclose(panel.lines[2].get_ydata(), 0)  # the anchors, on the floor


@pytest.mark.parametrize(
    ("stamp", "arguments", "words"),
    [
        (None, [], "holds no results"),
        ({"nopf": "9.9", "format": 1}, [], "made by nopf 9.9"),
        ({"nopf": nopf.__version__, "format": FORMAT}, [], "no cell is finished yet"),
        (
            {"nopf": nopf.__version__, "format": FORMAT},
            ["--figures", "gif"],
            "expected svg, png or pdf",
        ),
    ],
)
def test_folders_of_which_no_page_can_be_made(tmp_path, stamp, arguments, words):
    if stamp:
        (tmp_path / "nopf.json").write_text(json.dumps(stamp))
    before = sorted(tmp_path.iterdir())
    done = CliRunner().invoke(app, ["report", str(tmp_path), *arguments], env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert words in done.output
    assert sorted(tmp_path.iterdir()) == before


def test_a_page_where_none_can_be_written(results, tmp_path):
    out = tmp_path / "nowhere" / "report.html"
    done = CliRunner().invoke(
        app, ["report", str(results.folder), "--out", str(out)], env={"COLUMNS": "400"}
    )
    assert done.exit_code == 2
    assert "does not exist; make it first" in done.output


def test_angles_are_drawn_on_beyond_half_a_turn():
    model = models.unicycle()
    ys = np.asarray(nopf.simulate(model, 3, jax.random.key(0)).observations)
    posterior = nopf.ParticleFilter(model, None, 20).run(ys, key=jax.random.key(1))
    (angle,) = model.space.angles
    mean, quantiles = np.array(posterior.mean), np.array(posterior.quantiles)
    mean[:, angle] = [3.0, -3.1, -2.9]
    quantiles[:, :, angle] = [[2.9, 3.0, 3.1], [3.1, -3.1, -3.0], [-3.0, -2.9, -2.8]]
    crossing = eqx.tree_at(
        lambda p: (p.info.mean, p.info.quantiles),
        posterior,
        (jnp.asarray(mean), jnp.asarray(quantiles)),
    )
    drawn, low, high = plots.bands(crossing)
    turn = 2 * np.pi
    np.testing.assert_allclose(drawn[:, angle], [3.0, turn - 3.1, turn - 2.9], rtol=1e-6)
    np.testing.assert_allclose(low[:, angle], [2.9, 3.1, turn - 3.0], rtol=1e-6)
    np.testing.assert_allclose(high[:, angle], [3.1, turn - 3.0, turn - 2.8], rtol=1e-6)
    others = [i for i in range(model.space.size) if i != angle]
    np.testing.assert_allclose(drawn[:, others], mean[:, others])


PLANTED = '</script><script>document.title="owned"</script><b class="planted">'


@pytest.fixture
def planted(results, tmp_path, monkeypatch):
    """The same results from a stranger, who has planted a script wherever a text is shown."""
    copy = Results(shutil.copytree(results.folder, tmp_path / "copy"))
    stamp = json.loads((copy.folder / "nopf.json").read_text())
    stamp["made"] = dict.fromkeys(stamp["made"], PLANTED)
    (copy.folder / "nopf.json").write_text(json.dumps(stamp))
    for recipe in {CATALOGUE[short].recipe for short in LEARNED}:
        texts = dict.fromkeys(["base", "recipe", "benchmark"], PLANTED)
        record = {"seconds": 3.0, "steps": 7} | texts
        file = copy.proposal_file("sensor-bias", recipe).with_suffix(".json")
        file.write_text(json.dumps(record))
    for cell in copy.folder.glob("*/cells/*.json"):
        kept = json.loads(cell.read_text())
        kept["row"]["note"] = kept[PLANTED] = PLANTED
        cell.write_text(json.dumps(kept))
    for labels in (page_module.LABELS, page_module.TITLES):
        for name in labels:
            monkeypatch.setitem(labels, name, labels[name] + PLANTED)
    for module in (sensor_bias, range_only):
        case = dataclasses.replace(module.benchmark, title=PLANTED)
        monkeypatch.setattr(module, "benchmark", case)
    return copy


def owned(browser, text, folder):
    """Whether the script of a page or its element came to be."""
    (folder / "page.html").write_text(text)
    browser.get((folder / "page.html").as_uri())
    look_at_all(browser)
    found = "document.title === 'owned' || document.querySelector('.planted') !== null"
    return browser.execute_script(f"return {found}")


def test_a_text_in_a_strangers_results_stays_a_text(planted):
    text = page(planted)
    assert text.count("&lt;/script&gt;&lt;script&gt;") > 20  # it is shown
    assert PLANTED not in text
    assert "<script>document" not in text
    assert '<b class="planted">' not in text


def test_a_script_in_a_strangers_results_does_not_run(planted, browser, tmp_path):
    assert owned(browser, f"<title>x</title>{PLANTED}", tmp_path)  # the test sees it
    assert not owned(browser, page(planted), tmp_path)


@pytest.fixture
def named_estimates():
    """Of a model whose states have a script for a name."""
    model = models.linear(state_names=(PLANTED, "x1"))
    ys = np.full((3, 2), 50.0)  # far off, so that there are warnings
    return estimates_page(nopf.ParticleFilter(model, None, 20).run(ys, key=jax.random.key(1)))


def test_a_script_for_the_name_of_a_state_does_not_run(named_estimates, request, tmp_path):
    assert PLANTED not in named_estimates
    assert "<script>document" not in named_estimates
    browser = request.getfixturevalue("browser")
    assert not owned(browser, named_estimates, tmp_path)
    shown = "[...document.querySelectorAll('.annotation-text')].map((t) => t.textContent)"
    wait(browser, f"{shown}.includes({json.dumps(PLANTED)})")


def test_a_long_recording_makes_a_page_that_can_be_sent():
    """Twelve thousand steps of three states; what the eye cannot see is thinned out."""
    model = models.unicycle()
    short = nopf.ParticleFilter(model, None, 20).run(np.zeros((50, 2)), key=jax.random.key(1))
    long = jax.tree.map(lambda leaf: np.resize(leaf, (12_000, *leaf.shape[1:])), short.info)
    many = model.steps(12_000)
    posterior = eqx.tree_at(
        lambda p: (p.info, p.times, p.steps), short, (long, np.asarray(many.time), many)
    )
    posterior = eqx.tree_at(
        lambda p: p.observations, posterior, np.resize(short.observations, (12_000, 2))
    )
    long.p_value[7001] = 1.2345e-9  # steps that stand out
    long.innovation[7003, 1] = -77.5
    truth = {name: np.sin(np.arange(12_000.0)) for name in model.state_names}
    text = estimates_page(posterior, None, truth, model=model)
    assert len(text) < 3e6
    kept = {value for array in unpacked(text, "plots")["arrays"] for value in array}
    assert {1.2345e-9, -77.5} <= kept
    outliers = np.sum(np.abs(long.innovation) > np.sqrt(-2 * np.log(1e-6)))
    assert outliers > 1
    assert f"more than 5.3: {outliers} are" in text


def test_times_since_1970_are_told_apart():
    values = 1.7e9 + np.arange(100.0)
    assert len(set(thin.short(values))) == 100
    np.testing.assert_allclose(thin.short(np.array([1e-9, 1.0])), [1e-9, 1.0])
    assert thin.short(np.array([0.0, np.nan])) == [0.0, None]


FIELDS = {
    *("benchmark", "filter", "particles", "seed", "wt", "es", "log_evidence", "compile_seconds"),
    *("ess_path", "evidence_path"),
}
NESTED = json.loads("[" * 300 + "]" * 300)


@pytest.mark.parametrize("value", [PLANTED, None, -1, 10**13, 1.5, float("nan"), [99], {}, NESTED])
def test_a_cell_that_is_none_is_named(results, tmp_path, value):
    """One that belongs to these settings and has a field of another kind, or lacks it."""
    copy = Results(shutil.copytree(results.folder, tmp_path / "copy"))
    file = copy.folder / "sensor-bias" / "cells" / "bpf-200-0.json"
    kept = json.loads(file.read_text())
    cell, fine = Cell("sensor-bias", "bpf", 200, 0), set()
    assert copy.read(cell, kept["settings"]) == kept["row"]
    for field in FIELDS:
        file.write_text(json.dumps(kept | {"row": kept["row"] | {field: value}}))
        said = ""
        try:
            page(copy)
        except FileError as error:
            said = str(error)
        if not said:
            fine.add(field)
            continue
        assert said.startswith(f"{file}: ")
        assert "\n" not in said
        assert copy.read(cell, kept["settings"]) is None or field in ("particles", "seed")
    allowed = {"wt", "es", "log_evidence", "compile_seconds"}
    expected = allowed if value in (-1, 10**13, 1.5) else set()
    if value is None:
        expected = {"es", "log_evidence", "ess_path"}
    if value == PLANTED:
        expected = {"filter"}  # of another version: left out
    assert fine == expected


def test_a_trace_that_is_none_is_named(results, tmp_path):
    copy = Results(shutil.copytree(results.folder, tmp_path / "copy"))
    cell = Cell("sensor-bias", "bpf", 200, 0)
    file, trace = copy._file(cell).with_suffix(".trace"), copy.trace(cell)
    for name, array in trace.items():
        for wrong in (array[:-1], array[..., None], array.astype(int), array * np.nan):
            write_arrays(file, "nopf trace", {}, trace | {name: wrong})
            with pytest.raises(FileError, match=rf"bpf-200-0\.trace.*{name}"):
                copy.trace(cell)
    write_arrays(file, "nopf trace", {}, {})
    with pytest.raises(FileError, match=r"bpf-200-0\.trace"):
        page(copy)


def test_a_record_of_training_that_is_none_is_named(results, tmp_path):
    copy = Results(shutil.copytree(results.folder, tmp_path / "copy"))
    file = copy.proposal_file("sensor-bias", "fast").with_suffix(".json")
    kept = json.loads(file.read_text())
    records = [kept | {"seconds": PLANTED}, kept | {"steps": PLANTED}, kept | {"base": 1}, {}]
    for text in [*map(json.dumps, records), "[" * 200_000, "{", "7"]:
        file.write_text(text)
        with pytest.raises(FileError, match=file.name):
            page(copy)
