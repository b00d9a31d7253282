"""Benchmark: a model together with how the paper uses it."""

import dataclasses

import jax

from nopf.model import StateSpaceModel, Trajectories, simulate


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
        eta: step size of the nudged filter.
        stand_in_noise: what the unscented filter takes for observation noise, where the model's own
            is not Gaussian.
        plane: the two states that pictures show.
        landmarks: points in that plane.
    """

    name: str
    title: str
    model: StateSpaceModel
    horizon: int
    particles: int
    initial_state: tuple[float, ...] | None = None
    eta: float = 2e-4
    stand_in_noise: tuple[float, ...] | None = None
    plane: tuple[str, str] = ("x", "y")
    landmarks: tuple[tuple[float, float], ...] = ()

    def simulate(self, seed: int) -> Trajectories:
        """The truth and the data of a seed: the same for every filter."""
        return simulate(
            self.model, self.horizon, jax.random.key(seed), initial_state=self.initial_state
        )
