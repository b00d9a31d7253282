"""LinearisedProposal: a Gauss–Newton fit to p(z | ancestor, y), particle by particle."""

import dataclasses
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from nopf.arguments import positive_integer, share_of_one
from nopf.gaussian import is_traced
from nopf.linear import as_vector, cholesky, combine, dot, solve_lower, solve_upper
from nopf.model import StateSpaceModel
from nopf.proposals.factor import Factor, OfFewRows, OfPrecision
from nopf.proposals.law import GaussianLaw
from nopf.proposals.proposal import Proposal
from nopf.steps import Step

SHARE = 0.01
SEVERAL_MODES = 0.1  # the share where one fit may miss a mode
WINDING = np.pi / 6  # standard deviation of a step from which on an angle may go either way round

Trust = Callable[[Float[Array, " m"]], Float[Array, " m"] | None]


class LinearisedProposal(Proposal):
    """A Gaussian around the most likely next state, found by Gauss–Newton iterations.

    Needs additive observation noise and no training. With a linear observation and Gaussian noise
    one iteration is the optimal proposal. With robust noise a coordinate far from what is predicted
    counts less.

    At every iteration the whitened residual r(z) of the observation is replaced by its tangent
    b + J z, which makes the target normal with precision I + JᵀJ and mean −(I + JᵀJ)⁻¹ Jᵀ b.

    Args:
        iterations: how often to linearise; the last one gives the covariance too.
        defensive: share of the particles drawn from the transition instead, which bounds the
            weights. Left out, it is 0.01; but 0.1 where several states may be likely and the fit
            sees one: with robust noise (the measurement is believed, or is called an outlier) and
            with an angle whose noise of one step can carry it round either way.
    """

    iterations: int = eqx.field(static=True)
    defensive: float | None = eqx.field(static=True)

    def __init__(self, iterations: int = 2, defensive: float | int | None = None):
        self.iterations = positive_integer(iterations, "iterations")
        self.defensive = None if defensive is None else share_of_one(defensive, "defensive")

    def check(self, model: StateSpaceModel) -> None:
        reason = model.likelihood.why_not_additive
        if reason is not None:
            raise ValueError(
                f"proposal: LinearisedProposal needs additive observation noise, but {reason}; "
                "learn a proposal with nopf.train, or use InnerSamplingProposal"
            )

    @property
    def share(self) -> float:
        return SHARE if self.defensive is None else self.defensive

    def settled(self, model: StateSpaceModel) -> "LinearisedProposal":
        if self.defensive is not None:
            return self
        several = model.likelihood.why_not_gaussian is not None or _may_wind(model)
        return dataclasses.replace(self, defensive=SEVERAL_MODES if several else SHARE)

    def law(
        self,
        model: StateSpaceModel,
        ancestor: Float[Array, " d"],
        y: Float[Array, " m"],
        step: Step,
    ) -> GaussianLaw:
        mean, factor = gauss_newton(model, ancestor, y, step, self.iterations)
        motion = model.motion(ancestor, step)
        # The fit leaves out what is not finite, so that the law is sound by construction.
        return GaussianLaw(mean, factor, lambda z: model.log_likelihood(y, motion(z), step), None)


def _may_wind(model: StateSpaceModel) -> bool:
    """Whether one step's noise can carry an angle round either way, as far as can be seen now."""
    angles = list(model.space.angles)
    if not angles:
        return False
    if is_traced(model) or (model.reads_control and not model.control_names):
        return True  # It cannot be seen: better safe.
    control = jnp.zeros(len(model.control_names)) if model.reads_control else None
    x, step = model.sample_prior(jax.random.key(0)), model.nominal_step(control=control)
    whites = jax.random.normal(jax.random.key(1), (64, model.noise_size))
    states = jax.vmap(lambda z: model.move(x, z, step))(whites)
    apart = model.space.difference(states, model.skeleton(x, step)[None])
    spread = jnp.sqrt(jnp.mean(apart[:, np.asarray(angles)] ** 2, axis=0))
    # A function that closes over what is being traced shows only here that nothing can be seen.
    return is_traced(spread) or bool(jnp.any(spread > WINDING))


def gauss_newton(
    model: StateSpaceModel,
    ancestor: Float[Array, " d"],
    y: Float[Array, " m"],
    step: Step,
    iterations: int,
) -> tuple[Float[Array, " k"], Factor]:
    """The last of so many fits to p(z | ancestor, y), each at the mean of the one before."""
    motion = model.motion(ancestor, step)
    noise = model.observation_noise_at(step).marginal(~jnp.isnan(y))

    def residual(z: Float[Array, " k"]) -> Float[Array, " m"]:
        return noise.whiten(model.innovation(y, motion(z), step))

    mean = jnp.zeros(model.noise_size)
    for _ in range(iterations):
        mean, factor = tangent_fit(residual, mean, model.likelihood.trust)
    return mean, factor


def tangent_fit(
    residual: Callable[[Array], Array], z: Float[Array, " k"], trust: Trust = lambda z: None
) -> tuple[Float[Array, " k"], Factor]:
    """The normal law of z, standard normal a priori, given the tangent b + J z of the residual.

    Its precision is I + JᵀJ. Whichever is smaller is factorised: that (k × k), or I + JJᵀ (m × m).
    All matrices are lists of scalars, so that each entry is one array over particles.

    Args:
        residual: the whitened residual as a function of z.
        z: where to linearise.
        trust: share of its precision that a coordinate so far from its prediction deserves.
    """
    value, push = jax.linearize(residual, z)
    # Row by row, the residual's response to each coordinate: the columns of J. Without the
    # barriers XLA computes every entry anew for each of its uses.
    jacobian = jax.vmap(push)(jnp.eye(z.size))
    # Where there is no tangent, nothing is learned: such entries count as zero.
    value, jacobian = (jnp.where(jnp.isfinite(v), v, 0) for v in (value, jacobian))
    # Against what is predicted, not against the noise alone: how far is this too far?
    expected = (value - z @ jacobian) / jnp.sqrt(1 + jnp.sum(jacobian**2, axis=0))
    share = trust(expected)
    if share is not None:
        value, jacobian = jnp.sqrt(share) * value, jnp.sqrt(share)[None] * jacobian
    jacobian = jax.lax.optimization_barrier(jacobian)
    small = z.size <= value.size
    vectors = [as_vector(vector) for vector in (jacobian if small else jacobian.T)]
    gram = [
        [dot(a, c) + (1.0 if i == j else 0.0) for j, c in enumerate(vectors[: i + 1])]
        for i, a in enumerate(vectors)
    ]
    # No pivot of I + JᵀJ is below one; rounding may say otherwise.
    factor = jax.lax.optimization_barrier(cholesky(gram, smallest_pivot=1.0))
    found: Factor
    if small:
        at_zero = list(value - z @ jacobian)  # b
        right = [dot(column, at_zero) for column in vectors]
        mean = jnp.stack(solve_upper(factor, solve_lower(factor, right)))
        found = OfPrecision(factor)
    else:
        at_zero = [v - dot(row, as_vector(z)) for v, row in zip(value, vectors, strict=True)]
        inner = solve_upper(factor, solve_lower(factor, at_zero))
        mean, found = combine(vectors, inner), OfFewRows(vectors, factor)
    return jax.lax.optimization_barrier(-mean), found
