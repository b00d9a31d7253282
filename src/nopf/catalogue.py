"""The catalogue: every filter once, with all that is particular to it.

A new filter is one entry here; commands, tables, figures and pages know it from then on.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, Protocol, runtime_checkable

from nopf.filters import (
    AuxiliaryFilter,
    EnsembleKalmanFilter,
    Filter,
    KalmanFilter,
    ParticleFilter,
)
from nopf.filters.checks import check_recover
from nopf.gaussian import shown
from nopf.marginal import marginalise
from nopf.model import StateSpaceModel
from nopf.proposals import (
    InnerSamplingProposal,
    LinearisedProposal,
    NeuralProposal,
    NudgedProposal,
    OptimalProposal,
    UnscentedProposal,
)

RecipeName = Literal["fast", "paper", "marginal"]  # the last: fast, on the marginalised model


@dataclasses.dataclass(frozen=True)
class Tuning:
    """What filters are set up with for a model, beside the number of particles.

    Attributes:
        eta: step size of the nudged filter.
        stand_in_noise: what the unscented filter takes for observation noise, where the model's own
            is not Gaussian.
        ancestor_share: share of the ancestors that the plain auxiliary filter draws by weight
            alone; its own default if None.
    """

    eta: float = 2e-4
    stand_in_noise: tuple[float, ...] | None = None
    ancestor_share: float | None = None


USUAL = Tuning()
# The published auxiliary filter has no defensive share, and its numbers show it.
PAPER = Tuning(ancestor_share=0.0)


@runtime_checkable
class Make(Protocol):
    """Sets a filter up for a model, with so many particles; with the proposal, if it is learned."""

    def __call__(
        self, model: StateSpaceModel, n: int, tuning: Tuning, proposal: NeuralProposal | None, /
    ) -> Filter: ...


def _nothing(tuning: Tuning) -> dict[str, Any]:
    return {}


def _first_step(tuning: Tuning) -> dict[str, Any]:
    return {"first_step": True}


def _iterations(tuning: Tuning) -> dict[str, Any]:
    return {"iterations": LinearisedProposal().iterations}


def _linearised(tuning: Tuning) -> dict[str, Any]:
    return _iterations(tuning) | _first_step(tuning)


@dataclasses.dataclass(frozen=True)
class Listing:
    """A filter's place in the catalogue.

    Attributes:
        name: the short one, as on the command line.
        label: for tables and legends.
        colour: for figures and pages.
        make: makes it.
        words: what is particular to it, for whoever does not know the label.
        recipe: how its proposal is trained; None if it learns nothing. Filters with the same recipe
            share a trained proposal.
        settings: what its numbers depend on, beside model, data, particles and proposal.
        marginal: whether it is set up for the marginalised model.
    """

    name: str
    label: str
    colour: str
    make: Make
    words: str = ""
    recipe: RecipeName | None = None
    settings: Callable[[Tuning], dict[str, Any]] = _nothing
    marginal: bool = False

    def of(self, model: StateSpaceModel) -> StateSpaceModel:
        """The model as the filter sees it.

        Raises:
            ValueError: if nothing of it can be marginalised.
        """
        return _marginalised(model) if self.marginal else model


_last: list[tuple[StateSpaceModel, StateSpaceModel]] = []


def _marginalised(model: StateSpaceModel) -> StateSpaceModel:
    """The last one is kept: to find out what is linear takes seconds."""
    if not _last or _last[0][0] is not model:
        _last[:] = [(model, marginalise(model))]
    return _last[0][1]


# Okabe and Ito's colours, told apart by most colour-blind readers; a darker shade of its neighbour
# for a filter that looks ahead.
CATALOGUE: dict[str, Listing] = {
    listing.name: listing
    for listing in (
        Listing(
            "kf",
            "KF",
            "#000000",
            lambda m, n, t, p: KalmanFilter(m, n),
            words="exact, for linear models with Gaussian noise",
        ),
        Listing(
            "enkf",
            "EnKF",
            "#E69F00",
            lambda m, n, t, p: EnsembleKalmanFilter(m, n),
            words="the ensemble Kalman filter: no weights, one Gaussian for all",
        ),
        Listing(
            "enkf-paper",
            "EnKF (plain means)",
            "#F5CF87",
            lambda m, n, t, p: EnsembleKalmanFilter(m, n, circular=False),
            words="the ensemble Kalman filter with plain means of angles, as published",
        ),
        Listing(
            "bpf",
            "BPF",
            "#D55E00",
            lambda m, n, t, p: ParticleFilter(m, None, n),
            words="the bootstrap filter: particles move as the model says and are weighed",
        ),
        Listing(
            "apf",
            "APF",
            "#B59B00",
            lambda m, n, t, p: AuxiliaryFilter(m, None, n, defensive=t.ancestor_share),
            settings=lambda t: {"ancestor_share": t.ancestor_share},
            words="the bootstrap filter with ancestors chosen by a look ahead",
        ),
        Listing(
            "upf",
            "UPF",
            "#999999",
            lambda m, n, t, p: ParticleFilter(m, UnscentedProposal(t.stand_in_noise), n),
            settings=lambda t: {"stand_in_noise": t.stand_in_noise},
            words="an unscented Kalman filter for each particle",
        ),
        Listing(
            "nupf",
            "NuPF",
            "#A65628",
            lambda m, n, t, p: ParticleFilter(m, NudgedProposal(n, t.eta), n),
            settings=lambda t: {"eta": t.eta},
            words="the bootstrap filter with particles pushed towards the measurement",
        ),
        Listing(
            "ispf",
            "ISPF",
            "#009E73",
            lambda m, n, t, p: ParticleFilter(m, InnerSamplingProposal(), n),
            settings=lambda t: {"candidates": InnerSamplingProposal().candidates},
            words="many candidates for each particle, one of them kept",
        ),
        Listing(
            "opf",
            "OPF",
            "#56B4E9",
            lambda m, n, t, p: ParticleFilter(m, OptimalProposal(), n),
            words="the best proposal there is, for linear measurements",
        ),
        Listing(
            "lpf",
            "LPF",
            "#CC79A7",
            lambda m, n, t, p: ParticleFilter(m, LinearisedProposal(), n),
            settings=_linearised,
            words="particles drawn where the linearised measurement points",
        ),
        Listing(
            "alpf",
            "ALPF",
            "#7F406A",
            lambda m, n, t, p: AuxiliaryFilter(m, LinearisedProposal(), n),
            settings=_linearised,
            words="the same as LPF, with ancestors chosen by a look ahead",
        ),
        Listing(
            "lpf-prior",
            "LPF (prior as it is)",
            "#E3B5CF",
            lambda m, n, t, p: ParticleFilter(m, LinearisedProposal(), n, first_step=False),
            settings=_iterations,
            words="the same as LPF, with the first particles drawn from the prior",
        ),
        Listing(
            "nopf",
            "NOPF",
            "#0072B2",
            lambda m, n, t, p: ParticleFilter(m, p, n),
            recipe="fast",
            settings=_first_step,
            words="particles drawn by a trained network",
        ),
        Listing(
            "anopf",
            "ANOPF",
            "#2B2BD9",
            lambda m, n, t, p: AuxiliaryFilter(m, p, n),
            recipe="fast",
            settings=_first_step,
            words="the same as NOPF, with ancestors chosen by a look ahead",
        ),
        Listing(
            "nopf-paper",
            "NOPF (paper)",
            "#9467BD",
            lambda m, n, t, p: ParticleFilter(m, p, n),
            recipe="paper",
            words="a network trained by the published recipe",
        ),
        Listing(
            "mbpf",
            "MBPF",
            "#F4A582",
            lambda m, n, t, p: ParticleFilter(m, None, n),
            marginal=True,
            words="what is linear is solved exactly, the rest moves as the model says",
        ),
        Listing(
            "mlpf",
            "MLPF",
            "#117733",
            lambda m, n, t, p: ParticleFilter(m, LinearisedProposal(), n),
            settings=_linearised,
            marginal=True,
            words="what is linear is solved exactly, the rest drawn where the measurement points",
        ),
        Listing(
            "malpf",
            "MALPF",
            "#332288",
            lambda m, n, t, p: AuxiliaryFilter(m, LinearisedProposal(), n),
            settings=_linearised,
            marginal=True,
            words="the same as MLPF, with ancestors chosen by a look ahead",
        ),
        Listing(
            "mnopf",
            "MNOPF",
            "#44AA99",
            lambda m, n, t, p: ParticleFilter(m, p, n),
            recipe="marginal",
            settings=_first_step,
            marginal=True,
            words="what is linear is solved exactly, the rest drawn by a trained network",
        ),
    )
}
NAMES = tuple(CATALOGUE)
LEARNED = tuple(name for name, listing in CATALOGUE.items() if listing.recipe is not None)
WORDS = {name: listing.words for name, listing in CATALOGUE.items()}
LABELS = {name: listing.label for name, listing in CATALOGUE.items()}
COLOURS = {name: listing.colour for name, listing in CATALOGUE.items()}


def make_filter(
    name: str,
    model: StateSpaceModel,
    particles: int,
    *,
    tuning: Tuning = USUAL,
    proposal: NeuralProposal | None = None,
    recover: float = 0.0,
) -> Filter:
    """A filter by its short name.

    Args:
        name: one of `NAMES`.
        model: what to set it up for.
        particles: how many.
        tuning: what else it is set up with.
        proposal: the trained one, for the filters that use one.
        recover: share of the particles that is drawn anew when the filter is lost.

    Raises:
        ValueError: if the name is unknown, or if the filter does not fit the model.
    """
    if not isinstance(name, str) or name not in CATALOGUE:
        raise ValueError(f"filter: expected one of {', '.join(NAMES)}, got {shown(name)}")
    listing = CATALOGUE[name]
    if listing.recipe is not None and proposal is None:
        raise ValueError(f"filter: {name} needs a trained proposal; train one with nopf.train")
    flt = listing.make(listing.of(model), particles, tuning, proposal)
    if check_recover(recover, True, None) == 0:
        return flt
    if not isinstance(flt, ParticleFilter | AuxiliaryFilter):
        raise ValueError(f"recover: {name} has no weighted particles that could be drawn anew")
    return dataclasses.replace(flt, recover=recover)
