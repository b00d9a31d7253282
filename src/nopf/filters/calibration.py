"""calibration: whether a filter is as sure as it should be, over simulated truths."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from nopf.arguments import check_key, positive_integer
from nopf.compiling import run_seldom
from nopf.filters.filter import Filter
from nopf.filters.loop import on_one_device
from nopf.gaussian import Numbers
from nopf.model import StateSpaceModel, check_model
from nopf.resampling import indices_at
from nopf.simulate import simulate

DRAWS = 99  # of a posterior: a truth then has one of a hundred ranks
BINS = 10
FALSE_ALARMS = 0.01  # how often some state of a filter that is right is said not to be calibrated
SHAPES = 4  # slope, bend and two that have no name
ROUNDING = 4  # units in the last place
AT_ONCE = 200_000  # particles


@dataclasses.dataclass(frozen=True)
class Calibration:
    """Ranks of true states among draws of a filter's posterior, and what they say.

    Of a filter that is right every rank is equally likely. Too many low and high ones (the
    histogram is a U) mean that it is too certain, too few (a hump) that it is too vague, a slope
    that its posteriors are shifted.

    Attributes:
        state_names: of the columns.
        ranks: `(series, d)`, from 0 (below all 99 draws) to 99 (above all).
    """

    state_names: tuple[str, ...]
    ranks: Int[np.ndarray, "s d"]

    @property
    def histogram(self) -> Int[np.ndarray, "10 d"]:
        """How many series have a rank in each tenth."""
        bins = self.ranks * BINS // (DRAWS + 1)
        return np.stack([np.bincount(column, minlength=BINS) for column in bins.T], axis=1)

    @property
    def coverage(self) -> Float[np.ndarray, " d"]:
        """Share of series whose truth is in the middle 90 % of its posterior."""
        tail = (DRAWS + 1) // 20
        return np.mean((self.ranks >= tail) & (self.ranks <= DRAWS - tail), axis=0)

    @property
    def shape(self) -> Float[np.ndarray, "4 d"]:
        """Slope, bend and two finer shapes of the histogram: standard normal numbers if the filter
        is right. They are sums of Legendre polynomials, Neyman's smooth test."""
        orders = np.arange(1, SHAPES + 1)
        waves = [np.polynomial.legendre.Legendre.basis(k)(self._places) for k in orders]
        return np.sqrt((2 * orders + 1) / len(self.ranks))[:, None] * np.sum(waves, axis=1)

    @property
    def _places(self) -> Float[np.ndarray, "s d"]:
        """The ranks between −1 and 1."""
        return (2 * self.ranks + 1) / (DRAWS + 1) - 1

    @property
    def p_value(self) -> Float[np.ndarray, " d"]:
        """How probable ranks at least as far from uniform are, if the filter is right. One by χ² of
        the ten bins would miss half of what this one finds."""
        return scipy.stats.chi2.sf(np.sum(self.shape**2, axis=0), SHAPES)

    @property
    def is_calibrated(self) -> Bool[np.ndarray, " d"]:
        """Whether nothing is wrong with a state, as far as so many series can tell."""
        return self.p_value >= FALSE_ALARMS / len(self.state_names)

    @property
    def verdicts(self) -> tuple[str, ...]:
        """What is to be said of each state, in words."""
        return tuple(self._verdict(i) for i in range(len(self.state_names)))

    def _verdict(self, i: int) -> str:
        if self.is_calibrated[i]:
            return "calibrated"
        # The bend about the mean rank: where all ranks are high, that is a shift and nothing else.
        place = self._places[:, i]
        slope, bend = self.shape[0, i], np.sqrt(5 * len(place)) * (3 * np.var(place) - 1) / 2
        outside = f"{100 * (1 - self.coverage[i]):.0f} % of series"
        if max(abs(slope), abs(bend)) < 2:
            return f"uneven: some ranks come too often, with {outside} outside of the middle 90 %"
        if abs(slope) > abs(bend):
            side = "above" if slope > 0 else "below"
            share = np.mean((place > 0) == (slope > 0))
            return (
                f"shifted: the truth is {side} the posterior's median in {100 * share:.0f} % of "
                "series"
            )
        word = "too certain" if bend > 0 else "too vague"
        return f"{word}: the truth falls outside of the middle 90 % in {outside}"

    def __str__(self) -> str:
        width = max(5, *map(len, self.state_names))
        lines = [f"{'state':{width}}   in the middle 90 %   p-value   verdict"]
        rows = zip(self.state_names, self.coverage, self.p_value, self.verdicts, strict=True)
        lines += [
            f"{name:{width}}{100 * share:>17.1f} %   {p:>9.2g}   {verdict}"
            for name, share, p, verdict in rows
        ]
        return "\n".join(lines)


