"""NeuralProposal: a Gaussian whose mean and covariance a small network has learned."""

import dataclasses
import functools
import json
import os
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from nopf.files import FileError, fill, named_leaves, read_arrays, write_arrays
from nopf.model import StateSpaceModel, Step
from nopf.proposals.fingerprint import differences, fingerprint, shape_of
from nopf.proposals.linearised import Tangent, gauss_newton
from nopf.proposals.network import SOFTPLUS_ONE, Network
from nopf.proposals.proposal import Move, Proposal, log_mixture, why_not_additive
from nopf.proposals.quality import Quality, measure_quality
from nopf.recipe import Recipe

KIND = "nopf proposal"
HUGE = 1e4  # whitened units
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
        predicted: Float[Array, " d"],
        y: Float[Array, " m"],
        step: Step,
    ) -> Float[Array, " f"]:
        observed = ~jnp.isnan(y)
        mask = [observed.astype(predicted.dtype)] if self.masks else []
        time = jnp.reshape(jnp.asarray(step.time, predicted.dtype), (1,))
        if self.raw:
            return jnp.concatenate([predicted, jnp.where(observed, y, 0), time, *mask])
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
                parts += [jnp.where(seen, wave(angles), 0) for wave in (jnp.cos, jnp.sin)]
        if self.innovation is not None:
            surprise = model.innovation(y, predicted, step) / self.innovation
            parts += [surprise, jnp.arcsinh(surprise)]
        # Without the barrier XLA multiplies every part by its own rows of the weights and adds up.
        return jax.lax.optimization_barrier(jnp.concatenate([*parts, *mask]))

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


class Local:
    """The proposal for one particle, in coordinates z in which the transition is standard normal.

    z = base(shift + L·white), where L is lower triangular and the base is the identity or the
    Gauss–Newton fit. L is never formed: it is its diagonal and the entries below, column by column.

    Attributes:
        log_det: logarithm of the determinant of white → z.
    """

    def __init__(self, base: Tangent | None, mean: Float[Array, " d"], factor: Float[Array, " e"]):
        # Bounds far beyond what is useful, so that no draw can overflow.
        self._base, self._shift = base, jnp.clip(mean, -HUGE, HUGE)
        raw = factor[: mean.size] + SOFTPLUS_ONE
        self._diagonal = jax.nn.softplus(jnp.clip(raw, -5.0, 20.0))
        self._lower = jnp.clip(factor[mean.size :], -HUGE, HUGE)
        self.log_det = jnp.sum(jnp.log(self._diagonal))
        if base is not None:
            self.log_det = self.log_det + base.log_det

    def place(self, white: Float[Array, " d"]) -> Float[Array, " d"]:
        """z of standard normal numbers."""
        spread, gather = _triangle(white.size)
        below = (self._lower * (white @ spread)) @ gather
        return self._out(self._shift + self._diagonal * white + below)

    def whiten(self, z: Float[Array, " d"]) -> Float[Array, " d"]:
        """The inverse of `place`, column by column."""
        rest = (z if self._base is None else self._base.whiten(z - self._base.mean)) - self._shift
        white, start = [], 0
        for j in range(z.size):
            entry = rest[0] / self._diagonal[j]
            white.append(entry)
            end = start + z.size - 1 - j
            rest = rest[1:] - self._lower[start:end] * entry
            start = end
        return jnp.stack(white)

    def divergence(self) -> Float[Array, ""]:
        """Kullback–Leibler divergence from the transition, KL(q ‖ p(x | ancestor)), exactly."""
        size = self._shift.size
        centre = self._out(self._shift)
        if self._base is None:
            spread = jnp.sum(self._diagonal**2) + jnp.sum(self._lower**2)
        else:
            images = jax.vmap(self.place)(jnp.eye(size)) - centre[None]
            spread = jnp.sum(images**2)
        return 0.5 * (jnp.sum(centre**2) + spread - size) - self.log_det

    def _out(self, inner: Float[Array, " d"]) -> Float[Array, " d"]:
        return inner if self._base is None else self._base.mean + self._base.colour(inner)


@functools.cache
def _triangle(size: int) -> tuple[np.ndarray, np.ndarray]:
    """0/1 matrices that spread a vector over the entries below the diagonal, and sum them up."""
    pairs = [(i, j) for j in range(size) for i in range(j + 1, size)]
    spread, gather = (
        np.zeros((size, len(pairs)), np.float32),
        np.zeros((len(pairs), size), np.float32),
    )
    for entry, (i, j) in enumerate(pairs):
        spread[j, entry] = gather[entry, i] = 1
    return spread, gather


