"""The compiled loops of all filters: one update, a series, a batch of series.

A `flt` here is a `Filter`: it begins, updates, judges by p-values, and gives an ensemble.
"""

import copy
import functools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array

from nopf.compiling import blank, is_new, run_seldom
from nopf.filters.health import Surprise
from nopf.keys import quick
from nopf.steps import Step


def take_in(flt: Any, last: Any, y: Array, step: Step, update: Any = None) -> Any:
    belief, surprise = last
    updated = (flt.update if update is None else update)(belief, y, step)
    p_value = nominal = jnp.full((), jnp.nan)
    if flt.health:
        p_value, nominal = flt.p_values(updated.prediction, y, step)
        surprise = surprise.add(p_value)
    drift = surprise.drift()
    info = updated.info
    error = jnp.broadcast_to(info.error, info.mean.shape)  # of filters that do not say
    info = info._replace(p_value=p_value, nominal_p_value=nominal, drift=drift, error=error)
    return (updated.belief, surprise), info


def scan(flt: Any, last: Any, ys: Array, steps: Step, keep: bool, met: Any = None) -> Any:
    """A series, from a belief on.

    Args:
        flt: the filter.
        last: the belief, and the monitor's state.
        ys, steps: the series.
        keep: whether to keep particles.
        met: what its first observation has made of the belief (`flt.meet`), if that is not a step
            like any other.
    """

    def advance(last: Any, inputs: Any) -> Any:
        y, step, now = inputs
        update = flt.update if met is None else functools.partial(flt.update, met=met, now=now)
        last, info = take_in(flt, last, y, step, update)
        return last, (info, flt.ensemble(last[0]) if keep else (None, None))

    now = None if met is None else jnp.arange(ys.shape[0]) == 0
    return jax.lax.scan(advance, last, (ys, steps, now))


def opened(
    flt: Any, last: Any, ys: Array, steps: Step, keep: bool, before: Step | None = None
) -> Any:
    """A series whose first observation is met by a step of its own, written apart: vectorised over
    series, one that is chosen at run time would be computed at every step."""
    first = functools.partial(flt.first, before=before)
    last, info = take_in(flt, last, ys[0], part(steps, 0), first)
    ensemble = flt.ensemble(last[0]) if keep else (None, None)
    outcome = jax.tree.map(lambda leaf: leaf[None], (info, ensemble))
    if ys.shape[0] == 1:
        return last, outcome
    coming = slice(1, None)
    last, rest = scan(flt, last, ys[coming], part(steps, coming), keep)
    return last, joined([outcome, rest])


def whole(flt: Any, key: Any, ys: Array, steps: Step, keep: bool, blind: int | None) -> Any:
    """One of several series, from the prior on.

    Args:
        flt: the filter.
        key: random key.
        ys, steps: the series.
        keep: whether to keep particles.
        blind: how many steps have no observation before the first that has one, which is met by a
            step of its own; None if it is a step like any other.
    """
    last = flt.begin(key), Surprise.none()
    if blind is None or blind == ys.shape[0]:
        return scan(flt, last, ys, steps, keep)
    if not blind:
        return opened(flt, last, ys, steps, keep)
    passed, coming = part(steps, slice(blind)), slice(blind, None)
    last, first = scan(flt, last, ys[:blind], passed, keep)
    last, rest = opened(flt, last, ys[coming], part(steps, coming), keep, passed)
    return last, joined([first, rest])


def part(series: Any, which: slice | int) -> Any:
    """Some steps of a series, or one of them."""
    return jax.tree.map(lambda leaf: leaf[which], series)


def joined(outcomes: list[Any]) -> Any:
    """What was said of the parts of a series, as of one."""
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *outcomes)


def on_all(flt: Any, function: Any, inputs: tuple[Any, ...], outputs: Any) -> Any:
    """The function, run on every device that a belief is spread over.

    Args:
        flt: the filter.
        function: of arrays.
        inputs: for each argument how it is spread: `BELIEF`, or None if it is everywhere.
        outputs: the same for what it gives.
    """
    if flt.over is None:
        return function
    mesh, belief = flt.over
    (axis,) = mesh.axis_names
    kinds = {
        None: PartitionSpec(),
        BELIEF: (belief, PartitionSpec()),  # beside it the monitor's state, which is everywhere
        ENSEMBLE: PartitionSpec(None, axis),
    }

    def specs(tree: Any) -> Any:
        return jax.tree.map(lambda kind: kinds[kind], tree, is_leaf=lambda kind: kind is None)

    return jax.shard_map(
        function, mesh=mesh, in_specs=specs(inputs), out_specs=specs(outputs), check_vma=False
    )


