"""Whether a model explains its data: p-values, standardised innovations, and the drift of both."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from nopf.compiling import in_brief
from nopf.filters.moving import white_numbers
from nopf.likelihood import Likelihood
from nopf.model import StateSpaceModel
from nopf.space import Space, wrap_angle
from nopf.steps import Step

DRAWS = 127  # predicted observations that one is compared with
FORGET = 0.95  # a step: about the last twenty count
LOST = 5.0  # a drift beyond this is no accident
TIE = 1e-4  # of a squared distance: closer ones are equal but for rounding


class Judged(NamedTuple):
    """What a filter says of an observation before it takes it in.

    Attributes:
        p_value: how probable one at least as far from the prediction is.
        nominal_p_value: the same without the tails of `robust=`.
        innovation: `(m,)`, how far each coordinate is from its prediction (without the tails), in
            standard deviations: standard normal if the model is right. NaN where it is missing.
    """

    p_value: Float[Array, ""]
    nominal_p_value: Float[Array, ""]
    innovation: Float[Array, " m"]


class Surprise(NamedTuple):
    """Running sums over steps, older ones fading: of −log p, of the weights, of their squares."""

    total: Float[Array, ""]
    weight: Float[Array, ""]
    squares: Float[Array, ""]

    @staticmethod
    def none() -> "Surprise":
        return Surprise(jnp.zeros(()), jnp.zeros(()), jnp.zeros(()))

    def add(self, p_value: Float[Array, ""]) -> "Surprise":
        """With one more step; as it is if nothing was observed."""
        # One outlier is no drift: none counts more than the most surprising of the draws.
        surprise = -jnp.log(jnp.maximum(p_value, 1 / (DRAWS + 1)))
        more = Surprise(
            FORGET * self.total + surprise,
            FORGET * self.weight + 1,
            FORGET**2 * self.squares + 1,
        )
        known = ~jnp.isnan(p_value)
        return jax.tree.map(lambda new, old: jnp.where(known, new, old), more, self)

    def forgotten(self, now: Bool[Array, ""]) -> "Surprise":
        """Nothing, if that is so `now`."""
        return jax.tree.map(lambda value: jnp.where(now, 0, value), self)

    def drift(self) -> Float[Array, ""]:
        """Standard normal if the model is right; large if observations surprise it too often.

        Minus the logarithm of a uniform number has a Gamma distribution, and so, nearly, has the
        weighted mean; by Wilson and Hilferty the cube root of that is nearly normal.
        """
        some = self.weight > 0
        weight, squares = jnp.where(some, self.weight, 1), jnp.where(some, self.squares, 1)
        ninth = squares / weight**2 / 9
        z = (jnp.cbrt(self.total / weight) - 1 + ninth) / jnp.sqrt(ninth)
        return jnp.where(some, z, jnp.nan)


def judge(
    key: PRNGKeyArray,
    model: StateSpaceModel,
    before: Any,
    y: Float[Array, " m"],
    step: Step,
) -> Judged:
    """Compares an observation with what is predicted.

    Args:
        key: random key.
        model: the model.
        before: some draws of the posterior before this step.
        y: the observation.
        step: its step.
    """
    k, m, c = model.noise_size, model.observation_space.size, model.completion_size
    # All noise in one draw: each costs more than what is drawn.
    white = white_numbers(key, DRAWS, k + m + c)

    def predicted(x: Any, white: Float[Array, " w"]) -> Float[Array, " d"]:
        return model.complete(model.move(x, white[:k], step), white[k + m :])

    def compared(likelihood: Likelihood) -> Judged:
        see_key, tie_key = jax.random.fold_in(key, 1), jax.random.fold_in(key, 3)
        seen = likelihood.sample_many(see_key, states, step, white[:, k : k + m])
        log_mass = None
        if likelihood.sensors is None:  # These need not be continuous.
            log_prob = jax.vmap(lambda x: likelihood.log_prob(y, x, step))(states)
            log_mass = jax.nn.logsumexp(log_prob) - np.log(DRAWS)
        return judge_among(model, tie_key, y, seen, log_mass)  # which wraps

    with in_brief():
        states = jax.vmap(predicted)(before, white)
        found, nominal = compared(model.likelihood), model.likelihood.nominal()
        if nominal is model.likelihood:
            return found
        without = compared(nominal)
        return Judged(found.p_value, without.p_value, without.innovation)


def judge_among(
    model: StateSpaceModel,
    key: PRNGKeyArray,
    y: Float[Array, " m"],
    predicted: Float[Array, "k m"],
    log_mass: Float[Array, ""] | None = None,
) -> Judged:
    """How often a predicted observation is as far from all others as `y` is.

    Distances are Mahalanobis's, by the mean and covariance of all of them, `y` included: so if `y`
    comes from the same distribution, whichever that is, every rank has the same chance. Equal
    distances, as of counts, are ranked at random. Beyond the last rank the p-value falls off as a
    normal distribution does; for whole numbers and the like it is the probability of `y` itself.
    NaN if nothing is observed.

    Args:
        model: the model.
        key: random key.
        y: the observation.
        predicted: draws of what it could have been.
        log_mass: log p(y) by the prediction, for observations that may not be continuous.
    """
    observed = ~jnp.isnan(y)
    points = jnp.concatenate([jnp.where(observed, y, predicted[0])[None], predicted])
    count = points.shape[0]
    apart = jnp.where(observed[None], _from_mean(model.observation_space, points), 0)
    squares = _squared_distances(apart)
    tied = jnp.abs(squares - squares[0]) <= TIE * squares[0]
    chance = jax.random.uniform(key, (1 + y.size,))
    place = jnp.floor(chance[0] * jnp.sum(tied)) + 1
    ranked = (jnp.sum((squares > squares[0]) & ~tied) + place) / count
    whole = jnp.zeros(y.size, bool)
    if log_mass is None:
        fades = _beyond(squares)
    else:
        whole = _is_discrete(points[1:])
        fades = _beyond(_squared_distances(jnp.where(whole[None], 0, apart)))
        rare = jnp.minimum(1, count * jnp.exp(log_mass))
        all_whole = jnp.all(whole | ~observed)
        fades = jnp.where(all_whole & (squares[0] > jnp.max(squares[1:])), rare, fades)
    innovation = jnp.where(observed, _standardised(apart, chance[1:], whole), jnp.nan)
    p_value = jnp.where(jnp.any(observed), ranked * fades, jnp.nan)
    return Judged(p_value, p_value, innovation)


def _standardised(
    apart: Float[Array, "k m"], chance: Float[Array, " m"], whole: Bool[Array, " m"]
) -> Float[Array, " m"]:
    """The first row in standard deviations: the normal number of the same rank among the others,
    whatever their distribution; beyond all of them by their standard deviation, unless these are
    `whole` numbers and the like. Ties are broken by `chance`."""
    own, others = apart[0], apart[1:]
    less = jnp.sum(others < own[None], axis=0)
    equal = jnp.sum(others == own[None], axis=0)
    # In the middle of its place where there are no ties, so that one in so many goes no further.
    below = (less + jnp.where(equal > 0, chance * (equal + 1), 0.5)) / apart.shape[0]
    score = jnp.sqrt(2.0) * jax.lax.erf_inv(2 * below - 1)
    spread = jnp.sqrt(jnp.mean(others**2, axis=0))
    outside = ~whole & ((less == 0) | (less == others.shape[0])) & (spread > 0)
    far = jnp.abs(own) / jnp.where(spread > 0, spread, 1)
    return jnp.where(outside, jnp.sign(score) * jnp.maximum(jnp.abs(score), far), score)


def _squared_distances(apart: Float[Array, "k m"]) -> Float[Array, " k"]:
    """Of each row from zero, by the covariance of all."""
    count, width = apart.shape
    if width <= count // 4:
        return count * _leverages(apart)
    # Too few draws for so many correlations: coordinate by coordinate.
    size = jnp.mean(apart**2, axis=0)
    return jnp.mean(apart**2 / jnp.where(size > 0, size, 1)[None], axis=1)


def _beyond(squares: Float[Array, " k"]) -> Float[Array, ""]:
    """How much less probable the first is than the furthest of the others, by a normal tail."""
    return jnp.exp(-0.5 * jnp.maximum(squares[0] - jnp.max(squares[1:]), 0))


def _is_discrete(points: Float[Array, "k m"]) -> Bool[Array, " m"]:
    """Whether a quarter or more of the numbers in a column have been drawn before."""
    ordered = jnp.sort(points, axis=0)
    return jnp.mean(ordered[1:] == ordered[:-1], axis=0) > 0.25


def _from_mean(space: Space, points: Float[Array, "k m"]) -> Float[Array, "k m"]:
    """How far each point is from the mean of all. For few points, and quick to compile: what
    `Space` does for many particles is written out coordinate by coordinate."""
    mean = jnp.mean(points, axis=0)
    if not space.angles:
        return points - mean[None]
    angular = np.isin(np.arange(space.size), space.angles)
    circular = jnp.arctan2(jnp.mean(jnp.sin(points), axis=0), jnp.mean(jnp.cos(points), axis=0))
    apart = points - jnp.where(angular, circular, mean)[None]
    return jnp.where(angular[None], wrap_angle(apart), apart)


def _leverages(rows: Float[Array, "k m"]) -> Float[Array, " k"]:
    """Diagonal of the projection on the columns: squared Mahalanobis distances from zero over k.

    By Gram and Schmidt, column after column; one that the others explain counts for nothing.
    LAPACK's threads would wait busily between calls and take the processor from everything else.
    """
    enough = 1e-6 * jnp.sum(rows**2, axis=0)

    def column(j: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        rest, total = state
        own = rest[:, j]
        square = own @ own
        unit = jnp.where(square > enough[j], own / jnp.sqrt(jnp.where(square > 0, square, 1)), 0)
        return rest - unit[:, None] * (unit @ rest)[None], total + unit**2

    start = (rows, jnp.zeros(rows.shape[0], rows.dtype))
    return jax.lax.fori_loop(0, rows.shape[1], column, start)[1]
