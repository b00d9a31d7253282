"""Gaussian and GaussianMixture: sample and log_prob, with diagonal or full covariance."""

import operator
from typing import TYPE_CHECKING, Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from nopf.layout import one_by_one, square

Numbers: TypeAlias = Any  # whatever numpy.asarray makes a float array of; checked by hand

# Arrays of NumPy, or of JAX inside a function that is traced; they do the same.
if TYPE_CHECKING:
    AnyArray: TypeAlias = Array
else:
    AnyArray = Array | np.ndarray | np.generic

LOG_2PI = float(np.log(2 * np.pi))
LONGEST = 200  # letters of a value in a message
NO_NOISE = 1e-6  # of a correlation matrix: an eigenvalue or pivot below is rounding


def is_traced(value: Any) -> bool:
    """Whether `value` is seen by JAX's tracing only, so that its numbers are not known."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(value))


def are_numbers(array: np.ndarray) -> bool:
    """Whether these are real numbers: no strings that look like some, no truth values."""
    if array.dtype == object:
        others = str | bytes | bool | np.bool_ | None
        return not any(isinstance(entry, others) for entry in array.ravel())
    return array.dtype.kind in "fiu" or bool(jnp.issubdtype(array.dtype, jnp.floating))


def shown(value: Any) -> str:
    """What a message shows of a value that is refused: one line, however large it is."""
    text = " ".join(line.strip() for line in repr(value).splitlines())
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} …"


def as_float_array(value: Any, name: str) -> Any:
    """A float array of `value`; in double precision on the host, unless JAX holds it already."""
    if is_traced(value):
        return jnp.asarray(value, float)
    if isinstance(value, np.ma.MaskedArray) and np.any(value.mask):
        raise ValueError(f"{name}: expected numbers, got a masked array with masked entries")
    try:
        given = np.asarray(value)
        array = np.asarray(given, dtype=np.float64) if are_numbers(given) else None
    except OverflowError as error:
        raise ValueError(f"{name}: expected finite numbers, got one that is too large") from error
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name}: expected numbers, got {shown(value)}") from error
    if array is None:
        if given.dtype.kind in "mM":
            raise TypeError(
                f"{name}: expected numbers, got {given.dtype}, whose unit would be lost; pass "
                "seconds, as (t - t[0]) / np.timedelta64(1, 's') gives them"
            )
        hint = f"; for 0 and 1 pass np.asarray({name}, float)" if given.dtype == bool else ""
        raise TypeError(f"{name}: expected numbers, got {shown(value)}{hint}")
    if not np.all(np.isfinite(array)):
        raise ValueError(f"{name}: expected finite numbers, got {shown(array.tolist())}")
    return array


def scale_factor(value: Any, size: int, name: str, singular: bool = False) -> Any:
    """Turns standard deviations or a covariance matrix into the factor L with LLᵀ = covariance.

    Args:
        value: a number or `(size,)` standard deviations, or a `(size, size)` covariance matrix.
        size: number of coordinates.
        name: the user's argument, for messages.
        singular: whether there may be directions without noise.

    Returns:
        `(size,)` standard deviations, or a `(size, size)` factor: the lower one of Cholesky, or one
        with zero columns if there are directions without noise.
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
        if array.ndim == 1:
            return array
        return _semidefinite_cholesky(array) if singular else jnp.linalg.cholesky(array)
    host = np.asarray(array, np.float64)
    if host.ndim == 1:
        if np.any(host < 0) or not (singular or np.all(host > 0)):
            raise ValueError(
                f"{name}: expected positive standard deviations, got {shown(host.tolist())}"
                + (
                    ""
                    if singular
                    else "; a coordinate without noise has no density: give it a small one"
                )
            )
        return array
    if not np.allclose(host, host.T, rtol=1e-6, atol=1e-12):
        raise ValueError(
            f"{name}: expected a symmetric covariance matrix, got {shown(host.tolist())}"
        )
    # Of the correlations: a state in millimetres beside one in kilometres is not without noise.
    scale = np.sqrt(np.maximum(np.diag(host), 0))
    scale = np.where(scale > 0, scale, 1)
    values, vectors = np.linalg.eigh(host / np.outer(scale, scale))
    if values[0] > (NO_NOISE if singular else 0):
        return np.linalg.cholesky(host)
    if singular and values[0] >= -NO_NOISE:
        return scale[:, None] * vectors * np.sqrt(np.where(values > NO_NOISE, values, 0))
    raise ValueError(
        f"{name}: expected a positive {'semidefinite' if singular else 'definite'} covariance "
        f"matrix, its smallest eigenvalue is {np.linalg.eigvalsh(host)[0]:.3g}"
    )


