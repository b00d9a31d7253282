"""EnsembleKalmanFilter: equally weighted members, moved by a gain that they estimate themselves."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from nopf.arguments import check_key, positive_integer, yes_or_no
from nopf.filters.filter import Filter, Update
from nopf.filters.health import DRAWS, Judged, judge_among
from nopf.filters.inputs import QUANTILES, check_quantiles
from nopf.filters.posterior import Info
from nopf.gaussian import Gaussian
from nopf.keys import quick
from nopf.model import StateSpaceModel, check_model
from nopf.space import Space
from nopf.steps import Step


class Ensemble(NamedTuple):
    """`(N, d)` equally weighted members, and the random key for the steps to come."""

    key: PRNGKeyArray
    states: Float[Array, "n d"]


class EnsembleKalmanFilter(Filter[Ensemble]):
    """The stochastic ensemble Kalman filter.

    Each member is forecast with noise and corrected towards the observation by its own synthetic
    noisy observation. Exact for linear-Gaussian models with infinitely many members; otherwise a
    Gaussian approximation, and so is its log-evidence. Angles are averaged on the circle and
    differenced the short way round.

    Args:
        model: the model.
        particles: how many members, N.
        quantiles: levels that `info` and the posterior report; `()` saves the time.
        health: whether to judge each observation by its p-value, for warnings.
        circular: False takes angles for plain numbers when it averages and subtracts, as the
            equations of the paper do: members on both sides of ±π are then far apart. For
            comparisons only.
    """

    model: StateSpaceModel
    particles: int = eqx.field(static=True)
    quantiles: tuple[float, ...] = eqx.field(static=True)
    health: bool = eqx.field(static=True)
    circular: bool = eqx.field(static=True)

    def __init__(
        self,
        model: StateSpaceModel,
        particles: int | float = 1000,
        *,
        quantiles: tuple[float, ...] = QUANTILES,
        health: bool = True,
        circular: bool = True,
    ):
        self.model = check_model(model).whole
        self.particles = positive_integer(particles, "particles")
        self.quantiles = check_quantiles(quantiles)
        self.health = yes_or_no(health, "health")
        self.circular = yes_or_no(circular, "circular")

    def parts(self) -> list[str]:
        return [f"{self.particles} particles"]

    def begin(self, key: PRNGKeyArray | None) -> Ensemble:
        key, prior_key = jax.random.split(quick(check_key(key)))
        keys = jax.random.split(prior_key, self.particles)
        return Ensemble(key, jax.vmap(self.model.sample_prior)(keys))

    def update(self, belief: Ensemble, y: Float[Array, " m"], step: Step) -> Update[Ensemble]:
        model, space, y_space = self.model, self.model.space, self.model.observation_space
        key, move_key, see_key = jax.random.split(belief.key, 3)
        white = jax.random.normal(move_key, (self.particles, model.noise_size))
        states = jax.vmap(model.move, in_axes=(0, 0, None))(belief.states, white, step)
        seen = y_space.wrap(model.likelihood.sample_many(see_key, states, step))

        weights = jnp.exp(self._log_weights())
        observed = ~jnp.isnan(y)
        flat, y_flat = (
            own if self.circular else Space(own.size, origin=own.origin) for own in (space, y_space)
        )
        delta = flat.difference(states, flat.mean(states, weights)[None])
        seen_mean = y_flat.mean(seen, weights)
        seen_delta = jnp.where(observed[None], y_flat.difference(seen, seen_mean[None]), 0)
        cross = delta.T @ seen_delta / self.particles
        spread = seen_delta.T @ seen_delta / self.particles
        # A coordinate left out has no covariance with anything, and adds nothing to the evidence.
        spread = spread + jnp.diag(jnp.where(observed, 0, 0.5 / np.pi))
        gain = jnp.linalg.solve(spread, cross.T).T

        def innovation(seen: Float[Array, "n m"]) -> Float[Array, "n m"]:
            known = jnp.where(observed, y, 0)[None]
            return jnp.where(observed[None], y_flat.difference(known, seen), 0)

        after = Ensemble(key, space.wrap(states + innovation(seen) @ gain.T))
        predictive = Gaussian(jnp.zeros(y.size), spread)
        info = Info.of_particles(
            model,
            after.states,
            self._log_weights(),
            self.quantiles,
            log_evidence_increment=predictive.log_prob(innovation(seen_mean[None])[0]),
            ess=None,
        )
        # Members that share nothing but the gain are as good as independent.
        info = info._replace(error=info.std / np.sqrt(self.particles))
        return Update(after, info, (see_key, seen[:DRAWS]))

    def p_values(
        self,
        prediction: tuple[PRNGKeyArray, Float[Array, "k m"]],
        y: Float[Array, " m"],
        step: Step,
    ) -> Judged:
        # As in the evidence: the members' own synthetic observations, outliers among them.
        key, seen = prediction
        return judge_among(self.model, jax.random.fold_in(key, 0), y, seen)

    def ensemble(self, belief: Ensemble) -> tuple[Float[Array, "n d"], Float[Array, " n"]]:
        return belief.states, self._log_weights()

    def _log_weights(self) -> Float[Array, " n"]:
        return jnp.full(self.particles, -np.log(self.particles), float)
