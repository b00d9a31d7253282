"""Arguments that users hand in: each check gives back the value, or a message that names it."""

import contextlib
import re
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

try:
    # JAX clamps an index that is too large, and has no public way to be told for one thread only
    # that it should not.
    from jax._src.config import check_static_indices as _check_static_indices
except ImportError:  # of another version of JAX
    _check_static_indices = contextlib.nullcontext  # type: ignore[assignment]


def check_key(key: Any) -> PRNGKeyArray:
    """The key, if there is one."""
    kind = getattr(key, "dtype", None)
    if kind is None or not (jnp.issubdtype(kind, jax.dtypes.prng_key) or kind == jnp.uint32):
        raise TypeError(f"key: expected a random key, for example jax.random.key(0), got {key!r}")
    return key


def finite_number(value: Any, name: str) -> float:
    """`value` as a float, if it is a finite number; otherwise a message about `name`."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = np.nan
    if not np.isfinite(number):
        raise ValueError(f"{name}: expected a finite number, got {value!r}")
    return number


def positive_integer(value: Any, name: str) -> int:
    """`value` if it is a whole number of at least one; otherwise a message about `name`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name}: expected a positive whole number, got {value!r}")
    if value < 1:
        raise ValueError(f"{name}: expected at least 1, got {value}")
    return int(value)


def share_of_one(value: Any, name: str) -> float:
    """`value` as a float, if it is a number from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError(f"{name}: expected a number from 0 to 1, got {value!r}")
    return float(value)


def check_names(
    names: Sequence[str] | None, size: int, argument: str, letter: str
) -> tuple[str, ...]:
    """One name a coordinate; `x0, x1, …` (by `letter`) if there are none."""
    if names is None:
        return tuple(f"{letter}{i}" for i in range(size))
    names = tuple(names)
    if len(names) != size or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{argument}: expected {size} names, got {names!r}")
    if len(set(names)) != size:
        raise ValueError(f"{argument}: expected different names, got {names!r}")
    return names


def check_angles(
    argument: str, angles: Sequence[str | int] | str | int, names: tuple[str, ...]
) -> tuple[int, ...]:
    """Indices of the coordinates that are angles, given by name or by index."""
    if isinstance(angles, str | int):
        angles = (angles,)
    indices = []
    for angle in angles:
        if isinstance(angle, str):
            if angle not in names:
                raise ValueError(f"{argument}: no name is {angle!r}; there are {', '.join(names)}")
            angle = names.index(angle)
        if not 0 <= angle < len(names):
            raise ValueError(
                f"{argument}: expected indices from 0 to {len(names) - 1}, got {angle}"
            )
        indices.append(int(angle))
    return tuple(indices)


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

    def tried(*args: Any) -> Array:
        try:
            value = function(*args)
        except IndexError as error:
            found = _CLAMPED.match(str(error))
            if found is None:
                raise
            index, size = found[1], f"{found[2]} number{'' if found[2] == '1' else 's'}"
            where = _indexed(error, signature, args)
            raise OutOfRange(
                f"{name}: {where}[{index}] is out of range: {_MEANING[where]} has {size}"
                if where
                else f"{name}: index {index} is out of range for an array of {size}"
            ) from error
        return as_array(value)

    try:
        with _check_static_indices(True):
            return eqx.filter_eval_shape(tried, *args).shape
    except (ControlIsRead, OutOfRange):
        raise
    except Exception as error:
        raise ValueError(
            f"{name}: calling {name}{signature} for one particle raised "
            f"{type(error).__name__}: {error}"
        ) from error


_CLAMPED = re.compile(r"index (-?\d+) out of bounds for axis \d+ with size (\d+)")
_MEANING = {
    "x": "the state",
    "y": "the observation",
    "noise": "the noise",
    "step.control": "the control",
}


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
