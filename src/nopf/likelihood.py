"""Likelihood: log p(y | x), and what else is known of how observations come about."""

import abc
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from nopf.arguments import as_array, expect_shape, shape_of, some_key
from nopf.gaussian import Gaussian, shown
from nopf.keys import plain
from nopf.layout import one_by_one
from nopf.noise import Noise
from nopf.robust import Tails
from nopf.space import Space
from nopf.steps import Step
from nopf.trigonometry import vectorised

CORRELATED = (
    "robust: expected observation_noise as standard deviations, since measurements go wrong one "
    "by one; got a covariance matrix"
)


@runtime_checkable
class Observation(Protocol):
    """`(x, step) -> (m,)`, the noise-free measurement."""

    def __call__(self, x: Float[Array, " d"], step: Step, /) -> Any: ...


@runtime_checkable
class ObservationLogProb(Protocol):
    """`(y, x, step) -> scalar`, log p(y | x)."""

    def __call__(self, y: Float[Array, " m"], x: Float[Array, " d"], step: Step, /) -> Any: ...


@runtime_checkable
class ObservationSample(Protocol):
    """`(key, x, step) -> (m,)`, a draw of p(y | x)."""

    def __call__(self, key: PRNGKeyArray, x: Float[Array, " d"], step: Step, /) -> Any: ...


class Likelihood(eqx.Module):
    """How an observation comes about from a state. Functions are for one particle.

    To write your own, derive from this, say `log_prob` and `sample`, and hand it to the model as
    `likelihood=`. Say `predict` as well, and set `predicts`, if there is a noise-free observation:
    learned proposals then look at how far the observation is from it.
    """

    @abc.abstractmethod
    def log_prob(
        self, y: Float[Array, " m"], x: Float[Array, " d"], step: Step
    ) -> Float[Array, ""]:
        """log p(y | x). A missing coordinate of `y` is NaN; it is not asked if all are."""

    @abc.abstractmethod
    def sample(self, key: PRNGKeyArray, x: Float[Array, " d"], step: Step) -> Float[Array, " m"]:
        """A draw of p(y | x)."""

    @property
    def predicts(self) -> bool:
        """Whether there is a noise-free observation."""
        return False

    def predict(self, x: Float[Array, " d"], step: Step) -> Float[Array, " m"]:
        """The noise-free observation, where there is one."""
        raise TypeError(f"{type(self).__name__} predicts no observation")

    @property
    def why_not_additive(self) -> str | None:
        """None if an observation is its prediction plus noise; then there is `noise_at` too."""
        return f"this model has a likelihood of its own ({type(self).__name__})"

    @property
    def additive(self) -> bool:
        """Whether an observation is its prediction plus noise, and coordinates can be left out."""
        return self.why_not_additive is None

    @property
    def why_not_gaussian(self) -> str | None:
        """None if that noise is Gaussian."""
        return self.why_not_additive

    def noise_at(self, step: Step) -> Gaussian:
        """The zero-mean noise of this step, where it is additive."""
        raise TypeError(f"{type(self).__name__} has no additive noise")

    @property
    def arrangements(self) -> np.ndarray | None:
        """`(k, m)`, if the order in which measurements come is not known: in each of k cases, all
        as likely, sensor i has measured entry `arrangements[case, i]`, and `sensors` say how.
        Otherwise None."""
        return None

    @property
    def sensors(self) -> "GaussianLikelihood | None":
        """What the measurements would be if their order, and which of them are outliers, were
        known: a prediction and Gaussian noise. None if there is no such thing."""
        return None

    def residual(
        self, y: Float[Array, " m"], x: Float[Array, " d"], step: Step
    ) -> Float[Array, " m"]:
        """The innovation in units of the noise, in the most likely order; zero where missing."""
        if self.sensors is None:
            raise TypeError(f"{type(self).__name__} has no Gaussian noise to whiten by")
        return self.sensors.whitened(y, x, step)

    def trust(self, z: Float[Array, " m"]) -> Float[Array, " m"] | None:
        """Share of its precision that a coordinate so many standard deviations away deserves; None
        if that is all of it, however far it is."""
        return None

    def nominal(self) -> "Likelihood":
        """The same without heavy tails."""
        return self

    @property
    def tails(self) -> Tails | None:
        """The heavy tails of its noise, if it has any."""
        return None

    def sample_many(
        self,
        key: PRNGKeyArray,
        states: Float[Array, "n d"],
        step: Step,
        white: Float[Array, "n m"] | None = None,
    ) -> Float[Array, "n m"]:
        """One draw for each state.

        Args:
            key: random key.
            states: one row a state.
            step: the step.
            white: standard normal numbers that Gaussian noise can be made of without drawing more.
        """
        keys = jax.random.split(key, states.shape[0])
        return jax.vmap(lambda k, x: as_array(self.sample(k, x, step)))(keys, states)

    def check(self, size: int, width: int, step: Step) -> None:
        """Calls the user's functions once, on shapes only, and says which one does not fit."""
        x, y = shape_of(size), shape_of(width)
        expect_shape("likelihood", ".log_prob(y, x, step)", (), self.log_prob, y, x, step)
        key, drawn = some_key(), (width,)
        expect_shape("likelihood", ".sample(key, x, step)", drawn, self.sample, key, x, step)
        if self.predicts:
            expect_shape("likelihood", ".predict(x, step)", (width,), self.predict, x, step)


