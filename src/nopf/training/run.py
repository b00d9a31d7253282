"""Trainer and Run: one training, and where it stands."""

import dataclasses
import itertools
import os
import time
import warnings
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, PRNGKeyArray

from nopf import metrics
from nopf.compiling import in_brief, run_once, run_seldom
from nopf.crowd import axis_of, own_key
from nopf.filters.health import Surprise
from nopf.filters.loop import scan
from nopf.filters.moving import Ancestors, move_all
from nopf.filters.particle import ParticleFilter
from nopf.model import StateSpaceModel
from nopf.proposals.fingerprint import fingerprint
from nopf.proposals.network import Network
from nopf.proposals.neural import NeuralProposal, untrained
from nopf.proposals.seen import pattern_of
from nopf.recipe import Recipe
from nopf.simulate import Trajectories, simulate_steps
from nopf.steps import Step
from nopf.training.checkpoint import read_checkpoint, write_checkpoint
from nopf.training.descent import descend, make_optimiser
from nopf.training.objective import Conditions, Scores, as_tuples, score, simulate_tuples
from nopf.training.progress import Progress
from nopf.training.pruning import pruned
from nopf.training.scaling import fit_features

TUPLES = 1024  # of a gradient step, where the recipe does not say
HELD_OUT, DRAWS = 1024, 64
SCALE_TUPLES = 20_000
LEAST = 1e-3  # of an ESS fraction, so that one tuple does not decide
SERIES, REPEATS, SERIES_STEPS, SERIES_PARTICLES = 32, 8, 60, 128  # runs on simulated data
ROUNDING = 1e-5  # of a mean; spreads below are none
ENOUGH = 2e-3  # nats; less counts as no progress
GOOD = 0.995  # held-out ESS fraction at which there is little left to learn
RETRIES = 8
CHECKPOINT_SECONDS = 5.0


class TrainingInterrupted(UserWarning):
    """Ctrl-C ended training before its time."""


class Run(eqx.Module):
    """Where a training run stands. Nothing in it depends on the clock.

    Attributes:
        network: the current one.
        optimiser: the moments of Adam.
        best: the network with the lowest held-out loss.
        history: rows of step, loss, held-out loss, held-out ESS fraction.
        step: gradient steps done.
        best_loss: the held-out loss of `best`.
        mark: the held-out loss that counted as progress last.
        stale: evaluations since then.
        decay_from: the step at which the step size began to decay; −1 before.
        failures: how often the loss was not finite.
        bad_share: largest share of samples in a round for which the model gave no likelihood.
        interrupted: whether Ctrl-C ended it.
    """

    network: Network
    optimiser: Any
    best: Network
    history: Float[np.ndarray, "k 4"]
    step: int = 0
    best_loss: float = np.inf
    mark: float = np.inf
    stale: int = 0
    decay_from: int = -1
    failures: int = 0
    bad_share: float = 0.0
    interrupted: bool = False


