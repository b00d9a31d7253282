"""Posteriors in files: arrays and a JSON header, as proposals are kept."""

import os
import textwrap
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nopf.arguments import MOST, check_names, finite_number
from nopf.files import FileError, fill, named_leaves, read_arrays, write_arrays
from nopf.filters.inputs import check_quantiles
from nopf.plots import plane_of
from nopf.robust import Outliers, StudentT, Tails
from nopf.space import Space
from nopf.steps import Step

KIND = "nopf posterior"
TAILS: dict[str, tuple[type[Tails], tuple[str, ...]]] = {
    "outliers": (Outliers, ("rate", "scale")),
    "student_t": (StudentT, ("freedom",)),
}
# Of each step: what an `Info` says, and whether it is of a kind of its own.
BAD_HEADER = (LookupError, TypeError, ValueError, OverflowError, RecursionError)
SIGNS = ("log_evidence_increment", "p_value", "nominal_p_value", "drift")
KINDS = {"collapsed": bool, "nan_states": np.int32, "nan_weights": np.int32}


def write(path: str | os.PathLike[str], found: Any) -> None:
    """Writes a posterior, whole or not at all."""
    *series, steps, states = found.mean.shape
    kept = found.particles
    control = found.steps.control
    header = {
        "series": series[0] if series else None,
        "steps": steps,
        "states": states,
        "observations": found.observations.shape[-1],
        "controls": None if control is None else control.shape[-1],
        "weighted": found.ess is not None,
        "kept": None if kept is None else kept.shape[-2],
        "state_names": found.state_names,
        "state_angles": found.space.angles,
        "origin": found.space.origin,
        "observation_names": found.observation_names,
        "quantile_levels": found.quantile_levels,
        "tails": _described(found.tails),
        "recover": found.recover,
        "particle_count": found.particle_count,
        "plane": found.plane,
        "state": None if found.state is None else _where(found.state),
    }
    whole = {"posterior": _arrays(found), "state": _plain_keys(_moving(found.state))}
    write_arrays(path, KIND, header, named_leaves(whole))


def read(path: str | os.PathLike[str], flt: Any = None) -> dict[str, Any]:
    """The fields of a posterior, those of its `Info` as a dictionary.

    Args:
        path: what `write` wrote.
        flt: the filter that made it, whose state it has; without it, that is left away.
    """
    header, arrays = read_arrays(path, KIND)
    given = {name: a for name, a in arrays.items() if not name.startswith("['state']")}
    try:
        fields, empty = _blank(header)
    except BAD_HEADER as error:
        raise _misfit(path, error) from None
    fill({"posterior": empty}, given, path)  # before anything is made of the size that it asks for
    try:
        state = _begun(flt, header, len(arrays))
    except BAD_HEADER as error:
        raise _misfit(path, error) from None
    if flt is not None and state is None:
        raise FileError(f"{path}: it holds no state of a filter; load it without one")
    own = arrays if flt is not None else given
    whole = {"posterior": empty, "state": _plain_keys(_moving(state))}
    try:
        found = fill(whole, own, path)
    except FileError as error:
        if "['state']" not in str(error):
            raise
        raise FileError(f"{error}; is it the filter that made it?") from None
    if state is not None:
        # On a device, as a filter leaves it; the keys are keys again.
        moving = jax.tree.map(_like, _moving(state), found["state"])
        where, before = header["state"], moving["before"]
        if before is not None:
            before = tuple(jax.tree.map(np.asarray, before))
        state = state._replace(
            belief=moving["belief"],
            surprise=moving["surprise"],
            before=before,
            index=where["index"],
            time=where["time"],
        )
    return fields | found["posterior"] | {"state": state}


def _misfit(path: str | os.PathLike[str], error: Exception) -> FileError:
    reason = textwrap.shorten(str(error), 300)
    return FileError(f"{path}: the header does not fit this version of nopf: {reason}")


def _arrays(found: Any) -> dict[str, Any]:
    return {
        "info": found.info._asdict(),
        "particles": found.particles,
        "log_weights": found.log_weights,
        "times": found.times,
        "observations": found.observations,
        "steps": found.steps,
    }


