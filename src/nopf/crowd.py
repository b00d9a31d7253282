"""Particles that are spread over several devices: sums over all of them, and their exchange.

Inside a computation that runs on every device of a mesh (`shard_map`), an array over particles
holds those of one device. `axis` is the mesh's name for all devices, and None where there is one.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh
from jaxtyping import Array, Float, PRNGKeyArray


def total(value: Array, axis: str | None) -> Array:
    """The sum over all devices."""
    return value if axis is None else _of_all(value, axis, jax.lax.psum, jnp.sum)


def totals(values: Any, axis: str | None) -> Any:
    """Some sums over all devices, exchanged at once: what an exchange takes is waiting."""
    if axis is None:
        return values
    flat, restored = ravel_pytree(values)
    return restored(total(flat, axis))


def largest(value: Array, axis: str | None) -> Array:
    """The largest of all devices."""
    return value if axis is None else _of_all(value, axis, jax.lax.pmax, jnp.max)


def _of_all(value: Array, axis: str, collective: Any, reduction: Any) -> Array:
    """What a collective gives. Between processes on CPUs those of more than two numbers wait for
    the scheduler, four milliseconds each where a process has one core; letters to all do not."""
    return jax.lax.platform_dependent(
        value,
        cpu=lambda value: reduction(_letters(value, axis), axis=0),
        default=lambda value: collective(value, axis),
    )


def _letters(value: Array, axis: str) -> Array:
    """What each device has, on each of them, with a leading axis over devices."""
    copies = jnp.broadcast_to(value, (jax.lax.axis_size(axis), *jnp.shape(value)))
    return jax.lax.all_to_all(copies, axis, split_axis=0, concat_axis=0)


def average(tree: Any, axis: str | None) -> Any:
    """The mean over all devices."""
    return tree if axis is None else jax.lax.pmean(tree, axis)


def log_total(log_values: Float[Array, " n"], axis: str | None) -> Float[Array, ""]:
    """log Σ exp over the particles of all devices; −∞ if all are."""
    if axis is None:
        return jax.nn.logsumexp(log_values)
    top = largest(jnp.max(log_values), axis)
    safe = jnp.where(jnp.isfinite(top), top, 0)
    return safe + jnp.log(total(jnp.sum(jnp.exp(log_values - safe)), axis))


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
