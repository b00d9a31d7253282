"""`nopf filter` for many recordings: one filter for all, estimates of each, and a summary."""

import csv
import dataclasses
import functools
import glob
import hashlib
import html
import io
import json
import tempfile
import urllib.parse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import typer

import nopf
from nopf.benchmarks.cluster import on_cluster
from nopf.benchmarks.progress import Counted
from nopf.catalogue import CATALOGUE, make_filter
from nopf.command.options import say
from nopf.command.target import load
from nopf.files import write_whole
from nopf.filters import Filter, Posterior
from nopf.proposals import NeuralProposal
from nopf.proposals.fingerprint import fingerprint
from nopf.recording import (
    Named,
    Recording,
    accuracy,
    estimate_names,
    estimate_rows,
    filter_recording,
    oddities,
    read_recording,
    write_estimates,
)

ENDINGS = (".csv", ".csv.gz", ".parquet", ".tsv", ".txt")
NUMBERS = ("steps", "ess", "draws", "log_evidence")
COLUMNS = ("recording", *NUMBERS, "verdict", "error")
SUMMARY = "summary"
COLOURS = {"trust it": "trust", "look here": "look", "do not trust it": "doubt"}


@dataclasses.dataclass(frozen=True)
class Settings:
    """What all recordings are filtered with; goes to other processes as it is.

    Attributes:
        target: the model, as the user names it.
        columns: those that do not go by the model's names.
        short: the filter's short name.
        particles: how many.
        proposal: the file of the learned one, if the filter has one.
        seed: of everything random.
        start: the prior's time.
        recover: share of the particles that is drawn anew when the filter is lost.
        double: whether to compute in double precision.
    """

    target: str
    columns: Named
    short: str
    particles: int
    proposal: bytes | None
    seed: int
    start: float | None
    recover: float
    double: bool


