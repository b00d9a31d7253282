"""A page of the estimates of one recording. Needs Plotly."""

import datetime
import html
from typing import Any, NamedTuple

import numpy as np

from nopf.catalogue import LABELS, WORDS
from nopf.filters import Posterior, Smoothed
from nopf.model import StateSpaceModel
from nopf.plots import LEVEL_90
from nopf.recording import accuracy
from nopf.report import panels
from nopf.report.document import UNPACK, asset, document, packed_plotly
from nopf.report.panels import OUTLIER, Shown
from nopf.report.place import place_map, plane
from nopf.report.plotted import Plots
from nopf.report.predictions import predictions
from nopf.report.thin import thin

TOLD = 6  # states beside the slider


class About(NamedTuple):
    """Whose estimates these are: model, recording and filter, as the user names them."""

    model: str
    recording: str
    filter: str


# What a verdict means, and its colour.
VERDICTS = {
    "trust it": ("trust", "Nothing speaks against these estimates{}."),
    "look here": ("look", "The estimates are usable, but read this first:"),
    "do not trust it": ("doubt", "Something is wrong:"),
}


def estimates_page(
    posterior: Posterior,
    about: About | None = None,
    truth: dict[str, np.ndarray] | None = None,
    landmarks: np.ndarray | None = None,
    *,
    model: StateSpaceModel | None = None,
    smoothed: Smoothed | None = None,
    forecast: Posterior | None = None,
) -> str:
    """A verdict with its reasons, a map where two states are a place, states, measurements and the
    signs of health over time.

    Args:
        posterior: the estimates.
        about: what the title says.
        truth: `(T,)` true values of some states, by their names.
        landmarks: `(k, 2)` places to mark on the map.
        model: says what the measurements were predicted to be.
        smoothed: of the same steps; deviations are then from its path.
        forecast: what comes after the last step, from `flt.forecast`.
    """
    predicted = None if model is None else predictions(model, posterior)
    shown = Shown(posterior, truth or {}, predicted, smoothed, forecast, Plots())
    own = plane(shown)
    parts = [_title(posterior, about), _verdict(posterior), _accuracy(shown)]
    if own is not None:
        parts += ["<h2>Map</h2>", place_map(shown, own, landmarks)]
    parts += ["<h2>States</h2>", _about_states(shown), panels.states(shown)]
    parts += ["<h2>Deviations</h2>", _about_deviations(shown), panels.deviations(shown)]
    drawn, outliers = panels.measurements(shown)
    parts += ["<h2>Measurements</h2>", _about_measurements(shown, outliers), drawn]
    parts += ["<h2>Signs of health</h2>", _about_signs(posterior), panels.signs(shown)]
    body = f"""{"".join(parts)}
{_player(shown)}
{shown.plots.packed({"now": _now(shown, own)})}
{packed_plotly()}
<script>{UNPACK}{asset("estimates.js")}</script>"""
    return document(f"nopf: {_heading(about)}", body)


def _heading(about: About | None) -> str:
    return "Estimates" if about is None else f"{about.recording}, filtered with {about.model}"


def _title(posterior: Posterior, about: About | None) -> str:
    words = [f"{len(posterior.times)} steps", f"made on {datetime.date.today().isoformat()}"]
    if posterior.particle_count is not None:
        words.insert(0, f"{posterior.particle_count} particles")
    if about is not None:
        told = WORDS.get(about.filter)
        named = LABELS.get(about.filter, about.filter)
        words.insert(0, f"Filter {named}" + (f" ({told})" if told else ""))
    subtitle = html.escape(", ".join(words))
    return f'<h1>{html.escape(_heading(about))}</h1><p class="faint">{subtitle}</p>'


def _verdict(posterior: Posterior) -> str:
    every, monitor = posterior.monitored()
    summed_up, verdict = monitor.summary(), posterior.verdict
    kind, meaning = VERDICTS[verdict]
    meaning = meaning.format("; what was noticed" if every else "")
    reasons = _list(summed_up) if every else ""
    if len(every) > len(summed_up):
        reasons += f"<details><summary>All {len(every)}</summary>{_list(every)}</details>"
    return (
        f'<div class="verdict {kind}"><p class="headline">{verdict.capitalize()}.</p>'
        f"<p>{meaning}</p>{reasons}</div>"
    )


def _list(messages: list[str]) -> str:
    return f"<ul>{''.join(f'<li>{html.escape(message)}</li>' for message in messages)}</ul>"


