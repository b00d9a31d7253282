"""quality: how good a proposal is, measured with the engine on simulated data."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from nopf.arguments import check_key, positive_integer
from nopf.filters.moving import fitted, move_all
from nopf.filters.particle import ParticleFilter
from nopf.gaussian import Numbers
from nopf.model import StateSpaceModel, check_model
from nopf.proposals import NeuralProposal, Proposal
from nopf.resampling import effective_sample_size
from nopf.simulate import simulate_steps
from nopf.steps import Step

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


def quality(
    proposal: Proposal,
    model: StateSpaceModel,
    key: PRNGKeyArray,
    *,
    horizon: int | None = None,
    times: Numbers | None = None,
    controls: Numbers | None = None,
    start: float | None = None,
    trajectories: int = 16,
) -> Quality:
    """How good a proposal is on data that it has not seen, step by step.

    Runs a `ParticleFilter` of 256 particles with it on simulated data; p(y | ancestor) is estimated
    by 32 draws for each particle, without the defensive share.

    Args:
        proposal: what moves the particles.
        model: the model.
        key: random key.
        horizon: steps of a trajectory; those of its training if left out, for a learned proposal.
        times, controls, start: as in `simulate`.
        trajectories: how many to simulate.
    """
    check_model(model)
    if not isinstance(proposal, Proposal):
        raise TypeError(f"proposal: expected a nopf.Proposal, got {type(proposal).__name__}")
    if horizon is None:
        if not isinstance(proposal, NeuralProposal):
            raise TypeError("horizon: needed, for a proposal that was not trained")
        steps = proposal.steps
    else:
        steps = model.steps(positive_integer(horizon, "horizon"), times, controls, start)
    flt = ParticleFilter(model, proposal, PARTICLES, quantiles=(), health=False)
    keys = jax.random.split(check_key(key), positive_integer(trajectories, "trajectories"))
    ess, limit, gap = (np.asarray(values) for values in _measure(flt, steps, keys))
    return Quality(ess.mean(0), gap.mean(0), ess.mean(0) / limit.mean(0))


@eqx.filter_jit
def _measure(flt: ParticleFilter, steps: Step, keys: Array) -> Any:
    """Share of the particles that count, the same for the optimal proposal, and the gap."""

    def one(key: Array) -> Any:
        data_key, filter_key, key = jax.random.split(key, 3)
        ys = simulate_steps(flt.model, steps, data_key).observations

        def advance(belief: Any, inputs: Any) -> Any:
            key, y, step = inputs
            choose_key, *draw_keys = jax.random.split(key, DRAWS + 1)
            chosen = flt.choose(choose_key, belief, y, step)
            ancestors = fitted(flt.proposal, flt.model, chosen, y, step)

            def log_weights(key: Array) -> Array:
                return move_all(flt.proposal, flt.model, key, ancestors, y, step, 0.0).log_weight

            draws = jax.lax.map(log_weights, jnp.stack(draw_keys))
            predictive = jax.nn.logsumexp(draws, axis=0) - np.log(DRAWS)
            gaps = predictive - jnp.mean(draws, axis=0)
            gap = jnp.mean(gaps, where=jnp.isfinite(gaps))
            limit = effective_sample_size(predictive)
            updated = flt.update(belief, y, step)
            ess = effective_sample_size(updated.belief.log_weights)
            return updated.belief, (ess / PARTICLES, limit / PARTICLES, gap)

        inputs = (jax.random.split(key, ys.shape[0]), ys, steps)
        return jax.lax.scan(advance, flt.begin(filter_key), inputs)[1]

    return jax.lax.map(one, keys)
