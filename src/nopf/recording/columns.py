"""Which columns of a recording mean what."""

from collections.abc import Sequence
from typing import NamedTuple

from nopf.model import StateSpaceModel
from nopf.words import did_you_mean, listed

TIME_NAMES = ("time", "t", "timestamp")


class DataError(ValueError):
    """A recording that cannot be used; the message says where and why."""


class Columns(NamedTuple):
    """Which columns of a recording mean what.

    Attributes:
        time: the column of times; None if observations come every `model.dt`.
        controls: the columns of `step.control`.
        observations: the columns of the observation.
        truth: the columns of true states, by their names.
    """

    time: str | None
    controls: tuple[str, ...]
    observations: tuple[str, ...]
    truth: dict[str, str]

    @property
    def every(self) -> list[str]:
        """All of them, each once."""
        times = () if self.time is None else (self.time,)
        names = (*times, *self.controls, *self.observations, *self.truth.values())
        return list(dict.fromkeys(names))


class Named(NamedTuple):
    """Columns as a user named them; None for those that go by the model's names.

    True states are `state=column`, or a column that is called as the state is, or `true_` before
    that.
    """

    time: str | None = None
    controls: Sequence[str] | None = None
    observations: Sequence[str] | None = None
    truth: Sequence[str] = ()


BY_MODEL = Named()


def choose_columns(
    where: str, found: Sequence[str], model: StateSpaceModel, named: Named
) -> Columns:
    """The columns that a model needs.

    Args:
        where: the file, for messages.
        found: the columns that there are.
        model: the model.
        named: those that the user named.
    """
    wanted = observed(model, named)
    width = model.observation_space.size
    if len(wanted) != width:
        raise DataError(
            f"{where}: the model's observation has {width} numbers, but {len(wanted)} columns were "
            f"named: {listed(wanted)}"
        )
    driven: tuple[str, ...] = ()
    if model.reads_control:
        driven = tuple(model.control_names if named.controls is None else named.controls)
        if not driven:
            raise DataError(
                f"{where}: this model reads step.control; name its columns with --controls, or "
                "with control_names= in the model"
            )
        if model.control_names and len(driven) != len(model.control_names):
            raise DataError(
                f"{where}: the model reads {len(model.control_names)} controls "
                f"({listed(model.control_names)}), but {len(driven)} columns were named: "
                f"{listed(driven)}"
            )
    elif named.controls:
        raise DataError(f"{where}: --controls names columns, but the model reads no step.control")
    time = named.time
    if time is None:
        free = [name for name in found if name not in (*driven, *wanted)]
        time = next((name for name in free if is_time(name)), None)
    chosen = [*([] if time is None else [time]), *driven, *wanted]
    for name in chosen:
        if chosen.count(name) > 1:
            raise DataError(f"{where}: column {name!r} is used twice: {listed(chosen)}")
        if found.count(name) != 1:
            raise DataError(
                f"{where}: {_not_one(name, found)}. Choose with --time, --controls and "
                "--observations, or name them in the model (observation_names=, control_names=)"
            )
    return Columns(time, driven, wanted, _true_states(where, found, model, named.truth))


def _not_one(name: str, found: Sequence[str]) -> str:
    many = "several columns" if name in found else "no column"
    near = "" if name in found else did_you_mean(name, found)
    return f"{many} {name!r}{near}; there are {listed(found)}"


def _true_states(
    where: str, found: Sequence[str], model: StateSpaceModel, named: Sequence[str]
) -> dict[str, str]:
    states = {}
    for word in named:
        state, equals, column = (part.strip() for part in word.partition("="))
        column = column if equals else state
        state = state if equals else state.removeprefix("true_")
        if state not in model.state_names:
            raise DataError(
                f"{where}: --truth: {state!r}{did_you_mean(state, model.state_names)} is none of "
                f"the states {listed(model.state_names)}; write state=column"
            )
        if found.count(column) != 1:
            raise DataError(f"{where}: --truth: {_not_one(column, found)}")
        if state in states:
            raise DataError(f"{where}: --truth: {state!r} is named twice")
        states[state] = column
    return states


def observed(model: StateSpaceModel, named: Named) -> tuple[str, ...]:
    """The columns of the observation."""
    return tuple(model.observation_names if named.observations is None else named.observations)


def is_time(name: str) -> bool:
    """Whether a column is called as times are."""
    return name.lower() in TIME_NAMES