def _semidefinite_cholesky(matrix: Float[Array, "d d"]) -> Float[Array, "d d"]:
    """Lower factor of a matrix that may be singular: a direction without noise is a zero column."""
    size = matrix.shape[0]
    zero = jnp.zeros((), matrix.dtype)
    columns: list[list[Any]] = []
    for j in range(size):
        rest = [matrix[i, j] - sum((c[i] * c[j] for c in columns), start=zero) for i in range(size)]
        some = rest[j] > NO_NOISE * matrix[j, j]
        pivot = jnp.sqrt(jnp.where(some, rest[j], 1))
        columns.append([zero] * j + [jnp.where(some, r / pivot, 0) for r in rest[j:]])
    return jnp.stack([jnp.stack(column) for column in columns], axis=1)


class Gaussian(eqx.Module):
    """A multivariate normal distribution.

    Args:
        mean: `(d,)`.
        std: `(d,)` standard deviations (or one number for all), or a `(d, d)` covariance matrix.
        name: what messages call `std`.
        singular: whether there may be directions without noise. Such a distribution can be drawn
            from, but has no density.

    Attributes:
        mean: as given.
        factor: standard deviations, or the factor L of the covariance LLᵀ.
    """

    mean: Float[Array | np.ndarray, " d"]
    factor: Float[Array | np.ndarray, " d"] | Float[Array | np.ndarray, "d r"]

    def __init__(self, mean: Numbers, std: Numbers, *, name: str = "std", singular: bool = False):
        self.mean = as_float_array(mean, "mean")
        if self.mean.ndim != 1 or self.mean.size < 1:
            raise ValueError(f"mean: expected a vector, got shape {self.mean.shape}")
        self.factor = scale_factor(std, self.mean.shape[0], name, singular)

    @property
    def size(self) -> int:
        """Number of coordinates."""
        return self.mean.shape[0]

    @property
    def rank(self) -> int:
        """How many standard normal numbers make a draw."""
        return self.factor.shape[-1]

    def without_silent_directions(self) -> "Gaussian":
        """The same, of fewer numbers where some make no noise; one number at least."""
        if is_traced(self.factor):
            return self
        factor = np.asarray(self.factor)
        loud = (factor if factor.ndim == 1 else np.abs(factor).sum(0)) > 0
        if loud.all():
            return self
        columns = (np.diag(factor) if factor.ndim == 1 else factor)[:, loud]
        factor = columns if loud.any() else np.zeros((self.size, 1))
        return eqx.tree_at(lambda g: g.factor, self, factor)

    @property
    def std(self) -> Float[Array, " d"]:
        """Of each coordinate."""
        if self.factor.ndim == 1:
            return jnp.asarray(self.factor)
        return jnp.linalg.norm(jnp.asarray(self.factor), axis=1)

    @property
    def covariance(self) -> Float[Array, "d d"]:
        """LLᵀ."""
        if self.factor.ndim == 1:
            return jnp.diag(jnp.asarray(self.factor) ** 2)
        factor = jnp.asarray(self.factor)
        return factor @ factor.T

    def sample(self, key: PRNGKeyArray) -> Float[Array, " d"]:
        """One draw."""
        return jnp.asarray(self.mean) + self.colour(jax.random.normal(key, (self.rank,)))

    def log_prob(self, x: Float[Array, " d"]) -> Float[Array, ""]:
        """Logarithm of the density at x."""
        _expect_vector(x, self.size)
        white = self.whiten(one_by_one(operator.sub, x, self.mean))
        log_det = jnp.sum(jnp.log(self.diagonal))
        return -0.5 * square(white) - log_det - 0.5 * self.size * LOG_2PI

    @property
    def diagonal(self) -> Float[Array, " d"]:
        """Of the Cholesky factor."""
        factor = jnp.asarray(self.factor)
        return factor if factor.ndim == 1 else jnp.diagonal(factor)

    def colour(self, white: Float[Array, " r"]) -> Float[Array, " d"]:
        """L·white: turns standard normal numbers into deviations from the mean."""
        factor = jnp.asarray(self.factor)
        return one_by_one(operator.mul, factor, white) if factor.ndim == 1 else factor @ white

    def whiten(self, deviation: Float[Array, " d"]) -> Float[Array, " d"]:
        """L⁻¹·deviation, the inverse of `colour`."""
        if self.factor.ndim == 1:
            return one_by_one(operator.truediv, deviation, self.factor)
        # By the inverse, which all particles share: one triangular solve each is ten times slower.
        identity = jnp.eye(self.size)
        return jax.scipy.linalg.solve_triangular(self.factor, identity, lower=True) @ deviation

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
            # With nothing left out the factor stays as it is: to form it anew would lose digits.
            factor = jnp.where(jnp.all(keep), self.factor, jnp.linalg.cholesky(masked))
        return eqx.tree_at(lambda g: g.factor, self, factor)


