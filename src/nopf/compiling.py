"""How much effort goes into compiling: as much as the time that a function runs is worth.

Users wait for the compiler more often than for what it makes. `eqx.filter_jit` is for what runs at
every step.
"""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
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


_seen: set[int] = set()


def is_new(name: str, arguments: Any) -> bool:
    """Whether a function has not been asked about with arguments of these shapes before; if in
    doubt, it has."""
    leaves, structure = jax.tree.flatten(arguments)
    kinds = [(leaf.shape, leaf.dtype) if hasattr(leaf, "dtype") else leaf for leaf in leaves]
    try:
        signature = hash((name, structure, tuple(kinds)))
    except TypeError:  # A user's object need not be hashable.
        return False
    if signature in _seen:
        return False
    _seen.add(signature)
    return True


def blank(shapes: Any, key: PRNGKeyArray) -> Any:
    """Arrays of these shapes, to compile a function for them ahead; keys are like this one."""

    def one(leaf: Any) -> Any:
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jnp.broadcast_to(key, leaf.shape)
        return jnp.zeros(leaf.shape, leaf.dtype)

    return jax.tree.map(one, shapes)


def _compiled(function: Any, level: int) -> Any:
    options = {"xla_backend_optimization_level": level, "xla_cpu_use_fusion_emitters": False}
    return eqx.filter_jit(function, compiler_options=options)  # type: ignore[call-overload]
