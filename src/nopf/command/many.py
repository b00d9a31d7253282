"""`nopf filter` for many recordings: one filter for all, estimates of each, and a summary."""

import dataclasses
import functools
import hashlib
import json
import tempfile
from collections import Counter
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
from nopf.command.request import Request
from nopf.command.sources import Source
from nopf.command.summary import COLOURS, COLUMNS, NUMBERS, write_summary
from nopf.command.target import load
from nopf.command.voice import complain, say, tell, voice
from nopf.files import write_whole
from nopf.filters import Filter, Posterior
from nopf.filters.monitor import VERDICTS
from nopf.proposals import NeuralProposal
from nopf.proposals.fingerprint import fingerprint
from nopf.recording import (
    ALONE,
    Beside,
    DataError,
    Named,
    Recording,
    accuracy,
    estimate,
    oddities,
    start_time,
    write_estimates,
)


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
        beside: what is wanted beside the filtered estimates.
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
    beside: Beside = ALONE


def filter_many(
    request: Request,
    sources: list[Source],
    out: Path,
    double: bool,
    workers: int,
    cluster: str | None,
    as_json: bool,
) -> None:
    """Estimates of each recording to a file in a folder; one filter for all, which suits the first
    that can be read.

    Args:
        request: what with.
        sources: the recordings.
        out: the folder.
        double: whether to compute in double precision.
        workers, cluster: as in `nopf bench`.
        as_json: whether to print the summary as JSON.
    """
    recording, reasons = None, []
    for source in sources:
        try:
            read = source.read(request.model, request.columns)
            first = None if read.times is None else float(read.times[0])
            recording = read._replace(start=start_time(request.model, first, request.start))
            break
        except DataError as error:
            reasons.append(str(error))
    if recording is None:
        raise typer.BadParameter(f"no recording can be read: {reasons[0]}", param_hint="--data")
    if recording.times is None:
        say(f"no column of times: rows are taken {request.model.dt:g} apart (dt of the model)")
    for message in oddities(request.model, recording):
        say(f"{sources[len(reasons)]}: {message}")
    request = request.settled(recording)
    flt, file = request.make_filter(recording), None
    learned = getattr(flt, "proposal", None)
    if isinstance(learned, NeuralProposal):
        with tempfile.TemporaryDirectory() as folder:
            learned.save(Path(folder) / "proposal.nopf")
            file = (Path(folder) / "proposal.nopf").read_bytes()
    target, colon, name = request.target.rpartition(":")
    settings = Settings(
        target=f"{Path(target).absolute()}:{name}" if colon else request.target,
        columns=request.columns,
        short=request.short,
        particles=request.particles,
        proposal=file,
        seed=request.seed,
        start=request.start,
        recover=request.recover,
        double=double,
        beside=request.beside,
    )
    tell(f"filtering {len(sources)} recordings with {request.short}")
    rows = filter_all(settings, sources, out, workers, cluster)
    failed = [row for row in rows if row["error"] is not None]
    for row in failed:
        complain(f"{row['recording']}: {row['error']}")
    if as_json:
        print(json.dumps({"filter": request.short, "recordings": rows}))
    else:
        counts = Counter(row["verdict"] for row in rows if row["error"] is None)
        found = [f"{verdict}: {counts[verdict]}" for verdict in VERDICTS if counts[verdict]]
        found += [f"failed: {len(failed)}"] if failed else []
        print(f"{out}: {len(rows)} recordings, {', '.join(found)}; {out / 'index.html'} lists them")
    if failed:
        raise typer.Exit(1)


def filter_all(
    settings: Settings, sources: Sequence[Source], out: Path, workers: int, cluster: str | None
) -> list[dict[str, Any]]:
    """Filters every recording, or takes what an earlier call has finished: a row for each.

    Args:
        settings: what with.
        sources: the recordings.
        out: the folder of what comes out.
        workers, cluster: as in `nopf bench`.
    """
    out.mkdir(parents=True, exist_ok=True)
    rows: dict[Source, dict[str, Any]] = {}
    for source in sources:
        kept = _finished(settings, source, out)
        if kept is not None:
            rows[source] = kept
    left = [source for source in sources if source not in rows]
    if rows:
        say(f"{len(rows)} of {len(sources)} recordings were finished before")
    with Counted("recordings", voice.bars) as count:
        count(len(rows), len(sources))
        for source, row in _run(settings, left, out, workers, cluster):
            rows[source] = row
            count(len(rows), len(sources))
    ordered = [rows[source] for source in sources]
    words = f"Filter {settings.short}, {settings.particles} particles"
    title = f"{len(rows)} recordings, filtered with {settings.target}"
    write_summary(title, words, [source.name for source in sources], ordered, out)
    return ordered


