"""Particles that are spread over several devices: sums over all of them, and their exchange.

Inside a computation that runs on every device of a mesh (`shard_map`), an array over particles
holds those of one device. `axis` is the mesh's name for all devices, and None where there is one.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh
from jaxtyping import Array, Float, PRNGKeyArray


def total(value: Array, axis: str | None) -> Array:
    """The sum over all devices."""
    if axis is None:
        return value
    # Between processes on CPUs a sum of more than two numbers waits for the scheduler, four
    # milliseconds each where a process has one core; letters to all do not.
    return jax.lax.platform_dependent(
        value,
        cpu=lambda value: jnp.sum(_letters(value, axis), axis=0),
        default=lambda value: jax.lax.psum(value, axis),
    )


def totals(values: Any, axis: str | None) -> Any:
    """Some sums over all devices, exchanged at once: what an exchange takes is waiting."""
    if axis is None:
        return values
    flat, restored = ravel_pytree(values)
    return restored(total(flat, axis))


def _letters(value: Array, axis: str) -> Array:
    """What each device has, on each of them, with a leading axis over devices."""
    copies = jnp.broadcast_to(value, (jax.lax.axis_size(axis), *jnp.shape(value)))
    return jax.lax.all_to_all(copies, axis, split_axis=0, concat_axis=0)


class Sums(NamedTuple):
    """Of some weights.

    Attributes:
        largest: log of the largest; −∞ if all are zero.
        whole: their sum, over the largest.
        squares: the sum of their squares, over the square of the largest.
    """

    largest: Float[Array, "*batch"]
    whole: Float[Array, "*batch"]
    squares: Float[Array, "*batch"]

    @property
    def log_whole(self) -> Float[Array, "*batch"]:
        """The log of `whole`; 0 if all are zero, where it would have no gradient."""
        return jnp.log(jnp.where(self.whole > 0, self.whole, 1))

    @property
    def log_total(self) -> Float[Array, "*batch"]:
        """The log of the sum."""
        return self.largest + self.log_whole

    @property
    def ess(self) -> Float[Array, "*batch"]:
        """(Σ w)² / Σ w²; 0 if all are zero."""
        return self.whole**2 / jnp.where(self.squares > 0, self.squares, 1)


def weigh_up(log_weights: Float[Array, "*batch n"], axis: str | None) -> Sums:
    """Sums of the weights of the particles of all devices, in one exchange.

    The largest is taken off first: log-likelihoods can be so large that their digits end above the
    decimal point.
    """
    top = jax.lax.stop_gradient(jnp.max(log_weights, axis=-1))
    weights = jnp.exp(log_weights - _or_zero(top)[..., None])
    whole, squares = jnp.sum(weights, axis=-1), jnp.sum(weights**2, axis=-1)
    if axis is None:
        return Sums(top, whole, squares)
    tops, parts, parts_squared = gathered((top, whole, squares), axis)
    top = jnp.max(tops, axis=0)
    scale = jnp.exp(tops - _or_zero(top)[None])  # 0 of a device that holds no weight
    return Sums(top, jnp.sum(parts * scale, axis=0), jnp.sum(parts_squared * scale**2, axis=0))


def _or_zero(top: Array) -> Array:
    return jnp.where(jnp.isfinite(top), top, 0)


def log_total(log_values: Float[Array, " n"], axis: str | None) -> Float[Array, ""]:
    """log Σ exp over the particles of all devices; −∞ if all are."""
    return jax.nn.logsumexp(log_values) if axis is None else weigh_up(log_values, axis).log_total


def average(tree: Any, axis: str | None) -> Any:
    """The mean over all devices."""
    return tree if axis is None else jax.lax.pmean(tree, axis)


def own_key(key: PRNGKeyArray, axis: str | None) -> PRNGKeyArray:
    """A key that is another one on each device."""
    return key if axis is None else jax.random.fold_in(key, jax.lax.axis_index(axis))


def exchange(tree: Any, axis: str) -> Any:
    """Deals the particles of each device out to all, one after the other.

    Afterwards each device holds as good a sample as any other, so that resampling on each device
    alone loses little; and as many particles as before.
    """
    count = jax.lax.axis_size(axis)

    def deal(leaf: Array) -> Array:
        dealt = leaf.reshape(-1, count, *leaf.shape[1:])
        taken = jax.lax.all_to_all(dealt, axis, split_axis=1, concat_axis=0, tiled=True)
        return taken.reshape(leaf.shape)

    return jax.tree.map(deal, tree)


def gathered(tree: Any, axis: str) -> Any:
    """A few particles of every device, with a leading axis over devices, on each of them."""
    flat, restored = ravel_pytree(tree)
    return jax.vmap(restored)(_letters(flat, axis))


def axis_of(mesh: Mesh | None) -> str | None:
    """The mesh's name for its devices."""
    return None if mesh is None else mesh.axis_names[0]


def check_mesh(mesh: Any, particles: int | None = None) -> Mesh | None:
    """The mesh, if it is one and the particles, if there are any, can be spread evenly over it."""
    if mesh is None:
        return None
    if not isinstance(mesh, Mesh):
        raise TypeError(f"mesh: expected a jax.sharding.Mesh, got {type(mesh).__name__}")
    if len(mesh.axis_names) != 1:
        raise ValueError(
            f"mesh: expected one axis, got {mesh.axis_names}; make one with "
            'jax.make_mesh((jax.device_count(),), ("particles",))'
        )
    if particles is not None and particles % mesh.size**2:
        raise ValueError(
            f"particles: expected a multiple of {mesh.size**2}, so that each of {mesh.size} "
            f"devices can deal its particles out to all, got {particles}"
        )
    # What is spread how is said by the filter, not by the types of arrays.
    return Mesh(mesh.devices, mesh.axis_names)
