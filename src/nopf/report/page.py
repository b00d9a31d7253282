"""The page: all results in one HTML file that needs no network. Needs Plotly.

A folder of results may come from a stranger: every text is escaped where it enters the page.
"""

import json
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

import nopf
from nopf.benchmarks import BENCHMARKS
from nopf.benchmarks.results import DRAWN, METRICS, POSITION, Cell, Results, Row, Trace
from nopf.benchmarks.tables import CLEARLY, TITLES, Entry, Table, seeds_in_words, tabulate, words_of
from nopf.catalogue import CATALOGUE, COLOURS, LABELS, LEARNED, NAMES, WORDS
from nopf.plots import ellipse
from nopf.report.document import UNPACK, asset, document, packed, packed_plotly
from nopf.report.numbers import (
    LOGARITHMIC,
    against_particles,
    ess_over_time,
    main_particles,
)
from nopf.report.verdict import TOLD, Verdict, verdict

PANELS = 4  # clouds side by side
SIDE_BY_SIDE = ("bpf", "nopf", "mlpf", "malpf", "lpf", "enkf", "nopf-paper")
REFERENCES = ("kf", *LEARNED, "lpf", "bpf")


def page(results: Results) -> str:
    """The whole page of a folder of results."""
    sections, data = [], {}
    for name in results.benchmarks():
        rows = results.rows(name)
        if rows:
            data[name] = _data(results, name, rows)
            sections.append(_section(results, name, rows, data[name]))
    shared = {
        "benchmarks": data,
        "colours": COLOURS,
        "labels": LABELS,
        "titles": TITLES,
        "logarithmic": LOGARITHMIC,
    }
    tabs = "".join(f'<a class="tab" href="#{escape(name)}">{escape(name)}</a>' for name in data)
    content = json.dumps(shared, separators=(",", ":"), allow_nan=False)
    body = f"""<header>
<h1>Particle filters on the localization benchmarks</h1>
<nav class="tabs" aria-label="Benchmarks">{tabs if len(data) > 1 else ""}</nav>
</header>
<main>
{"".join(sections)}
</main>
{_how(results, data)}
{packed("data", content)}
{packed_plotly()}
<script>{UNPACK}{asset("page.js")}</script>"""
    return document("nopf: benchmark results", body)


def _section(results: Results, name: str, rows: Sequence[Row], data: dict[str, Any]) -> str:
    case, id_ = BENCHMARKS[name], escape(name)
    particles = main_particles(case, rows)
    table = tabulate([row for row in rows if row["particles"] == particles])
    parts = [f'<section id="{id_}"><h2>{escape(case.title)}</h2>', _verdict(verdict(rows))]
    if data["clouds"]:
        parts.append(_player(id_, data["clouds"], case.landmarks))
    parts.append(
        f"<h3>The numbers</h3><p>{particles:,} particles, {case.horizon} observations, "
        f"{seeds_in_words(max(table.seeds.values()))}."
        f"{escape(training_in_words(results, name, rows))} Every filter saw the same simulated "
        "data. Numbers are mean ± standard deviation over seeds.</p>"
        f"{_table(table)}"
    )
    for kind, title, note in [
        ("ess", "Effective sample size over time", "Median over the seeds, and their range."),
        (
            "evidence",
            "Log-evidence over time",
            "Seed 0, summed up to each step, less that of "
            f"{escape(LABELS.get(data['reference'], 'nothing'))}.",
        ),
    ]:
        if data[kind]:
            parts.append(
                f'<h3>{title}</h3><p class="faint">{note}</p><div class="plot" role="img" '
                f'data-kind="{kind}" data-benchmark="{id_}" aria-label="{title}"></div>'
            )
    if data["sweep"]:
        options = "".join(
            f'<option value="{metric}"{" selected" if metric == "ess" else ""}>'
            f"{escape(TITLES[metric])}</option>"
            for metric in data["sweep"]
        )
        parts.append(
            f'<h3><label for="metric-{id_}">Against the number of particles</label></h3>'
            f'<select id="metric-{id_}" data-benchmark="{id_}">{options}</select>'
            f'<div class="plot" role="img" data-kind="sweep" data-benchmark="{id_}" '
            f'aria-label="Metrics against the number of particles"></div>'
        )
    return "".join([*parts, "</section>"])


def _verdict(found: Verdict) -> str:
    points = "".join(f"<li>{escape(point)}</li>" for point in found.points)
    return (
        f'<div class="verdict says"><p class="headline">{escape(found.headline)}</p>'
        f'<p class="faint">{escape(found.basis)}</p><ul>{points}</ul></div>'
    )


