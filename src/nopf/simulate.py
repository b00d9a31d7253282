"""simulate: states and observations drawn from a model."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PRNGKeyArray

from nopf.arguments import check_key, positive_integer
from nopf.compiling import run_seldom
from nopf.gaussian import AnyArray, Numbers, as_float_array, is_traced
from nopf.model import Particle, StateSpaceModel, check_model
from nopf.steps import Step


class Trajectories(eqx.Module):
    """Simulated truth and data; with a leading batch axis if one was asked for. With `origin=` in
    the model, `nopf.simulate` gives absolute coordinates, in double precision.

    Attributes:
        initial_state: `(d,)`, at time zero; of a marginalised model a `Marginal`.
        states: `(T, d)`, at the times of the observations.
        observations: `(T, m)`.
        steps: index, time, dt and control of each.
    """

    initial_state: Any
    states: Any
    observations: Float[AnyArray, "*batch t m"]
    steps: Step

    def __repr__(self) -> str:
        seen, states = np.shape(self.observations), np.shape(self.states)
        if len(seen) not in (2, 3) or len(states) != len(seen):
            return super().__repr__()
        words = f"{seen[-2]} steps, {states[-1]} states, {seen[-1]} observations"
        return f"Trajectories: {f'{seen[0]} series, ' * (len(seen) == 3)}{words}"


def simulate(
    model: StateSpaceModel,
    horizon: int | float,
    key: PRNGKeyArray,
    *,
    initial_state: Numbers | None = None,
    times: Numbers | None = None,
    controls: Numbers | None = None,
    start: float | None = None,
    batch: int | float | None = None,
) -> Trajectories:
    """Draws states and observations from the model.

    Args:
        model: the model.
        horizon: number of steps T.
        key: random key.
        initial_state: `(d,)` state at time zero; drawn from the prior if left out.
        times: `(T,)` increasing observation times; every `model.dt` if left out.
        controls: `(T, u)` control inputs.
        start: the time of the initial state, 0 if left out.
        batch: how many independent trajectories; one, without a batch axis, if left out.
    """
    check_model(model)
    steps = model.steps(positive_integer(horizon, "horizon"), times, controls, start)
    if initial_state is not None:
        initial_state = model.space.relative(_vector(initial_state, model.space.size))
    paths = simulate_particles(model.whole, steps, check_key(key), initial_state, batch)
    return Trajectories(
        model.space.absolute(paths.initial_state),
        model.space.absolute(paths.states),
        model.observation_space.absolute(paths.observations),
        paths.steps,
    )


def simulate_particles(
    model: StateSpaceModel,
    steps: Step,
    key: PRNGKeyArray,
    initial_state: Numbers | None = None,
    batch: int | float | None = None,
) -> Trajectories:
    """Trajectories at these steps; of a marginalised model those of its particles.

    Steps with a leading batch axis are each trajectory's own.
    """
    initial = None
    if initial_state is not None:
        initial = jnp.asarray(_vector(initial_state, model.space.size), float)
    if batch is None:
        paths = simulate_steps(model, steps, key, initial)
    else:
        keys = jax.random.split(key, positive_integer(batch, "batch"))
        paths = _simulate_batch(model, steps, keys, initial)
    if not is_traced(paths):
        for values, culprit in [
            (paths.states, "states: look for the cause in prior, transition or process_noise"),
            (paths.observations, "observations: look for the cause in the observation functions"),
        ]:
            leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(values)]
            bad = ~np.all([np.isfinite(leaf).all(axis=-1) for leaf in leaves], axis=0)
            if np.any(bad):
                at = int(np.argwhere(bad)[0][-1])
                raise FloatingPointError(f"NaN or infinite at step {at + 1} in simulated {culprit}")
    return paths


def _vector(initial_state: Any, size: int) -> Any:
    initial = as_float_array(initial_state, "initial_state")
    if initial.shape != (size,):
        raise ValueError(f"initial_state: expected shape ({size},), got {initial.shape}")
    return initial


@eqx.filter_jit
def simulate_steps(
    model: StateSpaceModel, steps: Step, key: PRNGKeyArray, initial_state: Any = None
) -> Trajectories:
    """One trajectory at these steps, without checks; for use inside compiled functions."""
    initial_key, key = jax.random.split(key)
    if initial_state is None:
        initial_state = model.sample_prior(initial_key)

    def advance(x: Particle, inputs: Any) -> Any:
        key, step = inputs
        x, y = model.advance(key, x, step)
        return x, (x, y)

    initial_state = model.wrap(initial_state)
    keys = jax.random.split(key, steps.index.shape[0])
    _, (states, observations) = jax.lax.scan(advance, initial_state, (keys, steps))
    return Trajectories(initial_state, states, observations, steps)


@run_seldom
def _simulate_batch(
    model: StateSpaceModel, steps: Step, keys: Any, initial_state: Any
) -> Trajectories:
    own = 0 if steps.index.ndim == 2 else None
    one = jax.vmap(lambda steps, key: simulate_steps(model, steps, key, initial_state), (own, 0))
    return eqx.tree_at(lambda p: p.steps, one(steps, keys), steps)
