"""Outliers and StudentT: observation noise with heavy tails."""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from nopf.arguments import finite_number
from nopf.gaussian import LOG_2PI, shown


class Tails(eqx.Module):
    """A density for each whitened coordinate of the observation noise, instead of the normal.

    Coordinates go wrong one by one: a bad range leaves the bearing as good as it was.
    """

    @abc.abstractmethod
    def sample(self, key: PRNGKeyArray, size: int) -> Float[Array, " m"]:
        """Independent draws."""

    @abc.abstractmethod
    def log_prob(self, z: Float[Array, " m"]) -> Float[Array, " m"]:
        """Logarithm of the density, coordinate by coordinate."""

    @abc.abstractmethod
    def trust(self, z: Float[Array, " m"]) -> Float[Array, " m"]:
        """Share of its nominal precision that a coordinate this far away deserves."""

    def beyond(self, z: float) -> float:
        """The share of draws that are further than z standard deviations from zero."""
        grid = jnp.linspace(-z, z, 1001)
        return max(0.0, 1 - float(jnp.trapezoid(jnp.exp(self.log_prob(grid)), grid)))


class Outliers(Tails):
    """Normal noise, and now and then a measurement whose noise is many times larger.

    Args:
        rate: share of the measurements that are outliers.
        scale: how many times larger their standard deviation is.
    """

    rate: float = eqx.field(static=True)
    scale: float = eqx.field(static=True)

    def __init__(self, rate: float | int = 0.05, scale: float | int = 10.0):
        self.rate, self.scale = finite_number(rate, "rate"), finite_number(scale, "scale")
        if not 0 < self.rate < 1:
            raise ValueError(f"rate: expected a number between 0 and 1, got {shown(rate)}")
        if not self.scale > 1:
            raise ValueError(f"scale: expected a number above 1, got {shown(scale)}")

    def sample(self, key: PRNGKeyArray, size: int) -> Float[Array, " m"]:
        """Independent draws."""
        coin_key, key = jax.random.split(key)
        outlier = jax.random.bernoulli(coin_key, self.rate, (size,))
        return jax.random.normal(key, (size,)) * jnp.where(outlier, self.scale, 1.0)

    def log_prob(self, z: Float[Array, " m"]) -> Float[Array, " m"]:
        """Logarithm of the density, coordinate by coordinate."""
        return jnp.logaddexp(*self._parts(z))

    def trust(self, z: Float[Array, " m"]) -> Float[Array, " m"]:
        """Share of its nominal precision that a coordinate this far away deserves."""
        good, bad = self._parts(z)
        doubt = jax.nn.sigmoid(bad - good)
        return 1 - doubt + doubt / self.scale**2

    def _parts(self, z: Float[Array, " m"]) -> tuple[Float[Array, " m"], Float[Array, " m"]]:
        good = np.log1p(-self.rate) - 0.5 * (z**2 + LOG_2PI)
        wide = np.log(self.rate / self.scale) - 0.5 * ((z / self.scale) ** 2 + LOG_2PI)
        return good, wide


class StudentT(Tails):
    """Student's t distribution.

    Args:
        freedom: degrees of freedom: 1 for the heaviest tails in use, 30 for nearly normal ones.
    """

    freedom: float = eqx.field(static=True)

    def __init__(self, freedom: float | int = 4.0):
        self.freedom = finite_number(freedom, "freedom")
        if self.freedom <= 0:
            raise ValueError(f"freedom: expected a positive number, got {shown(freedom)}")

    def sample(self, key: PRNGKeyArray, size: int) -> Float[Array, " m"]:
        """Independent draws."""
        return jax.random.t(key, self.freedom, (size,))

    def log_prob(self, z: Float[Array, " m"]) -> Float[Array, " m"]:
        """Logarithm of the density, coordinate by coordinate."""
        return jax.scipy.stats.t.logpdf(z, self.freedom)

    def trust(self, z: Float[Array, " m"]) -> Float[Array, " m"]:
        """Share of its nominal precision that a coordinate this far away deserves."""
        return (self.freedom + 1) / (self.freedom + z**2)
