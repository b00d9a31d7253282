"""Filter: init, step and run, the same for every filter."""

import abc
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from nopf.filters.health import Surprise
from nopf.filters.posterior import Info, Posterior, Source
from nopf.gaussian import Numbers, as_float_array, is_traced
from nopf.model import StateSpaceModel, Step, finite_number, make_steps
from nopf.space import EXTREME_LEVEL

QUANTILES = (0.05, 0.5, 0.95)


class FilterState(NamedTuple):
    """Where a filter stands between two observations.

    Attributes:
        belief: what the filter knows: particles and log-weights, or a mean and a covariance.
        index: number of observations taken in.
        time: time of the last one.
        surprise: how well the model has explained them lately.
    """

    belief: Any
    index: Any
    time: Any
    surprise: Surprise


class Filter(eqx.Module):
    """What all filters share. A filter says how a belief begins and how one observation changes it;
    this class validates, compiles, loops and reports."""

    model: eqx.AbstractVar[StateSpaceModel]
    quantiles: eqx.AbstractVar[tuple[float, ...]]

    @abc.abstractmethod
    def _initial_belief(self, key: PRNGKeyArray | None) -> Any:
        """The belief at time zero."""

    @abc.abstractmethod
    def _update(self, belief: Any, y: Float[Array, " m"], step: Step) -> tuple[Any, Info]:
        """Takes in one observation. Traced, never called on concrete arrays."""

    @abc.abstractmethod
    def _ensemble(self, belief: Any) -> tuple[Float[Array, "n d"], Float[Array, " n"]]:
        """Weighted particles that stand for a belief, for `keep="particles"`."""

    def _exact_smoother(self) -> bool:
        """Whether means and covariances are all that a smoother needs."""
        return False

    def _moved_by(self) -> str:
        """What can be to blame for a state that is no number."""
        return "prior, transition or process_noise"

    def _check_steps(self, steps: Step) -> None:
        """Refuses steps that the filter cannot take. Most filters take all."""

    def init(self, key: PRNGKeyArray | None = None, *, time: float = 0.0) -> FilterState:
        """The state before the first observation.

        Args:
            key: random key; the filter's whole future depends on nothing else.
            time: the time of the prior.
        """
        time = finite_number(time, "time")
        return FilterState(_initial_belief(self, key), 0, time, Surprise.none())

    def step(
        self,
        state: FilterState,
        y: Numbers,
        *,
        time: float | None = None,
        control: Numbers | None = None,
    ) -> tuple[FilterState, Info]:
        """Takes in one observation as it comes.

        Args:
            state: from `init`, or from the last step.
            y: `(m,)` observation, NaN where missing.
            time: its time; `model.dt` after the last one if left out.
            control: `(u,)` control input over the interval.
        """
        _check_state(state)
        observation = self._observations(y)
        if is_traced(state):
            dt = self.model.dt if time is None else time - state.time
            now = state.time + dt
            steps = Step(jnp.asarray(state.index + 1), jnp.asarray(now), jnp.asarray(dt), control)
        else:
            start, first = float(state.time), int(state.index) + 1
            now = start + self.model.dt if time is None else finite_number(time, "time")
            if now < start:
                raise ValueError(
                    f"time: expected times that do not decrease, but step {first} is at {now:.9g} "
                    f"and step {first - 1} at {start:.9g}"
                )
            if control is not None:
                control = as_float_array(control, "control")
                if control.ndim != 1:
                    raise ValueError(f"control: expected a vector, got shape {control.shape}")
            times = None if time is None else [now]
            controls = None if control is None else control[None]
            steps = make_steps(self.model, 1, times, controls, start, first)
            if first == 1:
                self._check_steps(steps)
            steps = jax.tree.map(lambda leaf: leaf[0], steps)
        (belief, surprise), info = _compiled_update(
            self, (state.belief, state.surprise), observation, steps
        )
        self._raise_on_nan(info, steps)
        return FilterState(belief, state.index + 1, now, surprise), info

    def run(
        self,
        ys: Numbers,
        *,
        key: PRNGKeyArray | None = None,
        times: Numbers | None = None,
        controls: Numbers | None = None,
        start: float | None = None,
        keep: Literal["particles"] | None = None,
    ) -> Posterior:
        """Filters a whole series in one compiled call.

        Args:
            ys: `(T, m)` observations, NaN where missing.
            key: random key; gives the same particles as `init(key)` and `step` T times.
            times: `(T,)` observation times, not decreasing; every `model.dt` if left out.
            controls: `(T, u)` control inputs, row k acting over the interval before observation k.
            start: the time of the prior, 0 if left out.
            keep: "particles" to keep the weighted particles of every step.
        """
        series = self._observations(ys, "time")
        steps = self._steps(series, times, controls, start, keep)
        last, (infos, ensembles) = _compiled_run(self, key, series, steps, keep == "particles")
        return self._posterior(last, infos, ensembles, series, steps)

    def resume(
        self,
        state: FilterState,
        ys: Numbers,
        *,
        times: Numbers | None = None,
        controls: Numbers | None = None,
        keep: Literal["particles"] | None = None,
    ) -> Posterior:
        """Goes on from where an earlier series ended, with a whole series more.

        The other arguments are as in `run`.

        Args:
            state: `posterior.state`, or from `step`.
            ys: `(T, m)` observations, NaN where missing.
        """
        _check_state(state)
        series = self._observations(ys, "time")
        start, first = float(state.time), int(state.index) + 1
        steps = self._steps(series, times, controls, start, keep, first)
        last, (infos, ensembles) = _compiled_continuation(
            self, (state.belief, state.surprise), series, steps, keep == "particles"
        )
        return self._posterior(last, infos, ensembles, series, steps)

    def run_batch(
        self,
        ys: Numbers,
        *,
        key: PRNGKeyArray | None = None,
        times: Numbers | None = None,
        controls: Numbers | None = None,
        start: float | None = None,
        keep: Literal["particles"] | None = None,
    ) -> Posterior:
        """Filters B series of one shape in one compiled call.

        Series b gets the b-th of `jax.random.split(key, B)`, and comes out as `run` would give it.

        The other arguments are as in `run`; times and controls hold for all series.

        Args:
            ys: `(B, T, m)` observations.
        """
        series = self._observations(ys, "series", "time")
        steps = self._steps(series, times, controls, start, keep)
        keys = None if key is None else jax.random.split(key, series.shape[0])
        last, (infos, ensembles) = _compiled_batch(self, keys, series, steps, keep == "particles")
        return self._posterior(last, infos, ensembles, series, steps)

    def _observations(self, ys: Any, *axes: str) -> Any:
        width = self.model.observation_space.size
        if isinstance(ys, np.ma.MaskedArray):
            ys = np.ma.filled(ys.astype(float), np.nan)
        elif not is_traced(ys):
            ys = np.asarray(ys)
        name = "ys" if axes else "y"
        shape = f"({', '.join([*axes, str(width)])})" if axes else f"({width},)"
        if ys.ndim != len(axes) + 1 or ys.shape[-1] != width:
            raise ValueError(
                f"{name}: expected shape {shape} (the model's observation has {width} numbers), "
                f"got {ys.shape}"
            )
        if ys.size == 0:
            raise ValueError(f"{name}: expected at least one observation, got shape {ys.shape}")
        if not jnp.issubdtype(ys.dtype, jnp.floating):
            raise TypeError(
                f"{name}: expected floating-point numbers, got {ys.dtype}; integers cannot hold "
                "the NaN that marks a missing value: if none is missing, pass "
                f"np.asarray({name}, float)"
            )
        with np.errstate(over="ignore"):  # what overflows is reported below
            series = ys.astype(jax.dtypes.canonicalize_dtype(float))
        if isinstance(series, np.ndarray) and np.any(np.isinf(series)):
            at = np.argwhere(np.isinf(series))[0]
            raise ValueError(
                f"{name}: expected finite numbers or NaN for missing, "
                f"got {ys[tuple(at)]} at position {tuple(int(i) for i in at)}"
            )
        return series

    def _steps(
        self,
        ys: Any,
        times: Any,
        controls: Any,
        start: float | None,
        keep: Any,
        first: int = 1,
    ) -> Step:
        if keep not in (None, "particles"):
            raise ValueError(f"keep: expected None or 'particles', got {keep!r}")
        steps = make_steps(self.model, ys.shape[-2], times, controls, start, first)
        self._check_steps(steps)
        return steps

    def _posterior(self, last: Any, infos: Info, ensembles: Any, ys: Any, steps: Step) -> Posterior:
        self._raise_on_nan(infos, steps)
        particles, log_weights = ensembles
        belief, surprise = last
        return Posterior(
            mean=infos.mean,
            cov=infos.cov,
            quantiles=infos.quantiles,
            ess=infos.ess,
            log_evidence_increments=infos.log_evidence,
            collapsed=infos.collapsed,
            p_value=infos.p_value,
            nominal_p_value=infos.nominal_p_value,
            drift=jnp.asarray(infos.drift),
            particles=particles,
            log_weights=log_weights,
            times=steps.time,
            observations=ys,
            steps=steps,
            source=Source(self),
            state=FilterState(belief, int(steps.index[-1]), float(steps.time[-1]), surprise),
            state_names=self.model.state_names,
            quantile_levels=self.quantiles,
        )

    def _raise_on_nan(self, infos: Info, steps: Step) -> None:
        if is_traced(infos):
            return
        for counted, what in [
            (infos.nan_states, f"new states: look for the cause in {self._moved_by()}"),
            (infos.nan_weights, "weights: look for the cause in the observation functions"),
        ]:
            count = np.atleast_1d(np.asarray(counted))
            if not count.any():
                continue
            at = tuple(np.argwhere(count)[0])
            index = np.atleast_1d(np.asarray(steps.index))[at[-1]]
            time = np.atleast_1d(np.asarray(steps.time))[at[-1]]
            series = f" of series {at[0]}" if len(at) > 1 else ""
            raise FloatingPointError(
                f"NaN or infinite at step {index}{series} (time {time:.9g}) in {count[at]} {what}"
            )


