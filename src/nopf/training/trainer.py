"""train: simulates a model and fits a neural proposal to it."""

import contextlib
import dataclasses
import os
import warnings
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, PRNGKeyArray

from nopf.arguments import check_key, positive_integer
from nopf.crowd import check_mesh
from nopf.gaussian import Numbers
from nopf.keys import quick
from nopf.model import StateSpaceModel, check_model
from nopf.proposals.linearised import LinearisedProposal
from nopf.proposals.neural import NeuralProposal
from nopf.recipe import SEVERAL, Recipe, as_recipe
from nopf.simulate import Trajectories, simulate_particles
from nopf.training.checkpoint import settled_base
from nopf.training.objective import Conditions, as_tuples, gradients_that_tell
from nopf.training.progress import Progress
from nopf.training.run import HELD_OUT, SCALE_TUPLES, Run, Trainer, TrainingInterrupted

TRAJECTORIES = 64  # at least, to scale features and to hold out
TRIAL_ROUNDS = 8
LARGEST_SYSTEM = 12  # beyond, the linearised fit takes too long to compile
LOOKED_AT = 64  # tuples, for gradients
FULL = 1000  # gradient steps at most: with fewer, one Gaussian is not given up
ONE_WILL_DO = 0.8  # harmonic mean of the held-out ESS fractions: from there on one Gaussian is kept
FIT_WILL_DO = 0.95  # the same: from there on a linearised fit is not trained
CLOSE_CALL = 1.5  # between the two bases; then filters on simulated series decide
PROMISING_ROUNDS = 4  # after which more draws of several Gaussians must count than of one
FAILING = 0.05  # share of observations that go missing beyond a given pattern


