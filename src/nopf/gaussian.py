"""Gaussian and GaussianMixture: sample and log_prob, with diagonal or full covariance."""

from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

Numbers: TypeAlias = Any  # whatever numpy.asarray makes a float array of; checked by hand

LOG_2PI = float(np.log(2 * np.pi))


def is_traced(value: Any) -> bool:
    """Whether `value` is seen by JAX's tracing only, so that its numbers are not known."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(value))


def as_float_array(value: Any, name: str) -> Any:
    """A float array of `value`; in double precision on the host, unless JAX holds it already."""
    if isinstance(value, jax.Array) or is_traced(value):
        return jnp.asarray(value, float)
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name}: expected numbers, got {value!r}") from error
    if not np.all(np.isfinite(array)):
        raise ValueError(f"{name}: expected finite numbers, got {value!r}")
    return array


def scale_factor(value: Any, size: int, name: str) -> Any:
    """Turns standard deviations or a covariance matrix into the factor L with LLᵀ = covariance.

    Args:
        value: a number or `(size,)` standard deviations, or a `(size, size)` covariance matrix.
        size: number of coordinates.
        name: the user's argument, for messages.

    Returns:
        `(size,)` standard deviations, or the `(size, size)` lower Cholesky factor.
    """
    array = as_float_array(value, name)
    if array.ndim == 0:
        array = array * np.ones(size)
    if array.shape not in ((size,), (size, size)):
        raise ValueError(
            f"{name}: expected {size} standard deviations or a ({size}, {size}) covariance "
            f"matrix, got shape {array.shape}"
        )
    if is_traced(array):
        return array if array.ndim == 1 else jnp.linalg.cholesky(array)
    host = np.asarray(array, np.float64)
    if host.ndim == 1:
        if not np.all(host > 0):
            raise ValueError(
                f"{name}: expected positive standard deviations, got {host.tolist()}; "
                "a coordinate without noise has no density: give it a small one"
            )
        return array
    if not np.allclose(host, host.T, rtol=1e-6, atol=1e-12):
        raise ValueError(f"{name}: expected a symmetric covariance matrix, got {host.tolist()}")
    try:
        factor = np.linalg.cholesky(host)
    except np.linalg.LinAlgError as error:
        smallest = np.linalg.eigvalsh(host)[0]
        raise ValueError(
            f"{name}: expected a positive definite covariance matrix, "
            f"its smallest eigenvalue is {smallest:.3g}"
        ) from error
    return factor if isinstance(array, np.ndarray) else jnp.asarray(factor, array.dtype)


class Gaussian(eqx.Module):
    """A multivariate normal distribution.

    Args:
        mean: `(d,)`.
        std: `(d,)` standard deviations (or one number for all), or a `(d, d)` covariance matrix.
        name: what messages call `std`.
    """

    mean: Float[Array | np.ndarray, " d"]
    factor: Float[Array | np.ndarray, " d"] | Float[Array | np.ndarray, "d d"]

    def __init__(self, mean: Numbers, std: Numbers, *, name: str = "std"):
        self.mean = as_float_array(mean, "mean")
        if self.mean.ndim != 1:
            raise ValueError(f"mean: expected a vector, got shape {self.mean.shape}")
        self.factor = scale_factor(std, self.mean.shape[0], name)

    @property
    def size(self) -> int:
        return self.mean.shape[0]

    @property
    def std(self) -> Float[Array, " d"]:
        if self.factor.ndim == 1:
            return jnp.asarray(self.factor)
        return jnp.linalg.norm(jnp.asarray(self.factor), axis=1)

    @property
    def covariance(self) -> Float[Array, "d d"]:
        if self.factor.ndim == 1:
            return jnp.diag(jnp.asarray(self.factor) ** 2)
        factor = jnp.asarray(self.factor)
        return factor @ factor.T

    def sample(self, key: PRNGKeyArray) -> Float[Array, " d"]:
        noise = jax.random.normal(key, (self.size,))
        factor = jnp.asarray(self.factor)
        return jnp.asarray(self.mean) + (factor * noise if factor.ndim == 1 else factor @ noise)

    def log_prob(self, x: Float[Array, " d"]) -> Float[Array, ""]:
        residual = x - self.mean
        if self.factor.ndim == 1:
            white, diagonal = residual / self.factor, jnp.asarray(self.factor)
        else:
            white = jax.scipy.linalg.solve_triangular(self.factor, residual, lower=True)
            diagonal = jnp.diagonal(self.factor)
        return -0.5 * jnp.sum(white**2) - jnp.sum(jnp.log(diagonal)) - 0.5 * self.size * LOG_2PI

    def marginal(self, keep: Array) -> "Gaussian":
        """Leaves out the coordinates where `keep` is false.

        The shape stays: a coordinate left out becomes independent with variance 1/(2π), so that it
        adds exactly log 1 = 0 to `log_prob` at its mean.
        """
        if self.factor.ndim == 1:
            factor = jnp.where(keep, self.factor, (2 * np.pi) ** -0.5)
        else:
            both = keep[:, None] & keep[None, :]
            masked = jnp.where(both, self.covariance, jnp.diag(jnp.where(keep, 0, 0.5 / np.pi)))
            factor = jnp.linalg.cholesky(masked)
        return eqx.tree_at(lambda g: g.factor, self, factor)


class GaussianMixture(eqx.Module):
    """A mixture of K normal distributions.

    Args:
        weights: `(K,)`, non-negative, summing to one.
        means: `(K, d)`.
        stds: standard deviations, `(d,)` shared or `(K, d)`; or covariance matrices `(K, d, d)`.
    """

    weights: Float[Array | np.ndarray, " k"]
    components: Gaussian  # with a leading axis of size K on every array

    def __init__(self, weights: Numbers, means: Numbers, stds: Numbers):
        self.weights = as_float_array(weights, "weights")
        means_, stds_ = as_float_array(means, "means"), as_float_array(stds, "stds")
        if self.weights.ndim != 1 or means_.ndim != 2 or means_.shape[0] != self.weights.shape[0]:
            raise ValueError(
                "weights, means: expected (K,) weights and (K, d) means, "
                f"got shapes {self.weights.shape} and {means_.shape}"
            )
        if not is_traced(self.weights):
            host = np.asarray(self.weights)
            if np.any(host < 0) or abs(host.sum() - 1) > 1e-5:
                raise ValueError(
                    "weights: expected non-negative numbers that sum to one, "
                    f"got {host.tolist()} (sum {host.sum():.6g})"
                )
        count, size = means_.shape
        if stds_.shape == (size,):
            stds_ = stds_ * np.ones((count, 1))
        if stds_.shape not in ((count, size), (count, size, size)):
            raise ValueError(
                f"stds: expected shape ({size},), ({count}, {size}) or ({count}, {size}, {size}), "
                f"got {stds_.shape}"
            )
        parts = [Gaussian(means_[k], stds_[k]) for k in range(count)]
        stack = jnp.stack if is_traced((means_, stds_)) else np.stack
        self.components = jax.tree.map(lambda *leaves: stack(leaves), *parts)

    @property
    def size(self) -> int:
        return self.components.mean.shape[-1]

    def sample(self, key: PRNGKeyArray) -> Float[Array, " d"]:
        which, noise = jax.random.split(key)
        k = jax.random.categorical(which, jnp.log(self.weights))
        part: Gaussian = jax.tree.map(lambda leaf: jnp.asarray(leaf)[k], self.components)
        return part.sample(noise)

    def log_prob(self, x: Float[Array, " d"]) -> Float[Array, ""]:
        parts = jax.vmap(lambda part: part.log_prob(x))(self.components)
        return jax.nn.logsumexp(parts, b=self.weights)