def _blank(header: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a header says in words, and shapes of the arrays that should be there. Nothing of the
    size that a header asks for is made."""
    sizes = {name: _whole(name, header[name]) for name in ("steps", "states", "observations")}
    t, d, m = sizes.values()
    series = header["series"]
    lead = () if series is None else (_whole("series", series),)
    if type(header["weighted"]) is not bool:
        raise ValueError("weighted: expected true or false")
    levels = check_quantiles(header["quantile_levels"])
    origin, recover, count = (header[name] for name in ("origin", "recover", "particle_count"))
    fields = {
        "space": Space(d, header["state_angles"], None if origin is None else _numbers(origin, d)),
        "state_names": _names(header, "state_names", d),
        "observation_names": _names(header, "observation_names", m),
        "quantile_levels": levels,
        "tails": _tails(header["tails"]),
        "recover": None if recover is None else finite_number(recover, "recover"),
        "particle_count": None if count is None else _whole("particle_count", count),
        "plane": None,
    }
    if header["plane"] is not None:
        names = _names(header, "state_names", d)
        fields["plane"] = tuple(names[i] for i in plane_of(names, header["plane"]))

    def shape(*rest: int, of: Any = float) -> jax.ShapeDtypeStruct:
        # Of a kind only: files in single and in double precision are as good.
        return jax.ShapeDtypeStruct((*lead, t, *rest), jax.dtypes.canonicalize_dtype(of))

    info: dict[str, Any] = {name: shape() for name in SIGNS} | {
        name: shape(of=k) for name, k in KINDS.items()
    }
    info |= {"mean": shape(d), "cov": shape(d, d), "error": shape(d), "innovation": shape(m)}
    info |= {"quantiles": shape(len(levels), d), "ess": shape() if header["weighted"] else None}
    kept, controls = header["kept"], header["controls"]
    n = None if kept is None else _whole("kept", kept)
    u = None if controls is None else _whole("controls", controls, 0)
    time = jax.ShapeDtypeStruct((t,), np.float64)
    steps = Step(
        jax.ShapeDtypeStruct((t,), np.int32),
        time,
        time,
        None if u is None else jax.ShapeDtypeStruct((t, u), np.float64),
    )
    empty = {
        "info": info,
        "particles": None if n is None else shape(n, d),
        "log_weights": None if n is None else shape(n),
        "times": time,
        "observations": shape(m),
        "steps": steps,
    }
    return fields, empty


def _where(state: Any) -> dict[str, Any]:
    """What is no array in a filter's state."""
    leaves = jax.tree.leaves(state.belief)
    return {
        "index": int(np.max(state.index)),
        "time": float(np.max(state.time)),
        "keyed": any(_is_key(leaf) for leaf in leaves),
        "before": None if state.before is None else len(state.before),
    }


def _begun(flt: Any, header: dict[str, Any], most: int) -> Any:
    """A state of this filter like the one of which a file with so many arrays speaks; None without
    a filter."""
    where = header["state"]
    if flt is None or where is None:
        return None
    index, before = _whole("index", where["index"], 0), where["before"]
    finite_number(where["time"], "time")
    state = flt.init(jax.random.key(0) if where["keyed"] else None)
    if header["series"] is not None:
        raise ValueError("after run_batch there is a state a series: load it without a filter")
    if before is not None:
        # Steps without an observation since the prior: no more than there were steps.
        control = None if header["controls"] is None else np.broadcast_to(0.0, header["controls"])
        step = Step(np.zeros((), np.int32), np.zeros(()), np.zeros(()), control)
        before = (step,) * min(_whole("before", before, 0), index, header["steps"], most)
    return state._replace(before=before)


def _moving(state: Any) -> Any:
    """The arrays of a state: all but its index and its time."""
    if state is None:
        return None
    return {"belief": state.belief, "surprise": state.surprise, "before": state.before}


def _is_key(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _plain_keys(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: jax.random.key_data(leaf) if _is_key(leaf) else leaf, tree)


def _like(leaf: Any, array: np.ndarray) -> Any:
    if _is_key(leaf):
        return jax.random.wrap_key_data(jnp.asarray(array), impl=jax.random.key_impl(leaf))
    return jnp.asarray(array) if isinstance(leaf, jax.Array) else array


def _described(tails: Tails | None) -> dict[str, Any] | None:
    if tails is None:
        return None
    for name, (kind, arguments) in TAILS.items():
        if type(tails) is kind:
            return {"kind": name} | {a: getattr(tails, a) for a in arguments}
    raise TypeError(
        f"robust: a posterior with {type(tails).__name__} cannot be written; expected a model "
        "with nopf.Outliers, nopf.StudentT or none"
    )


def _tails(described: Any) -> Tails | None:
    if described is None:
        return None
    kind, arguments = TAILS[described["kind"]]
    return kind(*(described[name] for name in arguments))


def _names(header: dict[str, Any], name: str, size: int) -> tuple[str, ...]:
    if not isinstance(header[name], list):
        raise ValueError(f"{name}: expected a list, got {str(header[name])[:40]}")
    return check_names(header[name], size, name, "")


def _whole(name: str, value: Any, low: int = 1) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= MOST:
        raise ValueError(f"{name}: expected a whole number from {low}, got {str(value)[:40]}")
    return value


def _numbers(values: Any, size: int) -> tuple[float, ...]:
    numbers = tuple(finite_number(value, "origin") for value in values)
    if len(numbers) != size:
        raise ValueError(f"origin: expected {size} numbers, got {len(numbers)}")
    return numbers
