"""Training that ends in a file: written when it is whole, gone on with if it was cut short."""

import dataclasses
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from jaxtyping import PRNGKeyArray

from nopf.gaussian import Numbers
from nopf.model import StateSpaceModel
from nopf.proposals import NeuralProposal
from nopf.recipe import Recipe
from nopf.training.run import TrainingInterrupted
from nopf.training.trainer import train


@dataclasses.dataclass(frozen=True)
class Series:
    """What the series are like that training simulates: arguments of `train`."""

    horizon: int
    times: Numbers | None = None
    controls: Numbers | None = None
    start: float | None = None
    missing: Numbers | None = None


class Trained(NamedTuple):
    """A training that has ended.

    Attributes:
        proposal: what was learned.
        seconds: how long it took, this time.
        resumed: whether it went on where an earlier one was cut short.
        interrupted: whether Ctrl-C ended it.
    """

    proposal: NeuralProposal
    seconds: float
    resumed: bool
    interrupted: bool


def train_to_file(
    model: StateSpaceModel,
    series: Series,
    key: PRNGKeyArray,
    recipe: Recipe,
    *,
    file: Path | None,
    part: Path | None,
    keep_half: bool = False,
    before_saving: Callable[[Trained], None] | None = None,
    progress: bool | None = None,
) -> Trained:
    """Trains a proposal and writes it to a file; goes on if an earlier run was cut short.

    Args:
        model: the model.
        series: what is simulated from it.
        key: random key.
        recipe: how to train.
        file: where the proposal belongs; None to write nothing.
        part: what keeps the state of training until the file is written.
        keep_half: what Ctrl-C does. If true, the best proposal so far is written, unless there is
            a file already. Otherwise there is only the part, and KeyboardInterrupt goes on.
        before_saving: is called with what was trained, just before it is written.
        progress: whether to show a bar; on a terminal only if left out.
    """
    resumed, started = part is not None and part.exists(), time.perf_counter()
    # All are recorded, since only as a warning is an interruption known and the proposal there.
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        proposal = train(
            model,
            series.horizon,
            key,
            recipe=recipe,
            times=series.times,
            controls=series.controls,
            start=series.start,
            missing=series.missing,
            checkpoint=part,
            progress=progress,
        )
    interrupted = any(issubclass(w.category, TrainingInterrupted) for w in caught)
    trained = Trained(proposal, time.perf_counter() - started, resumed, interrupted)
    if interrupted and not keep_half:
        raise KeyboardInterrupt
    for warning in caught:
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    if before_saving is not None:
        before_saving(trained)
    if file is not None and not (interrupted and file.exists()):
        proposal.save(file)
    if part is not None and not interrupted:
        part.unlink(missing_ok=True)
    return trained
