"""What each measurement was predicted to be, from the estimate before it."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from nopf.filters import Posterior
from nopf.model import StateSpaceModel


def predictions(model: StateSpaceModel, posterior: Posterior) -> np.ndarray | None:
    """`(T, m)` noise-free measurements of the mean before each step, moved on without noise; NaN at
    the first. None where a model has no noise-free measurement.

    Args:
        model: that the posterior is of.
        posterior: of one series.
    """
    whole = model.whole
    if whole.observation is None:
        return None
    before = jnp.asarray(whole.space.relative(posterior.mean[:-1]), float)
    after = jax.tree.map(lambda leaf: jnp.asarray(leaf)[1:], posterior.steps)
    found = whole.observation_space.absolute(_predicted(whole, before, after))
    unknown = np.full((1, found.shape[1]), np.nan)
    return np.concatenate([unknown, np.asarray(found, np.float64)])


@eqx.filter_jit
def _predicted(
    model: StateSpaceModel, means: Float[Array, "t d"], steps: Any
) -> Float[Array, "t m"]:
    def one(mean: Array, step: Any) -> Array:
        seen = model.predict_observation(model.skeleton(mean, step), step)
        return model.observation_space.wrap(seen)

    return jax.vmap(one)(means, steps)
