"""Small models that several tests share."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import nopf
from nopf.filters.moving import Ancestors, move_all


def linear_transition(x, step):
    return jnp.stack([x[0] + 0.5 * x[1], 0.9 * x[1]])


def linear_observation(x, step):
    return jnp.stack([x[0], x[1] - x[0]])


def linear(full: bool = False, **changes) -> nopf.StateSpaceModel:
    """Two states, two observations, linear and Gaussian; with correlated noise if `full`."""
    settings = {
        "prior": nopf.Gaussian([0.5, -0.2], [[1.0, 0.3], [0.3, 0.5]] if full else [1.0, 0.7]),
        "transition": linear_transition,
        "process_noise": [[0.3, 0.1], [0.1, 0.2]] if full else [0.6, 0.4],
        "observation": linear_observation,
        "observation_noise": [[0.5, -0.2], [-0.2, 0.4]] if full else [0.7, 0.5],
    }
    return nopf.StateSpaceModel(**(settings | changes))


LANDMARK = np.array([2.0, 1.0])


def unicycle_transition(x, step):
    px, py, heading = x
    return jnp.stack([px + 0.3 * jnp.cos(heading), py + 0.3 * jnp.sin(heading), heading + 0.4])


def unicycle_observation(x, step):
    px, py, heading = x
    dx, dy = LANDMARK[0] - px, LANDMARK[1] - py
    return jnp.stack([jnp.hypot(dx, dy), jnp.arctan2(dy, dx) - heading])


def unicycle(heading: float = 3.0, **changes) -> nopf.StateSpaceModel:
    """A robot that turns through ±π, seen from a landmark by range and bearing."""
    settings = {
        "prior": nopf.Gaussian([0.0, 0.0, heading], [0.2, 0.2, 0.1]),
        "transition": unicycle_transition,
        "process_noise": [0.05, 0.05, 0.05],
        "observation": unicycle_observation,
        "observation_noise": [0.1, 0.1],
        "state_names": ("x", "y", "heading"),
        "state_angles": ("heading",),
        "observation_angles": (1,),
    }
    return nopf.StateSpaceModel(**(settings | changes))


@eqx.filter_jit
def move(proposal, key, model, ancestors, y, step):
    """All particles moved once, as the engine does it; compiled."""
    memory = proposal.initial_memory(model)
    memory = jax.tree.map(lambda leaf: jnp.stack([leaf] * len(ancestors)), memory)
    chosen = Ancestors(ancestors, jnp.zeros(len(ancestors)), memory)
    return move_all(proposal.settled(model), model, key, chosen, y, step)


def move_one(proposal, key, model, ancestor, y, step):
    """One particle on its own, by its law alone."""
    return jax.tree.map(lambda leaf: leaf[0], move(proposal, key, model, ancestor[None], y, step))


def move_copies(proposal, key, model, ancestor, y, step, count):
    """So many particles that have the same ancestor."""
    return move(proposal, key, model, jnp.tile(ancestor[None], (count, 1)), y, step)
