"""Random keys whose numbers are quick to compute and to compile.

JAX's default generator, Threefry-2x32, is a counter-based one: a number is a function of the key
and of its own place. On a CPU, JAX writes it as a loop over whole arrays, which are read and
written in every round; beyond the processor's cache that takes most of the time of a bootstrap
step. Here the rounds are written out, so that XLA makes one loop over numbers of them and of what
follows. Keys hold the same two words, and nearly all functions of `jax.random` take them.
"""

import math
from typing import Any

import jax
import jax.extend.random
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Key, PRNGKeyArray, UInt32

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = np.uint32(0x1BD11BDA)
FEW = 64
# Numbers, keys and keys folded with a number come from places of their own.
SPLIT, FOLD = np.uint32(1 << 31), np.uint32((1 << 32) - 1)

Words = UInt32[Array, "2"]


def _threefry(key: Words, place: Array, row: Array) -> tuple[Array, Array]:
    """Twenty rounds (Salmon, Moraes, Dror and Shaw, 2011)."""
    if place.size <= FEW:
        # Where few numbers are needed, in many places, XLA would compute them anew in each.
        both = jnp.stack([place, row]).reshape(-1)
        a, b = jax.extend.random.threefry_2x32(key, both).reshape(2, *place.shape)
        return a, b
    words = (key[0], key[1], key[0] ^ key[1] ^ PARITY)
    a, b = place + words[0], row + words[1]
    for group in range(5):
        for rotation in ROTATIONS[group % 2]:
            a = a + b
            b = a ^ ((b << np.uint32(rotation)) | (b >> np.uint32(32 - rotation)))
        a = a + words[(group + 1) % 3]
        b = b + words[(group + 2) % 3] + np.uint32(group + 1)
    return a, b


def _places(shape: tuple[int, ...]) -> tuple[Array, Array]:
    """For each number its place in the last axis, and that of its row among all rows."""
    if not shape:
        return jnp.zeros((), jnp.uint32), jnp.zeros((), jnp.uint32)
    place, row = lax.broadcasted_iota(jnp.uint32, shape, len(shape) - 1), jnp.zeros(shape, "uint32")
    for axis in range(len(shape) - 1):
        rows = np.uint32(math.prod(shape[axis + 1 : -1]))
        row = row + rows * lax.broadcasted_iota(jnp.uint32, shape, axis)
    return place, row


def _random_bits(key: Words, width: int, shape: tuple[int, ...]) -> Array:
    first, second = _threefry(key, *_places(shape))
    if width == 64:
        return (first.astype(jnp.uint64) << np.uint64(32)) | second.astype(jnp.uint64)
    return first if width == 32 else first.astype(f"uint{width}")


def _split(key: Words, shape: tuple[int, ...]) -> UInt32[Array, "*shape 2"]:
    place, row = _places(shape)
    return jnp.stack(_threefry(key, place, row | SPLIT), axis=-1)


def _fold_in(key: Words, number: Array) -> Words:
    place = jnp.asarray(number, jnp.uint32)
    return jnp.stack(_threefry(key, place, jnp.full_like(place, FOLD)))


def _seed(seed: Array) -> Words:
    return jax.random.key_data(jax.random.key(seed, impl="threefry2x32"))


QUICK = jax.extend.random.define_prng_impl(
    key_shape=(2,),
    seed=_seed,
    split=_split,
    random_bits=_random_bits,
    fold_in=_fold_in,  # type: ignore[arg-type]
    name="nopf_threefry",
    tag="nopf",
)


def quick(key: PRNGKeyArray) -> PRNGKeyArray:
    """A key with the same words whose numbers are quick; as it is if it is of another generator."""
    if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        key = jax.random.wrap_key_data(key)  # one of jax.random.PRNGKey
    if str(jax.random.key_impl(key)) != "threefry2x32":
        return key
    return jax.random.wrap_key_data(jax.random.key_data(key), impl=QUICK)


def plain(key: Key[Array, "*n"] | UInt32[Array, "*n _"]) -> Any:
    """Quick keys as JAX's own, for what users have written: not everything in `jax.random`
    takes another generator."""
    if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and jax.random.key_impl(key) == QUICK:
        return jax.random.wrap_key_data(jax.random.key_data(key), impl="threefry2x32")
    return key
