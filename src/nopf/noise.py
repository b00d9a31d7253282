"""Noise: zero-mean Gaussian noise, constant or a function of the step or of the state too."""

import inspect
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float

from nopf.arguments import trial_shape
from nopf.gaussian import Gaussian
from nopf.steps import Step


@runtime_checkable
class NoiseOfStep(Protocol):
    """`(step)` -> `(d,)` standard deviations, or a `(d, d)` covariance."""

    def __call__(self, step: Step, /) -> Any: ...


@runtime_checkable
class NoiseOfState(Protocol):
    """`(x, step)` -> `(d,)` standard deviations, or a `(d, d)` covariance; x is the state before
    the step."""

    def __call__(self, x: Float[Array, " d"], step: Step, /) -> Any: ...


class Noise(eqx.Module):
    """Noise as a user gives it.

    Args:
        value: standard deviations `(size,)`, a covariance `(size, size)`, or a function that gives
            one of these.
        size: number of coordinates.
        name: the user's argument, for messages.
        singular: whether coordinates may be without noise.

    Attributes:
        rank: how many standard normal numbers it takes.
        reads_state: whether it is a function of the state.
    """

    constant: Gaussian | None
    function: NoiseOfStep | NoiseOfState | None
    size: int = eqx.field(static=True)
    name: str = eqx.field(static=True)
    singular: bool = eqx.field(static=True)
    rank: int = eqx.field(static=True)
    reads_state: bool = eqx.field(static=True)

    def __init__(self, value: Any, size: int, name: str, *, singular: bool = False):
        self.size, self.name, self.singular, self.rank = size, name, singular, size
        self.constant, self.function = None, None
        self.reads_state = False
        if callable(value):
            self.function = value
            if not singular and count_arguments(value) > 1:
                raise ValueError(
                    f"{name}: expected a function of one argument, (step); for noise that depends "
                    "on the state, give observation_log_prob and observation_sample instead"
                )
            self.reads_state = singular and _reads_state(value)
        else:
            constant = Gaussian(np.zeros(size), value, name=name, singular=singular)
            self.constant = constant.without_silent_directions() if singular else constant
            self.rank = self.constant.rank

    def at(self, step: Step, x: Float[Array, " d"] | None = None) -> Gaussian:
        """The noise of this step, for a particle that was at `x` before it."""
        if self.constant is not None:
            return self.constant
        assert self.function is not None
        if not self.reads_state:
            value = self.function(step)  # type: ignore[call-arg, arg-type]
        elif x is None:
            raise TypeError(f"{self.name}: depends on the state; say of which one")
        else:
            value = self.function(x, step)  # type: ignore[call-arg, arg-type]
        zero = np.zeros(self.size)
        return Gaussian(zero, value, name=self.name, singular=self.singular)

    @property
    def covariance(self) -> Float[Array, "d d"]:
        """Of constant noise."""
        if self.constant is None:
            raise TypeError(f"{self.name}: is a function; ask for the noise at a step")
        return self.constant.covariance

    def check(self, x: Any, step: Step) -> None:
        """Calls a function once, on shapes, and says what does not fit."""
        if self.function is None:
            return
        arguments, signature = ((x, step), "(x, step)") if self.reads_state else ((step,), "(step)")
        found = trial_shape(self.name, signature, self.function, *arguments)
        if found not in ((), (self.size,), (self.size, self.size)):
            raise ValueError(
                f"{self.name}: expected {self.name}{signature} to give {self.size} standard "
                f"deviations or a ({self.size}, {self.size}) covariance matrix, got shape {found}"
            )


def count_arguments(function: Any) -> int:
    """How many arguments a function cannot do without; 0 if that cannot be seen."""
    required = [p for p in _positional(function) if p.default is p.empty]
    return len(required)


def _positional(function: Any) -> list[inspect.Parameter]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p for p in parameters if p.kind in kinds]


def _reads_state(function: Any) -> bool:
    """By how many arguments it takes, or by what the first is called."""
    names = [p.name for p in _positional(function)]
    return count_arguments(function) >= 2 or names[:1] == ["x"]