def calibration(
    flt: Filter,
    horizon: int | float,
    key: PRNGKeyArray,
    *,
    series: int | float = 200,
    model: StateSpaceModel | None = None,
    times: Numbers | None = None,
    controls: Numbers | None = None,
    start: float | None = None,
    missing: Any = None,
    tell: Callable[[int, int], None] | None = None,
) -> Calibration:
    """Whether a filter is as sure as it should be: simulation-based calibration.

    Truths are drawn from the prior and followed through `horizon` steps; the filter sees their
    observations, and the true state of the last step is ranked among 99 independent draws of the
    posterior. Angles are ranked by their distance from its circular mean, the short way round. If
    the filter is right, every rank is equally likely, whatever the model. Too few particles show
    as well: their posterior is too certain.

    A filter that is right is said not to be calibrated in one call of a hundred: each of d states
    is held to a p-value of 0.01 / d. What 200 series show of five states: a standard deviation that
    is 30 % too small, or 50 % too large, or a shift of half of one, nearly always; one that is 20 %
    too small, or a shift of 0.3, in two calls of three. 1000 series show those nearly always, and
    one that is 10 % too small in three calls of four.

    Args:
        flt: the filter.
        horizon: steps of a series.
        key: random key.
        series: how many.
        model: what truths are drawn from; the filter's own model if left out. With another one this
            shows what it costs that the filter's model is wrong.
        times: as in `simulate`.
        controls: as in `simulate`.
        start: as in `simulate`.
        missing: `(horizon, m)` booleans, true for what the filter does not get to see.
        tell: is called with the number of series that are done, and that of all.
    """
    if not isinstance(flt, Filter):
        raise TypeError(f"flt: expected a nopf.Filter, got {type(flt).__name__}")
    series = positive_integer(series, "series")
    truth = flt.model if model is None else check_model(model)
    if truth.state_names != flt.model.state_names:
        raise ValueError(
            f"model: expected the states of the filter's, {', '.join(flt.model.state_names)}, "
            f"got {', '.join(truth.state_names)}"
        )
    horizon, width = positive_integer(horizon, "horizon"), truth.observation_space.size
    hidden = np.zeros((horizon, width), bool) if missing is None else np.asarray(missing, bool)
    if hidden.shape != (horizon, width):
        raise ValueError(f"missing: expected shape {(horizon, width)}, got {hidden.shape}")
    batches, size = _batches(flt, series)
    found = []
    for done, batch_key in enumerate(jax.random.split(check_key(key), batches)):
        if tell is not None:
            tell(done * size, series)
        data_key, filter_key, rank_key = jax.random.split(batch_key, 3)
        when: dict[str, Any] = {"times": times, "controls": controls, "start": start}
        paths = simulate(truth, horizon, data_key, batch=size, **when)
        ys = np.where(hidden[None], np.nan, np.asarray(paths.observations))
        belief = flt.run_batch(ys, key=filter_key, **when).state.belief
        keys = jax.random.split(rank_key, size)
        last = jnp.asarray(flt.model.space.relative(paths.states[:, -1]), float)
        found.append(np.asarray(_ranks(on_one_device(flt), belief, last, keys)))
    if tell is not None:
        tell(series, series)
    return Calibration(flt.model.state_names, np.concatenate(found)[:series])


def _batches(flt: Filter, series: int) -> tuple[int, int]:
    """How many batches, all of one size so that one program does for them, and that size."""
    most = max(1, AT_ONCE // getattr(flt, "particles", AT_ONCE))
    batches = -(-series // most)
    devices = 1 if flt.over is None else flt.over[0].size
    return batches, -(-series // (batches * devices)) * devices


@run_seldom
def _ranks(flt: Filter, beliefs: Any, truths: Float[Array, "b d"], keys: Any) -> Int[Array, "b d"]:
    """Of each truth among draws of the posterior; one that is equal to some is put anywhere among
    them."""
    space = flt.model.space

    def one(belief: Any, truth: Float[Array, " d"], key: PRNGKeyArray) -> Int[Array, " d"]:
        draw_key, tie_key = jax.random.split(key)
        states, log_weights = flt.ensemble(belief)
        mean = space.mean(states, jax.nn.softmax(log_weights))
        drawn = states[indices_at(log_weights, jax.random.uniform(draw_key, (DRAWS,)))]
        apart = space.difference(drawn, mean[None]) - space.difference(truth, mean)[None]
        # A state that is known exactly may have been rounded in another way.
        near = ROUNDING * jnp.finfo(truth.dtype).eps * jnp.maximum(jnp.abs(truth), jnp.abs(mean))
        below = jnp.sum(apart < -near[None], axis=0)
        equal = jnp.sum(jnp.abs(apart) <= near[None], axis=0)
        return below + jax.random.randint(tie_key, below.shape, 0, equal + 1)

    return jax.vmap(one)(beliefs, truths, keys)
