"""MarginalisedModel: particles for what is not linear, a Kalman filter in each for what is.

Given the path of the other states, some states v are linear and Gaussian: all that is known of them
is a mean m and a covariance P. So a particle is (u, m, P), and a step of it

    (u′, v′) = a(u) + A(u) v + B(u) ε            ε standard normal, v ~ N(m, P)

is jointly Gaussian. Its first part moves by noise z of its own, u′ = E[u′] + C z with C Cᵀ the
covariance of u′; that conditions v′, whose mean becomes E[v′] + G z and whose covariance loses
G Gᵀ.

An observation y = c(u′) + H(u′) v′ + noise is weighed by N(y; c + H m, H P Hᵀ + R) and then taken
in, as in a Kalman filter.
"""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy.stats
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from nopf.gaussian import LOG_2PI
from nopf.linear import Columns, as_array, dot, is_zero, jacobian_rows, solve_lower
from nopf.marginal.conditional import Conditional, semidefinite_root
from nopf.marginal.pieces import (
    Sight,
    Weighed,
    choose,
    fixed,
    hold,
    noise_entries,
    nonlinear_first,
    predict_covariance,
    stacked,
    update_covariance,
)
from nopf.marginal.structure import Structure
from nopf.model import LISTED, StateSpaceModel
from nopf.robust import Outliers, Tails
from nopf.space import Space
from nopf.steps import Step
from nopf.words import listed


class Marginal(NamedTuple):
    """A particle of a marginalised model.

    Attributes:
        nonlinear: `(u,)` the states that particles stand for.
        mean: `(v,)` of the linear states given the path of the others.
        cov: `(e,)` their covariance, entries that are not always zero.
    """

    nonlinear: Float[Array, " u"]
    mean: Float[Array, " v"]
    cov: Float[Array, " e"]


