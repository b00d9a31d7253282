"""Law: a distribution of the noise z of one particle's step, made for its ancestor and observation.

In these coordinates the transition is φ = N(0, I), whatever the model is. So a law is a proposal,
and all that is asked of it is how to draw from it, and how its density compares with φ.
"""

import abc
import operator
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy.stats
from jaxtyping import Array, Bool, Float

from nopf.arguments import as_array
from nopf.layout import one_by_one, square
from nopf.proposals.factor import Dense, Diagonal, Factor


class Law(eqx.Module):
    """A distribution of z for one particle. A pytree: laws can be vectorised and gathered.

    Attributes:
        promise: log p(y | ancestor), as far as the law knows; auxiliary filters choose by it.
    """

    promise: eqx.AbstractVar[Float[Array, ""]]

    @property
    @abc.abstractmethod
    def white_size(self) -> int:
        """How many standard normal numbers `place` takes."""

    @abc.abstractmethod
    def place(self, white: Float[Array, " w"]) -> tuple[Float[Array, " k"], Float[Array, ""]]:
        """z of standard normal numbers, and log q(z) − log φ(z)."""

    @abc.abstractmethod
    def log_ratio(self, z: Float[Array, " k"]) -> Float[Array, ""]:
        """log q(z) − log φ(z), for any z."""

    def divergence(self) -> Float[Array, ""] | None:
        """KL(q ‖ φ), where it is known exactly."""
        return None


class StandardNormal(Law):
    """The transition itself.

    Attributes:
        promise: as of every law.
        size: how many noise numbers a step takes.
    """

    promise: Float[Array, ""]
    size: int = eqx.field(static=True)

    @property
    def white_size(self) -> int:
        return self.size

    def place(self, white: Float[Array, " k"]) -> tuple[Float[Array, " k"], Float[Array, ""]]:
        return white, jnp.zeros((), white.dtype)

    def log_ratio(self, z: Float[Array, " k"]) -> Float[Array, ""]:
        return jnp.zeros((), z.dtype)

    def divergence(self) -> Float[Array, ""]:
        return jnp.zeros(())


class GaussianLaw(Law):
    """N(mean, F Fᵀ).

    Attributes:
        mean: `(k,)`.
        factor: F.
        informed: whether there is anything to go by. A law that has nothing, or numbers that are
            not finite, gives way to the standard normal. None if it never does.
    """

    mean: Float[Array, " k"]
    factor: Factor
    informed: Bool[Array, ""] | None
    promise: Float[Array, ""]

    def __init__(
        self,
        mean: Any,
        factor: Any,
        log_likelihood: Callable[[Float[Array, " k"]], Float[Array, ""]],
        informed: Bool[Array, ""] | bool | None = True,
    ):
        """With the promise by Laplace's formula: p(y | ancestor) ≈ p(y | mean) φ(mean) / q(mean).

        Args:
            mean: the mean.
            factor: F: `(k,)` standard deviations, a lower triangular matrix, or a `Factor`.
            log_likelihood: log p(y | move(z)) as a function of z.
            informed: whether there is anything to go by; None for a law that is known to be sound,
                which saves the time to look.
        """
        mean = as_array(mean)
        if not isinstance(factor, Factor):
            factor = as_array(factor)
            if factor.ndim == 0:
                factor = jnp.broadcast_to(factor, mean.shape)
            if factor.shape not in (mean.shape, mean.shape * 2):
                raise ValueError(
                    f"factor: expected {mean.size} standard deviations or a matrix of shape "
                    f"{mean.shape * 2}, got shape {factor.shape}"
                )
            factor = Diagonal(factor) if factor.ndim == 1 else Dense(factor)
        self.mean, self.factor = mean, factor
        self.informed = None if informed is None else jnp.asarray(informed)
        centre = jnp.where(self.sound, mean, 0)
        log_det = jnp.where(self.sound, factor.log_det, 0)
        self.promise = log_likelihood(centre) - 0.5 * jnp.sum(centre**2) + log_det

    @property
    def white_size(self) -> int:
        return self.mean.shape[-1]

    @property
    def sound(self) -> Bool[Array, ""]:
        """Whether the law does not give way."""
        if self.informed is None:
            return jnp.ones((), bool)
        return jnp.isfinite(jnp.sum(self.mean**2) + self.factor.log_det) & self.informed

    def place(self, white: Float[Array, " k"]) -> tuple[Float[Array, " k"], Float[Array, ""]]:
        z = one_by_one(operator.add, self.mean, self.factor.colour(white))
        ratio = self._ratio(z, white)
        if self.informed is None:
            return z, ratio
        sound = jnp.isfinite(ratio) & self.informed  # as in `sound`, by what is there already
        return jnp.where(sound, z, white), jnp.where(sound, ratio, 0)

    def log_ratio(self, z: Float[Array, " k"]) -> Float[Array, ""]:
        ratio = self._ratio(z, self.factor.whiten(z - self.mean))
        # The inverse may overflow where the law itself is sound: then q/φ is zero.
        ratio = jnp.where(jnp.isnan(ratio), -jnp.inf, ratio)
        return jnp.where(self.sound, ratio, 0)

    def _ratio(self, z: Float[Array, " k"], white: Float[Array, " k"]) -> Float[Array, ""]:
        return 0.5 * (square(z) - square(white)) - self.factor.log_det

    def divergence(self) -> Float[Array, ""]:
        size = self.white_size
        trace = self.factor.square(size)
        value = 0.5 * (jnp.sum(self.mean**2) + trace - size) - self.factor.log_det
        return jnp.where(self.sound, value, 0)


class Mixture(Law):
    """Several Gaussians, with the exact density of all of them together.

    Attributes:
        log_weights: `(c,)`, normalised.
        components: a `GaussianLaw` with a leading axis of size c on every array.
    """

    log_weights: Float[Array, " c"]
    components: GaussianLaw
    promise: Float[Array, ""]

    def __init__(self, log_weights: Float[Array, " c"], components: GaussianLaw):
        """With the promise Σ w p(y | mean) φ(mean) / q(mean) over the components, q being all of
        them together: components that overlap are not counted twice.

        Args:
            log_weights: need not be normalised.
            components: with a leading axis on every array.
        """
        # Where no component has a weight, all have the same.
        some = jnp.isfinite(jnp.max(log_weights))
        self.log_weights = jax.nn.log_softmax(jnp.where(some, log_weights, 0))
        self.components = components

        def of_one(one: GaussianLaw) -> Float[Array, ""]:
            centre = jnp.where(one.sound, one.mean, 0)
            return one.promise + one.log_ratio(centre) - self.log_ratio(centre)

        self.promise = jax.nn.logsumexp(self.log_weights + jax.vmap(of_one)(components))

    @property
    def white_size(self) -> int:
        return self.components.white_size + 1

    def place(self, white: Float[Array, " w"]) -> tuple[Float[Array, " k"], Float[Array, ""]]:
        """The last of the numbers chooses the component."""
        ends = jnp.cumsum(jnp.exp(self.log_weights))
        position = jax.scipy.stats.norm.cdf(white[-1]) * ends[-1]
        chosen = jnp.minimum(jnp.searchsorted(ends, position, side="right"), ends.size - 1)
        one: GaussianLaw = jax.tree.map(lambda leaf: leaf[chosen], self.components)
        z, _ = one.place(white[:-1])
        return z, self.log_ratio(z)

    def log_ratio(self, z: Float[Array, " k"]) -> Float[Array, ""]:
        each = jax.vmap(lambda one: one.log_ratio(z))(self.components)
        return jax.nn.logsumexp(self.log_weights + each)
