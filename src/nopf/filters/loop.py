"""The compiled loops of all filters: so many steps of a series, and a batch of series.

A `flt` here is a `Filter`: it begins, updates, judges by p-values, and gives an ensemble.

One compiled loop serves `run`, `step` and `resume`, whatever the length of a series: it goes over
`ROWS` rows at most and is told how many of them count. So a recording of another length compiles
nothing anew, and a filter gives the same numbers live and offline.
"""

import copy
import functools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jaxtyping import Array

from nopf.compiling import Compiled, apart, blank, is_new, is_tracing, traced_once
from nopf.filters.health import LOST, Surprise
from nopf.keys import quick
from nopf.steps import Step, part

ROWS = 128


def take_in(flt: Any, last: Any, y: Array, step: Step, update: Any = None) -> Any:
    belief, surprise = last
    update = flt.update if update is None else update
    lost = None
    if flt.drawn_anew:
        # By what was known before: which share of the particles is new must not depend on y.
        lost = (surprise.drift() > LOST) & jnp.any(~jnp.isnan(y))
        update = functools.partial(update, lost=lost)
    updated = update(belief, y, step)
    p_value = nominal = jnp.full((), jnp.nan)
    innovation = jnp.full(y.shape, jnp.nan)
    if flt.health:
        p_value, nominal, innovation = flt.p_values(updated.prediction, y, step)
        surprise = surprise.add(p_value)
    info = updated.info
    info = info._replace(
        p_value=p_value,
        nominal_p_value=nominal,
        drift=surprise.drift(),
        error=jnp.broadcast_to(info.error, info.mean.shape),
        innovation=innovation,
    )
    if lost is not None:
        surprise = surprise.forgotten(lost)  # New particles are not to blame for the old ones.
    return (updated.belief, surprise), info


# Traced as a whole: with a function of the user's, and for many series at once -----------------


def scan(flt: Any, last: Any, ys: Array, steps: Step, keep: bool) -> Any:
    """A series, from a belief on.

    Args:
        flt: the filter.
        last: the belief, and the monitor's state.
        ys, steps: the series.
        keep: whether to keep particles.
    """

    def advance(last: Any, inputs: Any) -> Any:
        last, info = take_in(flt, last, *inputs)
        return last, (info, flt.ensemble(last[0]) if keep else (None, None))

    return jax.lax.scan(advance, last, (ys, steps))


def opened(
    flt: Any, last: Any, ys: Array, steps: Step, keep: bool, before: Step | None = None
) -> Any:
    """A series whose first observation is met by a step of its own, written apart: vectorised over
    series, one that is chosen at run time would be computed at every step."""
    y, step = part((ys, steps), 0)
    met = flt.meet(last[0], y, step, before)
    update = functools.partial(flt.update, met=met, now=True)
    last, info = take_in(flt, last, y, step, update)
    ensemble = flt.ensemble(last[0]) if keep else (None, None)
    outcome = jax.tree.map(lambda leaf: leaf[None], (info, ensemble))
    if ys.shape[0] == 1:
        return last, outcome
    coming = slice(1, None)
    last, rest = scan(flt, last, ys[coming], part(steps, coming), keep)
    return last, joined([outcome, rest])


def whole(
    flt: Any,
    last: Any,
    ys: Array,
    steps: Step,
    keep: bool,
    blind: int | None,
    before: Step | None = None,
) -> Any:
    """A series in which nothing has been observed so far.

    Args:
        flt: the filter.
        last: the belief, and the monitor's state.
        ys, steps: the series.
        keep: whether to keep particles.
        blind: how many steps have no observation before the first that has one, which is met by a
            step of its own; None if it is a step like any other.
        before: the steps since the prior that came before, stacked, if there are any.
    """
    if blind is None or blind == ys.shape[0]:
        return scan(flt, last, ys, steps, keep)
    if not blind:
        return opened(flt, last, ys, steps, keep, before)
    passed, coming = part(steps, slice(blind)), slice(blind, None)
    last, first = scan(flt, last, ys[:blind], passed, keep)
    before = passed if before is None else joined([before, passed])
    last, rest = opened(flt, last, ys[coming], part(steps, coming), keep, before)
    return last, joined([first, rest])


