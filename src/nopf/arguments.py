"""Arguments that users hand in: each check gives back the value, or a message that names it."""

import contextlib
import operator
import re
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from nopf.gaussian import are_numbers, shown

try:
    # JAX clamps an index that is too large, and has no public way to be told for one thread only
    # that it should not.
    from jax._src.config import check_static_indices as _check_static_indices
except ImportError:  # of another version of JAX
    _check_static_indices = contextlib.nullcontext  # type: ignore[assignment]

MOST = 2**31 - 1  # what JAX counts with, unless it runs in double precision


def check_key(key: Any) -> PRNGKeyArray:
    """The key, if it is one, and one only."""
    kind, axes = getattr(key, "dtype", None), np.ndim(key) if hasattr(key, "shape") else None
    # One of the old kind is an array of numbers.
    typed = kind is not None and jnp.issubdtype(kind, jax.dtypes.prng_key)
    if not (axes == 0 if typed else kind == jnp.uint32 and axes == 1):
        raise TypeError(
            f"key: expected a random key, for example jax.random.key(0), got {shown(key)}"
        )
    return key


def finite_number(value: Any, name: str) -> float:
    """`value` as a float, if it is a finite number; otherwise a message about `name`."""
    try:
        number = float(value) if are_numbers(np.asarray(value)) else np.nan
    except (TypeError, ValueError):
        number = np.nan
    except OverflowError:
        raise ValueError(f"{name}: expected a finite number, got one that is too large") from None
    if not np.isfinite(number):
        raise ValueError(f"{name}: expected a finite number, got {shown(value)}")
    return number


def positive_integer(value: Any, name: str) -> int:
    """`value` if it is a whole number of at least one; otherwise a message about `name`."""
    if isinstance(value, float | np.floating) and value.is_integer():  # 1e3
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name}: expected a positive whole number, got {shown(value)}")
    if value < 1:
        raise ValueError(f"{name}: expected at least 1, got {value}")
    if value > MOST:
        raise ValueError(f"{name}: expected at most {MOST}, since indices have 32 bits")
    return int(value)


def whole_numbers(values: Any, name: str) -> tuple[int, ...]:
    """`values` as a tuple, if they are whole numbers; otherwise a message about `name`."""
    try:
        return tuple(operator.index(value) for value in values)
    except (TypeError, ValueError):
        raise TypeError(f"{name}: expected whole numbers, got {shown(values)}") from None


def yes_or_no(value: Any, name: str) -> bool:
    """`value` if it is True or False."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name}: expected True or False, got {shown(value)}")
    return bool(value)


def share_of_one(value: Any, name: str) -> float:
    """`value` as a float, if it is a number from 0 to 1."""
    number = finite_number(value, name)
    if not 0 <= number <= 1:
        raise ValueError(f"{name}: expected a number from 0 to 1, got {shown(value)}")
    return number


def check_names(names: Any, size: int | None, argument: str, letter: str) -> tuple[str, ...]:
    """One name a coordinate, any number of them if `size` is None; `x0, x1, …` (by `letter`) if
    there are none."""
    if names is None:
        return tuple(f"{letter}{i}" for i in range(size or 0))
    given = names
    try:
        names = None if isinstance(names, str) else tuple(names)
    except TypeError:
        names = None
    if names is None:
        raise ValueError(f"{argument}: expected a tuple of names, got {shown(given)}")
    size = len(names) if size is None else size
    if len(names) != size or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{argument}: expected {size} names, got {shown(names)}")
    if len(set(names)) != size:
        raise ValueError(f"{argument}: expected different names, got {shown(names)}")
    return names


def check_angles(argument: str, angles: Any, names: tuple[str, ...]) -> tuple[int, ...]:
    """Indices of the coordinates that are angles, given by name or by index."""
    try:
        given = (angles,) if isinstance(angles, str) else tuple(angles)
    except TypeError:  # one of them
        given = (angles,)
    indices = []
    for angle in given:
        if isinstance(angle, str):
            if angle not in names:
                raise ValueError(
                    f"{argument}: unknown name {shown(angle)}; expected one of {', '.join(names)}"
                )
            angle = names.index(angle)
        if isinstance(angle, bool) or not isinstance(angle, int | np.integer):
            raise ValueError(f"{argument}: expected names or indices, got {shown(angle)}")
        if not 0 <= angle < len(names):
            raise ValueError(
                f"{argument}: expected indices from 0 to {len(names) - 1}, got {angle}"
            )
        indices.append(int(angle))
    return tuple(indices)


def check_origin(
    origin: Any, names: tuple[str, ...], angles: tuple[int, ...], known: tuple[str, ...]
) -> tuple[float, ...] | None:
    """The place that the coordinates with these names are counted from; None if that is zero.

    Args:
        origin: a mapping from names to numbers, or None.
        names: of the coordinates.
        angles: which of them are angles.
        known: all names that may be in the mapping.
    """
    if origin is None:
        return None
    if not isinstance(origin, Mapping):
        raise TypeError(
            "origin: expected numbers by the names of states and observations, for example "
            f"{{{known[0]!r}: 5e6}}, got {origin!r}"
        )
    for name in origin:
        if name not in known:
            raise ValueError(f"origin: unknown name {name!r}; expected one of {', '.join(known)}")
    for i in angles:
        if names[i] in origin:
            raise ValueError(f"origin: {names[i]!r} is an angle, which is counted from zero")
    if not any(name in origin for name in names):
        return None
    return tuple(finite_number(origin.get(name, 0.0), f"origin[{name!r}]") for name in names)


def as_array(value: Any) -> Array:
    """What a user's function returned, as a float array; a list of numbers will do."""
    if isinstance(value, list | tuple):
        # Vectorised over particles, jnp.array of a list is nine times slower than jnp.stack.
        value = jnp.stack([jnp.asarray(entry, float) for entry in value])
    return jnp.asarray(value, float)