class NeuralProposal(Proposal):
    """A learned approximation of p(x | ancestor, y). Made by `nopf.train`, or by `load`.

    A small share of the particles is drawn from the transition instead, and the weight has the
    exact density of the mixture: so weights stay bounded wherever the transition's do. A step with
    nothing observed uses the transition; so does one with some coordinates missing, unless the
    network was trained with a `missing_rate`.

    Attributes:
        network: folded, for use in a filter.
        features: what it sees.
        recipe: how it was made; `recipe.base` says what it corrects.
        steps: the times and controls of training.
        history: `(k, 4)` training curve: step, loss, held-out loss, held-out ESS fraction.
        fingerprint: JSON, what identifies the model that it was trained for.
    """

    network: Network
    features: Features
    steps: Step
    history: Float[np.ndarray, "k 4"]
    recipe: Recipe = eqx.field(static=True)
    fingerprint: str = eqx.field(static=True)

    def check(self, model: StateSpaceModel) -> None:
        wanted, found = json.loads(self.fingerprint), shape_of(model)
        different = differences({key: wanted[key] for key in found}, found)
        if self.features.innovation is not None and model.observation is None:
            different.append("it had an observation function")
        if self.recipe.base == "linearised" and why_not_additive(model) is not None:
            different.append("it had additive observation noise")
        if different:
            raise ValueError(
                "proposal: this NeuralProposal was trained for a model of another shape: "
                f"{'; '.join(different)}. Train one for this model with nopf.train"
            )

    def propose(
        self,
        key: PRNGKeyArray,
        model: StateSpaceModel,
        ancestor: Float[Array, " d"],
        y: Float[Array, " m"],
        step: Step,
        memory: Any = None,
    ) -> Move:
        share = self.recipe.defensive
        white_key, coin_key = jax.random.split(key)
        white = jax.random.normal(white_key, ancestor.shape)
        drawn = self._draw(model, ancestor, y, step, white, False)
        if share > 0:
            blind = jax.random.bernoulli(coin_key, share)
            other = self._draw(model, ancestor, y, step, white, True)
            drawn = jax.tree.map(lambda a, b: jnp.where(blind, a, b), other, drawn)
        state, log_ratio, log_likelihood = drawn
        return Move(state, log_likelihood - log_mixture(log_ratio, share), memory)

    def propose_all(
        self,
        key: PRNGKeyArray,
        model: StateSpaceModel,
        ancestors: Float[Array, "n d"],
        y: Float[Array, " m"],
        step: Step,
        memory: Any = None,
    ) -> Move:
        """Moves all particles.

        Those drawn from the transition are equally spaced from a random place on, so that each one
        is with the same chance; only for them has the network's law to be inverted, which costs as
        much as everything else.
        """
        n = ancestors.shape[0]
        share = self.recipe.defensive
        count = max(1, round(share * n)) if share > 0 and n > 1 else 0
        place_key, key = jax.random.split(key)
        keys = jax.random.split(key, n)

        def draw(inputs: Any, blind: bool) -> Any:
            key, ancestor = inputs
            white = jax.random.normal(key, ancestor.shape)
            return self._draw(model, ancestor, y, step, white, blind)

        drawn = jax.vmap(lambda i: draw(i, False))((keys, ancestors))
        if count > 0:
            offset = jax.random.randint(place_key, (), 0, n)
            chosen = (offset + np.arange(count) * (n // count)) % n
            blind = jax.vmap(lambda i: draw(i, True))((keys[chosen], ancestors[chosen]))
            drawn = jax.tree.map(lambda a, b: a.at[chosen].set(b), drawn, blind)
        state, log_ratio, log_likelihood = drawn
        return Move(state, log_likelihood - log_mixture(log_ratio, count / n), memory)

    def _draw(
        self,
        model: StateSpaceModel,
        ancestor: Float[Array, " d"],
        y: Float[Array, " m"],
        step: Step,
        white: Float[Array, " d"],
        blind: bool,
    ) -> tuple[Float[Array, " d"], Float[Array, ""], Float[Array, ""]]:
        """A state by the network's law (by the transition if `blind`), made of `white`.

        Returns:
            the state; log q − log p(state | ancestor) of the network's law; log p(y | state).
        """
        predicted = model.skeleton(ancestor, step)
        local, informed, _ = self.local(model, predicted, y, step)
        z, origin = (white, local.whiten(white)) if blind else (local.place(white), white)
        # Both densities share the Jacobian of z → state and the constant of the normal.
        log_ratio = 0.5 * (jnp.sum(z**2) - jnp.sum(origin**2)) - local.log_det
        # A law with numbers that are not finite gives way to the transition.
        sound = jnp.isfinite(log_ratio)
        if blind:  # The inverse may overflow where the law itself is sound: then q/p is zero.
            sound = jnp.isfinite(jnp.sum(local.place(jnp.zeros_like(white))) + local.log_det)
            log_ratio = jnp.where(jnp.isnan(log_ratio), -jnp.inf, log_ratio)
        sound = sound & informed
        z, log_ratio = jnp.where(sound, z, white), jnp.where(sound, log_ratio, 0)
        state = model.space.wrap(predicted + model.process_noise_at(step).colour(z))
        return state, log_ratio, model.log_likelihood(y, state, step)

    def local(
        self,
        model: StateSpaceModel,
        predicted: Float[Array, " d"],
        y: Float[Array, " m"],
        step: Step,
        axis: str | None = None,
    ) -> tuple[Local, Bool[Array, ""], Any]:
        """The proposal for one particle.

        Returns:
            the law of the next state; whether enough is observed to use it rather than the
            transition; and the network's running moments, if trained over the batch `axis`.
        """
        observed = ~jnp.isnan(y)
        informed = jnp.any(observed) if self.features.masks else jnp.all(observed)
        mean, factor, moments = self.network(self.features(model, predicted, y, step), axis)
        base = None
        if self.recipe.base == "linearised":
            base = gauss_newton(model, predicted, y, step, self.recipe.iterations)
        return Local(base, mean, factor), informed, moments

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the proposal to a file, whole or not at all."""
        header = {
            "recipe": dataclasses.asdict(self.recipe),
            "model": json.loads(self.fingerprint),
            "horizon": len(self.steps.index),
            "controls": self._control_size(),
            "points": len(self.history),
        }
        write_arrays(path, KIND, header, named_leaves(self))

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], model: StateSpaceModel | None = None
    ) -> "NeuralProposal":
        """Reads a proposal from a file. No code is executed.

        Args:
            path: what `save` wrote.
            model: the model that it shall serve; a proposal trained for another one is refused.
                Without it nothing is compared.
        """
        header, arrays = read_arrays(path, KIND)
        try:
            recipe = Recipe(**header["recipe"])
            wanted = header["model"]
            horizon, controls = int(header["horizon"]), header["controls"]
            steps = Step(
                np.zeros(horizon, np.int32),
                np.zeros(horizon),
                np.zeros(horizon),
                None if controls is None else np.zeros((horizon, controls)),
            )
            empty = untrained(wanted, recipe, steps, jax.random.key(0))
            history = np.zeros((int(header["points"]), 4))
            empty = dataclasses.replace(empty, network=empty.network.folded(), history=history)
        except (KeyError, TypeError, ValueError) as error:
            raise FileError(
                f"{path}: the header does not fit this version of nopf: {error}"
            ) from None
        if model is not None:
            different = differences(wanted, fingerprint(model, header["controls"]))
            if different:
                raise ValueError(
                    f"{path}: trained for another model: {'; '.join(different)}. "
                    "Train one for this model with nopf.train, or load without a model to skip "
                    "the comparison (weights stay right, the filter may be slow to converge)"
                )
        loaded = fill(empty, arrays, path)
        trained = jax.tree.map(jnp.asarray, (loaded.network, loaded.features))
        return eqx.tree_at(lambda p: (p.network, p.features), loaded, trained)

    def quality(
        self, model: StateSpaceModel, key: PRNGKeyArray, *, trajectories: int = 16
    ) -> Quality:
        """How good the proposal is on data that it has not seen, step by step.

        Args:
            model: the model.
            key: random key.
            trajectories: how many to simulate; with the times and controls of training.
        """
        self.check(model)
        return measure_quality(self, self.without_defence(), model, self.steps, key, trajectories)

    def without_defence(self) -> "NeuralProposal":
        """The network's own law alone, as in the paper."""
        return dataclasses.replace(self, recipe=dataclasses.replace(self.recipe, defensive=0.0))

    def _control_size(self) -> int | None:
        return None if self.steps.control is None else self.steps.control.shape[1]


def untrained(
    identity: dict[str, Any], recipe: Recipe, steps: Step, key: PRNGKeyArray
) -> NeuralProposal:
    """A proposal that equals its base, with features that are not scaled yet.

    Args:
        identity: the model's fingerprint.
        recipe: how to build it.
        steps: the times and controls that it shall be trained for.
        key: random key of the weights.
    """
    d, m = len(identity["state_names"]), identity["observations"]
    controls = 0 if steps.control is None else steps.control.shape[1]
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
        inputs = d + m + 1
    else:
        angles = len(identity["state_angles"]) + len(identity["observation_angles"])
        inputs = sum(sizes.values()) + 2 * angles + (2 * m if predicts else 0)
    return NeuralProposal(
        network=Network(inputs + (m if masks else 0), d, recipe, key),
        features=features,
        steps=steps,
        history=np.zeros((0, 4)),
        recipe=recipe,
        fingerprint=json.dumps(identity),
    )
