"""The network of a neural proposal, for one particle: from features to a mean and a factor."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from nopf.recipe import Recipe

SOFTPLUS_ONE = 0.5413248546129181  # softplus of it is 1
EPSILON = 1e-5
MOMENTUM = 0.1  # share of the newest batch in the running moments


class Linear(eqx.Module):
    """x W + b. The weight comes last: `W x` would leave the particle axis last, to be turned."""

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

    def __call__(self, x: Float[Array, " i"]) -> Float[Array, " o"]:
        return x @ self.weight + self.bias


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

    Both heads start at zero: an untrained network proposes its base.
    """

    first: Linear
    hidden: tuple[Linear, ...]
    norms: tuple[Norm, ...]
    mean_head: Linear
    factor_head: Linear
    residual: bool = eqx.field(static=True)

    def __init__(self, inputs: int, size: int, recipe: Recipe, key: PRNGKeyArray):
        self.residual = recipe.batch_norm
        width = recipe.width
        count = 2 * recipe.depth if self.residual else recipe.depth - 1
        keys = jax.random.split(key, count + 1)
        self.first = Linear(inputs, width, keys[0])
        self.hidden = tuple(Linear(width, width, k) for k in keys[1:])
        self.norms = tuple(Norm(width) for _ in self.hidden) if self.residual else ()
        self.mean_head = Linear(width if self.residual else width + inputs, size, None)
        self.factor_head = Linear(width, size * (size + 1) // 2, None)

    def __call__(
        self, features: Float[Array, " f"], axis: str | None = None
    ) -> tuple[Float[Array, " d"], Float[Array, " e"], Any]:
        """The mean; the factor's diagonal and the entries below it; and the running moments, if
        the network is trained over the batch `axis`."""
        moments = []

        def layer(i: int, h: Array) -> Array:
            h = self.hidden[i](h)
            if not self.norms:
                return h
            assert axis is not None, "fold the normalisation first"
            h, running = self.norms[i](h, axis)
            moments.append(running)
            return h

        h = self.first(features)
        if self.residual:
            for i in range(0, len(self.hidden), 2):
                h = jax.nn.relu(h + layer(i + 1, jax.nn.relu(layer(i, h))))
            return self.mean_head(h), self.factor_head(h), moments
        h = jax.nn.silu(h)
        for i in range(len(self.hidden)):
            h = h + jax.nn.silu(layer(i, h))
        return self.mean_head(jnp.concatenate([h, features])), self.factor_head(h), moments

    def with_moments(self, moments: Any) -> "Network":
        """With the running moments that a call gave."""
        if not moments:
            return self
        return eqx.tree_at(
            lambda net: [part for norm in net.norms for part in (norm.mean, norm.variance)],
            self,
            [part for pair in moments for part in pair],
        )

    def folded(self) -> "Network":
        """The same function without normalisation layers, for use in a filter."""
        if not self.norms:
            return self
        hidden = tuple(n.fold(layer) for layer, n in zip(self.hidden, self.norms, strict=True))
        return eqx.tree_at(lambda net: (net.hidden, net.norms), self, (hidden, ()))
