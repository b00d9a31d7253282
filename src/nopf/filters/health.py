"""How well a filter is doing: whether the model explains the data, and whether particles count."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from nopf.compiling import in_brief
from nopf.filters.moving import white_numbers
from nopf.likelihood import Likelihood
from nopf.model import StateSpaceModel
from nopf.space import Space, wrap_angle
from nopf.steps import Step

DRAWS = 127  # predicted observations that one is compared with
FORGET = 0.95  # a step: about the last twenty count
PATIENCE = 5  # steps that a mean has to be poor before it is reported
HURRY = 2.5  # so many times sooner if it is worth less than half the draws that would do
SETTLED = 8.0  # steps, in these weights, before a lasting trouble is reported


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


def predictive_p_values(
    key: PRNGKeyArray,
    model: StateSpaceModel,
    before: Any,
    y: Float[Array, " m"],
    step: Step,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The p-value of an observation, and the same without the tails of `robust=`.

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

    def p_value(likelihood: Likelihood) -> Float[Array, ""]:
        see_key = jax.random.fold_in(key, 1)
        seen = likelihood.sample_many(see_key, states, step, white[:, k : k + m])
        return p_value_among(model, y, seen)  # which wraps

    with in_brief():
        states = jax.vmap(predicted)(before, white)
        value, nominal = p_value(model.likelihood), model.likelihood.nominal()
        return value, value if nominal is model.likelihood else p_value(nominal)


def p_value_among(
    model: StateSpaceModel, y: Float[Array, " m"], predicted: Float[Array, "k m"]
) -> Float[Array, ""]:
    """How often a predicted observation is as far from all others as `y` is.

    Distances are Mahalanobis's, by the mean and covariance of all of them, `y` included: so if `y`
    comes from the same distribution, whichever that is, every rank has the same chance. Beyond the
    last rank the p-value falls off as a normal distribution does. NaN if nothing is observed.
    """
    observed = ~jnp.isnan(y)
    points = jnp.concatenate([jnp.where(observed, y, predicted[0])[None], predicted])
    count = points.shape[0]
    apart = jnp.where(observed[None], _from_mean(model.observation_space, points), 0)
    if y.size > count // 4:
        # Too few draws for so many correlations: coordinate by coordinate.
        size = jnp.mean(apart**2, axis=0)
        squares = jnp.mean(apart**2 / jnp.where(size > 0, size, 1)[None], axis=1)
    else:
        squares = count * _leverages(apart)
    ranked = jnp.mean(squares >= squares[0])
    beyond = jnp.maximum(squares[0] - jnp.max(squares[1:]), 0)
    return jnp.where(jnp.any(observed), ranked * jnp.exp(-0.5 * beyond), jnp.nan)


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


class Monitor:
    """Says in plain words, as steps come in, when an estimate should not be trusted.

    Call `look(info, index, time)` of one monitor after each step, with the `Info` of that step.
    Each kind of trouble is reported when it begins, not at every step that it lasts.

    Args:
        p_value: an observation less probable than this is reported.
        drift: so is a drift beyond this. It is about normal: a right model hardly ever exceeds 5,
            but 4 once in some ten thousand steps, too often for a stream without end.
        ess: fewer particles that count than this, over about twenty steps, are too few.
        draws: a mean that is worth fewer independent draws than this for five steps, or fewer than
            half of it for two, is poor: by 10 draws it may be off by a third of its standard
            deviation.
        state_names: what warnings call the states; their numbers if left out.
    """

    def __init__(
        self,
        p_value: float = 1e-6,
        drift: float = 5.0,
        ess: float = 30.0,
        draws: float = 10.0,
        state_names: Sequence[str] = (),
    ):
        self.p_value, self.drift, self.ess, self.draws = p_value, drift, ess, draws
        self.state_names = tuple(state_names)
        self._coarse: np.ndarray | None = None  # for how many steps each mean has been poor
        self._ess = self._weight = 0.0
        self._lasting: set[str] = set()

    def look(self, info: Any, index: int, time: float) -> list[str]:
        """What is worth a warning after this step."""
        return list(self._look(info, index, time))

    def _look(self, info: Any, index: int, time: float) -> Iterator[str]:
        where = f"step {index} (time {time:.12g})"
        collapsed = bool(info.collapsed)
        if self._begins("collapsed", collapsed):
            yield f"{where}: every weight was zero; the step counts as one without observation"
        if self._begins("far", not collapsed and bool(info.nominal_p_value < self.p_value)):
            if info.p_value >= self.p_value:
                advice = "it counts as an outlier"
            elif info.p_value == info.nominal_p_value:
                advice = "if outliers happen, use robust="
            else:
                advice = "too far even for the outliers that it expects"
            yield (
                f"{where}: the observation is far from what the model predicts "
                f"(p = {float(info.nominal_p_value):.1g}); {advice}"
            )
        if info.ess is not None:
            self._ess = FORGET * self._ess + float(info.ess)
            self._weight = FORGET * self._weight + 1
            mean = self._ess / self._weight
            # Before that, a wide prior may be to blame.
            poor = self._weight > SETTLED and mean < self.ess
            if self._begins("poor", poor, mean > 2 * self.ess):
                yield (
                    f"{where}: the proposal is poor: lately only {mean:.3g} particles count; use a "
                    "learned or linearised proposal, or more particles. Whether the model explains "
                    "the data cannot be said before"
                )
        yield from self._poorly_known(info, where)
        if "poor" in self._lasting:
            return  # With too few particles the prediction itself is not to be trusted.
        drift = float(info.drift)
        if self._begins("lost", drift > self.drift, drift < self.drift / 2):
            yield (
                f"{where}: the model does not explain this data: observations surprise it too "
                f"often (drift {drift:.1f}); look at its noise, motion and biases"
            )
        if self._begins("vague", drift < -self.drift, drift > -self.drift / 2):
            yield (
                f"{where}: observations are closer to the predictions than the model says (drift "
                f"{drift:.1f}); its noise is probably too large"
            )

    def _poorly_known(self, info: Any, where: str) -> Iterator[str]:
        """The states whose means have been poor for some time."""
        with np.errstate(divide="ignore", invalid="ignore"):  # Means can be exact.
            draws = np.diagonal(np.asarray(info.cov)) / np.square(np.asarray(info.error))
        draws = np.where(np.isnan(draws), np.inf, draws)
        if self._coarse is None:
            self._coarse = np.zeros(draws.shape)
        pace = np.where(draws < self.draws / 2, HURRY, 1)
        self._coarse = np.where(draws < self.draws, self._coarse + pace, 0)
        poor = np.flatnonzero(self._coarse >= PATIENCE)
        if self._begins("coarse", bool(poor.size), not np.any(draws < 2 * self.draws)):
            names = [self.state_names[i] if self.state_names else f"state {i}" for i in poor]
            few = max(1.0, float(draws[poor].min()))
            verb = "are" if len(names) > 1 else "is"
            yield (
                f"{where}: {', '.join(names)} {verb} known no better than by {few:.0f} independent "
                f"draws of the posterior: a mean may be off by {1 / np.sqrt(few):.1g} of its "
                "standard deviation; use more particles, or nopf.marginalise if it is linear"
            )

    def _begins(self, kind: str, present: bool, over: bool | None = None) -> bool:
        """Whether a trouble is new; it lasts until it is `over`, by default when not present."""
        new = present and kind not in self._lasting
        if present:
            self._lasting.add(kind)
        elif over is None or over:
            self._lasting.discard(kind)
        return new
