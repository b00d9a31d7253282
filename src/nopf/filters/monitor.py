"""Monitor: says in plain words when an estimate should not be trusted, and why."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from nopf.arguments import finite_number
from nopf.filters.health import FORGET, LOST
from nopf.robust import Tails
from nopf.words import listed

PATIENCE = 5  # steps that a mean has to be poor before it is reported
HURRY = 2.5  # so many times sooner if it is worth less than half the draws that would do
SETTLED = 8  # steps before a lasting trouble is reported, or said to be over
THIN = 5.0  # particles that count: with fewer a single step loses what was known
FEW = 3.0  # draws: by fewer a mean is not known
AFTERWARDS = 40  # steps after that in which nothing is said of the model
LASTING = 0.98  # a step: about the last fifty count for errors that last
PAIRS = 20.0  # of innovations, in these weights, before errors are said to last
STRONG = 0.3  # correlation from step to step beyond which errors are not noise
STRONGER = 0.6  # the same where they are small: noise that is much too large delays the estimate
MILD = 0.45  # and below which that is all
LONG = 25.0  # steps, in these weights, before noise is said to be too large
CLEAR = 5.0  # standard deviations beyond which that is no accident
LARGEST = 3.0  # an outlier is no error that lasts: innovations count up to this

VERDICTS = ("trust it", "look here", "do not trust it")
GRAVE = ("collapsed", "poor", "lost")  # The others leave an estimate that is worth a look.

OUTLIERS = "if the sensors have outliers, use robust="
CARRIED = ". If what is tracked can be carried away, use recover="
UNSOUND = "too few particles were left to say why"
SURPRISE = "too many observations are surprising (drift {0:.1f}{1})"
SAYS = {
    "collapsed": "every weight was zero; the step is treated as one without an observation",
    "far": "the observation is far from what was predicted (p = {:.1g}{}); {}",
    "poor": (
        "the proposal is poor: the effective sample size has been only about {:.3g} lately; use a "
        "learned or linearised proposal, or more particles. Until then it cannot be judged whether "
        "the model explains the data"
    ),
    "thin": (
        "only {} left, from which all later ones descend. For some time the estimate may be far "
        "off, and surprising observations do not show that the model is wrong; use more particles, "
        "or a linearised or learned proposal"
    ),
    "coarse": (
        "{} {} of the posterior, and may be off by {:.1g} posterior standard deviations; use more "
        "particles, or nopf.marginalise if the state is linear"
    ),
    "lost": (
        f"the model does not explain this data: {SURPRISE}; look at its noise, motion and biases"
    ),
    "lost by few": (
        f"the particles have probably lost the state: {SURPRISE}, and few of them were left. Use "
        "more particles, or a linearised or learned proposal. Until then it cannot be judged "
        "whether the model explains the data"
    ),
    "lost anew": (
        f"the filter is lost: {SURPRISE}; {{2:.0%}} of the particles are drawn anew from the prior"
    ),
    "found": "found again: the model explains the last observations",
    "lasting": (
        "errors persist from step to step (correlation {:.2f}{}): a bias, a lever arm or a delay "
        "is missing from the model; the estimate is more certain than it should be"
    ),
    "vague": (
        "observations are closer to the predictions than the model says (drift {:.1f}{}); its "
        "noise is probably too large"
    ),
}


class Monitor:
    """Says in plain words, as steps come in, when an estimate should not be trusted.

    Call `look(info, index, time)` of one monitor after each step, with the `Info` of that step.
    A problem is reported when it begins, and not at every step for which it lasts. If it keeps
    coming back, it is reported the first, tenth and hundredth time. `summary()` returns one line
    for each kind of problem so far. `flt.monitor()` makes one that knows the names of a model.

    Args:
        p_value: an observation with a smaller p-value than this is reported.
        drift: a drift beyond this is reported. It is about standard normal: with a right model it
            hardly ever exceeds 5, but exceeds 4 once in some ten thousand steps, which is too often
            for an endless stream.
        ess: an effective sample size below this, over about twenty steps, is reported.
        draws: a mean is reported if it has been worth fewer independent draws than this for five
            steps, or fewer than half of it for two. With 10 draws it may be off by a third of its
            standard deviation.
        state_names: names of the states in warnings; their numbers if left out.
        observation_names: names of the observations; warnings name none if left out.
        tails: the model's `robust=`, which tells how many outliers are to be expected.
        recover: the filter's `recover=`; None if it has no such argument.
    """

    def __init__(
        self,
        p_value: float = 1e-6,
        drift: float = LOST,
        ess: float = 30.0,
        draws: float = 10.0,
        state_names: Sequence[str] = (),
        observation_names: Sequence[str] = (),
        tails: Tails | None = None,
        recover: float | None = None,
    ):
        for name, value in [("p_value", p_value), ("drift", drift), ("ess", ess), ("draws", draws)]:
            if finite_number(value, name) < 0:
                raise ValueError(f"{name}: expected a number of at least 0, got {value}")
        if not 0 < p_value < 1:
            raise ValueError(f"p_value: expected a number between 0 and 1, got {p_value}")
        self.p_value, self.drift, self.ess, self.draws = p_value, drift, ess, draws
        self.state_names = tuple(state_names)
        self.recover = recover
        # A normal number is as far out as this with about that probability.
        self._outliers = 0.0 if tails is None else tails.beyond(math.sqrt(-2 * math.log(p_value)))
        self._robust, self._expected = tails is not None, 0.0
        self._rows = self._unsound_rows = 0
        self._coarse: np.ndarray | None = None  # for how many steps each mean has been poor
        self._ess = self._weight = 0.0
        self._thin_at = self._lost_at = 0
        self._few_at, self._few_when_lost = -AFTERWARDS, False
        self._sensors = Sensors(tuple(observation_names))
        self._troubles: dict[str, Trouble] = {}

    def look(self, info: Any, index: int, time: float) -> list[str]:
        """What is worth a warning after this step."""
        return [text for _, text in self.begun(info, index, time) if text is not None]

    def begun(self, info: Any, index: int, time: float) -> list[tuple[str, str | None]]:
        """Each trouble that begins at this step, and what `look` says of it: None if it has come
        back too often to say so again."""
        where = f"step {index} (time {time:.12g})"
        found: list[tuple[str, str | None]] = []
        for kind, message in self._look(info, index):
            trouble, text = self._troubles[kind], f"{where}: {message}"
            trouble.last, trouble.first = where, trouble.first or text
            trouble.since = trouble.since or self._rows
            again = f"{text} (this is the {trouble.times}th time)" if trouble.times > 1 else text
            found.append((text, again if math.log10(trouble.times).is_integer() else None))
        return found

    def summary(self) -> list[str]:
        """What there was so far: a line for each kind of trouble."""
        kinds = [kind for kind in self._troubles if self._troubles[kind].times]
        kinds = sorted(kinds, key=lambda kind: self._troubles[kind].since)
        if "lasting" in kinds:  # Whatever else was said before that was seen: no smaller noise.
            kinds = [kind for kind in kinds if kind != "vague"]
        return [self._summed_up(kind) for kind in kinds]

    def _summed_up(self, kind: str) -> str:
        trouble = self._troubles[kind]
        if trouble.rows == 1 or (trouble.times == 1 and kind != "far"):
            return trouble.first
        rows = f"{trouble.rows} of {self._rows} rows"
        if kind != "far":
            again = (
                "once more" if trouble.times == 2 else f"{trouble.times - 1} more times, the last"
            )
            return f"{trouble.first} (and {again} at {trouble.last}; {rows} in all)"
        first = trouble.first.split(":")[0]
        where = f", the first at {first}{self._sensors.most_often()}"
        if not self._robust or 2 * self._unsound_rows > trouble.rows:
            advice = UNSOUND if 2 * self._unsound_rows > trouble.rows else OUTLIERS
            return (
                f"{rows} are far from what was predicted (p < {self.p_value:.0e}){where}; {advice}"
            )
        expected = f"about {self._expected:.0f} were to be expected"
        if self._too_often(trouble):
            expected = (
                f"only {expected}: either outliers are more frequent than the model says, or the "
                "noise is larger"
            )
        return f"{rows} had an outlier{where}; {expected}"

    def _too_often(self, outliers: "Trouble") -> bool:
        """Whether there were more outliers than the model's tails let one expect."""
        return outliers.rows > self._expected + 4 * math.sqrt(self._expected + 1)

    @property
    def verdict(self) -> str:
        """What all that was seen so far amounts to: one of `VERDICTS`."""
        kinds = {kind for kind, trouble in self._troubles.items() if trouble.times} - {"found"}
        if self._robust and "far" in kinds and not self._too_often(self._troubles["far"]):
            kinds.remove("far")
        grave = kinds & set(GRAVE)
        if self.recover and not self._lasts("lost"):
            grave -= {"lost"}  # It was found again.
        return VERDICTS[2 if grave else 1 if kinds else 0]

    def _look(self, info: Any, index: int) -> Iterator[tuple[str, str]]:
        self._rows += 1
        collapsed, drift = bool(info.collapsed), float(info.drift)
        count = self._sensors.add(np.asarray(info.innovation, float))
        if not np.isnan(info.nominal_p_value):
            self._expected += 1 - (1 - self._outliers) ** max(count, 1)
        if self._begins("collapsed", collapsed):
            yield "collapsed", SAYS["collapsed"]
        far = not collapsed and bool(info.nominal_p_value < self.p_value)
        unsound = self._unsound(index)
        if far:
            furthest = self._sensors.furthest()
            self._unsound_rows += unsound
        if self._begins("far", far):
            if unsound:
                advice = UNSOUND
            elif info.p_value >= self.p_value:
                advice = "it counts as an outlier"
            elif not self._robust:
                advice = OUTLIERS
            else:
                advice = "that is too far even for the outliers that the model expects"
            yield "far", SAYS["far"].format(float(info.nominal_p_value), furthest, advice)
        if info.ess is not None:
            yield from self._few_particles(float(info.ess), drift, index, far)
        yield from self._poorly_known(info, index)
        # With too few particles the prediction itself is not to be trusted.
        if self.recover or not self._lasts("poor"):
            yield from self._wrong_model(drift, index)

    def _few_particles(
        self, ess: float, drift: float, index: int, far: bool
    ) -> Iterator[tuple[str, str]]:
        self._ess = FORGET * self._ess + ess
        self._weight = FORGET * self._weight + 1
        mean = self._ess / self._weight
        # Before that, a wide prior may be to blame.
        poor = self._weight > SETTLED and mean < self.ess
        if self._begins("poor", poor, mean > 2 * self.ess):
            yield "poor", SAYS["poor"].format(mean)
        # What surprises leaves few particles, too; that has been said.
        thin = 0 < ess < THIN and not far and not self._lasts("poor") and not drift > self.drift / 2
        if thin:
            self._thin_at = index
        if self._begins("thin", thin, index - self._thin_at > AFTERWARDS):
            yield "thin", SAYS["thin"].format(_counted(ess, "particle"))

    def _wrong_model(self, drift: float, index: int) -> Iterator[tuple[str, str]]:
        lost = drift > self.drift
        if lost:
            self._lost_at = index
        # A filter that recovers forgets what surprised it, and has to wait for more.
        over = drift < self.drift / 2 and index - self._lost_at > (SETTLED if self.recover else 0)
        was_lost, unsound = self._lasts("lost"), self._unsound(index)
        if self._begins("lost", lost, over):
            self._few_when_lost = unsound
            case = "lost anew" if self.recover else "lost by few" if unsound else "lost"
            carried = CARRIED if case == "lost" and self.recover is not None else ""
            words = SAYS[case].format(drift, self._sensors.worst(), self.recover)
            yield "lost", words + carried
        if self._begins("found", bool(self.recover) and was_lost and not self._lasts("lost")):
            yield "found", SAYS["found"]
        # A mean that is off by chance stays so for a while.
        strong = STRONG if drift > -self.drift / 2 else STRONGER
        if unsound:
            self._sensors.forget_pairs()
        lasting = not self._lasts("coarse") and self._sensors.errors_last(strong)
        if self._begins("lasting", lasting, self._sensors.correlation() < strong / 2):
            correlation, where = self._sensors.correlation(), self._sensors.steadiest()
            yield "lasting", SAYS["lasting"].format(correlation, where)
        # Errors that last may be small and still add up: no advice to trust measurements more.
        vague = drift < -self.drift and not self._lasts("lasting") and self._sensors.errors_pass()
        if self._begins("vague", vague, drift > -self.drift / 2):
            yield "vague", SAYS["vague"].format(drift, self._sensors.best())

    def _unsound(self, index: int) -> bool:
        """Whether too few particles are, or have been lately, behind what is predicted."""
        few = index - self._few_at <= AFTERWARDS or (self._lasts("lost") and self._few_when_lost)
        return few or self._lasts("poor") or self._lasts("thin")

    def _poorly_known(self, info: Any, index: int) -> Iterator[tuple[str, str]]:
        """The states whose means have been poor for some time."""
        with np.errstate(divide="ignore", invalid="ignore"):  # Means can be exact.
            draws = np.diagonal(np.asarray(info.cov)) / np.square(np.asarray(info.error))
        draws = np.where(np.isnan(draws), np.inf, draws)
        if self._coarse is None:
            self._coarse = np.zeros(draws.shape)
        pace = np.where(draws < self.draws / 2, HURRY, 1)
        self._coarse = np.where(draws < self.draws, self._coarse + pace, 0)
        poor = np.flatnonzero(self._coarse >= PATIENCE)
        # What surprised before that is not their fault.
        if np.any(draws[poor] < FEW) and not info.drift > self.drift / 2:
            self._few_at = index
        if self._begins("coarse", bool(poor.size), not np.any(draws < 2 * self.draws)):
            names = [self.state_names[i] if self.state_names else f"state {i}" for i in poor]
            few = max(1.0, float(draws[poor].min()))
            worth = _counted(few, "independent draw")
            named = f"the mean of {listed(names)} is worth only"
            if len(names) > 1:
                named = f"the means of {listed(names)} are worth as few as"
            yield "coarse", SAYS["coarse"].format(named, worth, 1 / np.sqrt(few))

    def _lasts(self, kind: str) -> bool:
        return kind in self._troubles and self._troubles[kind].lasts

    def _begins(self, kind: str, present: bool, over: bool | None = None) -> bool:
        """Whether a trouble is new; it lasts until it is `over`, by default when not present."""
        trouble = self._troubles.setdefault(kind, Trouble())
        new = present and not trouble.lasts
        trouble.times += new
        trouble.rows += present
        if present:
            trouble.lasts = True
        elif over is None or over:
            trouble.lasts = False
        return new


