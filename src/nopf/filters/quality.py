"""quality: how good a proposal is, measured with the engine on simulated data."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from nopf.arguments import check_key, positive_integer
from nopf.compiling import run_seldom
from nopf.filters.moving import Ancestors, fitted, move_all
from nopf.filters.particle import ParticleFilter
from nopf.gaussian import Numbers
from nopf.keys import quick
from nopf.model import StateSpaceModel, check_model
from nopf.proposals import NeuralProposal, Proposal
from nopf.proposals.importance import Judgement, expect, judge
from nopf.simulate import simulate_steps
from nopf.steps import Step

PARTICLES = 256
DRAWS = 64  # for every particle, to estimate p(y | ancestor)


@dataclasses.dataclass(frozen=True)
class Quality:
    """Quality of a proposal, one number a step, averaged over simulated trajectories.

    Attributes:
        ess_fraction: effective sample size over the number of particles, as it is in the long run:
            a mode that the proposal leaves out counts, even if none of its draws is ever there.
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
    horizon: int | float | None = None,
    times: Numbers | None = None,
    controls: Numbers | None = None,
    start: float | None = None,
    trajectories: int | float = 16,
) -> Quality:
    """How good a proposal is on data that it has not seen, step by step.

    Runs a `ParticleFilter` of 256 particles with it on simulated data. What p(y | ancestor) is, and
    what the proposal costs, is estimated by 64 draws for each particle, a quarter of them those of
    the transition. A proposal that weighs its particles itself is judged by its own draws alone.

    Args:
        proposal: what moves the particles.
        model: the model.
        key: random key.
        horizon: steps of a trajectory; those of its training if left out, for a learned proposal.
        times: as in `simulate`.
        controls: as in `simulate`.
        start: as in `simulate`.
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
    keys = jax.random.split(quick(check_key(key)), positive_integer(trajectories, "trajectories"))
    ess, limit, gap = (np.asarray(values) for values in _measure(flt, steps, keys))
    return Quality(ess.mean(0), gap.mean(0), ess.mean(0) / limit.mean(0))


def _seen(
    flt: ParticleFilter, ancestors: Ancestors, y: Float[Array, " m"], step: Step
) -> Callable[[Array], tuple[Judgement, Float[Array, " n"]]]:
    """A function of some keys that judges the law of every ancestor, and says how far the mean of
    log w is below log p(y | ancestor)."""

    def log_weights(key: Array) -> Array:
        return move_all(flt.proposal, flt.model, key, ancestors, y, step, 0.0).log_weight

    def of_itself(keys: Array) -> tuple[Judgement, Float[Array, " n"]]:
        draws = jax.lax.map(log_weights, keys)
        predictive, square = (
            jax.nn.logsumexp(power * draws, axis=0) - np.log(len(keys)) for power in (1, 2)
        )
        return Judgement(predictive, square), predictive - jnp.mean(draws, axis=0)

    def of_law(keys: Array) -> tuple[Judgement, Float[Array, " n"]]:
        def one(ancestor: Any, law: Any, key: Array) -> Any:
            whites = jax.random.normal(key, (DRAWS, law.white_size))
            found = expect(flt.model, law, ancestor, y, step, whites)
            return (
                judge(flt.model, law, ancestor, y, step, whites, flt.proposal.share),
                jnp.where(found.lost > 0, -jnp.inf, -found.loss),
            )

        each = jax.random.split(keys[0], ancestors.log_weights.shape[0])
        judged, bound = jax.vmap(one)(ancestors.states, ancestors.laws, each)
        return judged, judged.log_predictive - bound

    return of_itself if ancestors.laws is None else of_law


@run_seldom
def _measure(flt: ParticleFilter, steps: Step, keys: Array) -> Any:
    """Share of the particles that count, the same for the optimal proposal, and the gap."""

    def one(key: Array) -> Any:
        data_key, filter_key, key = jax.random.split(key, 3)
        ys = simulate_steps(flt.model, steps, data_key).observations

        def advance(belief: Any, inputs: Any) -> Any:
            key, y, step = inputs
            choose_key, draw_key = jax.random.split(key)
            chosen = flt.choose(choose_key, belief, y, step)
            seen, gap = _seen(flt, fitted(flt.proposal, flt.model, chosen, y, step), y, step)(
                jax.random.split(draw_key, DRAWS)
            )
            # Particles that are equally likely: E[w]² over E[w²], and over E[E[w | ancestor]²].
            total = 2 * jax.nn.logsumexp(seen.log_predictive) - np.log(PARTICLES)
            ess = jnp.exp(total - jax.nn.logsumexp(seen.log_square))
            limit = jnp.exp(total - jax.nn.logsumexp(2 * seen.log_predictive))
            updated = flt.update(belief, y, step)
            some = jnp.isfinite(total)
            return updated.belief, (
                jnp.where(some, jnp.minimum(ess, limit), 0),
                jnp.where(some, limit, 1),
                jnp.mean(gap, where=jnp.isfinite(gap)),
            )

        inputs = (jax.random.split(key, ys.shape[0]), ys, steps)
        return jax.lax.scan(advance, flt.begin(filter_key), inputs)[1]

    return jax.lax.map(one, keys)
