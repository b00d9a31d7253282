"""The scales of a proposal's features, from simulated data."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from nopf.compiling import run_once
from nopf.model import StateSpaceModel
from nopf.proposals.features import Features
from nopf.training.objective import Tuples


@run_once
def fit_features(features: Features, model: StateSpaceModel, tuples: Tuples) -> Features:
    """Scales the features by what was simulated."""
    ancestors, ys, steps = tuples
    predicted = jax.vmap(model.skeleton)(ancestors, steps)
    seen = {
        "state": jax.vmap(model.expectation)(predicted),
        "observation": ys,
        "time": jnp.asarray(steps.time, float)[:, None],
        "dt": jnp.asarray(steps.dt, float)[:, None],
        "control": steps.control if steps.control is not None else jnp.zeros((len(ys), 0)),
    }
    centre = {name: jnp.nanmean(values, axis=0) for name, values in seen.items()}
    spread = {name: _spread(values - centre[name][None]) for name, values in seen.items()}
    spread = {
        name: jnp.where(jnp.isinf(features.spread[name]), jnp.inf, new)
        for name, new in spread.items()
    }
    if features.innovation is None:
        return eqx.tree_at(lambda f: (f.centre, f.spread), features, (centre, spread))
    surprises = jax.vmap(model.innovation)(ys, predicted, steps)
    innovation = _spread(jnp.where(jnp.isnan(ys), jnp.nan, surprises))
    return eqx.tree_at(
        lambda f: (f.centre, f.spread, f.innovation), features, (centre, spread, innovation)
    )


def _spread(deviations: Float[Array, "n k"]) -> Float[Array, " k"]:
    """Root mean square; 1 for what does not vary."""
    size = jnp.sqrt(jnp.nanmean(deviations**2, axis=0))
    return jnp.where(size > 0, size, 1.0)