class Trainer:
    """One training: what stays the same from its first step to its last."""

    def __init__(
        self,
        model: StateSpaceModel,
        conditions: Conditions,
        recipe: Recipe,
        base: str,
        key: PRNGKeyArray,
        paths: Trajectories,
        silent: Array | None = None,
        mesh: Mesh | None = None,
    ):
        """On series like these `conditions`; `paths` are some of them, in which what is `silent`
        is missing."""
        steps, missing = conditions.steps, conditions.missing
        controls = None if steps.control is None else steps.control.shape[1]
        # The published network speaks of all noise numbers.
        pattern = None if recipe.batch_norm else pattern_of(model)
        weights_key, order_key, self.data_key, self.score_key = jax.random.split(key, 4)
        self.identity = fingerprint(model, controls)
        self.settings = {
            "model": self.identity,
            "recipe": dataclasses.asdict(recipe),
            "times": [np.asarray(steps.time).tolist(), np.asarray(steps.dt).tolist()],
            "controls": None if controls is None else np.asarray(steps.control).tolist(),
            "horizon": conditions.horizon,
            "key": np.asarray(jax.random.key_data(key)).tolist(),
            "precision": str(jnp.zeros(()).dtype),
            "base": base,
            "pattern": None if pattern is None else [list(rows) for rows in pattern],
        }
        if missing is not None:
            self.settings["missing"] = np.asarray(missing).tolist()
        if mesh is not None:
            self.settings["devices"] = mesh.size
        recipe = dataclasses.replace(recipe, base=base)
        self.model, self.conditions, self.recipe, self.mesh = model, conditions, recipe, mesh
        tuples = _as_tuples(paths, silent, order_key, recipe.missing_rate)
        self.held_out = jax.tree.map(lambda leaf: leaf[:HELD_OUT], tuples)
        first = jax.tree.map(lambda leaf: leaf[: conditions.horizon], steps)
        blank = untrained(self.identity, recipe, first, weights_key, pattern)
        if silent is not None:  # A sensor that is silent here has a scale all the same.
            tuples = _as_tuples(paths, None, order_key, recipe.missing_rate)
        to_scale = jax.tree.map(lambda leaf: leaf[HELD_OUT:][:SCALE_TUPLES], tuples)
        features = fit_features(blank.features, model, to_scale)
        self.blank = eqx.tree_at(lambda p: p.features, blank, features)
        batch = recipe.batch or max(1, round(TUPLES / conditions.horizon))
        self.batch = batch if mesh is None else -(-batch // mesh.size)  # of one device

    def run(
        self,
        run: Run,
        checkpoint: str | os.PathLike[str] | None,
        bar: Progress,
        rounds: int | None = None,
    ) -> Run:
        """Goes on from `run`, or from the checkpoint if there is one: to the end, for so many
        rounds, or to Ctrl-C."""
        if checkpoint is not None:
            run = read_checkpoint(checkpoint, run, self.settings)
        saved, run = time.monotonic(), dataclasses.replace(run, interrupted=False)
        try:
            for _ in itertools.count() if rounds is None else range(rounds):
                if self.finished(run):
                    break
                run = self.round(run)
                bar.update(self._progress(run), run.history[-1])
                if checkpoint is not None and time.monotonic() - saved > CHECKPOINT_SECONDS:
                    write_checkpoint(checkpoint, run, self.settings)
                    saved = time.monotonic()
        except KeyboardInterrupt:
            run = dataclasses.replace(run, interrupted=True)
        if checkpoint is not None:
            write_checkpoint(checkpoint, run, self.settings)
        if run.interrupted:
            _warn(
                f"interrupted at step {run.step} of {self.recipe.steps}; "
                "this is the best proposal so far",
                TrainingInterrupted,
            )
        if run.failures:
            _warn(
                f"the loss was not finite {run.failures} times; each time training went back and "
                "on with half the step size"
            )
        if run.bad_share > 0:
            _warn(
                f"the log-likelihood was not finite for up to {100 * run.bad_share:.2g} % of the "
                "samples of a round; look at observation_log_prob"
            )
        return run

    def begin(self) -> Run:
        """The untrained network."""
        network = self.blank.network
        optimiser = make_optimiser(self.recipe).init(eqx.filter(network, eqx.is_inexact_array))
        return self._judge(Run(network, optimiser, network, np.zeros((0, 4))), np.nan)

    def round(self, run: Run) -> Run:
        """Some gradient steps and an evaluation. Goes back if the loss is not finite."""
        recipe = self.recipe
        at = run.step + np.arange(min(recipe.round, recipe.steps - run.step))
        rates = recipe.learning_rate * 0.5**run.failures * self._schedule(at, run.decay_from)
        key = jax.random.fold_in(jax.random.fold_in(self.data_key, run.step), run.failures)
        found = _gradient_steps(
            self.blank,
            run.network,
            run.optimiser,
            self.model,
            self.conditions,
            key,
            jnp.asarray(rates, float),
            self.batch,
            self.mesh,
        )
        network, optimiser, loss, bad = found if self.mesh is None else _on_host(found)
        moved = dataclasses.replace(
            run,
            network=network,
            optimiser=optimiser,
            step=run.step + len(at),
            bad_share=max(run.bad_share, float(bad)),
        )
        moved = self._judge(moved, float(loss))
        # A network that gives no numbers changes nothing, so the loss alone does not tell.
        numbers = [moved.history[-1], *jax.tree.leaves(eqx.filter(network, eqx.is_array))]
        if all(np.isfinite(values).all() for values in numbers):
            return moved
        if run.failures == RETRIES:
            raise FloatingPointError(
                f"training: the loss was not finite at step {run.step}, however small the step "
                "size; look for NaN in observation_log_prob or its gradient, or use a smaller "
                "learning_rate"
            )
        return dataclasses.replace(run, failures=run.failures + 1)

    def proposal(self, run: Run) -> NeuralProposal:
        """What the filter gets."""
        proposal = eqx.tree_at(
            lambda p: (p.network, p.history), self.blank, (self.kept(run).folded(), run.history)
        )
        # The published network has all entries.
        return proposal if self.recipe.batch_norm else pruned(proposal, self.model, self.held_out)

    def kept(self, run: Run) -> Network:
        """The network that the recipe keeps."""
        return run.network if self.recipe.keep == "last" else run.best

    def score(self, network: Network) -> Scores:
        """How a network does on the held-out tuples."""
        return _score(self._folded(network), self.model, self.held_out, self.score_key, DRAWS)

    def fraction(self, network: Network) -> float:
        """Harmonic mean of the held-out ESS fractions: the variance of a filter adds up like their
        inverses."""
        fractions = self.score(network).ess_fraction
        return float(jnp.nan_to_num(1 / jnp.nanmean(1 / jnp.maximum(fractions, LEAST))))

    def efficiency(self, network: Network) -> float:
        """Harmonic mean of the held-out ESS fractions over the work of one particle."""
        return self.fraction(network) / self.work(network)

    def worth(self, network: Network) -> float:
        """How many independent draws of the posterior the means of a filter are worth, on simulated
        series: the median over series, steps and states, over the work of one particle."""
        evidence, means, stds = self._simulated_runs(network)
        found = np.stack(
            [metrics.draws(self.model.space, *runs) for runs in zip(means, stds, strict=True)]
        )
        lost = ~np.isfinite(evidence).all(axis=1)
        found = np.where(lost[:, None, None], 0, found)
        # All particles begin alike: states that never change are known from the start.
        known = np.mean(stds, axis=1) <= ROUNDING * np.mean(np.abs(means), axis=1)
        if np.all(known):
            return 0.0
        return float(np.median(found[~known])) / self.work(network)

    def steadiness(self, network: Network) -> float:
        """How little the log-evidence of a filter differs from run to run, on simulated series:
        one over its variance, over the work of one particle. A mode that is left out shows there
        sooner than in means."""
        evidence, _, _ = self._simulated_runs(network)
        lost = ~np.isfinite(evidence).all(axis=1)
        variance = np.var(np.where(lost[:, None], 0, evidence), axis=1, ddof=1)
        mean = float(np.mean(np.where(lost, np.inf, variance)))
        return 1 / max(mean, 1e-12) / self.work(network)

    def _simulated_runs(self, network: Network) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Log-evidences, means and standard deviations of several runs on each of some series.

        All particles begin where the series does: what a wide prior costs at the first observation
        is the same for every proposal, and would hide how they differ.
        """
        flt = ParticleFilter(
            self.model, self._folded(network), SERIES_PARTICLES, quantiles=(), health=False
        )
        own = self.conditions
        own = Conditions(own.steps, own.missing, min(own.horizon, SERIES_STEPS))
        found = _simulated_runs(flt, self.score_key, own)
        return tuple(np.asarray(leaf, np.float64) for leaf in found)  # type: ignore[return-value]

    def work(self, network: Network) -> float:
        """What a particle takes: the memory traffic of a move.

        Before XLA has fused anything, that goes with the time that a particle takes; a count of
        floating-point operations does not, since matrix products take so little of it. Counted, and
        not timed, so that the same key gives the same proposal.
        """
        proposal = self._folded(network).settled(self.model)
        step = jax.tree.map(lambda leaf: leaf[0], self.held_out.steps)

        def move(states: Any, y: Array) -> Any:
            ancestors = Ancestors(states, jnp.zeros(HELD_OUT), None)
            return move_all(proposal, self.model, jax.random.key(0), ancestors, y, step).state

        states, ys, _ = self.held_out
        cost = jax.jit(move).lower(states, ys[0]).cost_analysis() or {}
        return cost.get("bytes accessed", 1.0) / HELD_OUT

    def _folded(self, network: Network) -> NeuralProposal:
        return eqx.tree_at(lambda p: p.network, self.blank, network.folded())

    def _judge(self, run: Run, loss: float) -> Run:
        scores = self.score(run.network)
        held_out, ess = float(scores.loss.mean()), float(jnp.nanmean(scores.ess_fraction))
        history = np.concatenate([run.history, [[run.step, loss, held_out, ess]]])
        run = dataclasses.replace(run, history=history, stale=run.stale + 1)
        if held_out < run.best_loss:
            run = dataclasses.replace(run, best=run.network, best_loss=held_out)
        if held_out < run.mark - ENOUGH:
            run = dataclasses.replace(run, mark=held_out, stale=0)
        patience, late = self.recipe.patience, self.recipe.steps - self.recipe.steps // 4
        if patience is None or run.decay_from >= 0:
            return run
        if run.stale >= patience or run.step >= late or ess > GOOD:
            run = dataclasses.replace(run, decay_from=run.step)
        return run

    def _schedule(self, at: np.ndarray, decay_from: int) -> np.ndarray:
        rate = np.minimum(1, (at + 1) / (self.recipe.warmup + 1))
        if decay_from < 0:
            return rate
        return rate * np.clip(1 - (at - decay_from) / self._decay(decay_from), 0, 1)

    def _decay(self, decay_from: int) -> int:
        if decay_from == 0:
            return 0  # The base is good as it is.
        return max(self.recipe.round, min(self.recipe.steps // 4, decay_from // 2))

    def finished(self, run: Run) -> bool:
        """Whether there is nothing left to do."""
        if run.step >= self.recipe.steps:
            return True
        return run.decay_from >= 0 and run.step >= run.decay_from + self._decay(run.decay_from)

    def _progress(self, run: Run) -> float:
        end = self.recipe.steps
        if run.decay_from >= 0:
            end = min(end, run.decay_from + self._decay(run.decay_from))
        return run.step / end


_as_tuples = run_once(as_tuples)
_score = run_seldom(score)


@run_seldom
def _simulated_runs(
    flt: ParticleFilter, key: PRNGKeyArray, conditions: Conditions
) -> tuple[Float[Array, "b r"], Float[Array, "b r t d"], Float[Array, "b r t d"]]:
    """Of several simulated series, several times each."""

    def one(path: Trajectories, ys: Array, key: PRNGKeyArray) -> Any:
        belief = flt.begin(key)
        states = jax.tree.map(
            lambda start, leaf: jnp.broadcast_to(start, leaf.shape),
            path.initial_state,
            belief.states,
        )
        last = belief._replace(states=states), Surprise.none()
        _, (info, _) = scan(flt, last, ys, path.steps, False)
        return jnp.sum(info.log_evidence_increment), info.mean, info.std

    def runs(steps: Step, missing: Array | None, key: PRNGKeyArray) -> Any:
        data_key, key = jax.random.split(key)
        path = simulate_steps(flt.model, steps, data_key)
        ys = path.observations
        ys = ys if missing is None else jnp.where(missing, jnp.nan, ys)
        return jax.vmap(lambda key: one(path, ys, key))(jax.random.split(key, REPEATS))

    with in_brief():
        steps, missing = conditions.spread(jax.random.fold_in(key, 0), SERIES)
        return jax.vmap(runs)(steps, missing, jax.random.split(key, SERIES))


@run_seldom
def _gradient_steps(
    blank: NeuralProposal,
    network: Network,
    optimiser: Any,
    model: StateSpaceModel,
    conditions: Conditions,
    key: PRNGKeyArray,
    rates: Float[Array, " r"],
    batch: int,
    mesh: Mesh | None,
) -> tuple[Network, Any, Array, Array]:
    """One gradient step for each rate, on fresh data. Every device simulates data of its own."""
    count, axis = rates.shape[0], axis_of(mesh)

    def on_one(key: PRNGKeyArray) -> tuple[Network, Any, Array, Array]:
        data_key, key = jax.random.split(own_key(key, axis))
        rate = blank.recipe.missing_rate
        with in_brief():
            tuples = simulate_tuples(model, conditions, data_key, count * batch, rate)
            batches = jax.tree.map(lambda leaf: leaf.reshape(count, -1, *leaf.shape[1:]), tuples)
            return descend(blank, network, optimiser, model, batches, key, rates, axis)

    if mesh is None:
        return on_one(key)
    # A network is not made of arrays alone; only those cross the border of a mesh.
    everywhere = PartitionSpec()
    arrays = jax.shard_map(
        lambda key: eqx.filter(on_one(key), eqx.is_array),
        mesh=mesh,
        in_specs=everywhere,
        out_specs=everywhere,
        check_vma=False,
    )(key)
    return eqx.combine(arrays, (network, optimiser, None, None))


def _on_host(tree: Any) -> Any:
    """Arrays of a mesh as plain ones, which every process can go on with by itself."""
    return jax.tree.map(lambda leaf: np.asarray(leaf) if eqx.is_array(leaf) else leaf, tree)


def _warn(message: str, category: type[Warning] = UserWarning) -> None:
    warnings.warn(f"training: {message}", category, stacklevel=4)
