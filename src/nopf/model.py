"""StateSpaceModel: what the user writes, as functions of one particle."""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from nopf import notebook, plots
from nopf.arguments import (
    ControlIsRead,
    OutOfRange,
    UnknownControl,
    as_array,
    check_angles,
    check_key,
    check_names,
    check_origin,
    expect_shape,
    finite_number,
    positive_integer,
    shape_of,
)
from nopf.functions import (
    NoisyTransition,
    Prior,
    Transition,
    check_functions,
    make_process_noise,
    observation_width,
    state_size,
    width_of,
)
from nopf.gaussian import Gaussian, GaussianMixture, is_traced, shown
from nopf.keys import plain
from nopf.layout import one_by_one
from nopf.likelihood import (
    Likelihood,
    Observation,
    ObservationLogProb,
    ObservationSample,
    check_together,
    innovation,
    make_likelihood,
)
from nopf.noise import Noise, NoiseOfState, NoiseOfStep
from nopf.plots import plane_of
from nopf.robust import Tails
from nopf.space import Space
from nopf.steps import Step, make_steps, regular_step
from nopf.trigonometry import vectorised
from nopf.words import listed

Particle: TypeAlias = Any
"""What a filter moves and weighs: a state `(d,)`, or a `Marginal` of a marginalised model."""

LISTED = 8  # names that a line has room for
LIKELY_CONTROLS = 6  # for a trial call, where nobody says how many there are