class GaussianLikelihood(Likelihood):
    """observation(x) plus Gaussian noise. Missing coordinates are left out."""

    observation: Observation
    noise: Noise
    space: Space

    @property
    def predicts(self) -> bool:
        return True

    def predict(self, x: Float[Array, " d"], step: Step) -> Float[Array, " m"]:
        return as_array(vectorised(self.observation)(x, step))

    @property
    def why_not_additive(self) -> str | None:
        return None

    def noise_at(self, step: Step) -> Gaussian:
        return self.noise.at(step)

    @property
    def sensors(self) -> "GaussianLikelihood":
        return self

    def whitened(
        self, y: Float[Array, " m"], x: Float[Array, " d"], step: Step
    ) -> Float[Array, " m"]:
        """The innovation in units of the noise, uncorrelated; zero where y is missing."""
        noise = self.noise_at(step).marginal(~jnp.isnan(y))
        return noise.whiten(innovation(self, self.space, y, x, step))

    def log_prob(
        self, y: Float[Array, " m"], x: Float[Array, " d"], step: Step
    ) -> Float[Array, ""]:
        noise = self.noise_at(step).marginal(~jnp.isnan(y))
        return noise.log_prob(innovation(self, self.space, y, x, step))

    def sample(self, key: PRNGKeyArray, x: Float[Array, " d"], step: Step) -> Float[Array, " m"]:
        return self.predict(x, step) + self.noise_at(step).sample(key)

    def sample_many(
        self,
        key: PRNGKeyArray,
        states: Float[Array, "n d"],
        step: Step,
        white: Float[Array, "n m"] | None = None,
    ) -> Float[Array, "n m"]:
        if white is None:
            # All noise in one draw: a key for each state takes longer.
            white = jax.random.normal(key, (states.shape[0], self.space.size))
        noise = self.noise_at(step)
        return jax.vmap(lambda x, w: self.predict(x, step) + noise.colour(w))(states, white)

    def check(self, size: int, width: int, step: Step) -> None:
        x = shape_of(size)
        expect_shape("observation", "(x, step)", (width,), self.observation, x, step)
        self.noise.check(x, step)


class RobustLikelihood(Likelihood):
    """observation(x) plus noise whose tails are heavier than the normal's, one by one."""

    good: GaussianLikelihood
    heavy: Tails

    @property
    def tails(self) -> Tails:
        return self.heavy

    def __check_init__(self) -> None:
        constant = self.good.noise.constant
        if constant is not None and constant.factor.ndim != 1:
            raise ValueError(CORRELATED)

    @property
    def predicts(self) -> bool:
        return True

    def predict(self, x: Float[Array, " d"], step: Step) -> Float[Array, " m"]:
        return self.good.predict(x, step)

    @property
    def why_not_additive(self) -> str | None:
        return None

    @property
    def why_not_gaussian(self) -> str | None:
        return f"this model has robust={type(self.tails).__name__}"

    def noise_at(self, step: Step) -> Gaussian:
        return self.good.noise_at(step)

    @property
    def sensors(self) -> GaussianLikelihood:
        return self.good

    def trust(self, z: Float[Array, " m"]) -> Float[Array, " m"]:
        return self.tails.trust(z)

    def nominal(self) -> Likelihood:
        return self.good

    def log_prob(
        self, y: Float[Array, " m"], x: Float[Array, " d"], step: Step
    ) -> Float[Array, ""]:
        observed = ~jnp.isnan(y)
        noise = self.noise_at(step).marginal(observed)
        if noise.factor.ndim != 1:
            raise ValueError(CORRELATED)
        white = noise.whiten(innovation(self, self.good.space, y, x, step))
        each = self.tails.log_prob(white) - jnp.log(noise.diagonal)
        return jnp.sum(jnp.where(observed, each, 0))

    def sample(self, key: PRNGKeyArray, x: Float[Array, " d"], step: Step) -> Float[Array, " m"]:
        noise = self.noise_at(step)
        return self.predict(x, step) + noise.colour(self.tails.sample(key, noise.size))

    def check(self, size: int, width: int, step: Step) -> None:
        self.good.check(size, width, step)