def _counted(number: float, name: str) -> str:
    count = max(1, round(number))
    return f"{count} {name}{'' if count == 1 else 's'}"


class Trouble:
    """One kind of trouble: how often it began, how many rows had it, and what was said of it."""

    def __init__(self) -> None:
        self.times = self.rows = self.since = 0
        self.lasts = False
        self.first = self.last = ""


class Sensors:
    """Standardised innovations, coordinate by coordinate: which are large, and which stay so.

    If the model is right, an innovation says nothing of the next: their products from one time that
    a coordinate is seen to the next have mean zero. Sums of these fade as time passes.
    """

    def __init__(self, names: tuple[str, ...]):
        self.names = names
        self._now = np.zeros(0)

    def add(self, innovation: np.ndarray) -> int:
        """One more step; how many coordinates were observed."""
        innovation = np.atleast_1d(innovation)
        if not self._now.size:
            self._before = np.full(innovation.shape, np.nan)
            self._size, self._seen, self._times_furthest = np.zeros((3, innovation.size))
            self._products, self._squares, self._sizes, self._pairs = np.zeros((4, innovation.size))
        self._now = innovation
        seen = ~np.isnan(innovation)
        bounded = np.clip(innovation, -LARGEST, LARGEST)
        self._size = np.where(seen, FORGET * self._size + bounded**2, self._size)
        self._seen = np.where(seen, FORGET * self._seen + 1, self._seen)
        pair = seen & ~np.isnan(self._before)
        product = np.where(pair, bounded * self._before, 0)
        size = np.where(pair, (bounded**2 + self._before**2) / 2, 0)
        self._products = LASTING * self._products + product
        self._squares = LASTING**2 * self._squares + product**2
        self._sizes = LASTING * self._sizes + size
        self._pairs = LASTING * self._pairs + pair
        self._before = np.where(seen, bounded, self._before)
        return int(seen.sum())

    def forget_pairs(self) -> None:
        """Looks anew whether errors last."""
        self._products, self._squares, self._sizes, self._pairs = np.zeros((4, self._now.size))

    def correlation(self) -> float:
        """Of the innovations of one time with those of the next."""
        return float(self._products.sum() / max(self._sizes.sum(), 1e-12))

    def errors_last(self, strong: float) -> bool:
        """Whether that is as strong, and no accident."""
        if self._pairs.sum() < PAIRS or self.correlation() < strong:
            return False
        return bool(self._products.sum() > CLEAR * np.sqrt(self._squares.sum()))

    def errors_pass(self) -> bool:
        """Whether it is small, and has been looked at for long."""
        return bool(self._pairs.max(initial=0) > LONG) and self.correlation() < MILD

    def furthest(self) -> str:
        """The coordinate that is furthest from its prediction now; it is counted."""
        sizes = np.abs(np.nan_to_num(self._now))
        if not self.names or not sizes.any():
            return ""
        at = int(np.argmax(sizes))
        self._times_furthest[at] += 1
        return f", {self.names[at]} by {sizes[at]:.2g} standard deviations"

    def most_often(self) -> str:
        """The coordinate that has been furthest most often."""
        if len(self.names) < 2 or not self._times_furthest.any():
            return ""
        return f", most often {self._named(self._times_furthest)}"

    def worst(self) -> str:
        """The coordinate whose innovations have been largest lately."""
        return self._among(
            np.where(self._seen > 0, self._size / np.maximum(self._seen, 1), -np.inf)
        )

    def best(self) -> str:
        """The one whose innovations have been smallest."""
        sizes = self._size / np.maximum(self._seen, 1)
        return self._among(np.where(self._seen > 0, -sizes, -np.inf))

    def steadiest(self) -> str:
        """The one whose innovations resemble the last ones most."""
        return self._among(np.where(self._pairs > 1, self._products, -np.inf))

    def _among(self, values: np.ndarray) -> str:
        if len(self.names) < 2 or np.all(values == -np.inf):
            return ""
        return f", most of all in {self._named(values)}"

    def _named(self, values: np.ndarray) -> str:
        return self.names[int(np.argmax(values))]
