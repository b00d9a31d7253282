"""StateSpaceModel, Step and simulate: what the user writes, and data drawn from it."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from nopf.gaussian import Gaussian, Numbers, as_float_array, is_traced
from nopf.robust import Tails
from nopf.space import Space

CORRELATED = (
    "robust: expected observation_noise as standard deviations, since measurements go wrong one "
    "by one; got a covariance matrix"
)


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


@runtime_checkable
class Prior(Protocol):
    """The distribution of the state at time zero."""

    def sample(self, key: PRNGKeyArray) -> Float[Array, " d"]: ...

    def log_prob(self, x: Float[Array, " d"]) -> Float[Array, ""]: ...


class _ControlIsRead(Exception):
    pass


class _StepWithoutControl(Step):
    """Stands in for a step while nobody knows yet how many controls there are."""

    @property
    def control(self) -> Any:
        raise _ControlIsRead


class StateSpaceModel(eqx.Module):
    """A state-space model: x_t = transition(x_{t−1}) + noise, y_t = observation(x_t) + noise.

    All functions are written for one state vector of shape `(d,)`.

    Args:
        prior: distribution of the state at time zero, for example `nopf.Gaussian(mean, std)`.
        transition: `(x, step) -> (d,)`, the noise-free motion from t−1 to t.
        process_noise: standard deviations `(d,)`, or a covariance `(d, d)`, or a function
            `step -> ` one of these, for noise that grows with `step.dt`.
        observation: `(x, step) -> (m,)`, the noise-free measurement. May be left out if the two
            functions below are given.
        observation_noise: like `process_noise`, for the measurement.
        observation_log_prob: `(y, x, step) -> scalar`, log p(y | x) for other than additive
            Gaussian noise; takes the place of `observation_noise`. Where only some coordinates are
            observed it is given the NaN and has to deal with it.
        observation_sample: `(key, x, step) -> (m,)`, draws from the same.
        robust: `nopf.Outliers(rate, scale)` or `nopf.StudentT(freedom)` for measurements that are
            now and then far off; `observation_noise` is then the scale of the good ones.
        state_names: one name a coordinate; `x0, x1, …` if left out.
        state_angles: names or indices of the state's angles (radians). Densities take the nearest
            winding, so the noise of an angle should be well below π.
        observation_angles: the same for the observation.
        observation_names: one name a coordinate, as the columns of recordings are called; `y0, y1,
            …` if left out.
        control_names: the same for `step.control`, for models that read it.
        dt: time between observations, where no times are given.
    """

    prior: Any
    transition: Callable[..., Any]
    process_noise: Any
    observation: Callable[..., Any] | None
    observation_noise: Any
    custom_log_prob: Callable[..., Any] | None
    custom_sample: Callable[..., Any] | None
    robust: Tails | None
    space: Space
    observation_space: Space
    state_names: tuple[str, ...] = eqx.field(static=True)
    observation_names: tuple[str, ...] = eqx.field(static=True)
    control_names: tuple[str, ...] = eqx.field(static=True)
    dt: float = eqx.field(static=True)
    reads_control: bool = eqx.field(static=True)

    def __init__(
        self,
        prior: Prior,
        transition: Callable[..., Any],
        process_noise: Any,
        observation: Callable[..., Any] | None = None,
        observation_noise: Any = None,
        *,
        observation_log_prob: Callable[..., Any] | None = None,
        observation_sample: Callable[..., Any] | None = None,
        robust: Tails | None = None,
        state_names: Sequence[str] | None = None,
        state_angles: Sequence[str | int] | str | int = (),
        observation_angles: Sequence[str | int] | str | int = (),
        observation_names: Sequence[str] | None = None,
        control_names: Sequence[str] = (),
        dt: float = 1.0,
    ):
        if not isinstance(prior, Prior):
            raise TypeError(
                "prior: expected nopf.Gaussian, nopf.GaussianMixture or an object with "
                f"sample(key) and log_prob(x), got {prior!r}"
            )
        for name, function in [("transition", transition), ("observation", observation)]:
            if not callable(function) and not (name == "observation" and function is None):
                raise TypeError(f"{name}: expected a function (x, step) -> array, got {function!r}")
        custom = observation_log_prob is not None or observation_sample is not None
        if custom and (observation_log_prob is None or observation_sample is None):
            raise ValueError(
                "observation_log_prob, observation_sample: expected both or neither; the first "
                "weighs particles, the second simulates"
            )
        if custom == (observation_noise is not None):
            raise ValueError(
                "observation_noise: expected either observation_noise, or observation_log_prob "
                f"and observation_sample instead of it, got {'both' if custom else 'neither'}"
            )
        if robust is not None and not isinstance(robust, Tails):
            raise TypeError(
                f"robust: expected nopf.Outliers(…) or nopf.StudentT(…), got {robust!r}"
            )
        if robust is not None and custom:
            raise ValueError(
                "robust: expected together with observation_noise, of which it changes the tails; "
                "your own observation_log_prob has its own"
            )
        if not custom and observation is None:
            raise ValueError("observation: expected a function (x, step) -> array, got None")

        size = _state_size(prior)
        self.state_names = _names(state_names, size, "state_names", "x")
        self.space = Space(size, _angles("state_angles", state_angles, self.state_names))
        self.dt = finite_number(dt, "dt")
        if self.dt <= 0:
            raise ValueError(f"dt: expected a positive number, got {dt!r}")

        self.prior = prior
        self.transition = transition
        self.observation = observation
        self.custom_log_prob = observation_log_prob
        self.custom_sample = observation_sample
        self.robust = robust
        self.process_noise = _noise(process_noise, size, "process_noise")

        # The width of an observation is known from a trial call, if that needs no controls.
        self.reads_control = False
        self.observation_noise = None
        width = self._trial(self._observation_width)
        if width is None:
            width = _width_of(observation_noise)
        self.observation_names = _names(observation_names, width, "observation_names", "y")
        angles = _angles("observation_angles", observation_angles, self.observation_names)
        self.observation_space = Space(width, angles)
        self.control_names = _names(control_names, len(control_names), "control_names", "u")
        if not custom:
            self.observation_noise = _noise(observation_noise, width, "observation_noise")
            fixed = isinstance(self.observation_noise, Gaussian)
            if robust is not None and fixed and self.observation_noise.factor.ndim != 1:
                raise ValueError(CORRELATED)
        self._trial(self.check)

    # For one particle ---------------------------------------------------------------------------

    def skeleton(self, x: Float[Array, " d"], step: Step) -> Float[Array, " d"]:
        """The noise-free transition, angles wrapped."""
        return self.space.wrap(_array(self.transition(x, step)))

    def process_noise_at(self, step: Step) -> Gaussian:
        """The zero-mean process noise of this step."""
        return _noise_at(self.process_noise, self.space.size, step, "process_noise")

    def observation_noise_at(self, step: Step) -> Gaussian:
        """The zero-mean observation noise of this step (models with Gaussian noise only)."""
        size = self.observation_space.size
        return _noise_at(self.observation_noise, size, step, "observation_noise")

    def sample_prior(self, key: PRNGKeyArray) -> Float[Array, " d"]:
        return self.space.wrap(_array(self.prior.sample(key)))

    def sample_transition(
        self, key: PRNGKeyArray, x: Float[Array, " d"], step: Step
    ) -> Float[Array, " d"]:
        noise = self.process_noise_at(step).sample(key)
        return self.space.wrap(self.skeleton(x, step) + noise)

    def log_transition(
        self, new: Float[Array, " d"], x: Float[Array, " d"], step: Step
    ) -> Float[Array, ""]:
        """log p(new | x)."""
        residual = self.space.difference(new, self.skeleton(x, step))
        return self.process_noise_at(step).log_prob(residual)

    def predict_observation(self, x: Float[Array, " d"], step: Step) -> Float[Array, " m"]:
        """The noise-free observation."""
        assert self.observation is not None
        return _array(self.observation(x, step))

    def sample_observation(
        self, key: PRNGKeyArray, x: Float[Array, " d"], step: Step
    ) -> Float[Array, " m"]:
        if self.custom_sample is not None:
            y = _array(self.custom_sample(key, x, step))
        else:
            noise = self.observation_noise_at(step)
            if self.robust is None:
                deviation = noise.sample(key)
            else:
                deviation = noise.colour(self.robust.sample(key, noise.size))
            y = self.predict_observation(x, step) + deviation
        return self.observation_space.wrap(y)

    def innovation(
        self, y: Float[Array, " m"], x: Float[Array, " d"], step: Step
    ) -> Float[Array, " m"]:
        """y minus the predicted observation, wrapped; zero where y is missing."""
        observed = ~jnp.isnan(y)
        # Both places: a NaN that is masked only afterwards would still poison gradients.
        y = jnp.where(observed, y, 0)
        difference = self.observation_space.difference(y, self.predict_observation(x, step))
        return jnp.where(observed, difference, 0)

    def log_likelihood(
        self, y: Float[Array, " m"], x: Float[Array, " d"], step: Step
    ) -> Float[Array, ""]:
        """log p(y | x). Missing coordinates (NaN) are left out; with none observed it is 0."""
        observed = ~jnp.isnan(y)
        if self.custom_log_prob is None:
            noise = self.observation_noise_at(step).marginal(observed)
            innovation = self.innovation(y, x, step)
            if self.robust is None:
                return noise.log_prob(innovation)
            if noise.factor.ndim != 1:
                raise ValueError(CORRELATED)
            each = self.robust.log_prob(noise.whiten(innovation)) - jnp.log(noise.diagonal)
            return jnp.sum(jnp.where(observed, each, 0))
        some = jnp.any(observed)
        value = self.custom_log_prob(jnp.where(some, y, 0), x, step)
        return jnp.where(some, _array(value), 0)

    # Checks -------------------------------------------------------------------------------------

    def nominal_step(self, index: int = 1, control: Any = None) -> Step:
        """Step `index` of a regular grid."""
        dt = jnp.asarray(self.dt, float)
        return Step(jnp.asarray(index, jnp.int32), index * dt, dt, control)

    def check(self, step: Step) -> None:
        """Calls every function once, on shapes only, and says which one does not fit."""
        d, m = self.space.size, self.observation_space.size
        x, y, key = _shape(d), _shape(m), jax.eval_shape(lambda: jax.random.key(0))
        _expect("transition", "(x, step)", (d,), self.transition, x, step)
        if callable(self.process_noise):
            _expect_noise("process_noise", d, self.process_noise, step)
        if self.observation is not None:
            _expect("observation", "(x, step)", (m,), self.observation, x, step)
        if self.custom_log_prob is not None:
            _expect("observation_log_prob", "(y, x, step)", (), self.custom_log_prob, y, x, step)
            _expect("observation_sample", "(key, x, step)", (m,), self.custom_sample, key, x, step)
        elif callable(self.observation_noise):
            _expect_noise("observation_noise", m, self.observation_noise, step)

    def check_control(self, control_size: int | None) -> None:
        """For models that read `step.control`: the checks that had to wait for its size."""
        if not self.reads_control:
            return
        control = None if control_size is None else _shape(control_size)
        try:
            self.check(self.nominal_step(control=control))
        except (TypeError, ValueError) as error:
            if control_size is None:
                raise ValueError(
                    "controls: this model reads step.control, and no controls were given; "
                    "pass controls=, one row a step"
                ) from error
            raise

    def _observation_width(self, step: Step) -> int:
        x = _shape(self.space.size)
        if self.observation is not None:
            out = _call("observation", "(x, step)", self.observation, x, step)
        else:
            key = jax.eval_shape(lambda: jax.random.key(0))
            out = _call("observation_sample", "(key, x, step)", self.custom_sample, key, x, step)
        if out.ndim != 1 or out.shape[0] < 1:
            raise ValueError(
                f"observation: expected a vector of at least one number, got shape {out.shape}"
            )
        return out.shape[0]

    def _trial(self, function: Callable[[Step], Any]) -> Any:
        """Calls `function(step)`; gives None, and remembers why, if that needs a control."""
        try:
            return function(_StepWithoutControl(*self.nominal_step()))
        except _ControlIsRead:
            self.reads_control = True
            return None


class Trajectories(eqx.Module):
    """Simulated truth and data; with a leading batch axis if one was asked for.

    Attributes:
        initial_state: `(d,)`, at time zero.
        states: `(T, d)`, at the times of the observations.
        observations: `(T, m)`.
        steps: index, time, dt and control of each.
    """

    initial_state: Float[Array, "*batch d"]
    states: Float[Array, "*batch t d"]
    observations: Float[Array, "*batch t m"]
    steps: Step


def simulate(
    model: StateSpaceModel,
    horizon: int,
    key: PRNGKeyArray,
    *,
    initial_state: Numbers | None = None,
    times: Numbers | None = None,
    controls: Numbers | None = None,
    start: float | None = None,
    batch: int | None = None,
) -> Trajectories:
    """Draws states and observations from the model.

    Args:
        model: the model.
        horizon: number of steps T.
        key: random key.
        initial_state: `(d,)` state at time zero; drawn from the prior if left out.
        times: `(T,)` increasing observation times; every `model.dt` if left out.
        controls: `(T, u)` control inputs.
        start: the time of the initial state, 0 if left out.
        batch: how many independent trajectories; one, without a batch axis, if left out.
    """
    horizon = positive_integer(horizon, "horizon")
    steps = make_steps(model, horizon, times, controls, start)
    initial = None
    if initial_state is not None:
        initial = jnp.asarray(as_float_array(initial_state, "initial_state"), float)
        if initial.shape != (model.space.size,):
            raise ValueError(
                f"initial_state: expected shape ({model.space.size},), got {initial.shape}"
            )
    if batch is None:
        paths = simulate_steps(model, steps, key, initial)
    else:
        keys = jax.random.split(key, positive_integer(batch, "batch"))
        paths = _simulate_batch(model, steps, keys, initial)
    if not is_traced(paths):
        for values, culprit in [
            (paths.states, "states: look for the cause in prior, transition or process_noise"),
            (paths.observations, "observations: look for the cause in the observation functions"),
        ]:
            bad = ~np.all(np.isfinite(np.asarray(values)), axis=-1)
            if np.any(bad):
                at = int(np.argwhere(bad)[0][-1])
                raise FloatingPointError(f"NaN or infinite at step {at + 1} in simulated {culprit}")
    return paths


@eqx.filter_jit
def simulate_steps(
    model: StateSpaceModel, steps: Step, key: PRNGKeyArray, initial_state: Any = None
) -> Trajectories:
    """One trajectory at these steps, without checks; for use inside compiled functions."""
    initial_key, key = jax.random.split(key)
    if initial_state is None:
        initial_state = model.sample_prior(initial_key)

    def advance(x: Array, inputs: Any) -> Any:
        key, step = inputs
        state_key, observation_key = jax.random.split(key)
        x = model.sample_transition(state_key, x, step)
        return x, (x, model.sample_observation(observation_key, x, step))

    initial_state = model.space.wrap(initial_state)
    keys = jax.random.split(key, steps.index.shape[0])
    _, (states, observations) = jax.lax.scan(advance, initial_state, (keys, steps))
    return Trajectories(initial_state, states, observations, steps)


@eqx.filter_jit
def _simulate_batch(
    model: StateSpaceModel, steps: Step, keys: Any, initial_state: Any
) -> Trajectories:
    paths = jax.vmap(lambda key: simulate_steps(model, steps, key, initial_state))(keys)
    return eqx.tree_at(lambda p: p.steps, paths, steps)


def make_steps(
    model: StateSpaceModel,
    horizon: int,
    times: Any,
    controls: Any,
    start: float | None = None,
    first: int = 1,
) -> Step:
    """The steps of a series, from index `first` on: a `Step` whose fields have a time axis.

    Times are differenced on the host in double precision: an hour into a recording, single
    precision would leave a hundredth of a second with an error of 2 %.
    """
    origin = 0.0 if start is None else finite_number(start, "start")
    if times is None:
        dt = np.full(horizon, model.dt)
        times = np.cumsum(np.concatenate([[origin], dt]))[1:]
    else:
        times = np.asarray(as_float_array(times, "times"), np.float64)
        if times.shape != (horizon,):
            raise ValueError(f"times: expected shape ({horizon},), got {times.shape}")
        dt = np.diff(times, prepend=origin)
        if np.any(dt < 0):
            at = int(np.argmax(dt < 0))
            before = times[at - 1] if at else origin
            raise ValueError(
                f"times: expected times that do not decrease, but step {first + at} is at "
                f"{times[at]:.9g} and step {first + at - 1} at {before:.9g}"
            )
        if start is None and horizon > 1 and dt[0] > 1000 * max(dt[1:].max(), model.dt):
            raise ValueError(
                f"times: the first observation is {dt[0]:.9g} after the prior, which is at time 0, "
                f"and the others at most {dt[1:].max():.9g} apart; pass start=, the prior's time"
            )
    control = None
    if controls is not None:
        control = as_float_array(controls, "controls")
        if control.ndim != 2 or control.shape[0] != horizon:
            raise ValueError(
                f"controls: expected shape ({horizon}, u), one row a step, got {control.shape}"
            )
        names = model.control_names
        if names and control.shape[1] != len(names):
            # An index that is too large would be clamped, silently.
            raise ValueError(
                f"controls: the model names {len(names)} ({', '.join(names)}), but there are "
                f"{control.shape[1]} columns"
            )
    if first == 1 or (model.reads_control and control is None):
        model.check_control(None if control is None else control.shape[1])
    return Step(np.arange(first, first + horizon, dtype=np.int32), times, dt, control)


def check_key(key: Any) -> PRNGKeyArray:
    """The key, if there is one."""
    if key is None or isinstance(key, int | float):
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


def _array(value: Any) -> Array:
    """What a user's function returned, as a float array; a list of numbers will do."""
    if isinstance(value, list | tuple):
        # Vectorised over particles, jnp.array of a list is nine times slower than jnp.stack.
        value = jnp.stack([jnp.asarray(entry, float) for entry in value])
    return jnp.asarray(value, float)


