"""Whether a proposal and a resampling scheme do what the engine asks of them."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from nopf.arguments import shape_of, share_of_one, some_key
from nopf.filters.moving import Ancestors, as_arrays, move_all
from nopf.gaussian import is_traced, shown
from nopf.model import StateSpaceModel
from nopf.proposals import Law, Move, Proposal, TransitionProposal
from nopf.proposals.proposal import WeighsItself
from nopf.resampling import Resampling


def check_proposal(proposal: Proposal | None, model: StateSpaceModel) -> Proposal:
    """The proposal as a filter uses it (the transition if None), if it fits the model and moves
    particles as the engine asks."""
    if proposal is None:
        proposal = TransitionProposal()
    if not isinstance(proposal, Proposal):
        raise TypeError(f"proposal: expected a nopf.Proposal, got {type(proposal).__name__}")
    proposal.check(model)
    proposal = proposal.settled(model)
    share_of_one(proposal.share, "proposal: share")
    name, home = type(proposal).__name__, type(proposal).__module__
    if model.reads_control or home.startswith("nopf."):
        return proposal  # Nothing can be tried, or nothing is new: tracing takes its time.
    said = "propose" if isinstance(proposal, WeighsItself) else "law"
    n = 2
    memory = jax.tree.map(
        lambda leaf: jnp.stack([leaf] * n), as_arrays(proposal.initial_memory(model))
    )
    ancestors = Ancestors(_some_states(model, n), jnp.zeros(n), memory)
    if said == "law":
        _check_law(proposal, model)
    move = eqx.filter_eval_shape(
        move_all,
        proposal,
        model,
        jax.random.key(0),
        ancestors,
        jnp.zeros(model.observation_space.size),
        model.nominal_step(),
    )
    if not isinstance(move, Move):  # what `propose` gave
        raise TypeError(
            f"proposal: expected {name}.{said} to return a nopf.Move, got {shown(move)}"
        )
    one = jax.tree.map(lambda leaf: leaf.shape[1:], ancestors.states)
    for part, shape in [("state", one), ("log_weight", ())]:
        got = jax.tree.map(lambda leaf: jnp.shape(leaf)[1:], getattr(move, part))
        if got != shape:
            raise ValueError(
                f"proposal: expected {name}.{said} to return a {part} of shape {shape}, got {got}"
            )
    kept, carried = (
        jax.tree.map(lambda leaf: jnp.shape(leaf)[1:], value) for value in (memory, move.memory)
    )
    if kept != carried:
        raise ValueError(
            f"proposal: expected {name}.{said} to return memory like that of initial_memory, "
            f"{kept}, got {carried}"
        )
    return proposal


def _check_law(proposal: Proposal, model: StateSpaceModel) -> None:
    """Refuses a law that is none, or not of the model's noise."""
    memory = as_arrays(proposal.initial_memory(model))
    x = jax.tree.map(lambda leaf: leaf[0], _some_states(model, 1))
    y, name = jnp.zeros(model.observation_space.size), type(proposal).__name__
    try:
        law, _ = eqx.filter_eval_shape(proposal.fit, model, x, y, model.nominal_step(), memory)
    except Exception as error:
        raise ValueError(
            f"proposal: calling {name}.law(model, ancestor, y, step) for one particle raised "
            f"{type(error).__name__}: {error}"
        ) from error
    if not isinstance(law, Law):
        raise TypeError(
            f"proposal: expected {name}.law to return a nopf.Law, for example nopf.GaussianLaw, "
            f"got {type(law).__name__}"
        )
    z, log_ratio = eqx.filter_eval_shape(lambda law, w: law.place(w), law, shape_of(law.white_size))
    for part, found, shape in [
        ("noise z", z.shape, (model.noise_size,)),
        ("log-ratio", log_ratio.shape, ()),
        ("promise", law.promise.shape, ()),
    ]:
        if found != shape:
            raise ValueError(
                f"proposal: expected the law of {name} to have a {part} of shape {shape}, "
                f"got {found}"
            )


def _some_states(model: StateSpaceModel, count: int) -> Any:
    """So many particles of the model, all zero."""
    one = jax.eval_shape(model.sample_prior, some_key())
    return jax.tree.map(lambda leaf: jnp.zeros((count, *leaf.shape), leaf.dtype), one)


def check_resampling(resampling: Resampling) -> Resampling:
    """The resampling scheme, if it is one."""
    if not callable(resampling):
        raise TypeError(
            "resampling: expected nopf.systematic, stratified, residual, multinomial or a "
            f"function (key, log_weights) -> ancestors, got {shown(resampling)}"
        )
    if not str(getattr(resampling, "__module__", "")).startswith("nopf."):
        _check_ancestors(resampling)
    return resampling


def check_recover(share: Any, health: bool, mesh: Mesh | None) -> float:
    """The share of the particles that is drawn anew when a filter is lost."""
    share = share_of_one(share, "recover")
    if share == 1:
        raise ValueError("recover: expected a share below 1, for example 0.1, got 1")
    if share and not health:
        raise ValueError("recover: needs health=True, which tells whether the filter is lost")
    if share and mesh is not None:
        raise ValueError("recover: expected 0 with mesh=: it works on one device")
    return share


def _check_ancestors(resampling: Resampling) -> None:
    """Refuses ancestors that do not exist, which JAX would clamp. Whatever else is wrong, and a
    function of some other number of particles, is left to the filter."""
    count = 32
    log_weights = jax.nn.log_softmax(jnp.log(jnp.arange(1.0, count + 1)))
    try:
        ancestors = jnp.asarray(resampling(jax.random.key(0), log_weights))
    except Exception:
        return
    if is_traced(ancestors) or ancestors.shape != (count,):
        return
    low, high = np.min(ancestors), np.max(ancestors)
    if low < 0 or high >= count:
        raise ValueError(
            f"resampling: expected indices from 0 to {count - 1} for {count} particles, got "
            f"{low if low < 0 else high}"
        )