class MarginalisedModel(StateSpaceModel):
    """A model whose particles carry some states as a mean and a covariance. Made by
    `nopf.marginalise`.

    It has the functions of any model, for a particle that is a `Marginal`; so every proposal that
    works in noise space works with it.

    Attributes:
        original: the model as it was.
        structure: which states are linear, and what depends on what.
    """

    original: StateSpaceModel
    structure: Structure = eqx.field(static=True)

    def __init__(self, original: StateSpaceModel, structure: Structure):
        for field in dataclasses.fields(StateSpaceModel):
            setattr(self, field.name, getattr(original, field.name))
        self.process_noise = None
        self.original, self.structure = original, structure
        # One number at least: of a linear model it moves nothing.
        self.noise_size = max(1, len(structure.nonlinear))

    def __repr__(self) -> str:
        return f"{super().__repr__()}, solved exactly: {listed(self.linear_states, LISTED)}"

    @property
    def whole(self) -> StateSpaceModel:
        return self.original

    @property
    def linear_states(self) -> tuple[str, ...]:
        """The names of the states that are solved exactly."""
        return tuple(self.state_names[i] for i in self.structure.linear)

    @property
    def nonlinear_states(self) -> tuple[str, ...]:
        """The names of the states that are left to the particles."""
        return tuple(self.state_names[i] for i in self.structure.nonlinear)

    def summary(self) -> str:
        """What was found to be linear, and why not more, in words."""
        solved = f"solved exactly: {', '.join(self.linear_states)}"
        if not self.structure.nonlinear:
            return f"{solved}; nothing is left to particles: it is the Kalman filter"
        reasons = zip(self.nonlinear_states, self.structure.reasons, strict=True)
        return f"{solved}; left to particles: " + ", ".join(f"{n} ({r})" for n, r in reasons)

    def check(self, step: Step) -> None:
        self.original.check(step)

    def why_no_density(self) -> str | None:
        return "it is marginalised: its particles carry covariances; use the model as it was"

    # How a particle begins and moves ------------------------------------------------------------

    def sample_prior(self, key: PRNGKeyArray) -> Marginal:
        """A particle at time zero."""
        order = self.structure.order
        which, key = jax.random.split(key)
        prior_parts = self.prior_parts
        if prior_parts is None:
            # Nothing is known of it: a draw, with nothing uncertain about it.
            part = (self.whole.sample_prior(key)[order], jnp.zeros((len(order),) * 2))
        else:
            chosen = jax.random.categorical(which, prior_parts[0])
            part = jax.tree.map(lambda leaf: leaf[chosen], prior_parts[1])
        return self.start(part, jax.random.normal(key, (self.start_size,)))

    @property
    def prior_parts(self) -> tuple[Float[Array, " c"], Any] | None:
        whole = self.whole.prior_parts
        if whole is None:
            return None
        parts = jax.vmap(lambda part: nonlinear_first(part, self.structure.order))(whole[1])
        return whole[0], parts

    @property
    def start_size(self) -> int:
        return len(self.structure.nonlinear)

    def start(self, part: Any, white: Float[Array, " s"]) -> Marginal:
        mean, factor = part
        count = self.start_size
        shift = factor[:, :count] @ white
        own = factor[count:, count:]
        places = np.asarray(self.structure.places, int).reshape(-1, 2)
        cov = (own @ own.T)[places[:, 0], places[:, 1]]
        return self.wrap(Marginal((mean + shift)[:count], (mean + shift)[count:], cov))

    def motion(self, ancestor: Marginal, step: Step) -> Callable[[Float[Array, " k"]], Marginal]:
        conditional, value = self.conditional_motion(ancestor, step)
        linear, nonlinear = self.structure.linear, self.structure.nonlinear
        cov = self._pack(conditional.rest)

        def move(z: Float[Array, " k"]) -> Marginal:
            numbers = list(z)[: len(nonlinear)]
            u = [
                value[i] + dot(row, numbers[: len(row)])
                for i, row in zip(nonlinear, conditional.root, strict=True)
            ]
            m = [
                value[i] + dot(row, numbers)
                for i, row in zip(linear, conditional.gain, strict=True)
            ]
            return Marginal(stacked(u), stacked(m), cov)

        return move

    def conditional_motion(
        self, ancestor: Marginal, step: Step
    ) -> tuple[Conditional, Float[Array, " d"]]:
        """The step of the linear states given that of the others, and where all go on average."""
        linear, nonlinear = self.structure.linear, self.structure.nonlinear
        size, count = len(linear), self.whole.noise_size

        def move(point: Array) -> Array:
            return self.whole.motion(self._join(ancestor.nonlinear, point[:size]), step)(
                point[size:]
            )

        point = jnp.concatenate([ancestor.mean, jnp.zeros(count)])
        value, push = jax.linearize(move, point)
        rows = jacobian_rows(push, size + count, len(value), self.structure.moves)
        found = predict_covariance(rows, self._unpack(ancestor.cov), linear, nonlinear)
        return hold((found, value))

    def skeleton(self, x: Marginal, step: Step) -> Marginal:
        return self.move(x, jnp.zeros(self.noise_size), step)

    def wrap(self, x: Marginal) -> Marginal:
        angles = [i for i, s in enumerate(self.structure.nonlinear) if s in self.space.angles]
        if not angles:
            return x
        space = Space(len(self.structure.nonlinear), angles)
        return x._replace(nonlinear=space.wrap(x.nonlinear))

    # How it is weighed --------------------------------------------------------------------------

    def log_likelihood(self, y: Float[Array, " m"], x: Marginal, step: Step) -> Float[Array, ""]:
        sight, cov = self._sight(x, step), self._unpack(x.cov)
        sure, parts = self._weigh(y, sight, cov)
        values = jnp.concatenate([part.log_probs for part in parts])
        return sure + (values[0] if values.size == 1 else jax.nn.logsumexp(values))

    @property
    def assimilation_size(self) -> int:
        return 0 if self._orders is None and not self.structure.doubtful else 1

    def assimilate(
        self, x: Marginal, y: Float[Array, " m"], step: Step, white: Float[Array, " a"]
    ) -> Marginal:
        sight, cov = self._sight(x, step), self._unpack(x.cov)
        _, parts = self._weigh(y, sight, cov)
        values = jnp.concatenate([part.log_probs for part in parts])
        case = jnp.zeros((), int)
        if values.size > 1:
            ends = jnp.cumsum(jax.nn.softmax(values))
            position = jax.scipy.stats.norm.cdf(white[0]) * ends[-1]
            case = jnp.minimum(jnp.sum(position >= ends), values.size - 1)
        arranged = y if self._orders is None else jnp.asarray(y)[self._orders][case]
        observed = self._observed(y)
        shift: list[Any] = []
        rest = self._pack(cov)
        for scale, part in enumerate(parts):
            apart = sight.apart(arranged, part.observed if self._orders is None else observed)
            found = [dot(row, solve_lower(part.update.root, apart)) for row in part.update.gain]
            this = True if len(parts) == 1 else case == scale
            shift = [choose(this, a, b) for a, b in zip(found, shift or found, strict=True)]
            rest = jnp.where(this, self._pack(part.update.rest), rest)
        return x._replace(mean=x.mean + as_array(shift), cov=rest)

    def residual(self, y: Float[Array, " m"], x: Marginal, step: Step) -> Float[Array, " m"]:
        # Its slope is that of the prediction; how uncertain the linear states are counts as fixed.
        sight = self._sight(x, step)
        rows = [[fixed(entry) for entry in row] for row in sight.rows]
        cov = [[fixed(entry) for entry in row] for row in self._unpack(x.cov)]
        observed = self._observed(y)
        root = self._update(observed, sight._replace(rows=rows), cov, None).root
        if self._orders is not None:
            value = jax.lax.stop_gradient(sight.value)
            squares = self._squares(y, sight._replace(value=value), root, observed)
            y = jnp.asarray(y)[self._orders][jnp.argmin(squares)]
        return stacked(solve_lower(root, sight.apart(y, observed)))

    def sample_observation(self, key: PRNGKeyArray, x: Marginal, step: Step) -> Float[Array, " m"]:
        """A measurement of a state drawn from this particle, with its noise."""
        state_key, key = jax.random.split(key)
        white = jax.random.normal(state_key, (self.completion_size,))
        return self.whole.sample_observation(key, self.complete(x, white), step)

    # What it stands for -------------------------------------------------------------------------

    def expectation(self, x: Marginal) -> Float[Array, " d"]:
        return self._join(x.nonlinear, x.mean)

    def within(self, x: Marginal) -> Float[Array, "d d"]:
        places = np.asarray(self.structure.linear)[np.asarray(self.structure.places, int)]
        rows, columns = places.reshape(-1, 2).T
        size = self.space.size
        lower = jnp.zeros((size, size), x.cov.dtype).at[rows, columns].set(x.cov)
        return lower + lower.T - jnp.diag(jnp.diagonal(lower))

    def spread(self, x: Marginal) -> Float[Array, " d"]:
        lower = self._unpack(x.cov)
        own = [0.0 if is_zero(row[-1]) else jnp.sqrt(row[-1]) for row in lower]
        spread: list[Any] = [0.0] * self.space.size
        for i, value in zip(self.structure.linear, own, strict=True):
            spread[i] = value
        return as_array(spread)

    @property
    def completion_size(self) -> int:
        return len(self.structure.linear)

    def complete(self, x: Marginal, white: Float[Array, " c"]) -> Float[Array, " d"]:
        root = semidefinite_root(self._unpack(x.cov))
        shift = [dot(row, list(white)[: len(row)]) for row in root]
        return self._join(x.nonlinear, x.mean + as_array(shift))

    # Inside -------------------------------------------------------------------------------------

    def _join(self, nonlinear: Float[Array, " u"], mean: Float[Array, " v"]) -> Float[Array, " d"]:
        parts: list[Any] = [None] * self.space.size
        for indices, values in (
            (self.structure.nonlinear, nonlinear),
            (self.structure.linear, mean),
        ):
            for i, place in enumerate(indices):
                parts[place] = values[i]
        return jnp.stack(parts)

    def _unpack(self, cov: Float[Array, " e"]) -> Columns:
        lower: Columns = [[0.0] * (i + 1) for i in range(len(self.structure.linear))]
        for k, (i, j) in enumerate(self.structure.places):
            lower[i][j] = cov[k]
        return lower

    def _pack(self, lower: Columns) -> Float[Array, " e"]:
        return as_array([lower[i][j] for i, j in self.structure.places])

    @property
    def _orders(self) -> np.ndarray | None:
        return self.whole.likelihood.arrangements

    @property
    def _heavy(self) -> Tails | None:
        """The tails of the measurements, if they are heavier than the normal's."""
        return getattr(self.whole.likelihood, "tails", None)

    def _sight(self, x: Marginal, step: Step) -> Sight:
        sensors = self.whole.likelihood.sensors
        assert sensors is not None

        def see(mean: Array) -> Array:
            return sensors.predict(self._join(x.nonlinear, mean), step)

        value, push = jax.linearize(see, x.mean)
        rows = jacobian_rows(push, len(x.mean), len(value), self.structure.shows)
        return Sight(sensors, value, rows, sensors.noise_at(step))

    def _observed(self, y: Float[Array, " m"]) -> list[Bool[Array, ""]]:
        """Which measurements count. Of those without an order, all or none."""
        observed = list(~jnp.isnan(y))
        orders = self._orders
        if orders is not None:
            moved = np.flatnonzero((orders != orders[:1]).any(axis=0))
            every = jnp.all(jnp.stack([observed[i] for i in moved]))
            observed = [every if i in moved else one for i, one in enumerate(observed)]
        return observed

    def _update(
        self, observed: list[Bool[Array, ""]], sight: Sight, cov: Columns, scale: Any
    ) -> Conditional:
        """The linear states given an observation, whose noise is `scale` times as large."""
        rows = [
            [entry if is_zero(entry) else jnp.where(seen, entry, 0) for entry in row]
            for row, seen in zip(sight.rows, observed, strict=True)
        ]
        noise = noise_entries(sight.noise.marginal(jnp.stack(observed)))
        if scale is not None:
            for i, factor in enumerate(scale):
                noise[i][i] = noise[i][i] * jnp.where(observed[i], factor**2, 1.0)
        return update_covariance(rows, cov, noise)

    def _weigh(
        self, y: Float[Array, " m"], sight: Sight, cov: Columns
    ) -> tuple[Float[Array, ""], list[Weighed]]:
        """log-density of what no linear state shows in, where that is apart; and for each way in
        which noise may be larger than usual the densities of the rest, in every order."""
        sure = self._without_doubt(y, sight)
        if self._heavy is not None:  # The others are weighed already.
            y = jnp.where(np.isin(np.arange(y.size), self.structure.doubtful), y, jnp.nan)
        observed, parts = self._observed(y), []
        for scale, log_chance in self._tails():
            update = self._update(observed, sight, cov, scale)
            squares = self._squares(y, sight, update.root, observed)
            log_det = sum(jnp.log(row[-1]) for row in update.root)
            constant = log_det + 0.5 * y.size * LOG_2PI + np.log(squares.size) - log_chance
            parts.append(Weighed(-0.5 * squares - constant, update, observed))
        return sure, parts

    def _squares(
        self,
        y: Float[Array, " m"],
        sight: Sight,
        root: Columns,
        observed: list[Bool[Array, ""]],
    ) -> Float[Array, " c"]:
        """Squared distances of the measurements from their predictions, in every order."""
        if self._orders is None:
            white = solve_lower(root, sight.apart(y, observed))
            return jnp.reshape(dot(white, white), (1,))

        # One order after the other, in a loop: written out, compiling takes a minute.
        def one(_: None, arranged: Array) -> tuple[None, Array]:
            white = solve_lower(root, sight.apart(arranged, observed))
            return None, dot(white, white)

        return jax.lax.scan(one, None, jnp.asarray(y)[self._orders])[1]

    def _without_doubt(self, y: Float[Array, " m"], sight: Sight) -> Float[Array, ""]:
        """log-density of the measurements with heavy tails that no linear state shows in."""
        if self._heavy is None:
            return jnp.zeros(())
        certain = ~np.isin(np.arange(y.size), self.structure.doubtful) & ~jnp.isnan(y)
        white = sight.noise.whiten(
            sight.sensors.space.difference(jnp.where(certain, y, 0), sight.value)
        )
        each = self._heavy.log_prob(white) - jnp.log(sight.noise.diagonal)
        return jnp.sum(jnp.where(certain, each, 0))

    def _tails(self) -> list[tuple[list[float] | None, float]]:
        """How much larger than usual each measurement's noise may be, and the log of the chance."""
        if not self.structure.doubtful:
            return [(None, 0.0)]
        tails = self._heavy
        assert isinstance(tails, Outliers)
        width = self.observation_space.size
        found: list[tuple[list[float] | None, float]] = []
        for outliers in itertools.product((False, True), repeat=len(self.structure.doubtful)):
            scale = [1.0] * width
            for i, out in zip(self.structure.doubtful, outliers, strict=True):
                scale[i] = tails.scale if out else 1.0
            chance = sum(np.log(tails.rate if out else 1 - tails.rate) for out in outliers)
            found.append((scale, float(chance)))
        return found
