"""Step, and the steps of a series: index, time, dt and control of each observation."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from nopf.arguments import finite_number
from nopf.gaussian import as_float_array

# A first step so many times longer than the others is by another clock. Where there are no others
# there is only dt to compare with, which may be in other units if nobody has set it.
LATE, LATE_ALONE = 1e3, 1e5


class Step(NamedTuple):
    """What every model function gets beside the state.

    Attributes:
        index: 1 for the first observation; the prior is at 0.
        time: time of observation `index`, in single precision unless JAX runs in double.
        dt: time since the previous observation (or since the prior).
        control: `(u,)` control input that acts over this interval, or None.
    """

    index: Any
    time: Any
    dt: Any
    control: Any = None


def part(series: Any, which: Any) -> Any:
    """Some steps of a series, or one of them."""
    return jax.tree.map(lambda leaf: leaf[which], series)


def regular_step(dt: float, index: int | Array = 1, control: Any = None) -> Step:
    """Step `index` of a regular grid."""
    length = jnp.asarray(dt, float)
    return Step(jnp.asarray(index, jnp.int32), index * length, length, control)


def check_clock(name: str, lengths: Any, dt: float, remedy: str) -> None:
    """Refuses times that count from long before a prior at time 0, whose time nobody has said.

    Args:
        name: the user's argument.
        lengths: of the steps, the first of them since the prior.
        dt: time between observations, where no times are given.
        remedy: what to do.
    """
    if len(lengths) > 1:
        others = np.max(lengths[1:])
        most, usual = LATE * max(others, dt), f"the others at most {others:.9g} apart"
    else:
        most, usual = LATE_ALONE * dt, f"the model's dt is {dt:.9g}"
    if lengths[0] > most:
        raise ValueError(
            f"{name}: the first observation is {lengths[0]:.9g} after the prior, which is at "
            f"time 0, and {usual}; {remedy}"
        )


def make_steps(
    horizon: int,
    dt: float,
    times: Any = None,
    controls: Any = None,
    start: float | None = None,
    first: int = 1,
) -> Step:
    """The steps of a series, from index `first` on: a `Step` whose fields have a time axis.

    Times are differenced on the host in double precision: an hour into a recording, single
    precision would leave a hundredth of a second with an error of 2 %.

    Args:
        horizon: how many.
        dt: time between observations, where no times are given.
        times: `(horizon,)`, not decreasing.
        controls: `(horizon, u)`.
        start: the time of the state before the first of them, 0 if left out.
        first: index of the first.
    """
    origin = 0.0 if start is None else finite_number(start, "start")
    if times is None:
        lengths = np.full(horizon, dt)
        times = np.cumsum(np.concatenate([[origin], lengths]))[1:]
    else:
        times = np.asarray(as_float_array(times, "times"), np.float64)
        if times.shape != (horizon,):
            raise ValueError(f"times: expected shape ({horizon},), got {times.shape}")
        lengths = np.diff(times, prepend=origin)
        if np.any(lengths < 0):
            at = int(np.argmax(lengths < 0))
            before = times[at - 1] if at else origin
            raise ValueError(
                f"times: expected times that do not decrease, but step {first + at} is at "
                f"{times[at]:.9g} and step {first + at - 1} at {before:.9g}"
            )
        if start is None:
            check_clock("times", lengths, dt, "pass start=, the prior's time")
    control = None
    if controls is not None:
        control = as_float_array(controls, "controls")
        if control.ndim != 2 or control.shape[0] != horizon:
            raise ValueError(
                f"controls: expected shape ({horizon}, u), one row a step, got {control.shape}"
            )
    return Step(np.arange(first, first + horizon, dtype=np.int32), times, lengths, control)