def shape_of(*shape: int) -> jax.ShapeDtypeStruct:
    """Stands for a float array of this shape."""
    return jax.ShapeDtypeStruct(shape, jax.dtypes.canonicalize_dtype(float))


def some_key() -> Any:
    """Stands for a random key."""
    return jax.eval_shape(lambda: jax.random.key(0))


class ControlIsRead(Exception):
    """A model's function has used `step.control` while nobody knows yet how many there are."""


class UnknownControl:
    """Stands in for `step.control` in trial calls. It can be handed on; any use of it raises."""

    def __getattr__(self, name: str) -> Any:
        raise ControlIsRead

    def _use(self, *_: Any) -> Any:
        raise ControlIsRead


_ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul")
_COMPARED = ("lt", "le", "gt", "ge", "contains", "getitem", "iter", "len", "neg", "pos", "abs")
_CONVERTED = ("bool", "int", "float", "complex", "index", "array", "jax_array")
for _name in (*_ARITHMETIC, *(f"r{n}" for n in _ARITHMETIC), *_COMPARED, *_CONVERTED):
    setattr(UnknownControl, f"__{_name}__", UnknownControl._use)


class OutOfRange(ValueError):
    """A model's function has used an index that its argument does not have."""


def trial_shape(
    name: str, signature: str, function: Callable[..., Any], *args: Any
) -> tuple[int, ...]:
    """The shape of `function(*args)`; trouble inside it is reported under its name."""
    where: list[str | None] = []

    def tried(*args: Any) -> Array:
        try:
            value = function(*args)
        except IndexError as error:
            where.append(_indexed(error, signature, args))
            raise
        _expect_real(value)
        return as_array(value)

    try:
        with _check_static_indices(True):
            return eqx.filter_eval_shape(tried, *args).shape
    except ControlIsRead:
        raise
    except Exception as error:
        clamped = _CLAMPED.match(str(error)) if isinstance(error, IndexError) else None
        if clamped is not None:
            raise OutOfRange(
                f"{name}: {_out_of_range(clamped[1], clamped[2], where[0])}"
            ) from error
        for kind, advice in _ADVICE:
            if isinstance(error, kind):
                raise ValueError(f"{name}: {advice}") from error
        # The first line says what was wrong; the rest is in the error that this one comes from.
        said = str(error).partition("\n")[0]
        raise ValueError(
            f"{name}: calling {name}{signature} for one particle raised "
            f"{type(error).__name__}: {said}"
        ) from error


class _NotReal(TypeError):
    """A model's function has returned something that is no real number."""


def _expect_real(value: Any) -> None:
    leaves = jax.tree.leaves(value)
    if any(isinstance(leaf, str | bytes) or jnp.iscomplexobj(leaf) for leaf in leaves):
        raise _NotReal


# What JAX says of them takes ten lines each. The first that fits.
_ADVICE = (
    (_NotReal, "expected real numbers to be returned, got complex ones or strings"),
    (
        jax.errors.TracerArrayConversionError,
        "np.sin and other NumPy functions cannot be used on its arguments; use jnp.sin and the "
        "like",
    ),
    (
        jax.errors.TracerBoolConversionError,
        "if, and, or, max and the like cannot be used on its arguments; use jnp.where instead of "
        "if, jnp.maximum instead of max",
    ),
    (
        jax.errors.NonConcreteBooleanIndexError,
        "x[x > 0] and the like cannot be used, since the size is not known before; use jnp.where",
    ),
    (
        jax.errors.TracerIntegerConversionError,
        "its arguments cannot be the index of a list or the end of a range; use jnp.asarray of "
        "the list, jax.lax.fori_loop instead of range",
    ),
    (
        jax.errors.ConcretizationTypeError,
        "float, int, math.sin and the like cannot be used on its arguments; leave float out, and "
        "use jnp.sin and the like",
    ),
)


_CLAMPED = re.compile(r"index (-?\d+) out of bounds for axis \d+ with size (\d+)")
_MEANING = {
    "x": "the state",
    "y": "the observation",
    "noise": "the noise",
    "step.control": "the control",
}


def _out_of_range(index: str, size: str, where: str | None) -> str:
    numbers = "1 number" if size == "1" else f"{size} numbers"
    if where is None:
        return f"index {index} is out of range for an array of {numbers}"
    return f"{where}[{index}] is out of range: {_MEANING[where]} has {numbers}"


def _indexed(error: IndexError, signature: str, args: tuple[Any, ...]) -> str | None:
    """The argument whose index is out of range: what JAX had in hand when it said so. None if that
    is another array."""
    names = signature[signature.index("(") + 1 : -1].split(", ")
    arrays = dict(zip(names, args, strict=True))
    arrays["step.control"] = getattr(arrays.get("step"), "control", None)
    in_hand: list[Any] = []
    for frame, _ in traceback.walk_tb(error.__traceback__):
        inside = frame.f_globals.get("__name__", "").startswith("jax.")
        in_hand = [*in_hand, *frame.f_locals.values()] if inside else []
    for name in _MEANING:
        if arrays.get(name) is not None and any(held is arrays[name] for held in in_hand):
            return name
    return None


def expect_shape(
    name: str, signature: str, shape: tuple[int, ...], function: Callable[..., Any], *args: Any
) -> None:
    """Calls the function on shapes, and says if it gives another one."""
    found = trial_shape(name, signature, function, *args)
    if found != shape:
        raise ValueError(f"{name}: expected {name}{signature} of shape {shape}, got {found}")