def several(source: str) -> list[Path] | None:
    """The recordings that a pattern or a folder names; None if it names a single one.

    Raises:
        typer.BadParameter: if there are none.
    """
    if Path(source).is_dir():
        files = sorted(Path(source).iterdir())
        found = [path for path in files if path.name.lower().endswith(ENDINGS)]
    elif glob.has_magic(source) and not Path(source).exists():
        found = [Path(name) for name in sorted(glob.glob(source, recursive=True))]
    else:
        return None
    if not found:
        raise typer.BadParameter(
            f"{source}: there is no recording (names end in {', '.join(ENDINGS)})",
            param_hint="--data",
        )
    names = [_name(path) for path in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise typer.BadParameter(
            f"{source}: several recordings are called {twice[0]}, and so would their estimates be; "
            "rename them, or give the command for each folder",
            param_hint="--data",
        )
    if SUMMARY in names:
        raise typer.BadParameter(
            f"{source}: a recording called {SUMMARY} would be lost in the summary; rename it",
            param_hint="--data",
        )
    return found


def check_folder(out: Path, sources: Sequence[Path]) -> None:
    """Refuses a folder of estimates in which recordings lie."""
    if out.exists() and not out.is_dir():
        raise typer.BadParameter(f"{out}: expected a folder", param_hint="--out")
    for source in sources:
        if out.resolve() in (source.resolve().parent, *source.absolute().parents):
            raise typer.BadParameter(
                f"{out}: {source} is read from there; name another folder", param_hint="--out"
            )


def filter_all(
    settings: Settings, sources: Sequence[Path], out: Path, workers: int, cluster: str | None
) -> list[dict[str, Any]]:
    """Filters every recording, or takes what an earlier call has finished: a row for each.

    Args:
        settings: what with.
        sources: the recordings.
        out: the folder of what comes out.
        workers, cluster: as in `nopf bench`.
    """
    out.mkdir(parents=True, exist_ok=True)
    rows: dict[Path, dict[str, Any]] = {}
    for source in sources:
        kept = _finished(settings, source, out)
        if kept is not None:
            rows[source] = kept
    left = [source for source in sources if source not in rows]
    if rows:
        say(f"{len(rows)} of {len(sources)} recordings were finished before")
    with Counted("recordings") as tell:
        tell(len(rows), len(sources))
        for source, row in _run(settings, left, out, workers, cluster):
            rows[source] = row
            tell(len(rows), len(sources))
    ordered = [rows[source] for source in sources]
    _write_summary(settings, ordered, out)
    return ordered


def _run(
    settings: Settings, sources: Sequence[Path], out: Path, workers: int, cluster: str | None
) -> Iterator[tuple[Path, dict[str, Any]]]:
    if not sources:
        return
    if not workers and cluster is None:
        for source in sources:
            yield source, _one(settings, source, out)
        return
    # Other processes may be in another folder.
    work: Any = functools.partial(_one_there, settings, str(out.absolute()))
    by_name = {str(source.absolute()): source for source in sources}
    with on_cluster(work, workers, cluster) as run_all:
        jobs: Any = [(name, None) for name in by_name]
        found: Any
        for name, found in run_all(jobs):
            source = by_name[str(name)]
            row = _failed(source, found) if isinstance(found, Exception) else found
            yield source, row | {"recording": str(source)}


def _one_there(settings: Settings, out: str, source: str, _: None) -> dict[str, Any]:
    """The same in another process."""
    return _one(settings, Path(source), Path(out))


def _one(settings: Settings, source: Path, out: Path) -> dict[str, Any]:
    """Filters one recording, and writes what comes out; a row of the summary."""
    try:
        with jax.enable_x64(settings.double):
            flt = _filter(settings)
            read = read_recording(source, flt.model, settings.columns)
            recording = read._replace(start=settings.start)
            posterior = filter_recording(flt, recording, settings.seed)
            names = estimate_names(posterior.state_names, posterior.quantile_levels)
            rows = estimate_rows(np.asarray(posterior.times), posterior)
            # Until all is written again, nothing of an earlier call counts.
            (out / f"{_name(source)}.json").unlink(missing_ok=True)
            write_estimates(out / f"{_name(source)}.csv", names, rows)
            row = _summary(source, posterior, recording)
            row["warnings"] = [*oddities(flt.model, recording), *row["warnings"]]
    except Exception as error:  # The others shall not wait for this one.
        return _failed(source, error)
    # Written last: what has this is finished.
    kept = {"of": _digest(settings, source), "row": row}
    write_whole(out / f"{_name(source)}.json", json.dumps(kept).encode())
    return row


@functools.lru_cache(maxsize=1)
def _filter(settings: Settings) -> Filter:
    """The filter, compiled once for all recordings of a process."""
    model, proposal = load(settings.target).model, None
    if settings.proposal is not None:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "proposal.nopf"
            file.write_bytes(settings.proposal)
            proposal = NeuralProposal.load(file, CATALOGUE[settings.short].of(model))
    return make_filter(
        settings.short, model, settings.particles, proposal=proposal, recover=settings.recover
    )


def _summary(source: Path, posterior: Posterior, recording: Recording) -> dict[str, Any]:
    draws = np.asarray(posterior.draws, np.float64)
    known = draws[np.isfinite(draws)]
    worst = float(np.median(np.min(np.where(np.isfinite(draws), draws, np.inf), axis=1)))
    near = accuracy(posterior, recording.truth or {})
    return {
        "recording": str(source),
        "steps": len(posterior.times),
        "ess": None if posterior.ess is None else float(np.mean(posterior.ess)),
        "draws": worst if known.size and np.isfinite(worst) else None,
        "log_evidence": _finite(posterior.log_evidence),
        "verdict": posterior.verdict,
        "error": None,
        "warnings": posterior.warnings(),
        "truth": {name: found._asdict() for name, found in near.items()},
    }


def _failed(source: Path, error: Any) -> dict[str, Any]:
    nothing = dict.fromkeys(COLUMNS)
    reason = " ".join(str(error).split()).removeprefix(f"{source}: ")
    return nothing | {"recording": str(source), "error": reason or type(error).__name__}


def _finite(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None


def _finished(settings: Settings, source: Path, out: Path) -> dict[str, Any] | None:
    """The row of a recording that was finished before with the same settings."""
    try:
        kept = json.loads((out / f"{_name(source)}.json").read_text())
        row = {name: kept["row"][name] for name in (*COLUMNS, "warnings", "truth")}
        same = kept["of"] == _digest(settings, source)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    sound = (
        all(row[name] is None or isinstance(row[name], int | float) for name in NUMBERS)
        and row["verdict"] in COLOURS
        and isinstance(row["warnings"], list)
    )
    if not (same and sound and (out / f"{_name(source)}.csv").exists()):
        return None
    return row | {"recording": str(source), "error": None}


def _digest(settings: Settings, source: Path) -> str:
    """Of all that decides what comes out for a recording."""
    digest = hashlib.sha256(_identity(settings))
    digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


@functools.lru_cache(maxsize=1)
def _identity(settings: Settings) -> bytes:
    """The settings, and the model: by what its functions give, since it may be made of many
    files."""
    model = load(settings.target).model
    controls = len(model.control_names) if model.reads_control else None
    parts = (nopf.__version__, dataclasses.asdict(settings), fingerprint(model, controls))
    return repr(parts).encode()


def _name(source: Path) -> str:
    """What the files of a recording are called."""
    return next(
        (source.name[: -len(end)] for end in ENDINGS if source.name.lower().endswith(end)),
        source.name,
    )


def _write_summary(settings: Settings, rows: list[dict[str, Any]], out: Path) -> None:
    """`summary.csv`, and `index.html` to look at."""
    from nopf.report.document import document  # `report` is imported when it is needed

    states = list(dict.fromkeys(name for row in rows for name in row.get("truth") or ()))
    columns = [*COLUMNS, *(f"rmse_{name}" for name in states)]
    table = io.StringIO()
    writer = csv.DictWriter(table, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        near = {f"rmse_{name}": own["rmse"] for name, own in (row.get("truth") or {}).items()}
        writer.writerow(row | near)
    write_whole(out / f"{SUMMARY}.csv", table.getvalue().encode())
    lines = []
    for row in rows:
        verdict = row["error"] or row["verdict"]
        name = f"{_name(Path(row['recording']))}.csv"
        cells = [_number(row[column]) for column in NUMBERS]
        reasons = "".join(f"<li>{html.escape(text)}</li>" for text in row.get("warnings") or ())
        reasons = f"<ul>{reasons}</ul>" if reasons else ""
        linked = html.escape(row["recording"])
        if row["error"] is None:
            linked = f'<a href="{urllib.parse.quote(name)}">{linked}</a>'
        kind = COLOURS.get(row["verdict"] or "", "doubt")
        told = f'<div class="verdict {kind}">{html.escape(verdict)}{reasons}</div>'
        shown = "".join(f"<td>{cell}</td>" for cell in (linked, *cells))
        lines.append(f'<tr>{shown}<td class="told">{told}</td></tr>')
    heads = ("recording", "steps", "mean ESS", "draws of the least known mean", "log-evidence", "")
    body = (
        f"<h1>{len(rows)} recordings, filtered with {html.escape(settings.target)}</h1>"
        f'<p class="faint">Filter {settings.short}, {settings.particles} particles</p>'
        f"<table><thead><tr>{''.join(f'<th>{head}</th>' for head in heads)}</tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table>"
    )
    write_whole(out / "index.html", document("nopf: recordings", body).encode())


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.6g}"