class CustomLikelihood(Likelihood):
    """Made of the functions `observation_log_prob` and `observation_sample`; perhaps with a
    noise-free `observation` beside them."""

    custom_log_prob: ObservationLogProb
    custom_sample: ObservationSample
    observation: Observation | None

    @property
    def predicts(self) -> bool:
        return self.observation is not None

    def predict(self, x: Float[Array, " d"], step: Step) -> Float[Array, " m"]:
        if self.observation is None:
            return super().predict(x, step)
        return as_array(vectorised(self.observation)(x, step))

    @property
    def why_not_additive(self) -> str | None:
        return "this model has observation_log_prob instead of observation_noise"

    def log_prob(
        self, y: Float[Array, " m"], x: Float[Array, " d"], step: Step
    ) -> Float[Array, ""]:
        return as_array(vectorised(self.custom_log_prob)(y, x, step))

    def sample(self, key: PRNGKeyArray, x: Float[Array, " d"], step: Step) -> Float[Array, " m"]:
        return as_array(self.custom_sample(plain(key), x, step))

    def check(self, size: int, width: int, step: Step) -> None:
        x, y = shape_of(size), shape_of(width)
        if self.observation is not None:
            expect_shape("observation", "(x, step)", (width,), self.observation, x, step)
        name, arguments = "observation_log_prob", "(y, x, step)"
        expect_shape(name, arguments, (), self.custom_log_prob, y, x, step)
        name, arguments = "observation_sample", "(key, x, step)"
        expect_shape(name, arguments, (width,), self.custom_sample, some_key(), x, step)


def innovation(
    likelihood: Likelihood, space: Space, y: Float[Array, " m"], x: Float[Array, " d"], step: Step
) -> Float[Array, " m"]:
    """y minus the predicted observation, wrapped; zero where y is missing."""
    observed = ~jnp.isnan(y)
    # Both places: a NaN that is masked only afterwards would still poison gradients.
    predicted = as_array(likelihood.predict(x, step))
    difference = space.difference(jnp.where(observed, y, 0), predicted)
    return one_by_one(lambda seen, value: jnp.where(seen, value, 0), observed, difference)


def check_together(
    observation: Observation | None,
    noise: Any,
    log_prob: ObservationLogProb | None,
    sample: ObservationSample | None,
    tails: Tails | None,
    likelihood: Likelihood | None,
) -> None:
    """Says which of a model's arguments do not go together."""
    if likelihood is not None:
        if not isinstance(likelihood, Likelihood):
            raise TypeError(f"likelihood: expected a nopf.Likelihood, got {shown(likelihood)}")
        if any(value is not None for value in (observation, noise, log_prob, sample, tails)):
            raise ValueError(
                "likelihood: expected instead of observation, observation_noise, "
                "observation_log_prob, observation_sample and robust, not beside them"
            )
        return
    custom = log_prob is not None or sample is not None
    if custom and (log_prob is None or sample is None):
        raise ValueError(
            "observation_log_prob, observation_sample: expected both or neither; the first "
            "weighs particles, the second simulates"
        )
    if custom == (noise is not None):
        raise ValueError(
            "observation_noise: expected either observation_noise, or observation_log_prob "
            f"and observation_sample instead of it, got {'both' if custom else 'neither'}"
        )
    if tails is not None and not isinstance(tails, Tails):
        raise TypeError(
            f"robust: expected nopf.Outliers(…) or nopf.StudentT(…), got {shown(tails)}"
        )
    if tails is not None and custom:
        raise ValueError(
            "robust: expected together with observation_noise, of which it changes the tails; "
            "your own observation_log_prob has its own"
        )
    if not custom and observation is None:
        raise ValueError("observation: expected a function (x, step) -> array, got None")


def make_likelihood(
    observation: Observation | None,
    noise: Any,
    log_prob: ObservationLogProb | None,
    sample: ObservationSample | None,
    tails: Tails | None,
    space: Space,
) -> Likelihood:
    """The likelihood that a model's arguments mean."""
    if log_prob is not None and sample is not None:
        return CustomLikelihood(log_prob, sample, observation)
    assert observation is not None
    good = GaussianLikelihood(observation, Noise(noise, space.size, "observation_noise"), space)
    return good if tails is None else RobustLikelihood(good, tails)
