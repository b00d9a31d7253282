"""marginalise: finds what is linear in a model, and solves it exactly."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax

from nopf.arguments import shape_of
from nopf.gaussian import shown
from nopf.linear import Columns, is_zero
from nopf.marginal.model import MarginalisedModel
from nopf.marginal.pieces import predict_covariance, update_covariance
from nopf.marginal.structure import Structure, find, look_at, prior_places
from nopf.model import StateSpaceModel, check_model


def marginalise(
    model: StateSpaceModel, linear: Sequence[str | int] | None = None
) -> MarginalisedModel:
    """The same model, with the states that are linear given the others solved exactly.

    Each particle then carries the mean and the covariance of these (a Rao–Blackwellised filter),
    and only the others are left to chance. Which states are linear is found by trying: transition
    and observation must be affine in all of them together, and in the noise, whatever the others
    are. What was found, and why not more, is what `print` shows.

    Args:
        model: the model. Its observation noise must be additive, or Gaussian once the order of the
            measurements is known (`nopf.UnorderedLikelihood`).
        linear: names or indices of the states to solve; the largest possible set if left out.

    Raises:
        ValueError: if no state is linear, or one of those named is not, saying which derivative
            does not vanish.
    """
    check_model(model)
    if isinstance(model, MarginalisedModel):
        raise TypeError("model: it is marginalised already")
    if model.likelihood.sensors is None:
        raise ValueError(
            "marginalise: needs Gaussian observation noise, but "
            f"{model.likelihood.why_not_additive}"
        )
    wanted = None if linear is None else _indices(model, linear)
    structure = find(model, look_at(model), wanted)
    return MarginalisedModel(
        model, dataclasses.replace(structure, places=_places(model, structure))
    )


def _indices(model: StateSpaceModel, linear: Sequence[str | int]) -> list[int]:
    if isinstance(linear, str | int):
        linear = (linear,)
    found = []
    for name in linear:
        if isinstance(name, str):
            if name not in model.state_names:
                raise ValueError(
                    f"linear: no state is called {shown(name)}; there are "
                    f"{', '.join(model.state_names)}"
                )
            name = model.state_names.index(name)
        if isinstance(name, bool) or not isinstance(name, int) or not 0 <= name < model.space.size:
            raise ValueError(
                f"linear: expected names or indices from 0 to {model.space.size - 1}, "
                f"got {shown(name)}"
            )
        found.append(name)
    if not found or len(set(found)) != len(found):
        raise ValueError(
            f"linear: expected different states, one at least, got {shown(list(linear))}"
        )
    return found


def _places(model: StateSpaceModel, structure: Structure) -> tuple[tuple[int, int], ...]:
    """Where the covariance may be anything but zero: what a step and an observation fill in, again
    and again until nothing is new."""
    size, d = len(structure.linear), model.space.size
    width = model.observation_space.size
    known = set(prior_places(model, structure)) | {(i, i) for i in range(size)}
    full_noise = _noise_is_full(model)

    def step(entry: Any) -> Any:
        def some(rows: Columns, pattern: Any) -> Columns:
            for column, outputs in enumerate(pattern):
                for row in outputs:
                    rows[row][column] = entry
            return rows

        cov: Columns = [
            [entry if (i, j) in known else 0.0 for j in range(i + 1)] for i in range(size)
        ]
        moves = some([[0.0] * len(structure.moves) for _ in range(d)], structure.moves)
        moved = predict_covariance(moves, cov, structure.linear, structure.nonlinear).rest
        sight = some([[0.0] * size for _ in range(width)], structure.shows)
        noise = [
            [entry if i == j or full_noise else 0.0 for j in range(i + 1)] for i in range(width)
        ]
        seen = update_covariance(sight, moved, noise).rest
        for lower in (moved, seen):
            known.update(
                (i, j) for i in range(size) for j in range(i + 1) if not is_zero(lower[i][j])
            )
        return entry

    before = -1
    while len(known) > before:
        before = len(known)
        jax.eval_shape(step, shape_of())
    return tuple(sorted(known))


def _noise_is_full(model: StateSpaceModel) -> bool:
    sensors = model.likelihood.sensors
    assert sensors is not None
    constant = sensors.noise.constant
    return constant is None or constant.factor.ndim != 1
