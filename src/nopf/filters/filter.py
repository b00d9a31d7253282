"""Filter: init, step and run, the same for every filter."""

import abc
import contextlib
from collections.abc import Iterator
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, PRNGKeyArray

from nopf.arguments import check_key, finite_number, positive_integer, some_key
from nopf.compiling import is_tracing
from nopf.filters import loop
from nopf.filters.health import LOST, Judged, Surprise
from nopf.filters.inputs import check_observations
from nopf.filters.monitor import Monitor
from nopf.filters.posterior import Info, Posterior, check_one_series
from nopf.filters.precision import warn_if_too_coarse
from nopf.filters.smoothing import Smoothed, draw_backwards
from nopf.gaussian import Numbers, as_float_array, is_traced, shown
from nopf.model import StateSpaceModel
from nopf.steps import Step, check_clock, part

Belief = TypeVar("Belief")


class FilterState(NamedTuple):
    """Where a filter stands between two observations.

    Attributes:
        belief: what the filter knows: particles and log-weights, or a mean and a covariance;
            counted from the model's `origin=`, if it has one.
        index: number of observations taken in.
        time: time of the last one.
        surprise: how well the model has explained them lately.
        before: the steps without an observation since the prior, for a filter that meets the first
            observation by a step of its own; None if that is done, or not its way.
    """

    belief: Any
    index: Any
    time: Any
    surprise: Surprise
    before: tuple[Step, ...] | None = None


class Update(eqx.Module, Generic[Belief]):
    """What one observation makes of a belief.

    Attributes:
        belief: the new one.
        info: what to say about the step.
        prediction: what the filter's `p_values` needs to judge the observation by.
    """

    belief: Belief
    info: Info
    prediction: Any = None


