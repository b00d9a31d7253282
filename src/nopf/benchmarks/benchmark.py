"""Benchmark: a model together with how the paper uses it."""

import dataclasses

import jax

from nopf import catalogue
from nopf.catalogue import PAPER, Tuning
from nopf.filters import Filter
from nopf.model import StateSpaceModel
from nopf.proposals import NeuralProposal
from nopf.simulate import Trajectories, simulate


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """A model and the settings of the paper's experiment with it.

    Attributes:
        name: as on the command line.
        title: for people.
        model: the model.
        horizon: number of observations.
        particles: the paper's N.
        initial_state: the true state at time zero, or None to draw it from the prior.
        tuning: what filters are set up with.
        plane: the two states that pictures show.
        height: a third one, shown against the first.
        landmarks: points in the coordinates that are shown.
    """

    name: str
    title: str
    model: StateSpaceModel
    horizon: int
    particles: int
    initial_state: tuple[float, ...] | None = None
    tuning: Tuning = PAPER
    plane: tuple[str, str] = ("x", "y")
    height: str | None = None
    landmarks: tuple[tuple[float, ...], ...] = ()

    @property
    def shown(self) -> tuple[str, ...]:
        """The states that pictures show."""
        return self.plane if self.height is None else (*self.plane, self.height)

    @property
    def has_place(self) -> bool:
        """Whether the states that pictures show are a place, in metres."""
        return self.plane == ("x", "y")

    @property
    def shown_indices(self) -> list[int]:
        """Which coordinates of the state these are."""
        return [self.model.state_names.index(name) for name in self.shown]

    def model_of(self, short: str) -> StateSpaceModel:
        """The model as a filter sees it, by its short name."""
        return catalogue.CATALOGUE[short].of(self.model)

    def simulate(self, seed: int) -> Trajectories:
        """The truth and the data of a seed: the same for every filter."""
        return simulate(
            self.model, self.horizon, jax.random.key(seed), initial_state=self.initial_state
        )

    def make_filter(
        self, name: str, particles: int | None = None, proposal: NeuralProposal | None = None
    ) -> Filter:
        """A filter by its short name, set up as the paper does.

        Args:
            name: one of `nopf.catalogue.NAMES`.
            particles: how many; the paper's number if left out.
            proposal: the trained one, for the filters that use one.

        Raises:
            ValueError: if the name is unknown, or if the filter does not fit the model.
        """
        count = self.particles if particles is None else particles
        return catalogue.make_filter(name, self.model, count, tuning=self.tuning, proposal=proposal)
