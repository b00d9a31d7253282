"""LinearisedProposal: a Gauss–Newton fit to p(x | ancestor, y), particle by particle."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from nopf.linear import cholesky, solve_lower, solve_upper
from nopf.model import StateSpaceModel, Step, positive_integer
from nopf.proposals.proposal import Move, Proposal, why_not_gaussian


class LinearisedProposal(Proposal):
    """A Gaussian around the most likely next state, found by Gauss–Newton iterations.

    Needs Gaussian observation noise and no training. With a linear observation one iteration is
    the optimal proposal.

    Works in coordinates z in which the process noise is standard normal. At every iteration the
    whitened residual r(z) of the observation is replaced by its tangent b + J z, which makes the
    target normal with precision I + JᵀJ and mean −(I + JᵀJ)⁻¹ Jᵀ b.

    Args:
        iterations: how often to linearise; the last one gives the covariance too.
    """

    iterations: int = eqx.field(static=True)

    def __init__(self, iterations: int = 2):
        self.iterations = positive_integer(iterations, "iterations")

    def check(self, model: StateSpaceModel) -> None:
        reason = why_not_gaussian(model)
        if reason is not None:
            raise ValueError(
                f"proposal: LinearisedProposal needs Gaussian observation noise, but {reason}; "
                "use InnerSamplingProposal or NudgedProposal"
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
        centre = model.skeleton(ancestor, step)
        process = model.process_noise_at(step)
        noise = model.observation_noise_at(step).marginal(~jnp.isnan(y))

        def place(z: Float[Array, " d"]) -> Float[Array, " d"]:
            return centre + process.colour(z)

        def residual(z: Float[Array, " d"]) -> Float[Array, " m"]:
            return noise.whiten(model.innovation(y, place(z), step))

        z = jnp.zeros(centre.size)
        for _ in range(self.iterations):
            fit = _Tangent(residual, z)
            z = fit.mean()
        draw, log_q = fit.sample(key)
        state = model.space.wrap(place(draw))
        # log p(x | ancestor) and log q share the Jacobian of z → x and the constant of the normal.
        log_weight = model.log_likelihood(y, state, step) - 0.5 * jnp.sum(draw**2) - log_q
        return Move(state, log_weight, memory)


class _Tangent:
    """The normal law of z given the residual's tangent at `z`; up to (2π)^(−d/2).

    All matrices are lists of scalars, so that each entry is one array over particles. Whichever
    is smaller is factorised: the precision I + JᵀJ (d × d), or I + JJᵀ (m × m), by Woodbury.
    """

    def __init__(self, residual: Any, z: Float[Array, " d"]):
        value, push = jax.linearize(residual, z)
        self.size, self.width = z.size, value.size
        # Columns of J: the residual's response to each coordinate.
        columns = [push(unit) for unit in jnp.eye(z.size)]
        self.columns = [[column[i] for i in range(self.width)] for column in columns]
        self.b = [value[i] - self._row(i, list(z)) for i in range(self.width)]
        if self.size <= self.width:
            gram = [[_dot(a, c) for c in self.columns[: i + 1]] for i, a in enumerate(self.columns)]
        else:
            rows = list(zip(*self.columns, strict=True))
            gram = [[_dot(a, c) for c in rows[: i + 1]] for i, a in enumerate(rows)]
        for i, row in enumerate(gram):
            row[i] = row[i] + 1
        self.factor = cholesky(gram)

    def _row(self, i: int, z: Any) -> Any:
        return _dot([column[i] for column in self.columns], z)

    def mean(self) -> Float[Array, " d"]:
        if self.size <= self.width:
            right = [-_dot(column, self.b) for column in self.columns]
            solution = solve_upper(self.factor, solve_lower(self.factor, right))
        else:
            inner = solve_upper(self.factor, solve_lower(self.factor, self.b))
            solution = [-_dot(column, inner) for column in self.columns]
        return jnp.stack(solution)

    def sample(self, key: PRNGKeyArray) -> tuple[Float[Array, " d"], Float[Array, ""]]:
        """A draw and its log-density."""
        log_det = sum(jnp.log(row[-1]) for row in self.factor)
        if self.size <= self.width:
            noise = jax.random.normal(key, (self.size,))
            offset = jnp.stack(solve_upper(self.factor, list(noise)))
            return self.mean() + offset, log_det - 0.5 * jnp.sum(noise**2)
        # Perturb and solve: a draw of the prior and one of the noise, pulled to the data, is a
        # draw of the posterior; only the small system has to be solved.
        noise = jax.random.normal(key, (self.size + self.width,))
        prior, error = list(noise[: self.size]), list(noise[self.size :])
        pull = [self._row(i, prior) + error[i] for i in range(self.width)]
        inner = solve_upper(self.factor, solve_lower(self.factor, pull))
        offset = jnp.stack([u - _dot(c, inner) for u, c in zip(prior, self.columns, strict=True)])
        moved = [self._row(i, list(offset)) for i in range(self.width)]
        return self.mean() + offset, log_det - 0.5 * (jnp.sum(offset**2) + _dot(moved, moved))


def _dot(a: Any, b: Any) -> Any:
    return sum((x * y for x, y in zip(a, b, strict=True)), start=0.0)