def _player(id_: str, clouds: dict[str, Any], landmarks: Any) -> str:
    """The moving particles of several filters, with what moves them."""
    plots = "".join(
        f'<div class="plot" role="img" data-kind="cloud" data-benchmark="{id_}" '
        f'data-filter="{escape(short)}" '
        f'aria-label="Particles of {escape(LABELS[short])} over time"></div>'
        for short in clouds["filters"]
    )
    speeds = "".join(
        f'<option value="{speed}"{" selected" if speed == 1 else ""}>{speed} ×</option>'
        for speed in (0.25, 0.5, 1, 2, 4)
    )
    view = ""
    if clouds["near"]:
        view = (
            '<label>View <select class="view"><option value="near">near the truth</option>'
            '<option value="">the whole map</option></select></label>'
        )
    legend = [
        ("<i class='dot faded'></i>", f"where the proposal puts particles (at most {DRAWN} shown)"),
        ("<i class='dot'></i>", "what is left of them by weight"),
        ("<i class='line'></i>", "estimate so far, and the ellipse that should hold 90 %"),
        ("<i>★</i>", "truth, and its path so far"),
        *([("<i>▲</i>", "landmarks")] if landmarks else []),
    ]
    shown = "".join(f"<li>{mark} {words}</li>" for mark, words in legend)
    return (
        "<h3>Where the particles go</h3>"
        f'<ul class="legend" aria-label="Legend">{shown}</ul>'
        f'<div class="player" data-benchmark="{id_}"><button type="button">Play</button>'
        f'<input type="range" min="1" max="{len(clouds["time"])}" value="1" '
        f'aria-label="Step of {id_}"><output aria-live="off"></output>'
        f'<label>Speed <select class="speed">{speeds}</select></label>{view}</div>'
        f'<div class="clouds">{plots}</div><p class="faint">Seed 0 of the runs below.</p>'
    )


def _table(table: Table) -> str:
    heads = "".join(
        f'<th scope="col" title="{escape(TOLD[metric])}">'
        f'<button type="button">{escape(TITLES[metric])}</button></th>'
        for metric in table.metrics()
    )
    told = "".join(
        f"<dt>{escape(TITLES[metric])}</dt><dd>{escape(TOLD[metric])}</dd>"
        for metric in table.metrics()
    )
    told += "".join(
        f"<dt>{escape(LABELS[short])}</dt><dd>{escape(WORDS[short])}</dd>"
        for short in table.entries
    )
    body = []
    for short, row in table.entries.items():
        label, shown = escape(LABELS[short]), escape(table.label(short))
        cells = [
            f'<th scope="row" data-value="{label}" title="{escape(WORDS[short])}">{shown}</th>'
        ]
        for metric, entry in row.items():
            if entry is None:
                cells.append('<td data-value="">–</td>')
                continue
            paper = ""
            if entry.published is not None:
                paper = f"<small>paper {words_of(metric, Entry(*entry.published))}</small>"
            cells.append(
                f'<td data-value="{entry.mean!r}"{" class=leading" if entry.leading else ""}>'
                f"<span>{words_of(metric, entry)}</span>{paper}</td>"
            )
        body.append(f"<tr>{''.join(cells)}</tr>")
    return (
        f'<div class="scroll" role="region" tabindex="0" '
        f'aria-label="Metrics on {escape(table.benchmark)}"><table><thead><tr>'
        f'<th scope="col"><button type="button">Filter</button></th>{heads}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
        '<p class="faint">Shaded: the best of a column and what cannot be told from it, where some '
        f"other filter can: by more than {CLEARLY} standard errors of the difference, seed by "
        "seed. Click a heading to sort.</p>"
        f"<details><summary>What the columns and rows mean</summary><dl>{told}</dl></details>"
    )


def training_in_words(results: Results, name: str, rows: Sequence[Row]) -> str:
    """How the filters of these rows learned, as plain text; those that share a proposal in one
    sentence."""
    shown = {row["filter"] for row in rows}
    said = []
    for recipe in dict.fromkeys(CATALOGUE[short].recipe for short in LEARNED):
        labels = [LABELS[s] for s in LEARNED if CATALOGUE[s].recipe == recipe and s in shown]
        record = results.training(name, recipe) if recipe is not None and labels else None
        if record is not None:
            took = f" in {record['seconds']:.0f} s" if record["seconds"] else ""
            steps = f"{record['steps']} steps" if record["steps"] else "no step was needed"
            who = f"{' and '.join(labels)} {'was' if len(labels) == 1 else 'were'}"
            said.append(f" {who} trained{took} ({steps}, {record['base']} base).")
    return "".join(said)