class GaussianMixture(eqx.Module):
    """A mixture of K normal distributions.

    Args:
        weights: `(K,)`, non-negative, summing to one.
        means: `(K, d)`.
        stds: standard deviations, `(d,)` shared or `(K, d)`; or covariance matrices `(K, d, d)`.

    Attributes:
        weights: as given.
        components: one `Gaussian` with a leading axis of size K on every array.
    """

    weights: Float[Array | np.ndarray, " k"]
    components: Gaussian

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
                    f"got {shown(host.tolist())} (sum {host.sum():.6g})"
                )
        count, size = means_.shape
        if stds_.shape in ((), (size,)):
            stds_ = stds_ * np.ones((count, size))
        if count == size and stds_.shape == (size, size) and _looks_like_covariance(stds_):
            raise ValueError(
                f"stds: a symmetric ({size}, {size}) array could be standard deviations of {count} "
                f"components or one covariance; say which with shape ({count}, {size}, {size})"
            )
        if stds_.shape not in ((count, size), (count, size, size)):
            raise ValueError(
                f"stds: expected shape ({size},), ({count}, {size}) or ({count}, {size}, {size}), "
                f"got {stds_.shape}"
            )
        parts = [Gaussian(means_[k], stds_[k], name=f"stds[{k}]") for k in range(count)]
        stack = jnp.stack if is_traced((means_, stds_)) else np.stack
        self.components = jax.tree.map(lambda *leaves: stack(leaves), *parts)

    @property
    def size(self) -> int:
        """Number of coordinates."""
        return self.components.mean.shape[-1]

    @property
    def mean(self) -> Float[Array, " d"]:
        """Of the whole mixture."""
        return jnp.asarray(self.weights) @ self.components.mean

    @property
    def covariance(self) -> Float[Array, "d d"]:
        """Of the whole mixture: within the components and between their means."""
        within = jax.vmap(lambda part: part.covariance)(self.components)
        apart = self.components.mean - self.mean[None]
        each = within + apart[:, :, None] * apart[:, None, :]
        return jnp.tensordot(jnp.asarray(self.weights), each, axes=1)

    def sample(self, key: PRNGKeyArray) -> Float[Array, " d"]:
        """One draw."""
        which, noise = jax.random.split(key)
        k = jax.random.categorical(which, jnp.log(self.weights))
        part: Gaussian = jax.tree.map(lambda leaf: jnp.asarray(leaf)[k], self.components)
        return part.sample(noise)

    def log_prob(self, x: Float[Array, " d"]) -> Float[Array, ""]:
        """Logarithm of the density at x."""
        _expect_vector(x, self.size)
        parts = jax.vmap(lambda part: part.log_prob(x))(self.components)
        return jax.nn.logsumexp(parts, b=self.weights)


def _expect_vector(x: Array, size: int) -> None:
    if jnp.shape(x) != (size,):
        raise ValueError(f"x: expected shape ({size},), got {jnp.shape(x)}; use jax.vmap for many")


def _looks_like_covariance(array: Any) -> bool:
    if is_traced(array):
        return False
    off_diagonal = array - np.diag(np.diag(array))
    return bool(np.array_equal(array, array.T) and off_diagonal.any())