class StateSpaceModel(eqx.Module):
    """A state-space model: x_t = transition(x_{t−1}) + noise, y_t = observation(x_t) + noise.

    All functions are written for one state vector of shape `(d,)`.

    Args:
        prior: distribution of the state at time zero, for example `nopf.Gaussian(mean, std)`.
        transition: `(x, step) -> (d,)`, the noise-free motion from t−1 to t; or, with `noise_size`,
            `(x, step, noise) -> (d,)`, the motion with its noise.
        process_noise: standard deviations `(d,)`, or a covariance `(d, d)`, or a function of
            `(step)` or `(x, step)` that gives one of these: noise that grows with `step.dt`, or
            that depends on the state. Coordinates and directions may be without noise.
        observation: `(x, step) -> (m,)`, the noise-free measurement. May be left out if the two
            functions below are given.
        observation_noise: like `process_noise`, for the measurement: numbers or a function of
            `(step)`, and no coordinate without noise.
        noise_size: how many standard normal numbers `transition(x, step, noise)` takes; instead of
            `process_noise`. For noise along a robot's heading or on its controls, for stochastic
            differential equations in substeps.
        observation_log_prob: `(y, x, step) -> scalar`, log p(y | x) for other than additive
            Gaussian noise; takes the place of `observation_noise`. Where only some coordinates are
            observed it is given the NaN and has to deal with it.
        observation_sample: `(key, x, step) -> (m,)`, draws from the same.
        likelihood: a `nopf.Likelihood` instead of all of these.
        robust: `nopf.Outliers(rate, scale)` or `nopf.StudentT(freedom)` for measurements that are
            now and then far off; `observation_noise` is then the scale of the good ones.
        state_names: one name a coordinate; `x0, x1, …` if left out.
        state_angles: names or indices of the state's angles (radians). Densities take the nearest
            winding, so the noise of an angle should be well below π.
        observation_angles: the same for the observation.
        observation_names: one name a coordinate, as the columns of recordings are called; `y0, y1,
            …` if left out.
        control_names: the same for `step.control`, for models that read it.
        plane: the two states that are a place, for maps: `("x", "y")`; found by their names if left
            out.
        origin: where coordinates far from zero are counted from, by the names of states and of
            observations: `{"north": 5e6, "gps_north": 5e6}`. The prior and all functions of the
            model count from there. Observations are given as they are and estimates come as they
            are: both are shifted on the host, in double precision.
        dt: time between observations, where no times are given.

    Attributes:
        space: which states are angles, and where coordinates are counted from.
        observation_space: the same of the observation.
        reads_control: whether one of the functions reads `step.control`.
        ignores_control: whether none does, for certain; False if that cannot be seen.
    """

    prior: Prior
    transition: Transition | NoisyTransition
    process_noise: Noise | None  # None if the transition takes its noise itself
    likelihood: Likelihood
    space: Space
    observation_space: Space
    noise_size: int = eqx.field(static=True)
    state_names: tuple[str, ...] = eqx.field(static=True)
    observation_names: tuple[str, ...] = eqx.field(static=True)
    control_names: tuple[str, ...] = eqx.field(static=True)
    plane: tuple[str, str] | None = eqx.field(static=True)
    dt: float = eqx.field(static=True)
    reads_control: bool = eqx.field(static=True)
    ignores_control: bool = eqx.field(static=True)

    def __init__(
        self,
        prior: Prior,
        transition: Transition | NoisyTransition,
        process_noise: Any | NoiseOfStep | NoiseOfState = None,
        observation: Observation | None = None,
        observation_noise: Any | NoiseOfStep = None,
        *,
        noise_size: int | None = None,
        observation_log_prob: ObservationLogProb | None = None,
        observation_sample: ObservationSample | None = None,
        likelihood: Likelihood | None = None,
        robust: Tails | None = None,
        state_names: Sequence[str] | None = None,
        state_angles: Sequence[str | int] | str | int = (),
        observation_angles: Sequence[str | int] | str | int = (),
        observation_names: Sequence[str] | None = None,
        control_names: Sequence[str] | None = None,
        plane: Sequence[str] | None = None,
        origin: Mapping[str, float] | None = None,
        dt: float | int = 1.0,
    ):
        check_functions(prior, transition, observation)
        given = (observation, observation_noise, observation_log_prob, observation_sample, robust)
        check_together(*given, likelihood)
        size = state_size(prior)
        self.state_names = check_names(state_names, size, "state_names", "x")
        state_angles = check_angles("state_angles", state_angles, self.state_names)
        self.plane = None
        if plane is not None:
            across, up = plane_of(self.state_names, plane)
            self.plane = self.state_names[across], self.state_names[up]
        self.dt = finite_number(dt, "dt")
        if self.dt <= 0:
            raise ValueError(f"dt: expected a positive number, got {shown(dt)}")
        self.prior, self.transition = prior, transition
        self.process_noise, self.noise_size = make_process_noise(
            process_noise, noise_size, size, transition
        )

        # The width of an observation is known from a trial call, if that needs no controls.
        self.reads_control, self.ignores_control = False, True
        self.control_names = check_names(control_names, None, "control_names", "u")
        sample = observation_sample if likelihood is None else likelihood.sample
        width = self._trial(lambda step: observation_width(observation, sample, size, step))
        if width is None:
            width = width_of(observation_noise, observation_names)
        self.observation_names = check_names(observation_names, width, "observation_names", "y")
        angles = check_angles("observation_angles", observation_angles, self.observation_names)
        known = tuple(dict.fromkeys((*self.state_names, *self.observation_names)))
        place = check_origin(origin, self.state_names, state_angles, known)
        self.space = Space(size, state_angles, place)
        place = check_origin(origin, self.observation_names, angles, known)
        self.observation_space = Space(width, angles, place)
        if likelihood is None:
            likelihood = make_likelihood(*given, self.observation_space)
        self.likelihood = likelihood
        self._trial(self.check)

    def __repr__(self) -> str:
        states = f"{len(self.state_names)} states ({listed(self.state_names, LISTED)})"
        names = listed(self.observation_names, LISTED)
        seen = f"{len(self.observation_names)} observations ({names})"
        return f"{type(self).__name__}: {states}, {seen}, dt {self.dt:g}"

    def _repr_html_(self) -> str:
        kinds = [
            ("state", self.state_names, self.space.angles),
            ("observation", self.observation_names, self.observation_space.angles),
            ("control", self.control_names, ()),
        ]
        rows = [
            (kind, name, "angle" if i in angles else "")
            for kind, names, angles in kinds
            for i, name in enumerate(names)
        ]
        return notebook.table(f"{type(self).__name__}, dt {self.dt:g}", ("", "name", ""), rows)

    def plot(
        self,
        horizon: int | float = 100,
        key: PRNGKeyArray | None = None,
        *,
        paths: int | float = 5,
        times: Any = None,
        controls: Any = None,
        start: float | None = None,
        plane: Sequence[str] | None = None,
    ) -> np.ndarray:
        """Simulates a few paths and draws them: every state over time, and the plane if two states
        are a place (needs the `plots` extra).

        Args:
            horizon: number of steps.
            key: random key; `jax.random.key(0)` if left out.
            paths: how many.
            times: as for `nopf.simulate`.
            controls: as for `nopf.simulate`.
            start: as for `nopf.simulate`.
            plane: the two states that are a place; those of the model, or found by their names, if
                left out.

        Returns:
            the axes of matplotlib: one a state, and the plane's last if there is one.
        """
        steps = self.steps(positive_integer(horizon, "horizon"), times, controls, start)
        key = jax.random.key(0) if key is None else check_key(key)
        drawn = _walks(self.whole, steps, jax.random.split(key, positive_integer(paths, "paths")))
        states = np.asarray(self.space.absolute(drawn))
        return plots.draw_paths(
            steps.time, states, self.space, self.state_names, plane or self.plane
        )

    # For one particle ---------------------------------------------------------------------------

    def sample_prior(self, key: PRNGKeyArray) -> Particle:
        """A state at time zero."""
        return self.space.wrap(as_array(self.prior.sample(plain(key))))

    @property
    def prior_parts(self) -> tuple[Float[Array, " c"], Any] | None:
        """The Gaussians that the prior is made of: the log of their weights, and what `start` makes
        particles of, with a leading axis. None if it is made of something else."""
        if isinstance(self.prior, Gaussian):
            one = jax.tree.map(lambda leaf: jnp.asarray(leaf, float)[None], self.prior)
            return jnp.zeros(1), one
        if isinstance(self.prior, GaussianMixture):
            parts = jax.tree.map(lambda leaf: jnp.asarray(leaf, float), self.prior.components)
            return jnp.log(jnp.asarray(self.prior.weights, float)), parts
        return None

    @property
    def start_size(self) -> int:
        """How many standard normal numbers `start` takes."""
        return self.space.size

    def start(self, part: Any, white: Float[Array, " s"]) -> Particle:
        """The particle at time zero that standard normal numbers make of one of `prior_parts`."""
        return self.space.wrap(one_by_one(operator.add, part.mean, part.colour(white)))

    def motion(self, ancestor: Particle, step: Step) -> Callable[[Float[Array, " k"]], Particle]:
        """The next state as a function of standard normal numbers z; angles are not wrapped."""
        if self.process_noise is None:
            transition = vectorised(self.transition)
            return lambda z: as_array(transition(ancestor, step, z))
        predicted = self.skeleton(ancestor, step)
        noise = self.process_noise.at(step, ancestor)
        return lambda z: one_by_one(operator.add, predicted, noise.colour(z))

    def move(self, ancestor: Particle, z: Float[Array, " k"], step: Step) -> Particle:
        """The next state that standard normal numbers z make of `ancestor`."""
        return self.wrap(self.motion(ancestor, step)(z))

    def wrap(self, x: Particle) -> Particle:
        """The same particle, its angles in (−π, π]."""
        return self.space.wrap(x)

    def skeleton(self, x: Particle, step: Step) -> Particle:
        """The noise-free transition, angles wrapped."""
        if self.process_noise is None:
            return self.move(x, jnp.zeros(self.noise_size), step)
        return self.space.wrap(as_array(vectorised(self.transition)(x, step)))

    def sample_transition(self, key: PRNGKeyArray, x: Particle, step: Step) -> Particle:
        """The next state: the transition with its noise."""
        return self.move(x, jax.random.normal(key, (self.noise_size,)), step)

    def advance(
        self, key: PRNGKeyArray, x: Particle, step: Step
    ) -> tuple[Particle, Float[Array, " m"]]:
        """A step of a simulation: the next particle, and what is observed of it."""
        state_key, observation_key = jax.random.split(key)
        x = self.sample_transition(state_key, x, step)
        y = self.sample_observation(observation_key, x, step)
        count = self.assimilation_size
        white = jax.random.normal(jax.random.fold_in(state_key, 1), (count,)) if count else y[:0]
        return self.assimilate(x, y, step, white), y

    def process_noise_at(self, step: Step, x: Particle | None = None) -> Gaussian:
        """The zero-mean process noise of this step, where it is additive.

        Args:
            step: the step.
            x: the state before it, for noise that depends on that.
        """
        if self.process_noise is None:
            raise TypeError("process_noise: this transition takes its noise as an argument")
        return self.process_noise.at(step, x)

    def log_transition(self, new: Float[Array, " d"], x: Particle, step: Step) -> Float[Array, ""]:
        """log p(new | x), where there is a density (see `why_no_density`)."""
        if self.process_noise is None or self.noise_size < self.space.size:
            raise TypeError(f"model: the transition has no density: {self.why_no_density()}")
        residual = self.space.difference(new, self.skeleton(x, step))
        return self.process_noise_at(step, x).log_prob(residual)

    @property
    def observation(self) -> Observation | None:
        """The noise-free measurement as the user wrote it, if there is one."""
        return getattr(self.likelihood.nominal(), "observation", None)

    @property
    def observation_noise(self) -> Noise | None:
        """The additive observation noise, if that is what it is."""
        return getattr(self.likelihood.nominal(), "noise", None)

    def predict_observation(self, x: Particle, step: Step) -> Float[Array, " m"]:
        """The noise-free observation."""
        return as_array(self.likelihood.predict(self.expectation(x), step))

    def observation_noise_at(self, step: Step) -> Gaussian:
        """The zero-mean observation noise of this step, where it is additive."""
        return self.likelihood.noise_at(step)

    def sample_observation(self, key: PRNGKeyArray, x: Particle, step: Step) -> Float[Array, " m"]:
        """A measurement of this state, with its noise."""
        return self.observation_space.wrap(as_array(self.likelihood.sample(key, x, step)))

    def innovation(self, y: Float[Array, " m"], x: Particle, step: Step) -> Float[Array, " m"]:
        """y minus the predicted observation, wrapped; zero where y is missing."""
        expected = self.expectation(x)
        return innovation(self.likelihood, self.observation_space, y, expected, step)

    def residual(self, y: Float[Array, " m"], x: Particle, step: Step) -> Float[Array, " m"]:
        """The innovation in units of the noise, uncorrelated, where noise is Gaussian; of the most
        likely order, where that is not known. Zero where y is missing."""
        return self.likelihood.residual(y, x, step)

    def log_likelihood(self, y: Float[Array, " m"], x: Particle, step: Step) -> Float[Array, ""]:
        """log p(y | x). Missing coordinates (NaN) are left out; with none observed it is 0."""
        if self.likelihood.additive:
            return self.likelihood.log_prob(y, x, step)
        some = jnp.any(~jnp.isnan(y))
        value = as_array(self.likelihood.log_prob(jnp.where(some, y, 0), x, step))
        return jnp.where(some, value, 0)

    @property
    def whole(self) -> "StateSpaceModel":
        """The model of all states, for what cannot be done with a marginalised one."""
        return self

    # What a particle stands for: in a plain model for itself. A marginalised one carries the
    # mean and the covariance of some states, and says here what follows from that.

    @property
    def assimilation_size(self) -> int:
        """How many standard normal numbers `assimilate` takes."""
        return 0

    def assimilate(
        self, x: Particle, y: Float[Array, " m"], step: Step, white: Float[Array, " a"]
    ) -> Particle:
        """The particle after it has been weighed by an observation."""
        return x

    def expectation(self, x: Particle) -> Float[Array, " d"]:
        """The mean of the state that a particle stands for."""
        return x

    def within(self, x: Particle) -> Float[Array, "d d"] | None:
        """The covariance of that state; None if there is none. Linear in what the particle carries,
        so that the mean of it is that of the mean particle."""
        return None

    def spread(self, x: Particle) -> Float[Array, " d"] | None:
        """The standard deviations that belong to `within`."""
        return None

    @property
    def completion_size(self) -> int:
        """How many standard normal numbers `complete` takes."""
        return 0

    def complete(self, x: Particle, white: Float[Array, " c"]) -> Float[Array, " d"]:
        """A draw of the state that a particle stands for."""
        return x

    # Steps and checks ---------------------------------------------------------------------------

    def nominal_step(self, index: int | Array = 1, control: Any = None) -> Step:
        """Step `index` of a regular grid."""
        return regular_step(self.dt, index, control)

    def steps(
        self,
        horizon: int,
        times: Any = None,
        controls: Any = None,
        start: float | None = None,
        first: int = 1,
    ) -> Step:
        """The steps of a series (see `nopf.steps.make_steps`), with controls that fit the model."""
        steps = make_steps(horizon, self.dt, times, controls, start, first)
        names, control = self.control_names, steps.control
        if control is not None and self.ignores_control and not names:
            raise ValueError(
                "controls: no function of this model reads step.control; leave them out, or name "
                "them in the model (control_names=) if a proposal reads them"
            )
        if control is not None and names and control.shape[1] != len(names):
            # An index that is too large would be clamped, silently.
            raise ValueError(
                f"controls: the model names {len(names)} ({', '.join(names)}), but there are "
                f"{control.shape[1]} columns"
            )
        if first == 1 or (self.reads_control and control is None):
            self.check_control(None if control is None else control.shape[1])
        return steps

    def check(self, step: Step) -> None:
        """Calls every function once, on shapes only, and says which one does not fit."""
        d, m = self.space.size, self.observation_space.size
        x = shape_of(d)
        if self.process_noise is None:
            noise = shape_of(self.noise_size)
            expect_shape("transition", "(x, step, noise)", (d,), self.transition, x, step, noise)
        else:
            expect_shape("transition", "(x, step)", (d,), self.transition, x, step)
            self.process_noise.check(x, step)
        self.likelihood.check(d, m, step)

    def check_control(self, control_size: int | None) -> None:
        """For models that read `step.control`: the checks that had to wait for its size."""
        if not self.reads_control:
            return
        control = None if control_size is None else shape_of(control_size)
        try:
            self.check(self.nominal_step(control=control))
        except (TypeError, ValueError) as error:
            if control_size is None:
                raise ValueError(
                    "controls: this model reads step.control, and no controls were given; "
                    "pass controls=, one row a step"
                ) from error
            raise

    def why_no_density(self) -> str | None:
        """None if p(x_t | x_{t−1}) has a density: additive noise in every direction."""
        noise = self.process_noise
        if noise is None:
            return "its transition takes the noise as an argument"
        if noise.constant is not None:
            singular = noise.rank < noise.size
        elif self.reads_control or is_traced(self):
            return None
        else:
            x = self.sample_prior(jax.random.key(0))
            here = self.process_noise_at(self.nominal_step(), x)
            if is_traced(here.diagonal):
                return None
            singular = not np.all(np.asarray(here.diagonal) > 0)
        return "some of its states have no noise of their own" if singular else None

    def _trial(self, function: Callable[[Step], Any]) -> Any:
        """Calls `function(step)`; gives None, and remembers why, if that needs a control."""
        named = len(self.control_names)
        try:
            return function(self.nominal_step(control=UnknownControl()))
        except ControlIsRead:
            self.reads_control, self.ignores_control = True, False
            return function(self.nominal_step(control=shape_of(named))) if named else None
        except OutOfRange:
            raise
        except ValueError:
            self.ignores_control = False
            # JAX's own functions cannot take the stand-in: does it do without, or with some?
        try:
            return function(self.nominal_step())
        except OutOfRange:
            raise
        except ValueError:
            pass
        try:
            function(self.nominal_step(control=shape_of(named or LIKELY_CONTROLS)))
        except OutOfRange:
            if named:
                raise  # Otherwise there may be more of them than was thought likely.
        self.reads_control = True
        return None


@eqx.filter_jit
def _walks(model: StateSpaceModel, steps: Step, keys: Any) -> Float[Array, "p t d"]:
    """Paths of the state, one a key."""

    def one(key: PRNGKeyArray) -> Array:
        start_key, key = jax.random.split(key)

        def advance(x: Particle, inputs: Any) -> Any:
            x, _ = model.advance(inputs[0], x, inputs[1])
            return x, x

        keys = jax.random.split(key, steps.index.shape[0])
        return jax.lax.scan(advance, model.sample_prior(start_key), (keys, steps))[1]

    return jax.vmap(one)(keys)


def check_model(model: StateSpaceModel) -> StateSpaceModel:
    """The model, if it is one."""
    if not isinstance(model, StateSpaceModel):
        raise TypeError(f"model: expected a nopf.StateSpaceModel, got {shown(model)}")
    return model
