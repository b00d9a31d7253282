"""`nopf filter` for one recording: its estimates, and what is said of them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import typer

from nopf.command.options import recording_of, show
from nopf.command.request import Request
from nopf.command.voice import say, tell
from nopf.files import write_whole
from nopf.filters import Posterior
from nopf.filters.posterior import SIGNS
from nopf.recording import (
    Accuracy,
    DataError,
    Estimates,
    Recording,
    accuracy,
    csv_table,
    estimate,
    estimate_names,
    oddities,
    plain,
    start_time,
    write_estimates,
)


def filter_one(
    request: Request, out: Path | None, plot: Path | None, as_json: bool, list_warnings: bool
) -> None:
    """Estimates to a file or standard output, then warnings, a picture and a summary.

    Args:
        request: what with.
        out: the file of estimates; standard output if None.
        plot: the picture, if there is to be one.
        as_json: whether to print the summary as JSON.
        list_warnings: whether to list each time a trouble began.
    """
    model = request.model
    tell(f"reading {request.source}")
    recording = recording_of(Path(request.source), model, request.columns)
    first = None if recording.times is None else float(recording.times[0])
    try:
        recording = recording._replace(start=start_time(model, first, request.start))
    except DataError as error:
        raise typer.BadParameter(f"{request.source}: {error}", param_hint="--start") from None
    if recording.times is None:
        say(f"no column of times: rows are taken {model.dt:g} apart (dt of the model)")
    for message in oddities(model, recording):
        say(message)
    request = request.settled(recording)
    flt = request.make_filter(recording)
    rows = len(recording.observations)
    tell(
        f"compiling {request.short} for {rows} rows and {request.particles} particles, then running"
    )
    try:
        found = estimate(flt, recording, request.seed, request.beside)
    except ValueError as error:
        about = "--smooth" if str(error).startswith("smooth: ") else None
        reason = str(error).removeprefix("smooth: ")
        raise typer.BadParameter(f"{request.source}: {reason}", param_hint=about) from None
    tell("filtered")
    if request.beside.forecast and recording.controls is not None:
        say("the forecast uses the controls of the last row")
    posterior = found.posterior
    if out is None:
        print(csv_table(*found.table()), end="")
    else:
        write_estimates(out, *found.table())
    warnings = posterior.warnings(every=list_warnings)
    for message in warnings:
        say(message)
    if plot is not None:
        _draw(request, recording, found, plot)
    near = accuracy(posterior, recording.truth or {})
    smoothed = found.smoothed_posterior()
    nearer = {} if smoothed is None else accuracy(smoothed, recording.truth or {})
    if out is not None and as_json:
        summary = _summary(request, posterior, warnings, out)
        summary |= {"truth": _as_json(near)} if near else {}
        print(json.dumps(summary | _more(request, found, nearer)))
    elif out is not None:
        _print_summary(request, posterior, out)
    if not as_json:
        line = say if out is None else show  # Standard output may have the estimates.
        for name, of_it in near.items():
            line(_near_in_words(name, of_it))
        for name, of_it in nearer.items():
            line(_near_in_words(f"{name}, smoothed", of_it))


def _near_in_words(name: str, found: Accuracy) -> str:
    words = f"{name}: RMSE {found.rmse:.4g} over {found.rows} rows"
    if found.coverage is not None and found.nominal is not None:
        words += f", {100 * found.coverage:.0f} % within the {100 * found.nominal:.0f} % interval"
    if found.error_over_variance is None:
        return f"{words}; the posterior variance is zero"
    return (
        f"{words}, squared error over posterior variance {found.error_over_variance:.2f} "
        "(should be 1)"
    )


def _draw(request: Request, recording: Recording, found: Estimates, plot: Path) -> None:
    posterior = found.posterior
    if plot.suffix == ".html":
        from nopf.report.estimates import About, estimates_page

        about = About(request.target, Path(request.source).name, request.short)
        page = estimates_page(
            posterior,
            about,
            recording.truth,
            request.landmarks,
            model=request.model,
            smoothed=found.smoothed,
            forecast=found.ahead,
        )
        write_whole(plot, page.encode())
    else:
        from nopf.report.figures import estimate_figure, save

        save(estimate_figure(posterior), plot)


def _summary(
    request: Request, posterior: Posterior, warnings: list[str], out: Path
) -> dict[str, Any]:
    """What `--json` says of the filtered estimates."""
    evidence = float(posterior.log_evidence)
    return {
        "file": str(out),
        "steps": len(posterior.times),
        "filter": request.short,
        "particles": request.particles,
        "mean_ess": None if posterior.ess is None else float(posterior.ess.mean()),
        "draws": {
            name: value if np.isfinite(value) else None for name, value in _draws(posterior).items()
        },
        "log_evidence": evidence if np.isfinite(evidence) else None,
        "warnings": warnings,
        "verdict": posterior.verdict,
    }


def _more(request: Request, found: Estimates, nearer: dict[str, Accuracy]) -> dict[str, Any]:
    """What `--json` says of what was asked for beside them."""
    more: dict[str, Any] = {}
    names, rows, _ = found.table()
    columns = zip(*(plain(row) for row in rows), strict=True)
    by_name = dict(zip(names, columns, strict=True))
    steps = len(found.posterior.times)
    if found.smoothed is not None:
        states = {
            name: {part: by_name[f"{name}_smoothed_{part}"][:steps] for part in ("mean", "std")}
            for name in found.posterior.state_names
        }
        more["smoothed"] = {"lag": request.beside.lag, "states": states}
        more["smoothed"] |= {"truth": _as_json(nearer)} if nearer else {}
    if found.ahead is not None:
        known = estimate_names(found.ahead.state_names, found.ahead.quantile_levels)
        known = [name for name in known if name not in SIGNS]
        more["forecast"] = {name: by_name[name][steps:] for name in known}
    return more


def _as_json(near: dict[str, Accuracy]) -> dict[str, Any]:
    return {name: found._asdict() for name, found in near.items()}


def _draws(posterior: Posterior) -> dict[str, float]:
    """What the mean of each state is worth, typically."""
    medians = np.median(np.asarray(posterior.draws), axis=0)
    return dict(zip(posterior.state_names, medians.tolist(), strict=True))


def _print_summary(request: Request, posterior: Posterior, out: Path) -> None:
    count = ""
    if posterior.ess is not None:
        count = (
            f", mean effective sample size {float(posterior.ess.mean()):.0f} of {request.particles}"
        )
    print(
        f"{out}: {len(posterior.times)} steps{count}, log-evidence "
        f"{float(posterior.log_evidence):.2f}: {posterior.verdict}"
    )
    known = {name: value for name, value in _draws(posterior).items() if np.isfinite(value)}
    if known:
        worst = min(known, key=lambda name: known[name])
        show(
            f"The least accurate mean, that of {worst}, is worth {known[worst]:.0f} independent "
            f"draws of the posterior: it may be off by {1 / np.sqrt(known[worst]):.1g} of its "
            "standard deviation."
        )
