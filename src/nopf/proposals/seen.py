"""Which noise numbers of a step show in which part of the observation."""

import collections
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from nopf.compiling import run_once
from nopf.gaussian import is_traced
from nopf.linear import Pattern
from nopf.model import Particle, StateSpaceModel
from nopf.steps import Step

PROBES = 64
CHANGED = 1e-5  # of a size of one: more than rounding

Probe = Callable[[StateSpaceModel, Particle, Array, Step, Array], Array]


def pattern_of(model: StateSpaceModel) -> Pattern | None:
    """Where each noise number shows: in which entries of the residual, if noise is additive;
    otherwise in which of the terms that the log-likelihood is a sum of.

    Given its ancestor and the observation, a number that shows nowhere is standard normal, as
    before, and two that show nowhere together are independent: a proposal has nothing to learn
    there. The pattern is found by trying, at draws of the prior and many steps. What is overlooked
    makes a proposal poorer and no weight wrong. None where nothing can be tried now.
    """
    # Under a user's own jit, numbers that are made here are traced too.
    if is_traced((model, jnp.zeros(()))) or (model.reads_control and not model.control_names):
        return None
    probe = _residual_probe if model.likelihood.sensors else _likelihood_probe
    width = 2 * model.noise_size + model.observation_space.size + len(model.control_names)
    numbers = np.random.default_rng(0).normal(size=(PROBES, width))
    shows = _shows(model, jax.random.key(0), jnp.asarray(numbers), probe)
    matrix = np.asarray(shows)
    if model.likelihood.sensors is None:
        matrix = _terms(matrix[:, 0], matrix[:, 1:])
    return tuple(tuple(int(i) for i in np.flatnonzero(row)) for row in matrix)


def _terms(shows: np.ndarray, together: np.ndarray) -> np.ndarray:
    """Terms of the log-likelihood, of which no two have a noise number in common.

    Args:
        shows: which numbers change the log-likelihood.
        together: `(i, j)` whether number i changes the derivative by number j.
    """
    together = together | together.T
    # Without a derivative to go by, a number may belong with any other.
    unknown = shows & ~np.diagonal(together)
    together |= unknown[:, None] | unknown[None]
    together &= shows[:, None] & shows[None]
    term = np.zeros((len(shows), 0), bool)
    for i in np.flatnonzero(shows):
        if not term[i].any():
            reached = together[i]
            while (more := together[reached].any(axis=0) | reached).sum() > reached.sum():
                reached = more
            term = np.column_stack([term, reached])
    return term


def seen_in(pattern: Pattern | None) -> tuple[int, ...] | None:
    """The noise numbers that show anywhere; all of them if none does."""
    if pattern is None:
        return None
    return tuple(i for i, rows in enumerate(pattern) if rows) or tuple(range(len(pattern)))


def pairs_in(pattern: Pattern | None, size: int) -> tuple[tuple[int, int], ...]:
    """(i, j) with i > j, counted among those that show, which may depend on each other."""
    group = _groups(pattern, size)
    return tuple((i, j) for j in range(size) for i in range(j + 1, size) if group[i] == group[j])


def pair_count(pattern: Pattern | None, size: int) -> int:
    """How many `pairs_in` gives, without making them."""
    return sum(n * (n - 1) // 2 for n in collections.Counter(_groups(pattern, size)).values())


def _groups(pattern: Pattern | None, size: int) -> list[int]:
    """For each number that shows, the group of those that it may depend on."""
    sees = seen_in(pattern)
    if pattern is None or sees is None:
        return [0] * size
    towards = list(range(size))  # another one of its group, or itself

    def end(i: int) -> int:
        while towards[i] != i:
            towards[i] = i = towards[towards[i]]
        return i

    first: dict[int, int] = {}  # that shows in an entry of the observation
    for i, number in enumerate(sees):
        for entry in pattern[number]:
            towards[end(i)] = end(first.setdefault(entry, i))
    return [end(i) for i in range(size)]


def _residual_probe(
    model: StateSpaceModel, x: Particle, y: Array, step: Step, z: Array
) -> Float[Array, " m"]:
    new = model.move(x, z, step)
    return model.residual(y, new, step)


def _likelihood_probe(
    model: StateSpaceModel, x: Particle, y: Array, step: Step, z: Array
) -> Float[Array, " m"]:
    def log_likelihood(z: Array) -> Array:
        return model.log_likelihood(y, model.move(x, z, step), step)

    value, slope = jax.value_and_grad(log_likelihood)(z)
    return jnp.concatenate([value[None], slope])


@run_once
def _shows(
    model: StateSpaceModel, key: PRNGKeyArray, numbers: Float[Array, "p n"], probe: Probe
) -> Bool[Array, "k m"]:
    """Whether each noise number changes each number that the probe gives."""

    def one(key: Array, numbers: Array, index: Array) -> Bool[Array, "k m"]:
        sizes = [model.noise_size, model.noise_size, model.observation_space.size]
        z, other, y, control = jnp.split(numbers, np.cumsum(sizes))
        step = model.nominal_step(index, control if model.reads_control else None)
        prior_key, sample_key = jax.random.split(key)
        # A step on: what a particle carries of its past is there then.
        x = model.move(model.sample_prior(prior_key), other, step)
        if model.likelihood.sensors is None:  # where any observation is as good as another
            y = model.sample_observation(sample_key, model.move(x, z, step), step)
        # What is no number spreads to all that depends on it, except through a comparison or a
        # rounding; there another number shows.
        identity = jnp.eye(model.noise_size, dtype=bool)
        tried = jnp.stack([jnp.where(identity, new, z[None]) for new in (jnp.nan, other[None])])
        seen = functools.partial(probe, model, x, y, step)
        here, there = seen(z)[None, None], jax.vmap(jax.vmap(seen))(tried)
        same = (there == here) | (jnp.abs(there - here) <= CHANGED * (1 + jnp.abs(here)))
        return ~jnp.all(same, axis=0)

    keys = jax.random.split(key, PROBES)
    return jnp.any(jax.vmap(one)(keys, numbers, jnp.arange(1, PROBES + 1)), axis=0)
