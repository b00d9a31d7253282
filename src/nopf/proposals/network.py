"""The network of a neural proposal, for one particle: from features to a mean and a factor."""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from nopf.layout import columns_at_once
from nopf.recipe import Recipe

SOFTPLUS_ONE = 0.5413248546129181  # softplus of it is 1
EPSILON = 1e-5
MOMENTUM = 0.1  # share of the newest batch in the running moments
HUGE = 1e4  # of standard normal numbers; far beyond what is useful

Parts = Sequence[Float[Array, "_ ..."]]
Heads = tuple[
    Float[Array, "d ..."], Float[Array, "d ..."], Float[Array, "e ..."], Float[Array, "c ..."]
]


class Linear(eqx.Module):
    """Wᵀ x + b, of a vector or of columns."""

    weight: Float[Array, "i o"]
    bias: Float[Array, " o"]

    def __init__(self, inputs: int, outputs: int, key: PRNGKeyArray | None):
        """With uniform weights of variance 1/(3·inputs), or zeros if there is no key."""
        bound = inputs**-0.5
        self.weight = jnp.zeros((inputs, outputs))
        self.bias = jnp.zeros(outputs)
        if key is not None:
            keys = jax.random.split(key)
            self.weight = jax.random.uniform(
                keys[0], (inputs, outputs), minval=-bound, maxval=bound
            )
            self.bias = jax.random.uniform(keys[1], (outputs,), minval=-bound, maxval=bound)

    def __call__(self, *parts: Float[Array, "_ ..."]) -> Float[Array, "o ..."]:
        """Of an input, or of one in parts: to put them together would take longer."""
        ends = np.cumsum([part.shape[0] for part in parts])[:-1]
        weights = jnp.split(self.weight, ends)
        products = [weight.T @ part for weight, part in zip(weights, parts, strict=True)]
        # What is the same for all columns is added up once.
        shared = sum((product for product in products if product.ndim == 1), start=self.bias)
        columns = [product for product in products if product.ndim > 1]
        return sum(columns[1:], start=columns[0] + shared[:, None]) if columns else shared


class Norm(eqx.Module):
    """Batch normalisation of one layer, with running moments for use outside training."""

    scale: Float[Array, " h"]
    shift: Float[Array, " h"]
    mean: Float[Array, " h"]
    variance: Float[Array, " h"]

    def __init__(self, size: int):
        self.scale, self.shift = jnp.ones(size), jnp.zeros(size)
        self.mean, self.variance = jnp.zeros(size), jnp.ones(size)

    def __call__(self, x: Float[Array, " h"], axis: str) -> tuple[Array, tuple[Array, Array]]:
        """Normalises by the moments over `axis`; gives the running moments that follow."""
        mean = jax.lax.pmean(x, axis)
        variance = jax.lax.pmean((x - mean) ** 2, axis)
        normal = (x - mean) / jnp.sqrt(variance + EPSILON)
        running = [
            (1 - MOMENTUM) * old + MOMENTUM * new
            for old, new in ((self.mean, mean), (self.variance, variance))
        ]
        return self.scale * normal + self.shift, tuple(running)

    def fold(self, layer: Linear) -> Linear:
        """The layer with this normalisation after it, by the running moments."""
        factor = self.scale / jnp.sqrt(self.variance + EPSILON)
        return eqx.tree_at(
            lambda linear: (linear.weight, linear.bias),
            layer,
            (layer.weight * factor[None], factor * (layer.bias - self.mean) + self.shift),
        )


