"""LinearisedProposal: a Gauss–Newton fit to p(x | ancestor, y), particle by particle."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from nopf.linear import Columns, cholesky, solve_lower, solve_upper
from nopf.model import StateSpaceModel, Step, positive_integer
from nopf.proposals.proposal import Move, Proposal, log_mixture, why_not_additive
from nopf.robust import Tails

ROBUST_SHARE = 0.1


class LinearisedProposal(Proposal):
    """A Gaussian around the most likely next state, found by Gauss–Newton iterations.

    Needs additive observation noise and no training. With a linear observation and Gaussian noise
    one iteration is the optimal proposal. With robust noise a coordinate far from what is predicted
    counts less.

    Works in coordinates z in which the process noise is standard normal. At every iteration the
    whitened residual r(z) of the observation is replaced by its tangent b + J z, which makes the
    target normal with precision I + JᵀJ and mean −(I + JᵀJ)⁻¹ Jᵀ b.

    Args:
        iterations: how often to linearise; the last one gives the covariance too.
        defensive: share of the particles drawn from the transition instead, which bounds the
            weights. Left out, it is 0; with robust noise 0.1, since there a state that believes the
            measurement and one that calls it an outlier may both be likely, and the fit sees one.
    """

    iterations: int = eqx.field(static=True)
    defensive: float | None = eqx.field(static=True)

    def __init__(self, iterations: int = 2, defensive: float | int | None = None):
        self.iterations = positive_integer(iterations, "iterations")
        if defensive is not None and not 0 <= defensive <= 1:
            raise ValueError(f"defensive: expected a number from 0 to 1, got {defensive!r}")
        self.defensive = defensive

    def check(self, model: StateSpaceModel) -> None:
        reason = why_not_additive(model)
        if reason is not None:
            raise ValueError(
                f"proposal: LinearisedProposal needs additive observation noise, but {reason}; "
                "learn a proposal with nopf.train, or use InnerSamplingProposal"
            )

    def propose(
        self,
        key: PRNGKeyArray,
        model: StateSpaceModel,
        ancestor: Float[Array, " d"],
        y: Float[Array, " m"],
        step: Step,
        memory: Any = None,
    ) -> Move:
        predicted = model.skeleton(ancestor, step)
        fit = gauss_newton(model, predicted, y, step, self.iterations)
        share = self.defensive
        if share is None:
            share = 0.0 if model.robust is None else ROBUST_SHARE
        origin = jax.random.normal(key, predicted.shape)
        z = fit.mean + fit.colour(origin)
        if share > 0:
            blind = jax.random.bernoulli(jax.random.fold_in(key, 1), share)
            z = jnp.where(blind, origin, z)
            origin = fit.whiten(z - fit.mean)
        state = model.space.wrap(predicted + model.process_noise_at(step).colour(z))
        # log p(x | ancestor) and log q share the Jacobian of z → x and the constant of the normal.
        log_ratio = 0.5 * (jnp.sum(z**2) - jnp.sum(origin**2)) - fit.log_det
        log_weight = model.log_likelihood(y, state, step) - log_mixture(log_ratio, share)
        return Move(state, log_weight, memory)


def gauss_newton(
    model: StateSpaceModel,
    predicted: Float[Array, " d"],
    y: Float[Array, " m"],
    step: Step,
    iterations: int,
) -> "Tangent":
    """The last of so many fits to p(x | predicted, y), each at the mean of the one before."""
    process = model.process_noise_at(step)
    noise = model.observation_noise_at(step).marginal(~jnp.isnan(y))

    def residual(z: Float[Array, " d"]) -> Float[Array, " m"]:
        return noise.whiten(model.innovation(y, predicted + process.colour(z), step))

    z = jnp.zeros(predicted.size)
    for _ in range(iterations):
        fit = Tangent(residual, z, model.robust)
        z = fit.mean
    return fit


class Tangent:
    """The normal law of z, standard normal a priori, given the residual's tangent b + J z.

    Its precision is I + JᵀJ. Whichever is smaller is factorised: that (d × d), or I + JJᵀ (m × m).
    All matrices are lists of scalars, so that each entry is one array over particles.

    Attributes:
        mean: `(d,)`.
        log_det: logarithm of the determinant of the factor F, covariance = F Fᵀ.
    """

    def __init__(
        self,
        residual: Callable[[Array], Array],
        z: Float[Array, " d"],
        tails: Tails | None = None,
    ):
        value, push = jax.linearize(residual, z)
        self._small = z.size <= value.size
        # Row by row, the residual's response to each coordinate: the columns of J. Without the
        # barriers XLA computes every entry anew for each of its uses.
        jacobian = jax.vmap(push)(jnp.eye(z.size))
        # Where there is no tangent, nothing is learned: such entries count as zero.
        value, jacobian = (jnp.where(jnp.isfinite(v), v, 0) for v in (value, jacobian))
        if tails is not None:
            # Against what is predicted, not against the noise alone: how far is this too far?
            expected = (value - z @ jacobian) / jnp.sqrt(1 + jnp.sum(jacobian**2, axis=0))
            share = jnp.sqrt(tails.trust(expected))
            value, jacobian = share * value, share[None] * jacobian
        jacobian = jax.lax.optimization_barrier(jacobian)
        columns = [list(column) for column in jacobian]
        self._columns = columns
        self._rows = [list(row) for row in zip(*columns, strict=True)]
        b = [v - t for v, t in zip(value, self._project(list(z)), strict=True)]
        vectors = columns if self._small else self._rows
        gram = [
            [_dot(a, c) + (1.0 if i == j else 0.0) for j, c in enumerate(vectors[: i + 1])]
            for i, a in enumerate(vectors)
        ]
        self._factor = jax.lax.optimization_barrier(cholesky(gram))
        if self._small:
            right = [_dot(column, b) for column in columns]
            mean = solve_upper(self._factor, solve_lower(self._factor, right))
        else:
            inner = solve_upper(self._factor, solve_lower(self._factor, b))
            mean = [_dot(column, inner) for column in columns]
        self.mean = jax.lax.optimization_barrier(-jnp.stack(mean))
        self.log_det = -sum(jnp.log(row[-1]) for row in self._factor)

    def colour(self, white: Float[Array, " d"]) -> Float[Array, " d"]:
        """F·white. For d ≤ m F is C⁻ᵀ, C the factor of the precision.

        Otherwise, with C the factor of I + JJᵀ, Andrews' square root I − Jᵀ C⁻ᵀ (C + I)⁻¹ J.
        """
        if self._small:
            return jnp.stack(solve_upper(self._factor, list(white)))
        inner = solve_lower(self._shifted(), self._project(list(white)))
        return white - self._lift(solve_upper(self._factor, inner))

    def whiten(self, deviation: Float[Array, " d"]) -> Float[Array, " d"]:
        """F⁻¹·deviation: Cᵀ for d ≤ m, otherwise I + Jᵀ (Cᵀ + I)⁻¹ J."""
        if self._small:
            lower = range(len(self._factor))
            columns = [[row[i] for row in self._factor[i:]] for i in lower]
            return jnp.stack([_dot(columns[i], deviation[i:]) for i in lower])
        return deviation + self._lift(solve_upper(self._shifted(), self._project(list(deviation))))

    def _shifted(self) -> Columns:
        return [[*row[:-1], row[-1] + 1] for row in self._factor]

    def _project(self, z: list[Array]) -> list[Array]:
        return [_dot(row, z) for row in self._rows]

    def _lift(self, inner: list[Array]) -> Float[Array, " d"]:
        return jnp.stack([_dot(column, inner) for column in self._columns])


def _dot(a: Any, b: Any) -> Any:
    return sum((x * y for x, y in zip(a, b, strict=True)), start=0.0)
