"""Makes many numbers few, as far as the eye cannot tell, so that a page can be sent."""

import math

import numpy as np

MOST = 2400  # points of a line
LEAST = 500
NUMBERS = 150_000  # of a page


def points(lines: int) -> int:
    """How many points each line of a page has, at most."""
    return min(MOST, max(LEAST, NUMBERS // max(lines, 1)))


def thin(values: np.ndarray, most: int = MOST) -> np.ndarray:
    """Every so many rows, and the last."""
    every = -(-len(values) // most)
    return values if every == 1 else np.concatenate([values[:-1:every], values[-1:]])


def extremes(
    time: np.ndarray, values: np.ndarray, most: int = MOST
) -> tuple[np.ndarray, np.ndarray]:
    """The lowest and the highest of every so many rows: a step that stands out stays."""
    every = -(-2 * len(values) // most)
    if every <= 2:
        return time, values
    rows = []
    for begin in range(0, len(values), every):
        own = values[begin : begin + every]
        if not np.all(np.isnan(own)):
            rows += sorted({begin + int(np.nanargmin(own)), begin + int(np.nanargmax(own))})
    return time[rows], values[rows]


def short(values: np.ndarray) -> list[float | None]:
    """Six digits of each value, or of the range of all where these are more: times since 1970 and
    coordinates far from zero differ in their last digits only."""
    values = np.asarray(values, np.float64)
    finite = values[np.isfinite(values)]
    least = 6 - _magnitude(float(np.ptp(finite))) if finite.size else 0
    return [
        round(v, max(least, 6 - _magnitude(v))) if np.isfinite(v) else None for v in values.tolist()
    ]


def _magnitude(value: float) -> int:
    """Digits before the decimal point; of zero it needs none."""
    return math.floor(math.log10(abs(value))) + 1 if value else 6