def train(
    model: StateSpaceModel,
    horizon: int | float,
    key: PRNGKeyArray,
    *,
    recipe: Recipe | str | None = None,
    times: Numbers | None = None,
    controls: Numbers | None = None,
    start: float | None = None,
    missing: Any = None,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
    mesh: Mesh | None = None,
) -> NeuralProposal:
    """Trains a proposal for a model on trajectories simulated from it.

    Ctrl-C ends training early and returns the best proposal so far (once the base is settled).

    Times, controls and missing values may be those of a recording longer than `horizon`. Each
    trajectory then imitates `horizon` rows of it, and all rows get their turn.

    Args:
        model: the model.
        horizon: steps of a simulated trajectory.
        key: random key; the same key gives the same proposal.
        recipe: "fast" (the default), "paper", or a `Recipe`.
        times: `(L,)` observation times, L ≥ horizon; every `model.dt` if left out.
        controls: `(L, u)` control inputs.
        start: the prior's time, 0 if left out.
        missing: `(L, m)` booleans, true for what will be missing, for sensors that take
            turns. At least 5 % more go missing at random, so that one that fails is no surprise.
        checkpoint: a file that keeps the state of training every few seconds. If it exists,
            training goes on from there, to the same result as without the interruption.
        progress: whether to show a progress bar; if left out, on a terminal only.
        mesh: a `jax.sharding.Mesh` of one axis, to spread the data of each gradient step over its
            devices.
    """
    mesh = check_mesh(mesh)
    recipe = as_recipe(recipe)
    check_model(model)
    horizon = positive_integer(horizon, "horizon")
    length = _length(horizon, times=times, controls=controls, missing=missing)
    steps = model.steps(length, times, controls, start)
    if not model.reads_control:
        steps = steps._replace(control=None)
    pattern = None
    if missing is not None:
        pattern = jnp.asarray(missing, bool)
        shape = (length, model.observation_space.size)
        if pattern.shape != shape:
            raise ValueError(f"missing: expected shape {shape}, got {pattern.shape}")
        if model.likelihood.additive:  # Others may not be able to leave out coordinates.
            rate = max(recipe.missing_rate, FAILING)
            recipe = dataclasses.replace(recipe, missing_rate=rate)
    conditions = Conditions(steps, pattern, horizon)
    if checkpoint is not None and not Path(checkpoint).resolve().parent.is_dir():
        raise FileNotFoundError(f"checkpoint: the folder of {checkpoint} does not exist")
    key, simulate_key = jax.random.split(quick(check_key(key)))
    with Progress(progress) as bar, _precision(recipe):
        count = max(TRAJECTORIES, -(-(SCALE_TUPLES + HELD_OUT) // horizon))
        own_steps, silent = conditions.spread(jax.random.fold_in(simulate_key, 0), count)
        paths = simulate_particles(model, own_steps, simulate_key, batch=count)
        settled = None if checkpoint is None else settled_base(checkpoint)
        given = recipe
        recipe = _with_objective(model, given, key, paths, silent)
        data = paths, silent
        trainer, run, reason = _trainer(model, conditions, recipe, key, data, settled, mesh)
        bar.say(reason)
        run = trainer.run(run, checkpoint, bar)
        doubtful = trainer.recipe.base == "linearised" and given.base == "auto" and run.step > 0
        if doubtful and not run.interrupted:
            plain = trainer.blank.network
            if trainer.worth(plain) >= trainer.worth(trainer.kept(run)):
                bar.say("the fit is handed back without a network, which was not worth its time")
                run = dataclasses.replace(run, network=plain, best=plain)
        # What a brief training has not learned says nothing of modes.
        brief = given.steps < FULL or run.interrupted
        if given.components is None and given.objective == "auto" and not brief:
            share = trainer.fraction(trainer.kept(run))
            reason = f"one Gaussian will do: {100 * share:.0f} % of its draws count"
            if share < ONE_WILL_DO:
                changed = dataclasses.replace(recipe, objective="inclusive", components=SEVERAL)
                base = "skeleton" if given.base == "auto" else given.base
                try:
                    rival = Trainer(model, conditions, changed, base, key, *data, mesh)
                    trainer, run, reason = _with_several(trainer, run, rival, bar)
                except KeyboardInterrupt:
                    reason = "one Gaussian is kept: the trial of several was interrupted"
                    warnings.warn(f"training: {reason}", TrainingInterrupted, stacklevel=2)
            bar.say(reason)
        proposal = trainer.proposal(run)
        # By way of the host: what was trained in double precision is used in the caller's.
        trained = jax.tree.map(np.asarray, (proposal.network, proposal.features))
    return eqx.tree_at(
        lambda p: (p.network, p.features), proposal, jax.tree.map(jnp.asarray, trained)
    )


def _with_objective(
    model: StateSpaceModel,
    recipe: Recipe,
    key: PRNGKeyArray,
    paths: Trajectories,
    silent: Array | None,
) -> Recipe:
    """The recipe with its objective settled: the exclusive one, where there are gradients."""
    if recipe.objective != "auto":
        return recipe
    if (recipe.components or 1) > 1:
        return dataclasses.replace(recipe, objective="inclusive")
    look_key, key = jax.random.split(key)
    tuples = as_tuples(paths, silent, look_key, 0.0)
    some = jax.tree.map(lambda leaf: leaf[:LOOKED_AT], tuples)
    try:
        share = float(gradients_that_tell(model, some, key))
    except (NotImplementedError, TypeError, ValueError):  # as JAX says of a loop or a callback
        share = 0.0
    if share > 0.5:
        return dataclasses.replace(recipe, objective="exclusive")
    warnings.warn(
        "training: the likelihood has no gradient (is there a lookup, a count or a floor in it?); "
        "the proposal learns from simulated states instead (objective='inclusive')",
        stacklevel=3,
    )
    base = "skeleton" if recipe.base == "auto" else recipe.base  # A tangent would tell nothing.
    return dataclasses.replace(recipe, objective="inclusive", base=base)


def _with_several(
    one: Trainer, run: Run, several: Trainer, bar: Progress
) -> tuple[Trainer, Run, str]:
    """The training of one Gaussian or of several, whichever is better at its cost, and why.

    Several are given up soon if they are not better. What counts in the end is how steady the
    evidence of a filter is from run to run: a mode that is left out shows there, and hardly in the
    effective sample size.
    """
    trial = several.run(several.begin(), None, bar, PROMISING_ROUNDS)
    if trial.interrupted:
        raise KeyboardInterrupt
    # Not per unit of work: a fit without a network takes little, and may miss a mode all the same.
    if several.fraction(trial.best) <= one.fraction(run.best):
        return one, run, f"one Gaussian is kept: {several.recipe.components} are not worth it"
    trial = several.run(trial, None, bar)
    if trial.interrupted:
        raise KeyboardInterrupt
    rival, known = several.steadiness(trial.best), one.steadiness(run.best)
    ratio = rival / known if known > 0 else np.inf
    reason = f"{several.recipe.components} Gaussians have {ratio:.2g} times the precision of the"
    reason += " evidence per unit of work of one"
    return (several, trial, reason) if rival > known else (one, run, reason)


def _trainer(
    model: StateSpaceModel,
    conditions: Conditions,
    recipe: Recipe,
    key: PRNGKeyArray,
    data: tuple[Trajectories, Array | None],
    settled: str | None,
    mesh: Mesh | None,
) -> tuple[Trainer, Run, str]:
    """The training with its base settled, where it stands, and why this base.

    Where both bases are possible, a short training on the skeleton competes with the untrained
    linearised fit, which is good from the start. What counts is the harmonic mean of the held-out
    ESS fractions, since the variance of a filter adds up like their inverses, over the work that a
    particle takes; where that is a close call, the draws that filters on simulated series are worth
    decide, which takes longer. Work is counted, not timed: the same key gives the same base.
    """

    def trainer(base: str) -> Trainer:
        return Trainer(model, conditions, recipe, base, key, *data, mesh)

    if recipe.base == "linearised":
        LinearisedProposal().check(model)
    linearisable = (
        model.likelihood.additive
        and min(model.noise_size, model.observation_space.size) <= LARGEST_SYSTEM
    )
    base: str | None = recipe.base
    if base == "auto":
        base = settled if linearisable else "skeleton"
    if base is not None:
        only = trainer(base)
        return only, only.begin(), f"base: {base}"
    trials = []
    for candidate, rounds in [("skeleton", TRIAL_ROUNDS), ("linearised", 0)]:
        trial = trainer(candidate)
        run = trial.begin()
        for _ in range(rounds):
            if trial.finished(run):
                break
            run = trial.round(run)
        trials.append((trial.efficiency(run.network), trial, run))
    (worse, _, _), (better, best, run) = sorted(trials, key=lambda t: t[0])
    ratio = better / worse if worse > 0 else np.inf
    reason = f"{ratio:.2g} times the held-out ESS per unit of work of the other"
    if ratio < CLOSE_CALL:
        ranked = sorted(trials, key=lambda trial: trial[1].worth(trial[2].network))
        _, best, run = ranked[-1]
        reason = "more draws per unit of work of filters; by held-out ESS it was close"
    share = best.fraction(run.network)
    if best.recipe.base == "linearised" and share > FIT_WILL_DO:
        run = dataclasses.replace(run, decay_from=0)
        reason += f"; no network is needed: {100 * share:.0f} % of its draws count without"
    return best, run, f"base: {best.recipe.base}, {reason}"


def _length(horizon: int, **rows: Any) -> int:
    """How many rows the series that training imitates has."""
    given = {name: len(values) for name, values in rows.items() if np.ndim(values)}
    length = max([horizon, *given.values()])
    for name, count in given.items():
        if count != length:
            raise ValueError(
                f"{name}: expected {length} rows, as many as the longest of horizon, "
                f"{', '.join(rows)}; got {count}"
            )
    return length


def _precision(recipe: Recipe) -> Any:
    double = recipe.precision == "float64"
    return jax.enable_x64(True) if double else contextlib.nullcontext()
