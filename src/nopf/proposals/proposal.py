"""Proposal: which law fits one particle's step, knowing the observation."""

from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
from jaxtyping import Array, Float, PRNGKeyArray

from nopf.model import Particle, StateSpaceModel
from nopf.proposals.importance import Move
from nopf.proposals.law import Law
from nopf.steps import Step


class Proposal(eqx.Module):
    """How particles move, knowing the observation.

    Most proposals say `law`, and everything else is shared: drawing, defence, weight and promise.
    One that draws in another way says `propose` instead, and weighs its particles itself (see
    `WeighsItself`). One that carries something with each particle says `fit` and
    `initial_memory`.
    """

    def law(
        self,
        model: StateSpaceModel,
        ancestor: Particle,
        y: Float[Array, " m"],
        step: Step,
    ) -> Law:
        """The law of the noise of one particle's step.

        Args:
            model: the model.
            ancestor: the particle at the previous step, `(d,)` for most models.
            y: `(m,)` the observation, NaN where missing.
            step: index, time, dt and control of this step.
        """
        raise TypeError(f"proposal: {type(self).__name__} says neither law nor propose")

    def fit(
        self,
        model: StateSpaceModel,
        ancestor: Particle,
        y: Float[Array, " m"],
        step: Step,
        memory: Any,
    ) -> tuple[Law, Any]:
        """The law, and what the particle shall carry from here.

        Args:
            model: as for `law`.
            ancestor: as for `law`.
            y: as for `law`.
            step: as for `law`.
            memory: what it carried so far.
        """
        return self.law(model, ancestor, y, step), memory

    @property
    def share(self) -> float:
        """The defensive share: of the particles that are drawn from the transition instead."""
        return 0.0

    @property
    def meets_prior(self) -> bool:
        """Whether filters with this proposal meet the first observation by a step of its own, if
        nobody says otherwise."""
        return False

    def check(self, model: StateSpaceModel) -> None:
        """Refuses a model that the proposal does not fit, saying why and what does."""

    def settled(self, model: StateSpaceModel) -> "Proposal":
        """The proposal as a filter of this model uses it, with what was left open decided."""
        return self

    def initial_memory(self, model: StateSpaceModel) -> Any:
        """What a particle carries at time zero."""
        return None


@runtime_checkable
class WeighsItself(Protocol):
    """A proposal that moves one particle and says its weight itself.

    `propose(key, model, ancestor, y, step, memory) -> Move`, the `Move` with
    log p(y | x) + log p(x | ancestor) − log q(x), or an unbiased estimate of it (not of its log).
    """

    def propose(
        self,
        key: PRNGKeyArray,
        model: StateSpaceModel,
        ancestor: Particle,
        y: Float[Array, " m"],
        step: Step,
        memory: Any = None,
    ) -> Move: ...


def fit_all(
    proposal: Proposal,
    model: StateSpaceModel,
    ancestors: Any,
    y: Float[Array, " m"],
    step: Step,
    memory: Any,
) -> tuple[Law, Any]:
    """A law for each particle, and what each carries from here."""
    fit = jax.vmap(proposal.fit, in_axes=(None, 0, None, None, 0))
    return fit(model, ancestors, y, step, memory)


def blind_promise(
    model: StateSpaceModel, ancestor: Particle, y: Float[Array, " m"], step: Step
) -> Float[Array, ""]:
    """log p(y | ancestor) as if the step had no noise, as the paper's auxiliary filter has it."""
    return model.log_likelihood(y, model.skeleton(ancestor, step), step)
