"""NeuralProposal: a Gaussian law, or several, whose means and factors a network has learned."""

import dataclasses
import json
import os
import reprlib
import textwrap
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from nopf import plots
from nopf.compiling import is_tracing, run_once
from nopf.files import FileError, fill, named_leaves, read_arrays, write_arrays
from nopf.gaussian import is_traced
from nopf.model import Particle, StateSpaceModel
from nopf.proposals.factor import Factor, Pairs, Product, Triangular, embedded
from nopf.proposals.features import Features, blank_features
from nopf.proposals.fingerprint import differences, fingerprint, shape_of
from nopf.proposals.law import GaussianLaw, Mixture
from nopf.proposals.linearised import gauss_newton
from nopf.proposals.network import Heads, Network
from nopf.proposals.proposal import Proposal
from nopf.proposals.seen import Pattern, pair_count, pairs_in, seen_in
from nopf.recipe import Recipe
from nopf.steps import Step

KIND = "nopf proposal"
MOST = 10**7  # steps, observations and so on of which a file may speak
_WORDS = ("state_names", "linear_states")  # of a fingerprint; all else is numbers


class NeuralProposal(Proposal):
    """A learned approximation of p(x | ancestor, y). Made by `nopf.train`, or by `load`.

    The network gives a mean and a lower triangular factor in noise space, or several of these with
    weights; with a linearised base they are corrections of the Gauss–Newton fit. A small share of
    the particles is drawn from the transition instead. Where nothing is observed that is all; where
    some coordinates are missing and the network was not trained with a `missing_rate`, its base
    stays as it is.

    Attributes:
        network: folded, for use in a filter.
        features: what it sees.
        recipe: how it was made; `recipe.base` says what it corrects.
        steps: the times and controls of training.
        history: `(k, 4)` training curve: step, loss, held-out loss, held-out ESS fraction.
        fingerprint: JSON, what identifies the model that it was trained for.
        pattern: for each noise number the entries of the observation that depend on it; the
            network speaks of those that have any. None for all.
        pairs: entries of the factor below the diagonal that the network gives, by row and column
            among the numbers that it speaks of. None for all that the pattern allows.
        idle: whether the network is left out, since its base does without it.
    """

    network: Network
    features: Features
    steps: Step
    history: Float[np.ndarray, "k 4"]
    recipe: Recipe = eqx.field(static=True)
    fingerprint: str = eqx.field(static=True)
    pattern: Pattern | None = eqx.field(static=True, default=None)
    pairs: Pairs | None = eqx.field(static=True, default=None)
    idle: bool = eqx.field(static=True, default=False)

    def __repr__(self) -> str:
        words = [f"{self.recipe.base} base", f"trained on {len(self.steps.index)} steps"]
        if (self.recipe.components or 1) > 1:
            words.insert(1, f"{self.recipe.components} Gaussians")
        if self.idle or self.adds_nothing:
            words.append("no network")
        if len(self.history):
            words.append(f"held-out ESS {100 * self.history[-1, 3]:.0f} %")
        return f"NeuralProposal: {', '.join(words)}"

    @property
    def adds_nothing(self) -> bool:
        """Whether the network is as it was before training, so that its base does without it."""
        heads = (self.network.mean_head, self.network.factor_head)
        if self.recipe.base != "linearised" or is_traced(heads):
            return False
        return not any(np.any(np.asarray(leaf)) for leaf in jax.tree.leaves(heads))

    def settled(self, model: StateSpaceModel) -> "NeuralProposal":
        return dataclasses.replace(self, idle=True) if self.adds_nothing else self

    def check(self, model: StateSpaceModel) -> None:
        known, found = json.loads(self.fingerprint), shape_of(model)
        wanted = {key: known[key] for key in known if key in (*found, "noise_size")}
        different = differences(wanted, found)
        if self.features.innovation is not None and not model.likelihood.predicts:
            different.append("it had an observation function")
        if self.recipe.base == "linearised" and not model.likelihood.additive:
            different.append("it had additive observation noise")
        if different:
            raise ValueError(
                "proposal: this NeuralProposal was trained for a model of another shape: "
                f"{'; '.join(different)}. Train one for this model with nopf.train"
            )

    @property
    def share(self) -> float:
        return self.recipe.defensive

    @property
    def meets_prior(self) -> bool:
        return not self.recipe.batch_norm  # The published filter has the prior as it is.

    def law(
        self,
        model: StateSpaceModel,
        ancestor: Particle,
        y: Float[Array, " m"],
        step: Step,
    ) -> GaussianLaw | Mixture:
        return self.law_and_moments(model, ancestor, y, step, None)[0]

    def law_and_moments(
        self,
        model: StateSpaceModel,
        ancestor: Particle,
        y: Float[Array, " m"],
        step: Step,
        axis: str | None,
    ) -> tuple[GaussianLaw | Mixture, Any]:
        """The law, and the network's running moments if it is trained over the batch `axis`."""
        motion = model.motion(ancestor, step)

        def law(mean: Float[Array, " s"], factor: Factor) -> GaussianLaw:
            mean, factor = embedded(mean, factor, seen_in(self.pattern), model.noise_size)
            if axis is not None:  # Training asks for no promise, and may have no gradient of it.
                return GaussianLaw(mean, factor, lambda z: jnp.zeros(()), None)
            return GaussianLaw(
                mean, factor, lambda z: model.log_likelihood(y, motion(z), step), None
            )

        base = None
        if self.recipe.base == "linearised":
            base = gauss_newton(model, ancestor, y, step, self.recipe.iterations, self.pattern)
            if self.idle:
                return law(*base), []
        (*numbers, choice), moments = self.heads(model, ancestor, y, step, axis)

        def corrected(shift: Array, diagonal: Array, below: Array) -> GaussianLaw:
            factor = Triangular(diagonal, below, self.pairs_of(shift.size))
            if base is None:
                return law(shift, factor)
            centre, root = base
            return law(centre + root.colour(shift), Product(root, factor))

        if choice.size == 0:
            return corrected(*numbers), moments
        parts = jax.vmap(corrected)(*(head.reshape(choice.size, -1) for head in numbers))
        return Mixture(choice, parts), moments

    def heads(
        self,
        model: StateSpaceModel,
        ancestor: Particle,
        y: Float[Array, " m"],
        step: Step,
        axis: str | None = None,
    ) -> tuple[Heads, Any]:
        """What the network gives, and its running moments if it is trained over the batch `axis`.
        Where nothing is observed that it could go by, its base stays as it is."""
        observed = ~jnp.isnan(y)
        informed = jnp.any(observed) if self.features.masks else jnp.all(observed)
        predicted = model.skeleton(ancestor, step)
        heads, moments = self.network(self.features(model, predicted, y, step), axis)
        mean, diagonal, below, choice = (
            jnp.where(informed, head, nothing)
            for head, nothing in zip(heads, (0.0, 1.0, 0.0, 0.0), strict=True)
        )
        return (mean, diagonal, below, choice), moments

    def pairs_of(self, size: int) -> Pairs:
        """Which entries below the diagonal a factor of this size has."""
        return pairs_in(self.pattern, size) if self.pairs is None else self.pairs

    def with_pairs(self, pairs: Pairs) -> "NeuralProposal":
        """With these entries below the diagonal alone; the others are taken for zero."""
        components = self.recipe.components or 1
        size = self.network.mean_head.bias.size // components
        every = self.pairs_of(size)
        kept = np.asarray([every.index(pair) for pair in pairs], int)
        network = self.network.with_entries(components, len(every), kept)
        return dataclasses.replace(self, network=network, pairs=pairs)

    def plot_history(self) -> np.ndarray:
        """Draws the training curve: losses, and the held-out effective sample size (needs the
        `plots` extra).

        Returns:
            the two axes of matplotlib.
        """
        axes = plots.new_axes(2, 8.0, 5.0, sharex=True)
        plots.draw_history(axes, self.history)
        return axes

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the proposal to a file, whole or not at all."""
        header = {
            "recipe": dataclasses.asdict(self.recipe),
            "model": json.loads(self.fingerprint),
            "horizon": len(self.steps.index),
            "controls": self.control_size,
            "points": len(self.history),
            "pattern": self.pattern,
            "pairs": self.pairs,
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
            # Shapes only, to compare with the arrays: nothing of the size that a header asks for
            # is made.
            empty = eqx.filter_eval_shape(lambda: _described(header))
        except (LookupError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise FileError(
                f"{path}: the header does not fit this version of nopf: "
                f"{textwrap.shorten(str(error), 300)}"
            ) from None
        if model is not None:
            different = differences(header["model"], fingerprint(model, header["controls"]))
            if different:
                raise ValueError(
                    f"{path}: trained for another model: {'; '.join(different)}. "
                    "Train one for this model with nopf.train, or load without a model to skip "
                    "the comparison (weights stay right, the filter may be slow to converge)"
                )
        loaded = fill(empty, arrays, path)
        trained = jax.tree.map(jnp.asarray, (loaded.network, loaded.features))
        if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(trained[0])):
            raise FileError(f"{path}: some weights are no finite numbers; train it again")
        return eqx.tree_at(lambda p: (p.network, p.features), loaded, trained)

    def without_defence(self) -> "NeuralProposal":
        """The network's own law alone, as in the paper."""
        return dataclasses.replace(self, recipe=dataclasses.replace(self.recipe, defensive=0.0))

    @property
    def control_size(self) -> int | None:
        """How many controls a step had in training; None if it was trained without."""
        return None if self.steps.control is None else self.steps.control.shape[1]


