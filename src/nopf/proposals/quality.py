"""How good a proposal is, measured in a small filter on simulated data."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from nopf.model import StateSpaceModel, Step, simulate_steps
from nopf.proposals.proposal import Proposal
from nopf.resampling import effective_sample_size, systematic

PARTICLES = 256
DRAWS = 32  # for every particle, to estimate p(y | ancestor)


@dataclasses.dataclass(frozen=True)
class Quality:
    """Quality of a proposal, one number a step, averaged over simulated trajectories.

    Attributes:
        ess_fraction: effective sample size over the number of particles.
        kl_gap: nats between log p(y | ancestor) and its lower bound by the proposal; 0 is perfect.
        fraction_of_limit: effective sample size over that of the locally optimal proposal.
    """

    ess_fraction: Float[np.ndarray, " t"]
    kl_gap: Float[np.ndarray, " t"]
    fraction_of_limit: Float[np.ndarray, " t"]

    def __str__(self) -> str:
        worst = int(np.argmin(self.fraction_of_limit))
        return (
            f"ESS {100 * self.ess_fraction.mean():.1f} % of the particles, "
            f"{100 * self.fraction_of_limit.mean():.0f} % of the locally optimal limit "
            f"(lowest {100 * self.fraction_of_limit[worst]:.0f} %, at step {worst + 1}); "
            f"KL gap {self.kl_gap.mean():.3f} nats"
        )


def measure_quality(
    proposal: Proposal,
    pure: Proposal,
    model: StateSpaceModel,
    steps: Step,
    key: PRNGKeyArray,
    trajectories: int,
) -> Quality:
    """Runs a filter of 256 particles on simulated data.

    Args:
        proposal: what moves the particles, and whose effective sample size counts.
        pure: the same without a defensive share: estimates p(y | ancestor), and the gap.
        model: the model.
        steps: times and controls.
        key: random key.
        trajectories: how many to simulate.
    """
    keys = jax.random.split(key, trajectories)
    ess, limit, gap = (np.asarray(v) for v in _measure(proposal, pure, model, steps, keys))
    return Quality(ess.mean(0), gap.mean(0), ess.mean(0) / limit.mean(0))


@eqx.filter_jit
def _measure(proposal: Any, pure: Any, model: StateSpaceModel, steps: Step, keys: Array) -> Any:
    def advance(states: Array, inputs: Any) -> Any:
        key, y, step = inputs
        move_key, draw_key, resample_key = jax.random.split(key, 3)

        def log_weight(key: Array, x: Array) -> Array:
            return pure.propose(key, model, x, y, step).log_weight

        draws = jax.vmap(jax.vmap(log_weight, (0, None)))(
            jax.random.split(draw_key, (PARTICLES, DRAWS)), states
        )
        predictive = jax.nn.logsumexp(draws, axis=1) - np.log(DRAWS)
        gaps = predictive - jnp.mean(draws, axis=1)
        move = jax.vmap(proposal.propose, (0, None, 0, None, None))(
            jax.random.split(move_key, PARTICLES), model, states, y, step
        )
        share = effective_sample_size(move.log_weight) / PARTICLES
        limit = effective_sample_size(predictive) / PARTICLES
        gap = jnp.mean(gaps, where=jnp.isfinite(gaps))
        return move.state[systematic(resample_key, move.log_weight)], (share, limit, gap)

    def one(key: Array) -> Any:
        data_key, prior_key, key = jax.random.split(key, 3)
        ys = simulate_steps(model, steps, data_key).observations
        states = jax.vmap(model.sample_prior)(jax.random.split(prior_key, PARTICLES))
        inputs = (jax.random.split(key, ys.shape[0]), ys, steps)
        return jax.lax.scan(advance, states, inputs)[1]

    return jax.lax.map(one, keys)