def joined(outcomes: list[Any]) -> Any:
    """What was said of the parts of a series, as of one."""
    if len(outcomes) == 1:
        return outcomes[0]

    def together(*leaves: Any) -> Any:
        on_host = all(isinstance(leaf, np.ndarray) for leaf in leaves)
        return (np if on_host else jnp).concatenate(leaves)

    return jax.tree.map(together, *outcomes)


# Over the devices of a mesh ---------------------------------------------------------------------

BELIEF, OPENING, ENSEMBLE = "belief", "opening", "ensemble"


def on_all(flt: Any, function: Any, inputs: tuple[Any, ...], outputs: Any) -> Any:
    """The function, run on every device that a belief is spread over.

    Args:
        flt: the filter.
        function: of arrays.
        inputs: for each argument how it is spread: as a `BELIEF` with the monitor's state beside
            it, as an `OPENING`, or None if it is everywhere.
        outputs: the same for what it gives, or an `ENSEMBLE`.
    """
    if flt.over is None:
        return function
    mesh, belief, opening = flt.over
    (axis,) = mesh.axis_names
    kinds = {
        None: PartitionSpec(),
        BELIEF: (belief, PartitionSpec()),
        OPENING: opening,
        ENSEMBLE: PartitionSpec(None, axis),
    }

    def specs(tree: Any) -> Any:
        return jax.tree.map(lambda kind: kinds[kind], tree, is_leaf=lambda kind: kind is None)

    return jax.shard_map(
        function, mesh=mesh, in_specs=specs(inputs), out_specs=specs(outputs), check_vma=False
    )


# Compiled once for all series -------------------------------------------------------------------


def begin(flt: Any, key: Any) -> Any:
    """The belief at time zero, and a monitor that has seen nothing."""
    start = on_all(flt, lambda key: (flt.begin(key), Surprise.none()), (None,), BELIEF)
    return strong(start(key))


def meet(flt: Any, last: Any, y: Array, step: Step, before: Step | None) -> Any:
    """What the first observation makes of the prior."""

    def first(last: Any, y: Array, step: Step) -> Any:
        return flt.meet(last[0], y, step, before)

    return strong(on_all(flt, first, (BELIEF, None, None), OPENING)(last, y, step))


def go(
    flt: Any, last: Any, met: Any, meets: Any, ys: Array, steps: Step, count: Any, *, keep: bool
) -> Any:
    """As many steps of a series as `count` says, on rows that may be more.

    Args:
        flt: the filter.
        last: the belief, and the monitor's state.
        met: what the first observation has made of the belief (`flt.meet`), if that is not a step
            like any other; anything of that shape otherwise. None for filters without one.
        meets: whether the first row is the observation that was met.
        ys, steps, count: the series.
        keep: whether to keep particles.
    """

    def on_one(last: Any, met: Any, meets: Any, ys: Array, steps: Step, count: Any) -> Any:
        def one(last: Any, t: Array) -> Any:
            update = None
            if met is not None:
                update = functools.partial(flt.update, met=met, now=meets & (t == 0))
            y, step = part((ys, steps), t)
            last, info = take_in(flt, last, y, step, update)
            return last, (info, flt.ensemble(last[0]) if keep else (None, None))

        one, shapes = traced_once(one, last, jnp.zeros((), jnp.int32))
        room = jax.tree.map(
            lambda leaf: jnp.zeros((ys.shape[0], *leaf.shape), leaf.dtype), shapes[1]
        )

        def advance(t: Array, carried: Any) -> Any:
            last, row = one(carried[0], t)
            put = functools.partial(jax.lax.dynamic_update_index_in_dim, index=t, axis=0)
            return last, jax.tree.map(put, carried[1], row)

        return jax.lax.fori_loop(0, count, advance, (last, room))

    spread = (BELIEF, None if met is None else OPENING, None, None, None, None)
    outcome = on_all(flt, on_one, spread, (BELIEF, (None, ENSEMBLE)))
    return outcome(last, met, meets, ys, steps, count)


compiled_begin = Compiled(begin, level=2)  # once in a series
compiled_meet = Compiled(meet, level=2)
compiled_steps = Compiled(go, static=("keep",))


# Inside a function of the user's that is compiled as a whole: nothing is known of numbers.


@eqx.filter_jit
def traced_update(flt: Any, last: Any, y: Array, step: Step) -> Any:
    update = functools.partial(take_in, flt)
    return on_all(flt, update, (BELIEF, None, None), (BELIEF, None))(last, y, step)