def untrained(
    identity: dict[str, Any],
    recipe: Recipe,
    steps: Step,
    key: PRNGKeyArray,
    pattern: Pattern | None = None,
    pairs: Pairs | None = None,
) -> NeuralProposal:
    """A proposal that equals its base, with features that are not scaled yet.

    Args:
        identity: the model's fingerprint.
        recipe: how to build it.
        steps: the times and controls that it shall be trained for.
        key: random key of the weights.
        pattern: where each noise number shows, if that is known.
        pairs: entries below the diagonal, if not all that the pattern allows.
    """
    controls = 0 if steps.control is None else steps.control.shape[1]
    features, count = blank_features(identity, recipe, controls)
    # Files of 0.1.0 say nothing of it: their models have a noise number for each state.
    noise_size = identity.get("noise_size", len(identity["state_names"]))
    sees = seen_in(pattern)
    size = noise_size if sees is None else len(sees)
    # JAX compiles nothing apart while it traces.
    network = Network if is_tracing() else run_once(Network)
    entries = pair_count(pattern, size) if pairs is None else len(pairs)
    return NeuralProposal(
        network=network(count, size, entries, recipe, key),
        features=features,
        steps=steps,
        history=np.zeros((0, 4)),
        recipe=recipe,
        fingerprint=json.dumps(identity),
        pattern=pattern,
        pairs=pairs,
    )


