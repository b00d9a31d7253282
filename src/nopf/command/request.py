"""What `nopf filter` is asked for: a model, a filter and how to run it."""

import dataclasses

import numpy as np
import typer

from nopf.catalogue import CATALOGUE, make_filter
from nopf.command.advice import UNTRAINED, pick
from nopf.command.voice import say, voice
from nopf.filters import Filter
from nopf.model import StateSpaceModel
from nopf.proposals import NeuralProposal
from nopf.recording import ALONE, Beside, DataError, Named, Recording, proposal_for

AUTO = "auto"


@dataclasses.dataclass(frozen=True)
class Request:
    """What is to be filtered, and how.

    Attributes:
        source: the recording; "-" for a live stream.
        model: what to filter it with.
        columns: those that do not go by the model's names.
        short: the filter's short name.
        particles: how many.
        proposal: the trained one that was given.
        seed: of everything random.
        start: the prior's time.
        recover: share of the particles that is drawn anew when the filter is lost.
        target: what the user calls the model.
        landmarks: `(k, 2)` places of the model's map.
        beside: what is wanted beside the filtered estimates.
    """

    source: str
    model: StateSpaceModel
    columns: Named
    short: str
    particles: int
    proposal: NeuralProposal | None
    seed: int
    start: float | None
    recover: float
    target: str
    landmarks: np.ndarray | None
    beside: Beside = ALONE

    def make_filter(self, recording: Recording | None) -> Filter:
        """The filter; its proposal is trained now if it needs one and none was given."""
        proposal = self.proposal
        if CATALOGUE[self.short].recipe is not None and proposal is None:
            try:
                model = CATALOGUE[self.short].of(self.model)
                proposal = proposal_for(model, recording, self.seed, say, voice.bars)
            except ValueError as error:
                if not isinstance(error, DataError):
                    raise typer.BadParameter(str(error), param_hint="--filter") from None
                where = "" if self.source == "-" else f"{self.source}: "
                raise typer.BadParameter(f"{where}{error}", param_hint="--filter") from None
        try:
            return make_filter(
                self.short, self.model, self.particles, proposal=proposal, recover=self.recover
            )
        except ValueError as error:
            hint = "--recover" if str(error).startswith("recover:") else "--filter"
            raise typer.BadParameter(str(error), param_hint=hint) from None

    def settled(self, recording: Recording | None) -> "Request":
        """With the filter that suits the model and the recording, if none was named."""
        if self.short != AUTO:
            return self
        try:
            names = [name for name in UNTRAINED if name != "kf" or not self.recover]
            short = pick(self.model, recording, self.particles, self.seed, say, names)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--filter") from None
        return dataclasses.replace(self, short=short)
