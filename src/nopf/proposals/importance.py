"""Importance sampling in noise space: draw, defend, weigh; and what training minimises.

A step makes the next state of its ancestor and of noise z, a priori standard normal:

    x = move(ancestor, z),                z ~ φ = N(0, I)

A proposal gives a law of z that knows the observation. A share a of the particles is drawn from φ
all the same, so that weights stay bounded wherever those of the bootstrap filter do:

    q(z) = (1 − a) law(z) + a φ(z)

The weight makes up for having drawn z from q and not from φ. No density of the transition is
needed: z is what is drawn and weighed, whatever move makes of it. Where x and z belong together one
to one, this is the paper's p(y | x) p(x | ancestor) / q(x | ancestor, y).

    w = p(y | x) φ(z) / q(z)

Its mean is p(y | ancestor), so by Jensen's inequality E[log w] ≤ log p(y | ancestor), with equality
if q is p(z | ancestor, y). Training maximises it for the law alone (a = 0):

    E[log w] = E[log p(y | x)] − KL(law ‖ φ)
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from nopf.model import Particle, StateSpaceModel
from nopf.proposals.law import Law
from nopf.steps import Step

FLOOR = -1e4  # stands for a log-likelihood that is not finite, while training


def draw(
    laws: Law, white: Float[Array, "n w"], share: float, place: Float[Array, ""]
) -> tuple[Float[Array, "n k"], Float[Array, " n"]]:
    """z of every particle, and log q(z) − log φ(z).

    Those drawn from φ are equally spaced from a random place on, so that each particle is with the
    same chance: only for these has a law to be inverted, which can cost as much as all the rest.

    Args:
        laws: one a particle.
        white: standard normal numbers, `white_size` a particle.
        share: a, the share of the particles drawn from φ: one at least, unless it is zero or
            there is only one particle.
        place: a uniform number: where the first of them is.
    """
    n = white.shape[0]
    z, log_ratio = jax.vmap(lambda law, numbers: law.place(numbers))(laws, white)
    count = max(1, round(share * n)) if share > 0 and n > 1 else 0
    if count == 0:
        return z, log_ratio
    offset = (place * n).astype(jnp.int32)
    chosen = (offset + np.arange(count) * (n // count)) % n
    blind = white[chosen, : z.shape[1]]
    defended = jax.tree.map(lambda leaf: leaf[chosen], laws)
    z = z.at[chosen].set(blind)
    there = jax.vmap(lambda law, z: law.log_ratio(z))(defended, blind)
    return z, defend(log_ratio.at[chosen].set(there), count / n)


def defend(log_ratio: Float[Array, "*n"], share: float) -> Float[Array, "*n"]:
    """log of q/φ = (1 − share)·law/φ + share."""
    if share == 0:
        return log_ratio
    if share == 1:
        return jnp.zeros_like(log_ratio)
    return jnp.logaddexp(np.log1p(-share) + log_ratio, np.log(share))


class Move(NamedTuple):
    """Where a particle went.

    Attributes:
        state: the new particle, `(d,)` for most models.
        log_weight: log p(y | x) + log p(x | ancestor) − log q(x), the log-weight increment.
        memory: what the proposal wants to be handed back with this particle; None for most.
    """

    state: Any
    log_weight: Float[Array, ""]
    memory: Any = None


def weigh(
    model: StateSpaceModel,
    ancestor: Particle,
    z: Float[Array, " k"],
    log_ratio: Float[Array, ""],
    y: Float[Array, " m"],
    step: Step,
) -> Move:
    """The state that z makes of one particle, and log w = log p(y | x) + log φ(z) − log q(z)."""
    x = model.move(ancestor, z, step)
    return Move(x, model.log_likelihood(y, x, step) - log_ratio)


class Expectation(NamedTuple):
    """What draws of one law say of log w.

    Attributes:
        loss: −E[log w], the divergence from p(z | ancestor, y) up to a constant.
        log_weights: `(s,)`, log w of each draw.
        lost: share of the draws for which the model gave no likelihood.
    """

    loss: Float[Array, ""]
    log_weights: Float[Array, " s"]
    lost: Float[Array, ""]


def expect(
    model: StateSpaceModel,
    law: Law,
    ancestor: Particle,
    y: Float[Array, " m"],
    step: Step,
    whites: Float[Array, "s w"],
    closed_form: bool = True,
) -> Expectation:
    """−E[log w] under one law, by draws, with gradients that stay finite.

    Args:
        model: the model.
        law: of this ancestor and observation.
        ancestor, y, step: what the law was made for.
        whites: standard normal numbers, a row a draw.
        closed_form: KL(law ‖ φ) exactly, where it is known; otherwise by the draws too.
    """
    motion = model.motion(ancestor, step)

    def log_likelihood(z: Float[Array, " k"]) -> Float[Array, ""]:
        x = model.wrap(_finite_gradient(motion(z)))
        value = model.log_likelihood(y, x, step)
        return jnp.where(jnp.isfinite(value), value, FLOOR)

    z, log_ratio = jax.vmap(law.place)(whites)
    fit = jax.vmap(log_likelihood)(z)
    divergence = law.divergence() if closed_form else None
    if divergence is None:
        divergence = jnp.mean(log_ratio)
    return Expectation(divergence - jnp.mean(fit), fit - log_ratio, jnp.mean(fit == FLOOR))


class Judgement(NamedTuple):
    """What draws of a law and of φ together say of one ancestor and observation.

    Attributes:
        log_predictive: log p(y | ancestor).
        log_square: log of the mean of w² under the law with its defensive share. Its excess over
            twice `log_predictive` is what the law costs: (E w)² / E w² is the share of the
            particles that count, in the long run.
    """

    log_predictive: Float[Array, ""]
    log_square: Float[Array, ""]

    @property
    def ess_fraction(self) -> Float[Array, ""]:
        """0 if no draw was possible at all."""
        some = jnp.isfinite(self.log_predictive)
        log_share = 2 * self.log_predictive - jnp.where(some, self.log_square, 0)
        return jnp.exp(jnp.minimum(log_share, 0))


def judge(
    model: StateSpaceModel,
    law: Law,
    ancestor: Particle,
    y: Float[Array, " m"],
    step: Step,
    whites: Float[Array, "s w"],
    share: float,
) -> Judgement:
    """Looks at a law from outside too: a quarter of the draws are those of φ.

    A law that leaves out a mode looks perfect by its own draws: none of them is ever there.

    Args:
        model: the model.
        law: of this ancestor and observation.
        ancestor, y, step: what the law was made for.
        whites: standard normal numbers, a row a draw.
        share: the defensive share.
    """
    count = whites.shape[0]
    others = max(1, count // 4)
    own, _ = jax.vmap(law.place)(whites[others:])
    z = jnp.concatenate([own, whites[:others, : own.shape[1]]])
    motion = model.motion(ancestor, step)
    fit = jax.vmap(lambda z: model.log_likelihood(y, model.wrap(motion(z)), step))(z)
    fit = jnp.where(jnp.isnan(fit), -jnp.inf, fit)
    log_ratio = jax.vmap(law.log_ratio)(z)
    log_drawn = defend(log_ratio, others / count)  # of what was drawn from, over φ
    squares = jnp.where(fit == -jnp.inf, fit, 2 * fit - log_drawn - defend(log_ratio, share))
    return Judgement(
        jax.nn.logsumexp(fit - log_drawn) - np.log(count),
        jax.nn.logsumexp(squares) - np.log(count),
    )


@jax.custom_vjp
def _finite_gradient(x: Any) -> Any:
    """x, through which no gradient flows back that is not finite."""
    return x


def _made_finite(_: None, gradient: Any) -> tuple[Any]:
    return (jax.tree.map(lambda g: jnp.where(jnp.isfinite(g), g, 0.0), gradient),)


_finite_gradient.defvjp(lambda x: (x, None), _made_finite)