def _run(
    settings: Settings, sources: Sequence[Source], out: Path, workers: int, cluster: str | None
) -> Iterator[tuple[Source, dict[str, Any]]]:
    if not sources:
        return
    if not workers and cluster is None:
        for source in sources:
            yield source, _one(settings, source, out)
        return
    # Other processes may be in another folder.
    work: Any = functools.partial(_one_there, settings, out.absolute())
    there = {source._replace(path=source.path.absolute()): source for source in sources}
    with on_cluster(work, workers, cluster) as run_all:
        jobs: Any = [(source, None) for source in there]
        key: Any
        found: Any
        for key, found in run_all(jobs):
            source = there[key]
            row = _failed(source, found) if isinstance(found, Exception) else found
            yield source, row | {"recording": str(source)}


def _one_there(settings: Settings, out: Path, source: Source, _: None) -> dict[str, Any]:
    """The same in another process."""
    return _one(settings, source, out)


def _one(settings: Settings, source: Source, out: Path) -> dict[str, Any]:
    """Filters one recording, and writes what comes out; a row of the summary."""
    target = out / source.name
    try:
        of = _digest(settings, source)  # before it is read: it may grow meanwhile
        with jax.enable_x64(settings.double):
            flt = _filter(settings)
            read = source.read(flt.model, settings.columns)
            recording = read._replace(start=settings.start)
            found = estimate(flt, recording, settings.seed, settings.beside)
            # Until all is written again, nothing of an earlier call counts.
            target.with_name(target.name + ".json").unlink(missing_ok=True)
            target.parent.mkdir(parents=True, exist_ok=True)
            write_estimates(target.with_name(target.name + ".csv"), *found.table())
            row = _summary(source, found.posterior, recording)
            row["warnings"] = [*oddities(flt.model, recording), *row["warnings"]]
        # Written last: what has this is finished.
        kept = json.dumps({"of": of, "row": row}).encode()
        write_whole(target.with_name(target.name + ".json"), kept)
    except Exception as error:  # The others shall not wait for this one.
        return _failed(source, error)
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


def _summary(source: Source, posterior: Posterior, recording: Recording) -> dict[str, Any]:
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


def _failed(source: Source, error: Any) -> dict[str, Any]:
    nothing = dict.fromkeys(COLUMNS)
    reason = " ".join(str(error).split()).removeprefix(f"{source}: ")
    return nothing | {"recording": str(source), "error": reason or type(error).__name__}


def _finite(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None


def _finished(settings: Settings, source: Source, out: Path) -> dict[str, Any] | None:
    """The row of a recording that was finished before with the same settings."""
    try:
        kept = json.loads((out / f"{source.name}.json").read_text())
        row = {name: kept["row"][name] for name in (*COLUMNS, "warnings", "truth")}
        same = kept["of"] == _digest(settings, source)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    sound = (
        all(row[name] is None or isinstance(row[name], int | float) for name in NUMBERS)
        and row["verdict"] in COLOURS
        and isinstance(row["warnings"], list)
        and all(isinstance(warning, str) for warning in row["warnings"])
        and isinstance(row["truth"], dict)
        and all(_is_accuracy(found) for found in row["truth"].values())
    )
    if not (same and sound and (out / f"{source.name}.csv").exists()):
        return None
    return row | {"recording": str(source), "error": None}


def _is_accuracy(found: Any) -> bool:
    return isinstance(found, dict) and isinstance(found.get("rmse"), int | float)


def _digest(settings: Settings, source: Source) -> str:
    """Of all that decides what comes out for a recording."""
    digest = hashlib.sha256(_identity(settings))
    digest.update(source.digest())
    return digest.hexdigest()[:16]


@functools.lru_cache(maxsize=1)
def _identity(settings: Settings) -> bytes:
    """The settings, and the model: by what its functions give, since it may be made of many
    files."""
    model = load(settings.target).model
    controls = len(model.control_names) if model.reads_control else None
    parts = (nopf.__version__, dataclasses.asdict(settings), fingerprint(model, controls))
    return repr(parts).encode()
