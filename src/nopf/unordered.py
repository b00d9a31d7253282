"""UnorderedLikelihood: measurements of which it is not known which sensor each comes from."""

import itertools
from math import factorial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from nopf.arguments import positive_integer, whole_numbers
from nopf.gaussian import Gaussian, shown
from nopf.layout import square
from nopf.likelihood import GaussianLikelihood, Likelihood, Observation
from nopf.noise import Noise
from nopf.space import Space
from nopf.steps import Step

MOST_UNORDERED = 6


class UnorderedLikelihood(Likelihood):
    """Gaussian measurements of several sensors, of some of which it is not known which is which.

    All orders are as likely. The density is that of a mixture over them, exactly.

    Args:
        observation: `(x, step) -> (m,)`, the noise-free measurements in the order of the sensors.
        noise: standard deviations `(m,)`, or a function of `(step)` that gives these.
        unordered: indices of the measurements that come without saying from which sensor; six at
            most, whose 720 orders are all looked at.
        size: m.

    Attributes:
        in_order: the likelihood of measurements that say from which sensor they are.
        unordered: as given.
    """

    in_order: GaussianLikelihood
    unordered: tuple[int, ...] = eqx.field(static=True)

    def __init__(self, observation: Observation, noise: Any, unordered: Any, size: int):
        self.unordered, size = whole_numbers(unordered, "unordered"), positive_integer(size, "size")
        if not 2 <= len(self.unordered) <= MOST_UNORDERED or len(set(self.unordered)) != len(
            self.unordered
        ):
            raise ValueError(
                f"unordered: expected 2 to {MOST_UNORDERED} different indices, "
                f"got {shown(unordered)}"
            )
        if not all(0 <= i < size for i in self.unordered):
            raise ValueError(
                f"unordered: expected indices from 0 to {size - 1}, got {list(self.unordered)}"
            )
        noise = Noise(noise, size, "noise")
        self.in_order = GaussianLikelihood(observation, noise, Space(size))

    @property
    def arrangements(self) -> np.ndarray:
        orders = np.tile(np.arange(self.in_order.space.size), (factorial(len(self.unordered)), 1))
        orders[:, list(self.unordered)] = list(itertools.permutations(self.unordered))
        return orders

    @property
    def sensors(self) -> GaussianLikelihood:
        return self.in_order

    @property
    def predicts(self) -> bool:
        return True

    def predict(self, x: Float[Array, " d"], step: Step) -> Float[Array, " m"]:
        """The unordered ones ascending, as proposals expect them."""
        values = list(self.in_order.predict(x, step))
        for place, value in zip(
            self.unordered, ascending([values[i] for i in self.unordered]), strict=True
        ):
            values[place] = value
        return jnp.stack(values)

    def residual(
        self, y: Float[Array, " m"], x: Float[Array, " d"], step: Step
    ) -> Float[Array, " m"]:
        predicted, noise = self.in_order.predict(x, step), self.in_order.noise_at(step)

        def one(_: None, arranged: Array) -> tuple[None, Array]:
            return None, square(_whitened(arranged, jax.lax.stop_gradient(predicted), noise))

        arranged = jnp.asarray(y)[self.arrangements]
        _, squares = jax.lax.scan(one, None, arranged)
        return _whitened(arranged[jnp.argmin(squares)], predicted, noise)

    @property
    def why_not_additive(self) -> str | None:
        return "the order of this model's measurements is not known"

    def log_prob(
        self, y: Float[Array, " m"], x: Float[Array, " d"], step: Step
    ) -> Float[Array, ""]:
        predicted = self.in_order.predict(x, step)
        noise = self.in_order.noise_at(step)

        def case(order: Array) -> Float[Array, ""]:
            arranged = y[order]
            observed = ~jnp.isnan(arranged)
            apart = jnp.where(observed, arranged - predicted, 0)
            return noise.marginal(observed).log_prob(apart)

        cases = jax.vmap(case)(jnp.asarray(self.arrangements))
        return jax.nn.logsumexp(cases) - np.log(len(self.arrangements))

    def sample(self, key: PRNGKeyArray, x: Float[Array, " d"], step: Step) -> Float[Array, " m"]:
        seen = list(self.in_order.sample(key, x, step))
        for place, value in zip(
            self.unordered, ascending([seen[i] for i in self.unordered]), strict=True
        ):
            seen[place] = value
        return jnp.stack(seen)

    def check(self, size: int, width: int, step: Step) -> None:
        self.in_order.check(size, width, step)


def ascending(values: list[Float[Array, ""]]) -> list[Float[Array, ""]]:
    """A few numbers in order, by comparing neighbours: sorting takes ten times longer."""
    values = list(values)
    for end in range(len(values) - 1, 0, -1):
        for i in range(end):
            low, high = jnp.minimum(*values[i : i + 2]), jnp.maximum(*values[i : i + 2])
            values[i], values[i + 1] = low, high
    return values


def _whitened(
    y: Float[Array, " m"], predicted: Float[Array, " m"], noise: Gaussian
) -> Float[Array, " m"]:
    observed = ~jnp.isnan(y)
    return noise.marginal(observed).whiten(jnp.where(observed, y - predicted, 0))
