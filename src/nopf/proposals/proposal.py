"""Proposal and Move: how one particle takes a step, and what weight it gets for it."""

import abc
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from nopf.model import StateSpaceModel, Step


class Move(NamedTuple):
    """Where a particle went.

    Attributes:
        state: `(d,)` the new state.
        log_weight: log p(y | x) + log p(x | ancestor) − log q(x), the log-weight increment.
        memory: what the proposal wants to be handed back with this particle; None for most.
    """

    state: Float[Array, " d"]
    log_weight: Float[Array, ""]
    memory: Any = None


class Proposal(eqx.Module):
    """Draws the next state of one particle, knowing the observation."""

    @abc.abstractmethod
    def propose(
        self,
        key: PRNGKeyArray,
        model: StateSpaceModel,
        ancestor: Float[Array, " d"],
        y: Float[Array, " m"],
        step: Step,
        memory: Any = None,
    ) -> Move:
        """Moves one particle.

        Args:
            key: random key of this particle.
            model: the model.
            ancestor: `(d,)` the particle's state at the previous step.
            y: `(m,)` the observation, NaN where missing.
            step: index, time, dt and control of this step.
            memory: what the particle's last move carried.
        """

    def propose_all(
        self,
        key: PRNGKeyArray,
        model: StateSpaceModel,
        ancestors: Float[Array, "n d"],
        y: Float[Array, " m"],
        step: Step,
        memory: Any = None,
    ) -> Move:
        """Moves all particles, each by `propose` with a key of its own."""
        keys = jax.random.split(key, ancestors.shape[0])
        return jax.vmap(self.propose, in_axes=(0, None, 0, None, None, 0))(
            keys, model, ancestors, y, step, memory
        )

    def check(self, model: StateSpaceModel) -> None:
        """Refuses a model that the proposal does not fit, saying why and what does."""

    def initial_memory(self, model: StateSpaceModel) -> Any:
        """What a particle carries at time zero."""
        return None


def log_mixture(log_ratio: Float[Array, "*n"], share: float) -> Float[Array, "*n"]:
    """log of (1 − share)·q/p + share."""
    if share == 0:
        return log_ratio
    if share == 1:
        return jnp.zeros_like(log_ratio)
    return jnp.logaddexp(np.log1p(-share) + log_ratio, np.log(share))


def why_not_additive(model: StateSpaceModel) -> str | None:
    """None if the observation is a function of the state plus noise."""
    if model.custom_log_prob is not None:
        return "this model has observation_log_prob instead of observation_noise"
    return None


def why_not_gaussian(model: StateSpaceModel) -> str | None:
    """None if that noise is Gaussian."""
    if model.robust is not None:
        return f"this model has robust={type(model.robust).__name__}"
    return why_not_additive(model)