def _advance(flt: Filter, last: Any, y: Array, step: Step) -> Any:
    belief, surprise = last
    belief, info = flt._update(belief, y, step)
    surprise = surprise.add(info.p_value)
    return (belief, surprise), info._replace(drift=surprise.drift())


def _scan(flt: Filter, last: Any, ys: Array, steps: Step, keep: bool) -> Any:
    def advance(last: Any, inputs: Any) -> Any:
        last, info = _advance(flt, last, *inputs)
        return last, (info, flt._ensemble(last[0]) if keep else (None, None))

    return jax.lax.scan(advance, last, (ys, steps))


def _begin(flt: Filter, key: Any) -> Any:
    return flt._initial_belief(key), Surprise.none()


@eqx.filter_jit
def _initial_belief(flt: Filter, key: Any) -> Any:
    return flt._initial_belief(key)


@eqx.filter_jit
def _compiled_update(flt: Filter, last: Any, y: Array, step: Step) -> Any:
    return _advance(flt, last, y, step)


@eqx.filter_jit
def _compiled_run(flt: Filter, key: Any, ys: Array, steps: Step, keep: bool) -> Any:
    return _scan(flt, _begin(flt, key), ys, steps, keep)


@eqx.filter_jit
def _compiled_continuation(flt: Filter, last: Any, ys: Array, steps: Step, keep: bool) -> Any:
    return _scan(flt, last, ys, steps, keep)


@eqx.filter_jit
def _compiled_batch(flt: Filter, keys: Any, ys: Array, steps: Step, keep: bool) -> Any:
    return jax.vmap(lambda key, ys: _scan(flt, _begin(flt, key), ys, steps, keep))(keys, ys)


def _check_state(state: Any) -> None:
    if not isinstance(state, FilterState):
        raise TypeError(
            "state: expected what init or step returned, or posterior.state, got "
            f"{type(state).__name__}"
        )
    if np.ndim(state.surprise.total):
        raise ValueError("state: expected that of one series, not that of run_batch")


def check_quantiles(levels: Any) -> tuple[float, ...]:
    levels = tuple(float(level) for level in np.atleast_1d(levels))
    if not all(EXTREME_LEVEL <= level <= 1 - EXTREME_LEVEL for level in levels):
        raise ValueError(
            f"quantiles: expected levels from {EXTREME_LEVEL} to {1 - EXTREME_LEVEL}, got {levels}"
        )
    return levels


def check_model(model: StateSpaceModel) -> StateSpaceModel:
    """The model, if it is one."""
    if not isinstance(model, StateSpaceModel):
        raise TypeError(f"model: expected a nopf.StateSpaceModel, got {model!r}")
    return model
