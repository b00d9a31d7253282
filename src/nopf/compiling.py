"""How much effort goes into compiling: as much as the time that a function runs is worth.

Users wait for the compiler more often than for what it makes. `eqx.filter_jit` is for what runs at
every step.
"""

import contextlib
import contextvars
import functools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

import equinox as eqx
import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

_P = ParamSpec("_P")
_T = TypeVar("_T")


_brief = contextvars.ContextVar("brief", default=False)


@contextlib.contextmanager
def in_brief() -> Iterator[None]:
    """Inside, vectors stay vectors and are not written out: for what is computed for a few
    particles only, and for what runs seldom."""
    token = _brief.set(True)
    try:
        yield
    finally:
        _brief.reset(token)


def is_brief() -> bool:
    """Whether vectors stay vectors here."""
    return _brief.get()


def run_once(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Compiled for a single run, with the least effort."""

    @functools.wraps(function)
    def briefly(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        with in_brief():
            return function(*args, **kwargs)

    return _compiled(briefly, 0)


def run_seldom(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Compiled for a few runs, or some hundred, with half the effort."""
    return _compiled(function, 2)


class Compiled:
    """A compiled function of a filter and of arrays.

    As with `eqx.filter_jit` the filter's arrays may change without compiling anew, and all else in
    it may not. But it is taken apart once and not at every call, which would take longer than a
    step of a small filter.

    Args:
        function: of a filter, of arrays, and of the keyword arguments named in `static`.
        level: how much effort, as in `run_seldom`; as much as there is if left out.
        static: names of arguments that are no arrays.
    """

    def __init__(
        self, function: Callable[..., Any], level: int | None = None, static: tuple[str, ...] = ()
    ):
        def of_parts(rest: _Rest, arrays: list[Any], *args: Any, **settings: Any) -> Any:
            return function(rest.joined(arrays), *args, **settings)

        self._compiled = jax.jit(
            of_parts,
            static_argnums=0,
            static_argnames=static,
            compiler_options=None if level is None else _options(level),
        )

    def __call__(self, flt: Any, *args: Any, **settings: Any) -> Any:
        return self._compiled(*apart(flt), *args, **settings)

    def lower(self, flt: Any, *args: Any, **settings: Any) -> Any:
        """As `jax.jit` has it."""
        return self._compiled.lower(*apart(flt), *args, **settings)


class _Rest:
    """What a tree holds beside arrays; two that hold the same are equal."""

    def __init__(self, leaves: list[Any], structure: Any):
        self._leaves, self._structure = leaves, structure
        # A user's object that cannot be hashed is equal to itself alone.
        self._same = structure, tuple(leaf if _hashable(leaf) else id(leaf) for leaf in leaves)
        self._hash = hash(self._same)

    def joined(self, arrays: list[Any]) -> Any:
        """The tree."""
        rest = iter(arrays)
        leaves = [next(rest) if leaf is _ARRAY else leaf for leaf in self._leaves]
        return jax.tree.unflatten(self._structure, leaves)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: Any) -> bool:
        return self is other or (isinstance(other, _Rest) and self._same == other._same)


def _hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


_ARRAY = object()  # stands where an array was
MOST_APART = 64
_apart: dict[int, tuple[Any, _Rest, list[Any]]] = {}


def apart(flt: Any) -> tuple[_Rest, list[Any]]:
    """A filter without its arrays, and these."""
    known = _apart.get(id(flt))
    if known is None:
        leaves, structure = jax.tree.flatten(flt)
        rest = [_ARRAY if eqx.is_array(leaf) else leaf for leaf in leaves]
        arrays = [jnp.asarray(leaf) for leaf in leaves if eqx.is_array(leaf)]
        # The filter is held as well, so that no other one gets its number.
        known = _apart[id(flt)] = (flt, _Rest(rest, structure), arrays)
        while len(_apart) > MOST_APART:
            _apart.pop(next(iter(_apart)), None)
    return known[1], known[2]


_seen: set[Any] = set()


def is_new(*signature: Any) -> bool:
    """Whether this has not been asked before."""
    if signature in _seen:
        return False
    _seen.add(signature)
    return True


def _trace() -> Any:
    return jax.extend.core.get_opaque_trace_state(convention="nnx")


def is_tracing() -> bool:
    """Whether JAX is tracing a function here, so that nothing is computed now."""
    return _trace() != _OUTSIDE


with ThreadPoolExecutor(1) as _elsewhere:  # A thread of its own traces nothing.
    _OUTSIDE = _elsewhere.submit(_trace).result()


def traced_once(function: Callable[..., _T], *args: Any) -> tuple[Callable[..., _T], Any]:
    """The function, and the shapes of what it gives: a loop has to make room for that before its
    first round, and to trace a long function takes longer than to repeat what was traced."""
    traced, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
    flat, structure = jax.extend.core.jaxpr_as_fun(traced), jax.tree.structure(shapes)
    return lambda *args: jax.tree.unflatten(structure, flat(*jax.tree.leaves(args))), shapes


def blank(shapes: Any, key: PRNGKeyArray | None) -> Any:
    """Arrays of these shapes, to compile a function for them ahead; keys are like this one."""

    def one(leaf: Any) -> Any:
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            assert key is not None
            return jnp.broadcast_to(key, leaf.shape) if leaf.shape else key
        return np.zeros(leaf.shape, leaf.dtype)

    return jax.tree.map(one, shapes)


def _compiled(function: Any, level: int) -> Any:
    return eqx.filter_jit(function, compiler_options=_options(level))  # type: ignore[call-overload]


def _options(level: int) -> dict[str, Any] | None:
    if "xla_backend_optimization_level" in os.environ.get("XLA_FLAGS", ""):
        return None  # Somebody has said how much effort to make.
    return {"xla_backend_optimization_level": level, "xla_cpu_use_fusion_emitters": False}
