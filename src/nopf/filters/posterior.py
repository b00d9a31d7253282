"""Info and Posterior: what a filter says after one step, and after a series. Pure data."""

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from jaxtyping import Array, Bool, Float, Int

from nopf import notebook, plots
from nopf.arguments import positive_integer
from nopf.crowd import totals
from nopf.filters import kept
from nopf.filters.monitor import VERDICTS, Monitor
from nopf.filters.samples import equally_weighted, tree
from nopf.gaussian import AnyArray, shown
from nopf.layout import by_column, weighted_sums
from nopf.model import StateSpaceModel
from nopf.robust import Tails
from nopf.space import Space
from nopf.steps import Step

GOLDEN = (5**0.5 - 1) / 2  # its multiples fill a circle as evenly as can be


class Info(NamedTuple):
    """What a filter says about one step; in `posterior.info` every array has a time axis.

    Attributes:
        mean: `(d,)` posterior mean, circular for angles.
        cov: `(d, d)` posterior covariance.
        quantiles: `(q, d)`, one row a level of the filter's `quantiles`.
        log_evidence_increment: log p(y_t | y_1 … y_{t−1}), this step's share of the evidence.
        ess: effective sample size before resampling, 0 if every weight was zero; None for filters
            without weights.
        collapsed: whether every weight was zero. The step then counts as one without observation:
            particles move on with the weights they had, and its log-evidence is −∞.
        nan_states: how many particles came out as NaN (or infinite). `step` and `run` raise on
            these, except under your own `jax.jit`, where nothing can be raised.
        nan_weights: how many weights did.
        p_value: how probable an observation at least as far from the prediction is, if the model is
            right; NaN if nothing was observed, or with `health=False`.
        nominal_p_value: the same without the tails of a model's `robust=`: small for an outlier,
            even if the model is prepared for it. An ensemble Kalman filter gives `p_value` twice.
        error: `(d,)` standard error of the posterior mean: how far it may be from that of
            infinitely many particles. Judged from this one run, by which particles have a common
            ancestor; zero for exact filters, NaN for particles on several devices.
        drift: standard normal if the model is right, and large if the observations of the last
            twenty steps or so have surprised it too often. It depends on the model and the data,
            the ESS on the proposal too: so they tell which of the two is at fault.
        innovation: `(m,)` how far each coordinate of the observation was from its prediction
            (without the tails of `robust=`), in standard deviations: standard normal if the model
            is right, whatever its distributions. NaN if it is missing.
    """

    mean: Float[AnyArray, "*t d"]
    cov: Float[AnyArray, "*t d d"]
    quantiles: Float[AnyArray, "*t q d"]
    log_evidence_increment: Float[AnyArray, "*t"]
    ess: Float[AnyArray, "*t"] | None
    collapsed: Bool[AnyArray, "*t"]
    nan_states: Int[AnyArray, "*t"]
    nan_weights: Int[AnyArray, "*t"]
    p_value: Float[AnyArray, "*t"] = np.nan  # type: ignore[assignment]
    nominal_p_value: Float[AnyArray, "*t"] = np.nan  # type: ignore[assignment]
    drift: Float[AnyArray, "*t"] = np.nan  # type: ignore[assignment]
    error: Float[AnyArray, "*t d"] = np.nan  # type: ignore[assignment]
    innovation: Float[AnyArray, "*t m"] = np.nan  # type: ignore[assignment]

    @property
    def draws(self) -> Float[AnyArray, "*t d"]:
        """How many independent draws of the posterior would give as good a mean of each state: its
        variance over the squared error. Infinite where the mean is exact."""
        library = self.cov.__array_namespace__()
        variance = library.diagonal(self.cov, axis1=-2, axis2=-1)
        # All particles at one point: that may be right, or all that is left.
        certain = (variance == 0) & (self.error == 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            return library.where(certain, np.inf, variance / library.square(self.error))

    @property
    def std(self) -> Float[AnyArray, "*t d"]:
        """Posterior standard deviations."""
        library = self.cov.__array_namespace__()
        return library.sqrt(library.diagonal(self.cov, axis1=-2, axis2=-1))

    @property
    def log_evidence(self) -> Float[AnyArray, "*t"]:
        """The increment, under the name that it had in 0.1."""
        return self.log_evidence_increment

    @staticmethod
    def of_particles(
        model: StateSpaceModel,
        states: Any,
        log_weights: Float[Array, " n"],
        levels: tuple[float, ...],
        *,
        log_evidence_increment: Float[Array, ""],
        ess: Float[Array, ""] | None,
        collapsed: Bool[Array, ""] | bool = False,
        axis: str | None = None,
    ) -> "Info":
        """Sums up particles with normalised log-weights.

        Args:
            model: what a particle stands for.
            states: the particles.
            log_weights: normalised.
            levels: of the quantiles.
            log_evidence_increment: as it is.
            ess: as it is.
            collapsed: as it is.
            axis: of the devices that the particles are spread over, if they are.
        """
        space = model.space
        weights = jnp.exp(log_weights)
        points = by_column(jax.vmap(model.expectation)(states))
        mean, cov = space.moments(points, weights, axis)
        within = model.within(jax.tree.map(lambda leaf: weighted_sums(weights, leaf, axis), states))
        spread = jax.vmap(model.spread)(states)
        if within is not None and spread is not None:
            cov = cov + within
            # Each particle stands for a Gaussian: points that are spread evenly over all of them.
            places = (np.arange(weights.size) * GOLDEN + 0.5) % 1
            deviates = jnp.asarray(scipy.special.ndtri(places), weights.dtype)
            points = points + deviates[:, None] * spread
        std = jnp.sqrt(jnp.diagonal(cov))
        counted = (
            space.histogram(points, weights, levels, mean, std),
            jnp.sum(jnp.any(~jnp.isfinite(points), axis=1)),
            jnp.sum(jnp.isnan(log_weights)),
        )
        histogram, nan_states, nan_weights = totals(counted, axis)
        return Info(
            mean=mean,
            cov=cov,
            quantiles=space.quantiles_in(histogram, levels, mean, std),
            log_evidence_increment=log_evidence_increment,
            ess=ess,
            collapsed=jnp.asarray(collapsed),
            nan_states=nan_states,
            nan_weights=nan_weights,
        )


class Posterior(eqx.Module):
    """The filtering distributions of a series; row k belongs to observation k (step k + 1).

    After `run_batch` every array has a leading axis, one entry a series. What every step said is
    in `info`, and these are attributes of the posterior too, see `Info`: `mean`, `std`, `cov`,
    `quantiles`, `ess`, `error`, `draws`, `log_evidence_increment`, `p_value`, `nominal_p_value`,
    `innovation`, `drift`, `collapsed`.

    With `origin=` in the model means, quantiles, particles and observations are absolute, in double
    precision; only `state` counts from the origin.

    Attributes:
        info: what the filter said of each step, with a time axis.
        particles: `(T, N, d)` before resampling; only with `keep="particles"`.
        log_weights: `(T, N)`, normalised; only with `keep="particles"`.
        times: `(T,)`.
        observations: `(T, m)`, as they came in.
        steps: index, time, dt and control of each.
        state: where the filter stands after the last observation; go on with `flt.step(state, y)`
            (after `run_batch` it has a leading axis too).
        space: which states are angles.
        state_names: what the columns of means are.
        observation_names: what the columns of observations are.
        quantile_levels: what the rows of `quantiles` are, at each step.
        tails: the model's `robust=`.
        recover: the filter's `recover=`.
        particle_count: how many particles the filter had; None if it has none.
        plane: the model's `plane=`: the two states that are a place.
    """

    info: Info
    particles: Float[AnyArray, "*b t n d"] | None
    log_weights: Float[AnyArray, "*b t n"] | None
    times: Float[np.ndarray, " t"]
    observations: Float[AnyArray, "*b t m"]
    steps: Step
    state: Any
    space: Space
    state_names: tuple[str, ...] = eqx.field(static=True)
    observation_names: tuple[str, ...] = eqx.field(static=True)
    quantile_levels: tuple[float, ...] = eqx.field(static=True)
    tails: Tails | None = None
    recover: float | None = eqx.field(static=True, default=None)
    particle_count: int | None = eqx.field(static=True, default=None)
    plane: tuple[str, str] | None = eqx.field(static=True, default=None)

    def __repr__(self) -> str:
        """One line: how long, how many states, how many particles count, how many warnings."""
        if isinstance(self.mean, jax.core.Tracer) or np.ndim(self.mean) < 2:
            return super().__repr__()
        *series, steps, states = self.mean.shape
        words = [f"{steps} steps, {states} states"]
        if series:
            words.insert(0, f"{series[0]} series")
        if self.ess is not None:
            count = "" if self.particle_count is None else f" of {self.particle_count}"
            words.append(f"mean ESS {float(np.mean(self.ess)):.0f}{count}")
        if not series:
            found = len(self.warnings())
            words.append({0: "no warnings", 1: "1 warning"}.get(found, f"{found} warnings"))
        return f"Posterior: {', '.join(words)}"

    def _repr_html_(self) -> str:
        """The same line, the last estimate of each state, and the warnings."""
        if np.ndim(self.mean) != 2:
            return notebook.table(repr(self), (), ())
        levels = [f"{100 * level:g} %" for level in self.quantile_levels]
        numbers = np.stack([self.mean[-1], self.std[-1], *self.quantiles[-1]], axis=1)
        rows = [
            (name, *(f"{number:.4g}" for number in row))
            for name, row in zip(self.state_names, np.asarray(numbers), strict=True)
        ]
        columns = (f"at {self.times[-1]:.9g}", "mean", "std", *levels)
        return notebook.table(repr(self), columns, rows, self.warnings())

    @property
    def mean(self) -> Float[AnyArray, "*b t d"]:
        return self.info.mean

    @property
    def cov(self) -> Float[AnyArray, "*b t d d"]:
        return self.info.cov

    @property
    def std(self) -> Float[AnyArray, "*b t d"]:
        return self.info.std

    @property
    def quantiles(self) -> Float[AnyArray, "*b t q d"]:
        return self.info.quantiles

    @property
    def ess(self) -> Float[AnyArray, "*b t"] | None:
        return self.info.ess

    @property
    def collapsed(self) -> Bool[AnyArray, "*b t"]:
        return self.info.collapsed

    @property
    def p_value(self) -> Float[AnyArray, "*b t"]:
        return self.info.p_value

    @property
    def nominal_p_value(self) -> Float[AnyArray, "*b t"]:
        return self.info.nominal_p_value

    @property
    def drift(self) -> Float[AnyArray, "*b t"]:
        return self.info.drift

    @property
    def error(self) -> Float[AnyArray, "*b t d"]:
        return self.info.error

    @property
    def innovation(self) -> Float[AnyArray, "*b t m"]:
        return self.info.innovation

    @property
    def draws(self) -> Float[AnyArray, "*b t d"]:
        return self.info.draws

    @property
    def log_evidence_increment(self) -> Float[AnyArray, "*b t"]:
        """log p(y_t | y_1 … y_{t−1})."""
        return self.info.log_evidence_increment

    @property
    def log_evidence_increments(self) -> Float[AnyArray, "*b t"]:
        """`log_evidence_increment`, under the name that it had in 0.1."""
        return self.info.log_evidence_increment

    @property
    def log_evidence(self) -> Float[AnyArray, "*b"]:
        """log p(y_1 … y_T), the sum of the increments."""
        return self.info.log_evidence_increment.sum(axis=-1)

    def warnings(self, every: bool = False) -> list[str]:
        """When and why these estimates should not be trusted, in plain words (see `Monitor`).

        Args:
            every: whether to list each time that a trouble began, instead of one line for each kind
                of trouble.
        """
        found, monitor = self.monitored()
        return found if every else monitor.summary()

    @property
    def verdict(self) -> str:
        """What the warnings amount to: "trust it", "look here" or "do not trust it"."""
        verdict = self.monitored()[1].verdict
        if np.isnan(np.asarray(self.observations)).all():  # Predictions alone: nothing was tested.
            return max(verdict, VERDICTS[1], key=VERDICTS.index)
        return verdict

    def monitored(self) -> tuple[list[str], Monitor]:
        """Every warning, and a monitor that has seen all steps."""
        check_one_series(self, "warnings")
        monitor = Monitor(
            state_names=self.state_names,
            observation_names=self.observation_names,
            tails=self.tails,
            recover=self.recover,
        )
        info, found = jax.device_get(self.info), []
        for t, (index, time) in enumerate(zip(self.steps.index, self.times, strict=True)):
            one = jax.tree.map(lambda leaf, t=t: leaf[t], info)
            found += monitor.begun(one, int(index), float(time))
        return [text for text, _ in found], monitor

    def plot(self, truth: Any = None) -> np.ndarray:
        """Draws every state over time: its mean and the band between the outer quantiles, and below
        them the effective sample size (needs the `plots` extra).

        Args:
            truth: `(T, d)` true states, or what `nopf.simulate` gave, to draw beside them.

        Returns:
            the axes of matplotlib, one a state and one for the effective sample size.
        """
        check_one_series(self, "plot")
        states = plots.truth_of(self, truth)
        count = len(self.state_names)
        more = self.ess is not None
        axes = plots.new_axes(count + more, 8.0, 1.7 * (count + more) + 0.4, sharex=True)
        plots.draw_states(axes[:count], self, states)
        if more:
            axes[-1].plot(self.times, np.asarray(self.ess), color="0.3", lw=1)
            axes[-1].set_ylabel("ESS")
            axes[-1].set_ylim(bottom=0)
        axes[-1].set_xlabel("time")
        return axes

    def plot_map(
        self,
        plane: Sequence[str] | None = None,
        truth: Any = None,
        landmarks: Any = None,
        ax: Any = None,
    ) -> Any:
        """Draws the path in the plane, with ellipses that hold 90 % (needs the `plots` extra).

        Args:
            plane: the two states that are a place; those of the model, or found by their names (x
                and y, east and north, …) if left out.
            truth: `(T, d)` true states, or what `nopf.simulate` gave.
            landmarks: `(k, 2)` places to mark.
            ax: axes of matplotlib to draw on; new ones if left out.

        Returns:
            the axes.
        """
        check_one_series(self, "plot_map")
        found = plots.plane_of(self.state_names, plane or self.plane)
        states = plots.truth_of(self, truth)
        panel = plots.new_axes(1, 6.5, 6.0)[0] if ax is None else ax
        plots.draw_map(panel, self, found, states, landmarks)
        return panel

    def to_dataframe(self) -> Any:
        """A `pandas.DataFrame`, one row a step, with the columns that `nopf filter` writes (needs
        the `tables` extra)."""
        check_one_series(self, "to_dataframe")
        try:
            import pandas  # type: ignore[import-untyped]
        except ImportError as error:
            raise ImportError(
                "to_dataframe needs pandas; install it with: pip install 'nopf[tables]'"
            ) from error
        names = estimate_names(self.state_names, self.quantile_levels)
        return pandas.DataFrame(estimate_rows(np.asarray(self.times), self), columns=names)

    def to_xarray(self) -> Any:
        """An `xarray.Dataset` with named dimensions (needs the `tables` extra)."""
        try:
            import xarray
        except ImportError as error:
            raise ImportError(
                "to_xarray needs xarray; install it with: pip install 'nopf[tables]'"
            ) from error
        series = ("series",) * (self.mean.ndim - 2)
        names = list(self.state_names)
        return xarray.Dataset(
            {
                name: (series + dim, np.asarray(getattr(self, name)))
                for name, dim in DIMENSIONS.items()
                if getattr(self, name) is not None
            },
            coords={
                "time": np.asarray(self.times),
                "state": names,
                "state_2": names,
                "quantile": list(self.quantile_levels),
                "observation": list(self.observation_names),
            },
        )

    def to_arviz(self, draws: int | float | None = None) -> Any:
        """An `xarray.DataTree`, the form that ArviZ works on: a variable a state in `posterior`,
        and the observations in `observed_data`; for one series, with `keep="particles"` (needs the
        `tables` extra).

        Particles are drawn by their weights, step by step: at each time they stand for the states
        given the observations until then, and do not join to trajectories (those of
        `flt.smooth(…).to_arviz()` do). ArviZ before 1.0 takes the tree with
        `arviz.InferenceData.from_datatree`.

        Args:
            draws: how many a step; as many as there are particles if left out.
        """
        check_one_series(self, "to_arviz")
        if self.particles is None or self.log_weights is None:
            raise ValueError(
                'to_arviz: the particles are needed; run the filter with keep="particles"'
            )
        particles, log_weights = np.asarray(self.particles), np.asarray(self.log_weights)
        count = particles.shape[1] if draws is None else positive_integer(draws, "draws")
        drawn = equally_weighted(particles, log_weights, count)
        observations = np.asarray(self.observations)
        return tree(drawn, self.times, self.state_names, observations, self.observation_names)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the posterior to a file, whole or not at all."""
        kept.write(path, self)

    @classmethod
    def load(cls, path: str | os.PathLike[str], flt: Any = None) -> "Posterior":
        """Reads a posterior from a file. No code is executed.

        Args:
            path: what `save` wrote.
            flt: the filter that made it; then `state` is there too, from which `flt.resume` and
                `flt.forecast` go on. Without it `state` is None.
        """
        fields = kept.read(path, flt)
        return cls(**(fields | {"info": Info(**fields["info"])}))


DIMENSIONS: dict[str, tuple[str, ...]] = {
    "mean": ("time", "state"),
    "std": ("time", "state"),
    "cov": ("time", "state", "state_2"),
    "quantiles": ("time", "quantile", "state"),
    "error": ("time", "state"),
    "draws": ("time", "state"),
    "ess": ("time",),
    "log_evidence_increment": ("time",),
    "log_evidence": (),
    "collapsed": ("time",),
    "p_value": ("time",),
    "nominal_p_value": ("time",),
    "drift": ("time",),
    "innovation": ("time", "observation"),
    "particles": ("time", "particle", "state"),
    "log_weights": ("time", "particle"),
}


# Of each step, by the name of the column: what an `Info` calls it.
SIGNS = {
    "nominal_p_value": "nominal_p_value",
    "ess": "ess",
    "log_evidence": "log_evidence_increment",
    "p_value": "p_value",
    "drift": "drift",
}


def estimate_names(state_names: Sequence[str], levels: Sequence[float]) -> list[str]:
    """The columns of estimates, in files, streams and data frames."""
    parts = ["mean", "std", *(f"q{round(100 * level):02d}" for level in levels)]
    states = [f"{name}_{part}" for name in state_names for part in parts]
    errors = [f"{name}_error" for name in state_names]
    return ["time", *states, *errors, *SIGNS]


def estimate_rows(times: np.ndarray, found: Posterior | Info) -> np.ndarray:
    """`(T, columns)` numbers in the order of `estimate_names`.

    Args:
        times: `(T,)`.
        found: a `Posterior`, or an `Info` whose arrays have a time axis.
    """
    parts = [found.mean[:, None], found.std[:, None], found.quantiles]
    states = np.concatenate([np.asarray(part, np.float64) for part in parts], axis=1)
    nothing = np.full(len(times), np.nan)
    by_step = [getattr(found, name) for name in SIGNS.values()]
    by_step = [nothing if values is None else values for values in by_step]
    by_state = np.swapaxes(states, 1, 2).reshape(len(times), -1)
    columns = [times, *by_state.T, *np.asarray(found.error).T, *by_step]
    return np.stack([np.asarray(column, np.float64) for column in columns], axis=1)


def check_one_series(posterior: Posterior, name: str) -> None:
    """Refuses the posterior of `run_batch`, for what is done with one series."""
    if not isinstance(posterior, Posterior):
        raise TypeError(f"posterior: expected a nopf.Posterior, got {shown(posterior)}")
    if posterior.mean.ndim != 2:
        raise ValueError(f"{name}: expected the posterior of one series, not that of run_batch")
