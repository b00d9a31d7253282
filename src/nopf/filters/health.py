"""Whether a model explains its data: p-values, standardised innovations, and the drift of both."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from nopf.compiling import in_brief
from nopf.filters.moving import white_numbers
from nopf.likelihood import Likelihood
from nopf.model import StateSpaceModel
from nopf.space import Space, wrap_angle
from nopf.steps import Step

DRAWS = 127  # predicted observations that one is compared with
FORGET = 0.95  # a step: about the last twenty count
LOST = 5.0  # a drift beyond this is no accident
CERTAIN = 1 - 1e-6  # of a rank from −1 to 1: normal numbers of ±5 go no further
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
    Draws that are not finite are left out. NaN if nothing is observed, or no draw is left.

    Args:
        model: the model.
        key: random key.
        y: the observation.
        predicted: draws of what it could have been.
        log_mass: log p(y) by the prediction, for observations that may not be continuous.
    """
    observed = ~jnp.isnan(y)
    points = jnp.concatenate([jnp.where(observed, y, predicted[0])[None], predicted])
    sound = jnp.all(jnp.isfinite(points) | ~observed[None], axis=1)
    points = jnp.where(sound[:, None], points, points[:1])
    apart = _from_mean(model.observation_space, points, sound)
    apart = jnp.where(observed[None] & sound[:, None], apart, 0)
    count = jnp.sum(sound)
    squares = _squared_distances(apart, count)
    tied = (jnp.abs(squares - squares[0]) <= TIE * squares[0]) & sound
    chance = jax.random.uniform(key, (1 + y.size,))
    place = jnp.floor(chance[0] * jnp.sum(tied)) + 1
    ranked = (jnp.sum((squares > squares[0]) & ~tied) + place) / count
    whole = jnp.zeros(y.size, bool)
    if log_mass is None:
        fades = _beyond(apart, count)
    else:
        whole = _is_discrete(points[1:])
        fades = _beyond(jnp.where(whole[None], 0, apart), count)
        rare = jnp.minimum(1, count * jnp.exp(log_mass))
        all_whole = jnp.all(whole | ~observed)
        fades = jnp.where(all_whole & (squares[0] > jnp.max(squares[1:])), rare, fades)
    known = jnp.any(observed) & (count > 1)
    innovation = _standardised(apart, sound, chance[1:], whole)
    innovation = jnp.where(observed & known, innovation, jnp.nan)
    p_value = jnp.where(known, ranked * fades, jnp.nan)
    return Judged(p_value, p_value, innovation)


def _standardised(
    apart: Float[Array, "k m"],
    sound: Bool[Array, " k"],
    chance: Float[Array, " m"],
    whole: Bool[Array, " m"],
) -> Float[Array, " m"]:
    """The first row in standard deviations: the normal number of the same rank among the others
    that are `sound`, whatever their distribution; beyond all of them by their mean and standard
    deviation, unless these are `whole` numbers and the like. Ties are broken by `chance`."""
    own, others, counts = apart[0], apart[1:], sound[1:, None]
    count = jnp.sum(counts)
    less = jnp.sum((others < own[None]) & counts, axis=0)
    equal = jnp.sum((others == own[None]) & counts, axis=0)
    # In the middle of its place where there are no ties, so that one in so many goes no further.
    below = (less + jnp.where(equal > 0, chance * (equal + 1), 0.5)) / (count + 1)
    score = jnp.sqrt(2.0) * jax.lax.erf_inv(jnp.clip(2 * below - 1, -CERTAIN, CERTAIN))
    mean = jnp.mean(others, axis=0, where=counts)
    spread = jnp.std(others, axis=0, where=counts)
    outside = ~whole & ((less == 0) | (less == count)) & (spread > 0)
    far = jnp.abs(own - mean) / jnp.where(spread > 0, spread, 1)
    return jnp.where(outside, jnp.sign(score) * jnp.maximum(jnp.abs(score), far), score)


def _squared_distances(apart: Float[Array, "k m"], count: Int[Array, ""]) -> Float[Array, " k"]:
    """Of each row from zero, by the covariance of the `count` rows that are not zero."""
    if _is_narrow(apart):
        return count * _leverages(apart)
    return jnp.mean(_squared_scores(apart, count), axis=1)


def _is_narrow(apart: Float[Array, "k m"]) -> bool:
    """Whether there are draws enough for all correlations; otherwise it goes coordinate by
    coordinate."""
    return apart.shape[1] <= apart.shape[0] // 4


def _squared_scores(apart: Float[Array, "k m"], count: Int[Array, ""]) -> Float[Array, "k m"]:
    size = jnp.sum(apart**2, axis=0) / count
    return apart**2 / jnp.where(size > 0, size, 1)[None]


def _beyond(apart: Float[Array, "k m"], count: Int[Array, ""]) -> Float[Array, ""]:
    """How much less probable the first is than the furthest of the others, by a normal tail: that
    of the coordinate that is furthest, if there are too many of them for their correlations."""
    if _is_narrow(apart):
        squares = _squared_distances(apart, count)
    else:
        squares = jnp.max(_squared_scores(apart, count), axis=1)
    return jnp.exp(-0.5 * jnp.maximum(squares[0] - jnp.max(squares[1:]), 0))


def _is_discrete(points: Float[Array, "k m"]) -> Bool[Array, " m"]:
    """Whether a quarter or more of the numbers in a column have been drawn before."""
    ordered = jnp.sort(points, axis=0)
    return jnp.mean(ordered[1:] == ordered[:-1], axis=0) > 0.25


def _from_mean(
    space: Space, points: Float[Array, "k m"], sound: Bool[Array, " k"]
) -> Float[Array, "k m"]:
    """How far each point is from the mean of those that are `sound`. For few points, and quick to
    compile: what `Space` does for many particles is written out coordinate by coordinate."""
    average = functools.partial(jnp.mean, axis=0, where=sound[:, None])
    mean = average(points)
    if not space.angles:
        return points - mean[None]
    angular = np.isin(np.arange(space.size), space.angles)
    circular = jnp.arctan2(average(jnp.sin(points)), average(jnp.cos(points)))
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