def _shape(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jax.dtypes.canonicalize_dtype(float))


def _call(name: str, signature: str, function: Any, *args: Any) -> jax.ShapeDtypeStruct:
    """The shape of `function(*args)`; trouble inside it is reported under its name."""
    try:
        return eqx.filter_eval_shape(lambda *a: _array(function(*a)), *args)
    except _ControlIsRead:
        raise
    except Exception as error:
        raise ValueError(
            f"{name}: calling {name}{signature} for one particle raised "
            f"{type(error).__name__}: {error}"
        ) from error


def _expect(name: str, signature: str, shape: tuple[int, ...], function: Any, *args: Any) -> None:
    out = _call(name, signature, function, *args)
    if out.shape != shape:
        raise ValueError(f"{name}: expected {name}{signature} of shape {shape}, got {out.shape}")


def _expect_noise(name: str, size: int, function: Any, step: Step) -> None:
    out = _call(name, "(step)", function, step)
    if out.shape not in ((), (size,), (size, size)):
        raise ValueError(
            f"{name}: expected {name}(step) to give {size} standard deviations or a "
            f"({size}, {size}) covariance matrix, got shape {out.shape}"
        )


def _noise(value: Any, size: int, name: str) -> Any:
    if callable(value):
        return value
    return Gaussian(np.zeros(size), value, name=name)