class Filter(eqx.Module, Generic[Belief]):
    """What all filters share: this class validates, compiles, loops and reports.

    A filter says how a belief begins (`begin`), how one observation changes it (`update`) and which
    particles stand for it (`ensemble`). It has the fields below. The other hooks may stay as they
    are.

    Attributes:
        model: the model.
        quantiles: levels that `info` and the posterior report.
        health: whether to judge each observation by `p_values`.
    """

    model: eqx.AbstractVar[StateSpaceModel]
    quantiles: eqx.AbstractVar[tuple[float, ...]]
    health: eqx.AbstractVar[bool]

    def __repr__(self) -> str:
        made_of = "".join(f"{part}, " for part in self.parts())
        sizes = f"{self.model.space.size} states, {self.model.observation_space.size} observations"
        return f"{type(self).__name__}: {made_of}{sizes}"

    # Hooks --------------------------------------------------------------------------------------

    @abc.abstractmethod
    def begin(self, key: PRNGKeyArray | None) -> Belief:
        """The belief at time zero."""

    @abc.abstractmethod
    def update(self, belief: Belief, y: Float[Array, " m"], step: Step) -> Update[Belief]:
        """Takes in one observation. Traced, never called on concrete arrays."""

    @abc.abstractmethod
    def ensemble(self, belief: Belief) -> tuple[Float[Array, "n d"], Float[Array, " n"]]:
        """Weighted particles that stand for a belief, for `keep="particles"`."""

    def p_values(self, prediction: Any, y: Float[Array, " m"], step: Step) -> Judged:
        """The p-value of an observation, the same without the tails of `robust=`, and its
        innovation in standard deviations, by which warnings say which sensor is off."""
        nothing = jnp.full((), jnp.nan)
        return Judged(nothing, nothing, jnp.full(y.shape, jnp.nan))

    @property
    def drawn_anew(self) -> float | None:
        """The share of the particles that is drawn anew when the filter is lost; None if it has
        none that could be."""
        return getattr(self, "recover", None)

    def monitor(self) -> Monitor:
        """A monitor for live steps that knows the names of the model."""
        return Monitor(
            state_names=self.model.state_names,
            observation_names=self.model.observation_names,
            tails=self.model.likelihood.tails,
            recover=self.drawn_anew,
        )

    @property
    def has_first_step(self) -> bool:
        """Whether the first observation is met by a step of its own: `meet`, whose result `update`
        is given as `met`."""
        return getattr(self, "first_step", False)

    def meet(self, belief: Belief, y: Float[Array, " m"], step: Step, before: Step | None) -> Any:
        """What the first observation makes of the prior, for filters that have a first step."""
        raise TypeError(f"filter: {type(self).__name__} does not say how to meet a prior")

    def nothing_met(self, belief: Belief) -> Any:
        """Something of the shape of what `meet` gives; None for filters without a first step."""
        return None

    @property
    def over(self) -> tuple[Mesh, Any, Any] | None:
        """The mesh that a belief is spread over, and how it and what `meet` gives are; None if all
        is on one device."""
        return None

    def check_steps(self, steps: Step) -> None:
        """Refuses steps that the filter cannot take. Most filters take all."""

    def parts(self) -> list[str]:
        """What a line about the filter names first."""
        return []

    def culprits(self) -> str:
        """What can be to blame for a state that is no number."""
        return "prior, transition or process_noise"

    # What users call ----------------------------------------------------------------------------

    def init(self, key: PRNGKeyArray | None = None, *, time: float = 0.0) -> FilterState:
        """The state before the first observation.

        Args:
            key: random key; the filter's whole future depends on nothing else.
            time: the time of the prior.
        """
        time = finite_number(time, "time")
        begin: Any = loop.begin if is_tracing() else loop.compiled_begin
        belief, surprise = begin(self, _key(key))
        return FilterState(belief, 0, time, surprise, () if self.has_first_step else None)

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
        # Helpers are functions: a method of an `eqx.Module` is made anew whenever it is called.
        _check_state(state)
        observation = check_observations(self.model, y)
        last, before = (state.belief, state.surprise), state.before
        if is_tracing():
            dt = self.model.dt if time is None else time - state.time
            now = state.time + dt
            step = Step(jnp.asarray(state.index + 1), jnp.asarray(now), jnp.asarray(dt), control)
            with _explaining(self, state):
                last, infos = loop.traced_update(self, last, observation, step)
            info = _absolute(self, infos)
        else:
            if state.index == 0:  # of a stream only the first: to look takes time
                warn_if_too_coarse(self.model, observation)
            step, now = _next_step(self, state, time, control)
            series = jax.tree.map(lambda leaf: leaf[None], (observation, step))
            with _explaining(self, state):
                outcome = _go_on(self, last, _steps_before(state), *series, keep=False)
            (last, (infos, _)), before = outcome
            info = part(_absolute(self, infos), 0)
            _raise_on_nan(self, infos, series[1])
        return FilterState(last[0], state.index + 1, now, last[1], before), info

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
        series = check_observations(self.model, ys, "time")
        warn_if_too_coarse(self.model, series)
        steps = _steps(self, series, times, controls, start, keep)
        if not is_tracing():
            loop.compile_at_once(self, _key(key), series, steps, keep == "particles")
        return _series(self, self.init(key), series, steps, keep == "particles")

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
        series = check_observations(self.model, ys, "time")
        start, first = float(state.time), int(state.index) + 1
        steps = _steps(self, series, times, controls, start, keep, first)
        _check_first_time("times", state, steps.dt[0], self.model.dt)
        with _explaining(self, state):
            return _series(self, state, series, steps, keep == "particles")

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
        series = check_observations(self.model, ys, "series", "time")
        warn_if_too_coarse(self.model, series)
        steps = _steps(self, series, times, controls, start, keep)
        if self.over is not None and series.shape[0] % self.over[0].size:
            raise ValueError(
                f"ys: expected a multiple of {self.over[0].size} series, one or more for each "
                f"device of the mesh, got {series.shape[0]}"
            )
        keys = None if key is None else jax.random.split(check_key(key), series.shape[0])
        if not self.has_first_step:
            outcome = loop.compiled_batch(self, keys, series, steps, keep == "particles", None)
            return _posterior(self, loop.on_host(outcome), series, steps)
        # Series that begin with as many steps without an observation go together.
        keys = jax.random.split(check_key(key), series.shape[0])
        blind = np.asarray([_blind(ys) for ys in series])
        order, outcomes = [], []
        devices = 1 if self.over is None else self.over[0].size
        for count in np.unique(blind):
            own = np.flatnonzero(blind == count)
            filled = np.resize(own, -(-len(own) // devices) * devices)  # some twice
            order.append(np.where(np.arange(len(filled)) < len(own), filled, len(blind)))
            outcomes.append(
                loop.compiled_batch(
                    self, keys[filled], series[filled], steps, keep == "particles", int(count)
                )
            )
        back = np.argsort(np.concatenate(order), stable=True)[: len(blind)]
        outcome = jax.tree.map(lambda leaf: leaf[back], loop.joined(outcomes))
        return _posterior(self, loop.on_host(outcome), series, steps)

    def forecast(
        self,
        posterior: Posterior,
        steps: int | float,
        *,
        times: Numbers | None = None,
        controls: Numbers | None = None,
    ) -> Posterior:
        """What comes after the last observation, as far as the model knows.

        Args:
            posterior: of this filter.
            steps: how many.
            times: `(steps,)`, not before the last observation; every `model.dt` if left out.
            controls: `(steps, u)` control inputs.
        """
        check_one_series(posterior, "forecast")
        if posterior.state is None:
            raise ValueError(
                "forecast: this posterior was loaded without its filter, so that it does not know "
                "where that stood; load it with nopf.Posterior.load(path, flt)"
            )
        width = self.model.observation_space.size
        nothing = np.full((positive_integer(steps, "steps"), width), np.nan)
        return self.resume(posterior.state, nothing, times=times, controls=controls)

    def smooth(
        self,
        posterior: Posterior,
        *,
        key: PRNGKeyArray | None = None,
        trajectories: int | float = 500,
        lag: int | float | None = None,
    ) -> Smoothed:
        """Estimates of each state given later observations too.

        With a `KalmanFilter` this is exact (Rauch, Tung and Striebel). With the others it is
        backward simulation, which needs `keep="particles"` and a transition with a density; its
        time goes with trajectories × N, and with a lag also with that.

        Args:
            posterior: of this filter.
            key: random key; the exact smoother needs none.
            trajectories: how many to draw.
            lag: how many later observations may count; all if left out.
        """
        check_one_series(posterior, "smooth")
        if posterior.recover and np.any(np.asarray(posterior.drift)[:-1] > LOST):
            raise ValueError(
                "posterior: some particles were drawn anew (recover=), of which smoothing does not "
                "know; smooth the observations before and after that apart"
            )
        return draw_backwards(self.model.whole, posterior, key, trajectories, lag)


def _key(key: Any) -> PRNGKeyArray | None:
    """The key, if there is one: not every filter needs one."""
    return None if key is None else check_key(key)


def _steps(
    flt: Filter,
    ys: Any,
    times: Any,
    controls: Any,
    start: float | None,
    keep: Any,
    first: int = 1,
) -> Step:
    """The steps of a series that a filter is given."""
    if not (keep is None or (isinstance(keep, str) and keep == "particles")):
        raise ValueError(f"keep: expected None or 'particles', got {shown(keep)}")
    steps = flt.model.steps(ys.shape[-2], times, controls, start, first)
    flt.check_steps(steps)
    return steps


def _next_step(flt: Filter, state: FilterState, time: Any, control: Any) -> tuple[Step, float]:
    """The step after `state`, and its time in double precision."""
    start, first = float(state.time), int(state.index) + 1
    now = start + flt.model.dt if time is None else finite_number(time, "time")
    if now < start:
        raise ValueError(
            f"time: expected times that do not decrease, but step {first} is at {now:.9g} "
            f"and step {first - 1} at {start:.9g}"
        )
    _check_first_time("time", state, now - start, flt.model.dt)
    if control is not None:
        control = as_float_array(control, "control")
        if control.ndim != 1:
            raise ValueError(f"control: expected a vector, got shape {control.shape}")
    if first == 1 or control is not None or flt.model.reads_control:
        controls = None if control is None else control[None]
        steps = flt.model.steps(1, None if time is None else [now], controls, start, first)
        if first == 1:
            flt.check_steps(steps)
    return Step(np.asarray(first, np.int32), np.asarray(now), np.asarray(now - start), control), now


def _check_first_time(name: str, state: FilterState, length: float, dt: float) -> None:
    """Refuses a first observation by another clock than that of a prior which is at time 0."""
    if int(state.index) == 0 and float(state.time) == 0:
        check_clock(name, [length], dt, "pass time= to init, the prior's time")


def _series(flt: Filter, state: FilterState, ys: Any, steps: Step, keep: bool) -> Posterior:
    """The posterior of a series, from a state on."""
    last, before = (state.belief, state.surprise), _steps_before(state)
    if not is_tracing():
        outcome, before = _go_on(flt, last, before, ys, steps, keep=keep)
        return _posterior(flt, outcome, ys, steps, before)
    blind = None if before is None else _blind(ys)
    outcome = loop.traced_series(flt, last, ys, steps, keep, blind, _stacked(before or ()))
    if before is not None and blind is not None:
        passed = tuple(part(steps, t) for t in range(blind))
        before = (*before, *passed) if blind == ys.shape[0] else None
    return _posterior(flt, outcome, ys, steps, before)


def _go_on(
    flt: Filter,
    last: Any,
    before: tuple[Step, ...] | None,
    ys: Any,
    steps: Step,
    *,
    keep: bool,
) -> tuple[Any, tuple[Step, ...] | None]:
    """Goes on with a series: the outcome, and the steps without an observation since the prior
    (None once something has been observed)."""
    if before is None:
        return loop.go_on(flt, last, ys, steps, keep), None
    blind, said = _blind(ys), []
    if blind:
        passed = part(steps, slice(blind))
        last, outcome = loop.go_on(flt, last, ys[:blind], passed, keep)
        before, said = (*before, *(part(passed, t) for t in range(blind))), [outcome]
    if blind == ys.shape[0]:
        return (last, loop.joined(said)), before
    ys, steps = ys[blind:], part(steps, slice(blind, None))
    met = loop.compiled_meet(flt, last, *part((ys, steps), 0), _stacked(before))
    last, outcome = loop.go_on(flt, last, ys, steps, keep, met)
    return (last, loop.joined([*said, outcome])), None


def _posterior(
    flt: Filter, outcome: Any, ys: Any, steps: Step, before: tuple[Step, ...] | None = None
) -> Posterior:
    (belief, surprise), (infos, (particles, log_weights)) = outcome
    _raise_on_nan(flt, infos, steps)
    space, seen = flt.model.space, flt.model.observation_space
    return Posterior(
        info=_absolute(flt, infos),
        particles=None if particles is None else space.absolute(particles),
        log_weights=log_weights,
        times=steps.time,
        observations=seen.absolute(ys),
        steps=steps,
        state=FilterState(belief, int(steps.index[-1]), float(steps.time[-1]), surprise, before),
        space=space,
        state_names=flt.model.state_names,
        observation_names=flt.model.observation_names,
        quantile_levels=flt.quantiles,
        tails=flt.model.likelihood.tails,
        recover=flt.drawn_anew,
        particle_count=None if infos.ess is None else getattr(flt, "particles", None),
        plane=flt.model.whole.plane,
    )


def _absolute(flt: Filter, infos: Info) -> Info:
    """What is told to users: not counted from the model's origin."""
    space = flt.model.space
    return infos._replace(
        mean=space.absolute(infos.mean), quantiles=space.absolute(infos.quantiles)
    )


def _raise_on_nan(flt: Filter, infos: Info, steps: Step) -> None:
    if is_traced(infos) or not (np.any(infos.nan_states) or np.any(infos.nan_weights)):
        return
    for counted, what in [
        (infos.nan_states, f"new states: look for the cause in {flt.culprits()}"),
        (infos.nan_weights, "weights: look for the cause in the observation functions"),
    ]:
        count = np.asarray(counted)
        if not count.any():
            continue
        at = tuple(np.argwhere(count)[0])
        series = f" of series {at[0]}" if len(at) > 1 else ""
        raise FloatingPointError(
            f"NaN or infinite at step {steps.index[at[-1]]}{series} (time "
            f"{steps.time[at[-1]]:.9g}) in {count[at]} {what}"
        )


def _blind(ys: Any) -> int:
    """How many steps are without an observation before the first that has one."""
    if is_traced(ys):
        return 0  # Nobody knows.
    seen = np.any(~np.isnan(np.asarray(ys)), axis=1)
    return int(np.argmax(seen)) if seen.any() else len(seen)


def _stacked(before: tuple[Step, ...]) -> Step | None:
    """Steps as one, with a leading axis."""
    if not before:
        return None
    if len({one.control is None for one in before}) > 1:
        raise ValueError("control: expected one at every step, or at none")
    library = jnp if is_traced(before) else np
    return jax.tree.map(lambda *leaves: library.stack(leaves), *before)


def _steps_before(state: FilterState) -> tuple[Step, ...] | None:
    """Those without an observation since the prior; None if something has been observed.

    A step under a user's own `jax.jit` leaves them as they are, whatever it has observed.
    """
    before = state.before
    return before if before is not None and len(before) == int(state.index) else None


def _check_state(state: Any) -> None:
    if not isinstance(state, FilterState):
        raise TypeError(
            "state: expected what init or step returned, or posterior.state, got "
            f"{type(state).__name__}"
        )
    if np.ndim(state.surprise.total):
        raise ValueError("state: expected that of one series, not that of run_batch")


@contextlib.contextmanager
def _explaining(flt: Filter, state: FilterState) -> Iterator[None]:
    """Says so if what went wrong is that the state is one of another filter. Asked only then: to
    look at every state takes time at every step, and JAX refuses one that does not fit."""
    try:
        yield
    except (AttributeError, TypeError, ValueError) as error:
        reason = _why_foreign(flt, state.belief)
        if reason is None:
            raise
        raise ValueError(f"state: expected one of this filter, but {reason}") from error


def _why_foreign(flt: Filter, belief: Any) -> str | None:
    """What is different in a belief of another filter; None if nothing is."""
    own, _ = eqx.filter_eval_shape(loop.begin, flt, some_key())
    if type(belief) is not type(own):
        return f"its belief is {type(belief).__name__} and not {type(own).__name__}"
    found, wanted = (
        {
            jax.tree_util.keystr(path, simple=True): jnp.shape(leaf)
            for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
            if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)  # A Kalman filter needs none.
        }
        for tree in (belief, own)
    )
    for name in [*wanted, *found]:
        if found.get(name) != wanted.get(name):
            has, needs = (
                f"of shape {shapes[name]}" if name in shapes else "missing"
                for shapes in (found, wanted)
            )
            return f"its {name} should be {needs}, and is {has}"
    return None