class Network(eqx.Module):
    """A multilayer perceptron with skip connections, in one of two shapes.

    Plain: h ← h + silu(W h + b), and a linear way from the features to the mean, so that linear
    models are fitted exactly. Residual (the paper's): two layers a block, rectified, with batch
    normalisation, which `folded` takes up into the weights.

    Heads start at zero: an untrained network proposes its base. Several components start apart, or
    they would stay together.
    """

    first: Linear
    hidden: tuple[Linear, ...]
    norms: tuple[Norm, ...]
    mean_head: Linear
    factor_head: Linear
    choice_head: Linear | None  # of several components
    residual: bool = eqx.field(static=True)

    def __init__(self, inputs: int, size: int, pairs: int, recipe: Recipe, key: PRNGKeyArray):
        """Of the features, to so many numbers of the mean and below the diagonal of each of the
        recipe's components."""
        components = recipe.components or 1
        size, pairs = components * size, components * pairs
        self.residual = recipe.batch_norm
        width = recipe.width
        count = 2 * recipe.depth if self.residual else recipe.depth - 1
        keys = jax.random.split(key, count + 1)
        self.first = Linear(inputs, width, keys[0])
        self.hidden = tuple(Linear(width, width, k) for k in keys[1:])
        self.norms = tuple(Norm(width) for _ in self.hidden) if self.residual else ()
        self.mean_head = Linear(width if self.residual else width + inputs, size, None)
        self.factor_head = Linear(width, size + pairs, None)
        self.choice_head = None
        if components > 1:
            self.choice_head = Linear(width, components, None)
            apart = jax.random.normal(jax.random.fold_in(key, 0), (size,))
            self.mean_head = eqx.tree_at(lambda head: head.bias, self.mean_head, apart)

    def __call__(self, features: Parts, axis: str | None = None) -> tuple[Heads, Any]:
        """The mean, the factor's diagonal and the entries below it, of all components one after
        the other, and the log-weights of these; and the running moments, if the network is trained
        over the batch `axis`."""
        if not self.norms:
            return _without_norms(self, *features), []
        assert axis is not None, "fold the normalisation first"
        moments = []

        def layer(i: int, h: Array) -> Array:
            h, running = self.norms[i](self.hidden[i](h), axis)
            moments.append(running)
            return h

        return self.forward(features, layer), moments

    def forward(self, features: Parts, layer: Callable[[int, Array], Array]) -> Heads:
        """The heads, given what a hidden layer does; of a vector or of columns."""
        h = self.first(*features)
        if self.residual:
            for i in range(0, len(self.hidden), 2):
                h = jax.nn.relu(h + layer(i + 1, jax.nn.relu(layer(i, h))))
            return self._bounded(h, self.mean_head(h))
        h = jax.nn.silu(h)
        for i in range(len(self.hidden)):
            h = h + jax.nn.silu(layer(i, h))
        return self._bounded(h, self.mean_head(h, *features))

    def _bounded(self, h: Array, mean: Array) -> Heads:
        """Within bounds, so that no draw can overflow. What is no number changes nothing."""
        size, entries = mean.shape[0], self.factor_head(h)
        choice = h[:0] if self.choice_head is None else self.choice_head(h)
        mean, entries, choice = (
            jnp.where(jnp.isnan(head), 0, head) for head in (mean, entries, choice)
        )
        # Between these bounds a softplus needs no care, which would take eight times the time.
        diagonal = jnp.log(1 + jnp.exp(jnp.clip(entries[:size] + SOFTPLUS_ONE, -5.0, 20.0)))
        below = jnp.clip(entries[size:], -HUGE, HUGE)
        return jnp.clip(mean, -HUGE, HUGE), diagonal, below, jnp.clip(choice, -HUGE, HUGE)

    def with_moments(self, moments: Any) -> "Network":
        """With the running moments that a call gave."""
        if not moments:
            return self
        return eqx.tree_at(
            lambda net: [part for norm in net.norms for part in (norm.mean, norm.variance)],
            self,
            [part for pair in moments for part in pair],
        )

    def with_entries(self, components: int, every: int, kept: Int[np.ndarray, " k"]) -> "Network":
        """With these entries below the diagonal alone, of as many as there are for each
        component."""
        head = self.factor_head
        size = head.bias.size - components * every
        below = size + (np.arange(components)[:, None] * every + kept[None]).reshape(-1)
        columns = np.concatenate([np.arange(size), below])
        return eqx.tree_at(
            lambda net: (net.factor_head.weight, net.factor_head.bias),
            self,
            (head.weight[:, columns], head.bias[columns]),
        )

    def folded(self) -> "Network":
        """The same function without normalisation layers, for use in a filter."""
        if not self.norms:
            return self
        hidden = tuple(n.fold(layer) for layer, n in zip(self.hidden, self.norms, strict=True))
        return eqx.tree_at(lambda net: (net.hidden, net.norms), self, (hidden, ()))


@columns_at_once
def _without_norms(network: Network, *features: Array) -> Heads:
    return network.forward(features, lambda i, h: network.hidden[i](h))