BELIEF, ENSEMBLE = "belief", "ensemble"


@eqx.filter_jit
def compiled_begin(flt: Any, key: Any) -> Any:
    begin = on_all(flt, lambda key: (flt.begin(key), Surprise.none()), (None,), BELIEF)
    return begin(key)[0]


@eqx.filter_jit
def compiled_update(flt: Any, last: Any, y: Array, step: Step) -> Any:
    update = functools.partial(take_in, flt)
    return on_all(flt, update, (BELIEF, None, None), (BELIEF, None))(last, y, step)


def first_of_series(flt: Any, last: Any, y: Array, step: Step, before: Step | None) -> Any:
    def first(last: Any, y: Array, step: Step) -> Any:
        return take_in(flt, last, y, step, functools.partial(flt.first, before=before))

    return on_all(flt, first, (BELIEF, None, None), (BELIEF, None))(last, y, step)


compiled_first: Any = run_seldom(first_of_series)  # once in a series


def meet(flt: Any, key: Any, belief: Any, y: Array, step: Step, before: Step | None) -> Any:
    """A belief, begun if there is none, and what the first observation makes of it."""
    belief = flt.begin(key) if belief is None else belief
    return belief, flt.meet(belief, y, step, before)


compiled_meet: Any = run_seldom(meet)


@eqx.filter_jit
def compiled_run(flt: Any, key: Any, ys: Array, steps: Step, keep: bool) -> Any:
    def run(key: Any, ys: Array, steps: Step) -> Any:
        return scan(flt, (flt.begin(key), Surprise.none()), ys, steps, keep)

    return on_all(flt, run, (None, None, None), (BELIEF, (None, ENSEMBLE)))(key, ys, steps)


@eqx.filter_jit
def compiled_continuation(
    flt: Any, last: Any, ys: Array, steps: Step, keep: bool, met: Any = None
) -> Any:
    def run(last: Any, ys: Array, steps: Step) -> Any:
        return scan(flt, last, ys, steps, keep, met)

    return on_all(flt, run, (BELIEF, None, None), (BELIEF, (None, ENSEMBLE)))(last, ys, steps)


def met_and_continued(
    flt: Any,
    key: Any,
    belief: Any,
    surprise: Surprise,
    ys: Any,
    steps: Step,
    keep: bool,
    before: Step | None,
) -> Any:
    """A series whose first observation is met by a step of its own, compiled apart: with less
    effort, and at the same time as the rest."""
    first = jax.tree.map(jnp.asarray, (ys[0], part(steps, 0)))
    meeting = flt, key, belief, *first, before

    def continuing(met: Any) -> Any:
        return flt, (met[0], surprise), ys, steps, keep, met[1]

    if is_new("met_and_continued", (meeting, ys, steps, keep)):
        lowered = compiled_meet.lower(*meeting)
        with ThreadPoolExecutor(1) as beside:
            compiled = beside.submit(lowered.compile)
            _, shapes, _ = lowered.lowered.out_info
            like = quick(key) if belief is None else belief.key
            ahead: Any = compiled_continuation
            ahead.lower(*continuing(blank(shapes, like))).compile()
            compiled.result()
    return compiled_continuation(*continuing(compiled_meet(*meeting)))


@eqx.filter_jit
def compiled_opened(
    flt: Any, last: Any, ys: Array, steps: Step, keep: bool, before: Step | None
) -> Any:
    def run(last: Any, ys: Array, steps: Step) -> Any:
        return opened(flt, last, ys, steps, keep, before)

    return on_all(flt, run, (BELIEF, None, None), (BELIEF, (None, ENSEMBLE)))(last, ys, steps)


@eqx.filter_jit
def compiled_batch(
    flt: Any, keys: Any, ys: Array, steps: Step, keep: bool, blind: int | None
) -> Any:
    over, alone = flt.over, on_one_device(flt)

    def one(key: Any, ys: Array) -> Any:
        return whole(alone, key, ys, steps, keep, blind)

    batch = jax.vmap(one)
    if over is None:
        return batch(keys, ys)
    # Whole series are spread over the devices, not particles.
    spread = PartitionSpec(over[0].axis_names[0])
    return jax.shard_map(
        batch, mesh=over[0], in_specs=(spread, spread), out_specs=spread, check_vma=False
    )(keys, ys)


def on_one_device(flt: Any) -> Any:
    """The same filter with all its particles on one device."""
    if flt.over is None:
        return flt
    alone = copy.copy(flt)
    object.__setattr__(alone, "mesh", None)
    return alone