@eqx.filter_jit
def traced_series(
    flt: Any,
    last: Any,
    ys: Array,
    steps: Step,
    keep: bool,
    blind: int | None,
    before: Step | None = None,
) -> Any:
    def run(last: Any, ys: Array, steps: Step) -> Any:
        return whole(flt, last, ys, steps, keep, blind, before)

    return on_all(flt, run, (BELIEF, None, None), (BELIEF, (None, ENSEMBLE)))(last, ys, steps)


@eqx.filter_jit
def compiled_batch(
    flt: Any, keys: Any, ys: Array, steps: Step, keep: bool, blind: int | None
) -> Any:
    over, alone = flt.over, on_one_device(flt)

    def one(key: Any, ys: Array) -> Any:
        return whole(alone, (alone.begin(key), Surprise.none()), ys, steps, keep, blind)

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


# What calls them --------------------------------------------------------------------------------


def go_on(flt: Any, last: Any, ys: Any, steps: Step, keep: bool, met: Any = None) -> Any:
    """A series, or more of it, from a belief on.

    Args:
        flt: the filter.
        last: the belief, and the monitor's state.
        ys, steps: the series.
        keep: whether to keep particles.
        met: what its first observation has made of the belief, if that is not a step like any
            other.
    """
    # Particles that are kept take memory: no room for rows that do not count.
    size = ys.shape[0] if keep else ROWS
    outcomes = []
    for start in range(0, ys.shape[0], size):
        rows = part((ys, steps), slice(start, start + size))
        given = type(flt).nothing_met(flt, last[0]) if met is None else met
        last, outcome = _go(flt, last, given, met is not None, *rows, size=size, keep=keep)
        outcomes.append(outcome)
        met = None
    return last, joined(outcomes)


def _go(
    flt: Any, last: Any, met: Any, meets: bool, ys: Any, steps: Step, *, size: int, keep: bool
) -> Any:
    """Some steps of a series, in a loop of so many rows."""
    count = ys.shape[0]
    rows = jax.tree.map(lambda leaf: _rows(leaf, size), (ys, steps))
    flags = np.asarray(meets), np.asarray(count, np.int32)  # as arrays, which are not static
    last, (infos, ensembles) = compiled_steps(flt, last, met, flags[0], *rows, flags[1], keep=keep)
    return last, (jax.tree.map(lambda leaf: np.asarray(leaf)[:count], infos), ensembles)


def _rows(values: Any, size: int) -> np.ndarray:
    """The first of so many rows."""
    values = np.asarray(values)
    rows = np.zeros((size, *values.shape[1:]), jax.dtypes.canonicalize_dtype(values.dtype))
    rows[: len(values)] = values
    return rows


def compile_at_once(flt: Any, key: Any, ys: Any, steps: Step, keep: bool) -> None:
    """Compiles all that a run of a filter takes, unless that has been done: each part in a thread
    of its own."""
    controls = None if steps.control is None else steps.control.shape[1]
    if not is_new(apart(flt)[0], ys.shape[0] if keep else None, controls):
        return
    size = ys.shape[0] if keep else ROWS
    first = jax.tree.map(lambda leaf: np.asarray(leaf)[0], (ys, steps))
    rows = jax.tree.map(lambda leaf: _rows(leaf[:1], size), (ys, steps))
    begun = compiled_begin.lower(flt, key)
    like = None if key is None else quick(key)
    last = blank(begun.out_info, like)
    lowered, met = [begun], None
    if flt.has_first_step:
        meeting = compiled_meet.lower(flt, last, *first, None)
        lowered.append(meeting)
        met = blank(meeting.out_info, like)
    with ThreadPoolExecutor(len(lowered)) as beside:
        compiled = [beside.submit(one.compile) for one in lowered]
        meets, count = np.asarray(met is not None), np.asarray(1, np.int32)
        compiled_steps.lower(flt, last, met, meets, *rows, count, keep=keep).compile()
        for one in compiled:
            one.result()


def on_host(outcome: Any) -> Any:
    """What was said of series, as plain arrays; as it is where numbers are not known."""
    last, (infos, ensembles) = outcome
    return outcome if is_tracing() else (last, (jax.device_get(infos), ensembles))


def strong(tree: Any) -> Any:
    """The same arrays with types of their own: to a compiled function, a number whose type has
    followed from others is another kind of argument."""

    def one(leaf: Any) -> Any:
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return leaf
        return jnp.asarray(leaf, leaf.dtype)

    return jax.tree.map(one, tree)
