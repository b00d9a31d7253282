"""How arrays over particles lie in memory: particles innermost.

XLA turns functions of one particle into loops whose innermost extent is that of the last axis in
memory. As rows that is a state of a few numbers, and nothing is vectorised.
"""

import functools
import operator
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.custom_batching
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array

from nopf.compiling import is_brief
from nopf.crowd import total

Tree = TypeVar("Tree")

MANY = 24  # coordinates; up to so many are written out


def written_out(size: int) -> bool:
    """Whether a vector of so many coordinates is written out one by one."""
    return size <= MANY and not is_brief()


def by_column(tree: Tree) -> Tree:
    """The same arrays, `(N, …)`, each coordinate of all particles in one piece of memory."""
    return jax.tree.map(lambda values: _in_order(values, (*range(1, values.ndim), 0)), tree)


# Not JAX's own constraint, but one that holds in compiled code alone: outside of it, an array in
# another order than usual is misread by the next compiled function.
_ordered = Primitive("nopf_ordered")
_ordered.def_impl(lambda values, order: values)
_ordered.def_abstract_eval(lambda values, order: values)
mlir.register_lowering(
    _ordered,
    mlir.lower_fun(
        lambda values, order: with_layout_constraint(values, Layout(order)), multiple_results=False
    ),
)
ad.deflinear2(_ordered, lambda tangent, _, order: [_in_order(tangent, order)])


def _in_order(values: Array, order: tuple[int, ...]) -> Array:
    return values if values.ndim < 2 else _ordered.bind(values, order=order)


def _ordered_batch(
    args: tuple[Array], axes: tuple[int], *, order: tuple[int, ...]
) -> tuple[Array, int]:
    values = jnp.moveaxis(args[0], axes[0], 0)
    return _in_order(values, (0, *(axis + 1 for axis in order))), 0


batching.primitive_batchers[_ordered] = _ordered_batch


def columns_at_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of shared parameters and of one particle's vectors, which for many particles is
    given each kind of vector as the columns of one matrix, and gives its results as columns too.

    So matrix products find particles innermost. A vector that is the same for all stays one.
    """

    @jax.custom_batching.custom_vmap
    def of_one(shared: Any, *vectors: Array) -> Any:
        return function(shared, *vectors)

    @of_one.def_vmap
    def of_many(size: int, is_batched: Any, shared: Any, *vectors: Array) -> tuple[Any, Any]:
        if any(jax.tree.leaves(is_batched[0])):
            axes = jax.tree.map(lambda batched: 0 if batched else None, tuple(is_batched))
            result = jax.vmap(function, in_axes=axes, axis_size=size)(shared, *vectors)
        else:
            # Without the barriers XLA would turn the matrices back to rows in the products.
            hold = jax.lax.optimization_barrier
            columns = [
                hold(by_column(values).T) if batched else values
                for values, batched in zip(vectors, is_batched[1:], strict=True)
            ]
            matrices = hold(function(shared, *columns))
            result = jax.tree.map(lambda values: by_column(values.T), matrices)
        return result, jax.tree.map(lambda _: True, result)

    return of_one


def one_by_one(function: Callable[..., Any], *vectors: Any) -> Array:
    """A function of numbers for each coordinate of some vectors.

    Few are written out: each is then one array over particles, and what is not needed is
    not computed. As vectors they would have to be put together and taken apart again.
    """
    size = vectors[0].shape[-1]
    if not written_out(size):
        return function(*vectors)
    parts = [jnp.unstack(jnp.asarray(vector), axis=-1) for vector in vectors]
    return jnp.stack([function(*entries) for entries in zip(*parts, strict=True)], axis=-1)


def summed(function: Callable[..., Any], *vectors: Any) -> Array:
    """The sum of a function of numbers over the coordinates of some vectors."""
    if not written_out(vectors[0].shape[-1]):
        return jnp.sum(function(*vectors), axis=-1)
    parts = [jnp.unstack(jnp.asarray(vector), axis=-1) for vector in vectors]
    terms = [function(*entries) for entries in zip(*parts, strict=True)]
    return functools.reduce(operator.add, terms)


def weighted_sums(weights: Array, values: Array, axis: str | None = None) -> Array:
    """Σ wᵢ vᵢ over the rows of `values`, of all devices if they are spread over an `axis`.

    Column by column: with particles innermost that is ten times faster than a product of matrices,
    which also loses digits over millions of rows.
    """
    if values.shape[1] == 0 or values.shape[1] > MANY:
        return total(weights @ values, axis)
    columns = jnp.unstack(values, axis=1)
    return total(jnp.stack([jnp.dot(weights, column) for column in columns]), axis)


def square(vector: Any) -> Array:
    """The sum of the squares of a vector's coordinates."""
    return summed(jnp.square, vector)