def _described(header: dict[str, Any]) -> NeuralProposal:
    """A proposal like the one of which a file's header speaks, if that makes sense."""
    recipe, identity = Recipe(**header["recipe"]), header["model"]
    horizon, controls, points = header["horizon"], header["controls"], header["points"]
    names, observations = _list("state_names", identity["state_names"]), identity["observations"]
    noise_size = identity.get("noise_size", len(names))
    for name, size in [
        ("horizon", horizon),
        ("controls", 0 if controls is None else controls),
        ("points", points),
        ("observations", observations),
        ("noise_size", noise_size),
    ]:
        _check_whole(name, size, 0, MOST)
    for name, size in [("state_angles", len(names)), ("observation_angles", observations)]:
        for angle in _list(name, identity[name]):
            _check_whole(name, angle, 0, size - 1)
    for name, value in identity.items():
        if name not in _WORDS:
            _check_numbers(name, value)
    pattern = header.get("pattern")  # unknown to 0.1.0
    if pattern is not None:
        _check_whole("pattern", len(_list("pattern", pattern)), noise_size, noise_size)
        for row in pattern:
            for entry in _list("pattern", row):
                _check_whole("pattern", entry, 0, max(noise_size, observations) - 1)
        pattern = tuple(tuple(row) for row in pattern)
    pairs = header.get("pairs")
    if pairs is not None:
        for pair in _list("pairs", pairs):
            _check_whole("pairs", len(_list("pairs", pair)), 2, 2)
            for entry in pair:
                _check_whole("pairs", entry, 0, noise_size - 1)
        pairs = tuple(tuple(pair) for pair in pairs)
        sees = seen_in(pattern)
        allowed = pairs_in(pattern, noise_size if sees is None else len(sees))
        if len(set(pairs)) < len(pairs) or not set(pairs) <= set(allowed):
            raise ValueError("pairs: expected different entries that the pattern allows")
    steps = Step(
        jnp.zeros(horizon, jnp.int32),
        jnp.zeros(horizon),
        jnp.zeros(horizon),
        None if controls is None else jnp.zeros((horizon, controls)),
    )
    blank = untrained(identity, recipe, steps, jax.random.key(0), pattern, pairs)
    history = np.broadcast_to(0.0, (points, 4))  # takes no room
    return dataclasses.replace(blank, network=blank.network.folded(), history=history)


def _list(name: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{name}: expected a list, got {reprlib.repr(value)}")
    return value


def _check_numbers(name: str, value: Any) -> None:
    try:
        if value is None:
            raise TypeError
        np.asarray(value, np.float64)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name}: expected numbers, got {reprlib.repr(value)}") from None


def _check_whole(name: str, value: Any, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        wanted = f"{low}" if low == high else f"a whole number from {low} to {high}"
        raise ValueError(f"{name}: expected {wanted}, got {reprlib.repr(value)}")