def _noise_at(noise: Any, size: int, step: Step, name: str) -> Gaussian:
    if isinstance(noise, Gaussian):
        return noise
    return Gaussian(np.zeros(size), noise(step), name=name)


def _state_size(prior: Prior) -> int:
    out = _call("prior", ".sample(key)", prior.sample, jax.eval_shape(lambda: jax.random.key(0)))
    if out.ndim != 1 or out.shape[0] < 1:
        raise ValueError(f"prior: expected sample(key) to give a vector, got shape {out.shape}")
    _expect("prior", ".log_prob(x)", (), prior.log_prob, out)
    return out.shape[0]


def _names(names: Sequence[str] | None, size: int, argument: str, letter: str) -> tuple[str, ...]:
    if names is None:
        return tuple(f"{letter}{i}" for i in range(size))
    names = tuple(names)
    if len(names) != size or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{argument}: expected {size} names, got {names!r}")
    if len(set(names)) != size:
        raise ValueError(f"{argument}: expected different names, got {names!r}")
    return names


def _angles(
    argument: str, angles: Sequence[str | int] | str | int, names: tuple[str, ...]
) -> tuple[int, ...]:
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


def _width_of(noise: Any) -> int:
    """The observation width, where the functions cannot be called before controls are known."""
    if noise is None or callable(noise) or np.ndim(noise) == 0:
        raise ValueError(
            "observation_noise: the observation reads step.control, so its width is not known "
            "from a trial call; give observation_noise as a vector or a matrix"
        )
    return np.shape(noise)[0]
