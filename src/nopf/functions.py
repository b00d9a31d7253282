"""What a user writes of a model: the shapes of its functions, and what a trial call tells."""

from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from nopf.arguments import (
    check_names,
    expect_shape,
    positive_integer,
    shape_of,
    some_key,
    trial_shape,
)
from nopf.gaussian import shown
from nopf.noise import Noise, count_arguments
from nopf.steps import Step


@runtime_checkable
class Prior(Protocol):
    """The distribution of the state at time zero."""

    def sample(self, key: PRNGKeyArray) -> Float[Array, " d"]: ...

    def log_prob(self, x: Float[Array, " d"]) -> Float[Array, ""]: ...


@runtime_checkable
class Transition(Protocol):
    """`(x, step) -> (d,)`, the noise-free motion from t−1 to t."""

    def __call__(self, x: Float[Array, " d"], step: Step, /) -> Any: ...


@runtime_checkable
class NoisyTransition(Protocol):
    """`(x, step, noise) -> (d,)`, the motion that `(k,)` standard normal numbers make."""

    def __call__(self, x: Float[Array, " d"], step: Step, noise: Float[Array, " k"], /) -> Any: ...


def check_functions(prior: Any, transition: Any, observation: Any) -> None:
    if not isinstance(prior, Prior):
        raise TypeError(
            "prior: expected nopf.Gaussian, nopf.GaussianMixture or an object with "
            f"sample(key) and log_prob(x), got {shown(prior)}"
        )
    for name, function in [("transition", transition), ("observation", observation)]:
        if not callable(function) and not (name == "observation" and function is None):
            raise TypeError(
                f"{name}: expected a function (x, step) -> array, got {shown(function)}"
            )


def make_process_noise(
    value: Any, noise_size: Any, size: int, transition: Any
) -> tuple[Noise | None, int]:
    """The additive noise, if that is what it is; and how many standard normal numbers it takes."""
    if (value is None) == (noise_size is None):
        raise ValueError(
            "process_noise: expected either process_noise, or noise_size and a "
            "transition(x, step, noise) that takes so many standard normal numbers; got "
            f"{'neither' if value is None else 'both'}"
        )
    if value is None:
        if count_arguments(transition) == 2:
            raise ValueError(
                "transition: with noise_size it is transition(x, step, noise), but it takes two "
                "arguments"
            )
        return None, positive_integer(noise_size, "noise_size")
    if count_arguments(transition) == 3:
        raise ValueError(
            "transition: takes three arguments, (x, step, noise); say with noise_size= how many "
            "noise numbers it takes, instead of process_noise="
        )
    noise = Noise(value, size, "process_noise", singular=True)
    return noise, noise.rank


def state_size(prior: Prior) -> int:
    shape = trial_shape("prior", ".sample(key)", prior.sample, some_key())
    if len(shape) != 1 or shape[0] < 1:
        raise ValueError(f"prior: expected sample(key) to give a vector, got shape {shape}")
    expect_shape("prior", ".log_prob(x)", (), prior.log_prob, shape_of(*shape))
    return shape[0]


def observation_width(observation: Any, sample: Any, size: int, step: Step) -> int:
    """The width of an observation, from a trial call."""
    x = shape_of(size)
    if observation is not None:
        shape = trial_shape("observation", "(x, step)", observation, x, step)
    else:
        name, arguments = "observation_sample", "(key, x, step)"
        shape = trial_shape(name, arguments, sample, some_key(), x, step)
    if len(shape) != 1 or shape[0] < 1:
        raise ValueError(
            f"observation: expected a vector of at least one number, got shape {shape}"
        )
    return shape[0]


def width_of(noise: Any, names: Any) -> int:
    """The observation width, where the functions cannot be called before controls are known."""
    if names is not None:
        return len(check_names(names, None, "observation_names", "y"))
    if noise is None or callable(noise) or np.ndim(noise) == 0:
        raise ValueError(
            "observation_names: the observation reads step.control, so its width is not known "
            "from a trial call; give observation_names, or observation_noise as a vector or matrix"
        )
    return np.shape(noise)[0]
