"""A proposal for a recording: trained on series like it, and kept for the next time."""

import dataclasses
import hashlib
import json
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import nopf
from nopf.cache import NoCacheError, own_folder
from nopf.model import StateSpaceModel
from nopf.proposals import NeuralProposal
from nopf.proposals.fingerprint import fingerprint
from nopf.recipe import Recipe
from nopf.recording.columns import DataError
from nopf.recording.estimate import start_time
from nopf.recording.reading import Recording
from nopf.training.to_file import Series, train_to_file

LONGEST = 500  # rows of a recording that a simulated series imitates
LIVE_HORIZON, LIVE_MISSING = 100, 0.1  # where nothing is known of a stream yet


def proposal_for(
    model: StateSpaceModel,
    recording: Recording | None,
    seed: int,
    say: Callable[[str], None],
    progress: bool | None = None,
) -> NeuralProposal:
    """A proposal for a model and a recording: from the cache, or trained now.

    Training imitates the recording: its times, its controls, and what is missing in it.

    Args:
        model: the model.
        recording: what shall be filtered; None for a stream of which nothing is known yet.
        seed: of training.
        say: is told what happens.
        progress: whether training shows a bar; on a terminal only if left out.
    """
    if recording is None:
        series, recipe = _stream(model)
    else:
        series, recipe = imitation(model, recording), Recipe.fast()
    try:
        name = digest(model, series, seed, {"recipe": dataclasses.asdict(recipe)})
        file = own_folder("proposals") / f"{name}.nopf"
        kept = "kept for the next time (--filter bpf or lpf need none)"
    except NoCacheError as error:
        file, kept = None, f"not kept, since {error} (NOPF_CACHE names another folder)"
    if file is not None and file.exists():
        try:
            proposal = NeuralProposal.load(file, model)
        except (ValueError, OSError) as error:
            say(f"the proposal that was kept cannot be used ({error})")
        else:
            say("using the proposal that was trained for this model and data before")
            return proposal
    say(f"training a proposal on {series.horizon} simulated steps like yours; it is {kept}")
    trained = train_to_file(
        model,
        series,
        jax.random.key(seed),
        recipe,
        file=file,
        part=None if file is None else file.with_suffix(".part"),
        progress=progress,
    )
    return trained.proposal


def imitation(model: StateSpaceModel, recording: Recording) -> Series:
    """Series like a recording, for training; of a long one, each imitates `LONGEST` rows."""
    missing = np.isnan(recording.observations)
    if missing.all():
        raise DataError("nothing is observed in any row: nothing to train for")
    times = recording.times
    return Series(
        min(len(missing), LONGEST),
        times=times,
        controls=recording.controls,
        start=start_time(model, None if times is None else float(times[0]), recording.start),
        missing=missing if missing.any() else None,
    )


def _stream(model: StateSpaceModel) -> tuple[Series, Recipe]:
    """How to train for a stream of which nothing is known yet."""
    if model.reads_control:
        raise DataError(
            "this model reads step.control, and how a live robot will be driven is not known "
            "yet: train on a recording first (nopf train MODEL --data run.csv --out FILE), "
            "then pass --proposal FILE"
        )
    rate = LIVE_MISSING if model.likelihood.additive else 0.0
    return Series(LIVE_HORIZON), Recipe.fast(missing_rate=rate)


def digest(model: StateSpaceModel, series: Series, seed: int, more: dict[str, Any]) -> str:
    """Of all that decides what comes out for a model and series like these."""
    controls = None if series.controls is None else np.shape(series.controls)[1]
    settings = {field.name: getattr(series, field.name) for field in dataclasses.fields(series)}
    given = {name: value for name, value in settings.items() if value is not None}
    identity = {
        "nopf": nopf.__version__,
        "model": fingerprint(model, controls),
        "settings": {name: np.asarray(value).tolist() for name, value in given.items()},
        "seed": seed,
        "precision": str(jax.numpy.zeros(()).dtype),
        **more,
    }
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
