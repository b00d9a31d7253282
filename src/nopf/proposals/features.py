"""Features: what the network of a neural proposal sees of one particle."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from nopf.model import Particle, StateSpaceModel
from nopf.recipe import Recipe
from nopf.steps import Step
from nopf.trigonometry import cos, sin

OUTSIDE = 3.0  # standard deviations


class Features(eqx.Module):
    """What the network sees of one particle: the predicted state, the observation, the time.

    Everything is standardised by what was seen in simulations. Angles enter as cosine and sine, the
    innovation also as its asinh, which keeps small and large ones apart.

    Attributes:
        centre, spread: means and standard deviations of state, observation, time, dt and control;
            the spread of an angle is infinite, since cosine and sine stand for it.
        innovation: standard deviations of the innovation; None if the model predicts none.
        raw: the plain numbers instead, as in the paper.
        masks: say which coordinates are observed.
    """

    centre: dict[str, Array]
    spread: dict[str, Array]
    innovation: Float[Array, " m"] | None
    raw: bool = eqx.field(static=True)
    masks: bool = eqx.field(static=True)

    def __call__(
        self,
        model: StateSpaceModel,
        particle: Particle,
        y: Float[Array, " m"],
        step: Step,
    ) -> list[Float[Array, " _"]]:
        """In parts: some are the same for all particles of a step."""
        predicted, observed = model.expectation(particle), ~jnp.isnan(y)
        mask = [observed.astype(predicted.dtype)] if self.masks else []
        time = jnp.reshape(jnp.asarray(step.time, predicted.dtype), (1,))
        if self.raw:
            return [predicted, jnp.where(observed, y, 0), time, *mask]
        inputs = {
            "time": time,
            "dt": jnp.reshape(jnp.asarray(step.dt, predicted.dtype), (1,)),
            "control": self._control(step),
        }
        # Beyond what was seen in training, a time is as good as the last one.
        parts = [
            jnp.clip((v - self.centre[name]) / self.spread[name], -OUTSIDE, OUTSIDE)
            for name, v in inputs.items()
        ]
        for name, space, value, known in [
            ("state", model.space, predicted, jnp.ones(predicted.shape, bool)),
            ("observation", model.observation_space, jnp.where(observed, y, 0), observed),
        ]:
            plain = (value - self.centre[name]) / self.spread[name]
            parts.append(jnp.where(known, plain, 0))
            if space.angles:
                angles = jnp.stack([value[i] for i in space.angles])
                seen = jnp.stack([known[i] for i in space.angles])
                parts += [jnp.where(seen, wave(angles), 0) for wave in (cos, sin)]
        if self.innovation is not None:
            surprise = model.innovation(y, particle, step) / self.innovation
            # By hand: the library's has more digits near zero, and takes ten times longer.
            size = jnp.log(jnp.abs(surprise) + jnp.sqrt(surprise**2 + 1))
            parts += [surprise, jnp.sign(surprise) * size]
        return [*parts, *mask]

    def _control(self, step: Step) -> Float[Array, " u"]:
        wanted = self.centre["control"].size
        if wanted == 0:
            return jnp.zeros(0)
        if jnp.shape(step.control) != (wanted,):
            raise ValueError(
                f"controls: this proposal was trained with {wanted} controls a step, "
                f"got {'none' if step.control is None else jnp.shape(step.control)}"
            )
        return jnp.asarray(step.control)


def blank_features(identity: dict[str, Any], recipe: Recipe, controls: int) -> tuple[Features, int]:
    """Features that are not scaled yet, and how many numbers they are.

    Args:
        identity: the model's fingerprint.
        recipe: how to build them.
        controls: how many controls a step has.
    """
    d, m = len(identity["state_names"]), identity["observations"]
    sizes = {"state": d, "observation": m, "time": 1, "dt": 1, "control": controls}
    spread = {name: np.ones(size) for name, size in sizes.items()}
    for name in ("state", "observation"):
        spread[name][identity[f"{name}_angles"]] = np.inf
    masks = recipe.missing_rate > 0
    predicts = recipe.innovations and "observation" in identity
    features = Features(
        centre={name: jnp.zeros(size) for name, size in sizes.items()},
        spread={name: jnp.asarray(values, float) for name, values in spread.items()},
        innovation=jnp.ones(m) if predicts else None,
        raw=not recipe.innovations,
        masks=masks,
    )
    if features.raw:
        count = d + m + 1
    else:
        angles = len(identity["state_angles"]) + len(identity["observation_angles"])
        count = sum(sizes.values()) + 2 * angles + (2 * m if predicts else 0)
    return features, count + (m if masks else 0)
