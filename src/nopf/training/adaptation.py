"""adapt: goes on training a proposal on what a running filter has seen."""

import dataclasses
import json
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from nopf.arguments import check_key, positive_integer
from nopf.compiling import run_seldom
from nopf.filters.particle import ParticleEngine
from nopf.filters.posterior import Posterior, check_one_series
from nopf.gaussian import shown
from nopf.keys import quick
from nopf.model import StateSpaceModel
from nopf.proposals.fingerprint import fingerprint
from nopf.proposals.network import Network
from nopf.proposals.neural import NeuralProposal
from nopf.resampling import indices_at
from nopf.training.descent import descend, make_optimiser
from nopf.training.objective import Tuples, score

ANCESTORS = 64  # of each observation
BATCH = 512  # tuples a gradient step
ROUND = 50  # gradient steps between evaluations
WARMUP = 20
HELD_OUT = 5  # every so many observations are held out
DRAWS = 32


Engine = TypeVar("Engine", bound=ParticleEngine)


def adapt(flt: Engine, seen: Posterior, *, key: PRNGKeyArray, steps: int | float = 500) -> Engine:
    """A filter like this one, whose learned proposal has gone on learning.

    For a stream that is not what the proposal was trained for: the noise has grown, the robot
    moves otherwise, and the model of this filter says so. Weights are right either way; what
    adapting restores is the effective sample size.

    The tuples of training are the filter's own: particles of one step by their weight, and the
    observation that came next. Every fifth observation is held out; what does best there is kept,
    so that the proposal does not get worse than it was by more than chance. A proposal with the
    inclusive objective learns from these particles too, but from observations that the model
    simulates for them.

    Args:
        flt: a filter with a learned proposal.
        seen: what this filter made of a recent part of the stream, with `keep="particles"`.
        key: random key.
        steps: gradient steps; rounded up to a multiple of 50.
    """
    if not isinstance(flt, ParticleEngine):
        raise TypeError(f"flt: expected a filter with a proposal, got {type(flt).__name__}")
    if not isinstance(flt.proposal, NeuralProposal):
        raise TypeError(
            f"adapt: only a learned proposal can learn, this filter has {shown(flt.proposal)}"
        )
    _check_seen(flt.model, seen)
    rounds = -(-positive_integer(steps, "steps") // ROUND)
    adapted = _descend(flt.proposal, flt.model, seen, quick(check_key(key)), rounds * ROUND)
    return eqx.tree_at(lambda f: f.proposal, flt, adapted)


def _descend(
    proposal: NeuralProposal, model: StateSpaceModel, seen: Posterior, key: PRNGKeyArray, steps: int
) -> NeuralProposal:
    """The proposal after so many gradient steps on the particles and observations of `seen`."""
    tuples_key, score_key, key = jax.random.split(key, 3)
    tuples, held_out = _tuples(model, seen, tuples_key)
    identity = fingerprint(model, proposal.control_size)
    proposal = dataclasses.replace(proposal, fingerprint=json.dumps(identity), idle=False)

    def judge(network: Network) -> tuple[float, float]:
        scores = _score(proposal, network, model, held_out, score_key)
        return float(jnp.mean(scores.loss)), float(jnp.nanmean(scores.ess_fraction))

    best, network = proposal.network, proposal.network
    best_loss, ess = judge(best)
    history = [[0.0, np.nan, best_loss, ess]]
    transform = make_optimiser(proposal.recipe)
    optimiser = transform.init(eqx.filter(network, eqx.is_inexact_array))
    for done in range(0, steps, ROUND):
        key, round_key = jax.random.split(key)
        at = done + np.arange(ROUND)
        share = np.minimum(1, (at + 1) / WARMUP) * np.clip(1 - at / steps, 0, 1)
        rates = jnp.asarray(proposal.recipe.learning_rate * share, float)
        network, optimiser, loss = _round(
            proposal, network, optimiser, model, tuples, round_key, rates
        )
        value, ess = judge(network)
        history.append([float(done + ROUND), float(loss), value, ess])
        if np.isfinite([value, ess]).all() and value < best_loss:
            best, best_loss = network, value
    return eqx.tree_at(lambda p: (p.network, p.history), proposal, (best, np.asarray(history)))


def _tuples(model: StateSpaceModel, seen: Posterior, key: PRNGKeyArray) -> tuple[Tuples, Tuples]:
    """For training and held out: ancestors by weight, with the observations that came next."""
    assert seen.particles is not None
    assert seen.log_weights is not None
    states = jnp.asarray(model.space.relative(seen.particles[:-1]), float)
    log_weights = seen.log_weights[:-1]
    ys = jnp.asarray(model.observation_space.relative(seen.observations), float)
    positions = jax.random.uniform(key, (len(states), ANCESTORS))
    drawn = jax.vmap(indices_at)(log_weights, positions)
    ancestors = jnp.take_along_axis(states, drawn[..., None], axis=1)
    following = jax.tree.map(lambda leaf: jnp.asarray(leaf)[1:], (ys, seen.steps))
    # Every fifth step at which something was observed: the others say nothing about a proposal.
    told = _told(seen)
    out = told & (np.cumsum(told) % HELD_OUT == 0)

    def pick(chosen: np.ndarray) -> Tuples:
        flat = ancestors[chosen].reshape(-1, ancestors.shape[-1])
        ys, steps = jax.tree.map(lambda leaf: jnp.repeat(leaf[chosen], ANCESTORS, 0), following)
        return Tuples(flat, ys, steps)

    return pick(~out), pick(out)


def _told(seen: Posterior) -> np.ndarray:
    """At which steps after the first anything was observed."""
    return ~np.isnan(np.asarray(seen.observations)[1:]).all(axis=1)


@run_seldom
def _score(
    proposal: NeuralProposal, network: Network, model: StateSpaceModel, tuples: Tuples, key: Any
) -> Any:
    proposal = eqx.tree_at(lambda p: p.network, proposal, network)
    return score(proposal, model, tuples, key, DRAWS)


@run_seldom
def _round(
    proposal: NeuralProposal,
    network: Network,
    optimiser: Any,
    model: StateSpaceModel,
    tuples: Tuples,
    key: PRNGKeyArray,
    rates: Float[Array, " r"],
) -> tuple[Network, Any, Array]:
    pick_key, key = jax.random.split(key)
    shape = (rates.shape[0], BATCH)
    chosen = jax.random.randint(pick_key, shape, 0, tuples.ancestors.shape[0])
    batches = jax.tree.map(lambda leaf: leaf[chosen], tuples)
    network, optimiser, loss, _ = descend(proposal, network, optimiser, model, batches, key, rates)
    return network, optimiser, loss


def _check_seen(model: StateSpaceModel, seen: Posterior) -> None:
    """Refuses what cannot be learned from."""
    check_one_series(seen, "seen")
    if seen.particles is None:
        raise ValueError('seen: the particles are needed; run the filter with keep="particles"')
    if (seen.state_names, seen.observation_names) != (model.state_names, model.observation_names):
        raise ValueError(
            "seen: expected a posterior of this filter's model, with states "
            f"{', '.join(model.state_names)} and observations {', '.join(model.observation_names)};"
            f" got {', '.join(seen.state_names)} and {', '.join(seen.observation_names)}"
        )
    count = int(_told(seen).sum()) + 1
    if count <= HELD_OUT:
        raise ValueError(
            f"seen: expected more than {HELD_OUT} observations to learn from, got {count}"
        )
