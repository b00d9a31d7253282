"""The compiled loops of all filters: one update, a series, a batch of series.

A `flt` here is a `Filter`: it begins, updates, judges by p-values, and gives an ensemble.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from nopf.filters.health import Surprise
from nopf.steps import Step


def take_in(flt: Any, last: Any, y: Array, step: Step) -> Any:
    belief, surprise = last
    updated = flt.update(belief, y, step)
    p_value = nominal = jnp.full((), jnp.nan)
    if flt.health:
        p_value, nominal = flt.p_values(updated.prediction, y, step)
        surprise = surprise.add(p_value)
    drift = surprise.drift()
    info = updated.info._replace(p_value=p_value, nominal_p_value=nominal, drift=drift)
    return (updated.belief, surprise), info


def scan(flt: Any, last: Any, ys: Array, steps: Step, keep: bool) -> Any:
    def advance(last: Any, inputs: Any) -> Any:
        last, info = take_in(flt, last, *inputs)
        return last, (info, flt.ensemble(last[0]) if keep else (None, None))

    return jax.lax.scan(advance, last, (ys, steps))


@eqx.filter_jit
def compiled_begin(flt: Any, key: Any) -> Any:
    return flt.begin(key)


@eqx.filter_jit
def compiled_update(flt: Any, last: Any, y: Array, step: Step) -> Any:
    return take_in(flt, last, y, step)


@eqx.filter_jit
def compiled_run(flt: Any, key: Any, ys: Array, steps: Step, keep: bool) -> Any:
    return scan(flt, (flt.begin(key), Surprise.none()), ys, steps, keep)


@eqx.filter_jit
def compiled_continuation(flt: Any, last: Any, ys: Array, steps: Step, keep: bool) -> Any:
    return scan(flt, last, ys, steps, keep)


@eqx.filter_jit
def compiled_batch(flt: Any, keys: Any, ys: Array, steps: Step, keep: bool) -> Any:
    def one(key: Any, ys: Array) -> Any:
        return scan(flt, (flt.begin(key), Surprise.none()), ys, steps, keep)

    return jax.vmap(one)(keys, ys)