def _accuracy(shown: Shown) -> str:
    """How near the truth the estimates are, where it is known."""
    found = accuracy(shown.posterior, shown.truth)
    if not found:
        return ""
    lines = []
    for name, near in found.items():
        share = "–" if near.coverage is None else f"{near.coverage:.0%}"
        ratio = near.error_over_variance
        cells = (f"{near.rmse:.4g}", share, "exact" if ratio is None else f"{ratio:.2f}")
        shown_cells = "".join(f"<td>{cell}</td>" for cell in cells)
        lines.append(f'<tr><th scope="row">{html.escape(name)}</th>{shown_cells}</tr>')
    nominal = next(iter(found.values())).nominal
    within = "" if nominal is None else f" {nominal:.0%}"
    heads = "".join(
        f'<th scope="col">{head}</th>'
        for head in (
            "Against the truth",
            "root mean square error",
            f"within the{within} interval",
            "squared error ÷ variance (1 is right)",
        )
    )
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="Against the truth"><table>'
        f"<thead><tr>{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def _about_states(shown: Shown) -> str:
    levels = shown.posterior.quantile_levels
    words = "Blue lines are means"
    if levels:
        words += f", bands hold {max(levels) - min(levels):.0%}"
    words += "; dotted in grey is the truth" if shown.truth else ""
    words += "; dashed in green the smoothed path" if shown.smoothed is not None else ""
    words += "; in orange the forecast" if shown.forecast is not None else ""
    words += ". Angles go on beyond ±π" if shown.posterior.space.angles else ""
    return (
        f"<p>{words}. Point at a plot, or move the slider below, to see one time in all plots; "
        "drag in a plot to zoom in all of them, double-click to zoom out.</p>"
    )


def _about_deviations(shown: Shown) -> str:
    path = "the smoothed path, which knows later measurements too"
    if shown.smoothed is None:
        path = "the filter's own mean, since no smoothing was asked for"
    truth = " In grey: the truth." if shown.truth else ""
    return (
        f"<p>The same estimates as deviations from {path}. The unit is each state's standard "
        f"deviation, the median over time.{truth}</p>"
    )


def _about_measurements(shown: Shown, outliers: int) -> str:
    words = "Dots are measurements"
    if shown.predicted is not None:
        words += ", lines what was predicted of them: the mean before, moved on without noise"
    marked = {0: "none is that far off", 1: "one is"}.get(outliers, f"{outliers} are")
    return (
        f"<p>{words}. Below each, the deviation from the prediction in standard deviations; 95 % "
        f"should be between the dotted lines. Orange rings mark what is off by more than "
        f"{OUTLIER:.1f}: {marked}.</p>"
    )


def _about_signs(posterior: Posterior) -> str:
    tails = (
        " to the model with its heavy tails; in colour, to the same model without them, which is "
        "what tells outliers"
    )
    summary = f"Log-evidence {float(posterior.log_evidence):.2f}"
    if posterior.ess is not None:
        count = posterior.particle_count
        summary += f", mean ESS {float(np.mean(posterior.ess)):.0f}"
        summary += "" if count is None else f" of {count} particles"
    return (
        f"<p>{summary}. Draws say how many independent draws of the posterior would give as good a "
        "mean of the least known state: with n draws it may be off by 1/√n of its standard "
        "deviation. The effective sample size (ESS) says how many particles count at that step "
        "alone. The p-value says how surprising a measurement was"
        f"{'' if posterior.tails is None else tails}; the drift, whether the last twenty or so "
        "were too surprising: beyond the dotted lines the model is wrong.</p>"
    )


def _player(shown: Shown) -> str:
    last = len(thin(shown.times, shown.most)) - 1
    return (
        '<div class="player sticky"><label for="time">Time</label>'
        f'<input type="range" id="time" min="0" max="{last}" value="0">'
        '<output for="time" aria-live="off"></output></div>'
    )


def _now(shown: Shown, own: list[int] | None) -> dict[str, Any]:
    """What moving the slider shows, row by row."""
    posterior, plots = shown.posterior, shown.plots

    def kept(values: Any) -> int:
        return plots.array(thin(np.asarray(values, np.float64), shown.most))

    count = len(posterior.state_names)
    told = list(range(min(count, TOLD)))
    place, states = None, told
    if own is not None:
        states = [*own, *(i for i in told if i not in own)]
        cov = np.asarray(posterior.cov)
        pairs = [(own[0], own[0]), (own[0], own[1]), (own[1], own[1])]
        place = {
            "states": [0, 1],
            "cov": [kept(cov[:, i, j]) for i, j in pairs],
            "radius": float(np.sqrt(LEVEL_90)),
        }
    return {
        "time": kept(shown.times),
        "names": [posterior.state_names[i] for i in states],
        "means": [kept(posterior.mean[:, i]) for i in states],
        "stds": [kept(posterior.std[:, i]) for i in states],
        "place": place,
    }