def _data(results: Results, name: str, rows: Sequence[Row]) -> dict[str, Any]:
    """What the plots of a benchmark show."""
    particles = main_particles(BENCHMARKS[name], rows)
    usual = [row for row in rows if row["particles"] == particles]
    filters = [short for short in NAMES if any(row["filter"] == short for row in usual)]
    traces = {short: results.trace(Cell(name, short, particles, 0)) for short in filters}
    found = {short: trace for short, trace in traces.items() if trace is not None}
    ess, evidence = {}, {}
    for short in filters:
        values = ess_over_time(usual, short)
        if values is not None:
            parts = zip(("low", "middle", "high"), values, strict=True)
            ess[short] = {part: _short(path) for part, path in parts}
        own = [row for row in usual if row["filter"] == short]
        first = [row["evidence_path"] for row in own if row["seed"] == 0]
        if first and None not in first[0]:
            evidence[short] = np.cumsum(first[0])
    reference = next((short for short in (*REFERENCES, *evidence) if short in evidence), None)
    return {
        "name": name,
        "reference": reference,
        "clouds": _clouds(name, found),
        "ess": ess,
        "evidence": {
            short: {"middle": _short(path - evidence[reference])}
            for short, path in evidence.items()
            if reference is not None
        },
        "sweep": _sweep(rows) if len({row["particles"] for row in rows}) > 1 else None,
    }


def _clouds(name: str, traces: dict[str, Trace]) -> dict[str, Any] | None:
    order = [short for short in (*SIDE_BY_SIDE, *traces) if short in traces]
    shown = {short: traces[short] for short in list(dict.fromkeys(order))[:PANELS]}
    if not shown:
        return None
    case = BENCHMARKS[name]
    plane = case.shown_indices[:2]
    any_trace = next(iter(shown.values()))
    truth = any_trace["truth"][:, plane]
    landmarks = np.array(case.landmarks).reshape(-1, len(case.shown))[:, :2]
    everything = [truth, landmarks, *(t["kept"][..., :2].reshape(-1, 2) for t in shown.values())]
    ranges = []
    for axis in range(2):
        values = np.concatenate([points[:, axis] for points in everything])
        low, high = float(values.min()), float(values.max())
        margin = 0.07 * (high - low or 1)
        ranges.append([low - margin, high + margin])
    return {
        "plane": list(case.plane),
        "equal": case.has_place,
        "range": ranges,
        "near": _near(shown, ranges) if case.has_place else None,
        "time": _short(any_trace["time"]),
        "truth": _columns(truth),
        "landmarks": _columns(landmarks),
        "filters": {
            short: {
                kind: [_columns(points) for points in trace[kind][..., :2]]
                for kind in ("proposed", "kept")
            }
            | {
                "mean": _columns(trace["mean"][:, plane]),
                "ellipses": [
                    _columns(ellipse(mean, cov[:2, :2]))
                    for mean, cov in zip(trace["mean"][:, plane], trace["cov"], strict=True)
                ],
            }
            for short, trace in shown.items()
        },
    }


def _near(traces: dict[str, Trace], ranges: list[list[float]]) -> float | None:
    """Half the width of a view that shows the clouds; None if that is most of the map."""
    spreads = [np.median(np.std(t["proposed"][..., :2], axis=1)) for t in traces.values()]
    near = 4 * float(max(spreads))
    return near if 4 * near < min(high - low for low, high in ranges) else None


def _sweep(rows: Sequence[Row]) -> dict[str, Any]:
    found = {
        metric: {short: against_particles(rows, short, metric) for short in NAMES}
        for metric in (*METRICS, *([POSITION] if any(POSITION in row for row in rows) else ()))
    }
    return {
        metric: {short: points for short, points in column.items() if points}
        for metric, column in found.items()
    }


def _how(results: Results, data: dict[str, Any]) -> str:
    made = results.made()
    rows = [row for name in data for row in results.rows(name)]
    seconds = sum(row["wt"] for row in rows)
    compiling = sum(
        {(r["benchmark"], r["filter"], r["particles"]): r["compile_seconds"] for r in rows}.values()
    )
    seeds = sorted({row["seed"] for row in rows})
    said = {
        "Begun": made.get("date", "unknown"),
        "Machine": f"{made.get('system', 'unknown')}, {made.get('cores', '?')} cores, "
        f"JAX on {made.get('device', '?')}",
        "Versions": f"nopf {nopf.__version__}, Python {made.get('python', '?')}, "
        f"JAX {made.get('jax', '?')}",
        "Seeds": f"{seeds[0]} to {seeds[-1]}" if seeds else "none",
        "Filtering": f"{seconds:.0f} s in {len(rows)} runs; wall times leave out compilation, "
        f"which took about {compiling:.0f} s",
    }
    items = "".join(f"<dt>{k}</dt><dd>{escape(str(v))}</dd>" for k, v in said.items())
    return f'<footer id="how"><h2>How it was run</h2><dl>{items}</dl></footer>'


def _columns(points: np.ndarray) -> list[list[float]]:
    return [_short(points[:, 0]), _short(points[:, 1])]


def _short(values: np.ndarray) -> list[float]:
    """Four digits: more cannot be seen, and the page stays small."""
    return [float(f"{value:.4g}") for value in np.asarray(values).tolist()]
