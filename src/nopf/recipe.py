"""Recipe: everything that decides how a proposal is built and trained."""

import dataclasses
from typing import Any

from nopf.gaussian import shown

SEVERAL = 2  # components that are tried where one leaves out a mode
# Far beyond what is useful. What a file asks for is built and compiled.
LARGEST = {"width": 2**16, "depth": 2**8, "components": 2**8, "iterations": 1000}

# The networks of the paper's appendix: hidden width, blocks, trajectories a gradient step.
_PUBLISHED = {
    "sensor-bias": (32, 4, 20),
    "range-bearing": (64, 4, 50),
    "range-only": (128, 6, 50),
    "unordered-range": (128, 6, 50),
}


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How a neural proposal is built and trained. Change a field with `dataclasses.replace`.

    Attributes:
        name: for people.
        base: what the network corrects: the noise-free "skeleton", a "linearised" (Gauss–Newton)
            fit, or "auto" for the one with the better held-out quality at its cost.
        iterations: of the Gauss–Newton fit.
        innovations: standardised inputs with the innovation among them; otherwise the raw
            predicted state, observation and time.
        batch_norm: residual blocks with batch normalisation; otherwise plain layers with skips.
        objective: what is minimised: the "exclusive" divergence of the proposal from the posterior,
            by draws of the proposal, which needs gradients of the likelihood; or the "inclusive"
            one of the posterior from the proposal, by simulated states, which needs none and leaves
            out no mode; or "auto" for the exclusive one where it can be had.
        components: Gaussians of the law, more than one only with the inclusive objective; None for
            one where that is enough, and `SEVERAL` where it leaves out a mode (which is looked for
            if `steps` is 1000 or more).
        width: units of a hidden layer.
        depth: hidden layers, or residual blocks.
        closed_form: the divergence from the transition exactly, and only the likelihood by
            sampling; otherwise all by sampling.
        samples: draws for every tuple and gradient step; even numbers are drawn in mirrored pairs
            if `closed_form`.
        batch: trajectories a gradient step; None for about 1024 tuples, one trajectory at
            least.
        round: gradient steps between evaluations; their data are simulated together.
        steps: gradient steps at most.
        patience: evaluations without progress before the step size decays to zero and training
            ends (as it does when little is left to learn, or in the last quarter of `steps`); None
            to go on to the last step at the same step size.
        keep: which network the proposal gets: that with the lowest held-out loss, the "best", or
            the "last".
        learning_rate: of Adam.
        warmup: gradient steps over which the step size rises to it.
        clip: largest norm of a gradient, or None.
        missing_rate: chance that a coordinate of a training observation is missing.
        defensive: share of the particles that the filter draws from the transition.
        precision: "float64" trains in double precision even where JAX runs in single.
    """

    name: str = "fast"
    base: str = "auto"
    objective: str = "auto"
    components: int | None = None
    iterations: int = 2
    innovations: bool = True
    batch_norm: bool = False
    width: int = 32
    depth: int = 2
    closed_form: bool = True
    samples: int = 4
    batch: int | None = None
    round: int = 50
    steps: int = 2000
    patience: int | None = 8
    keep: str = "best"
    learning_rate: float = 3e-3
    warmup: int = 100
    clip: float | None = 10.0
    missing_rate: float = 0.0
    defensive: float = 0.01
    precision: str = "float32"

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise ValueError(f"name: expected a string, got {shown(self.name)}")
        for name in ("innovations", "batch_norm", "closed_form"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(
                    f"{name}: expected True or False, got {shown(getattr(self, name))}"
                )
        _one_of("base", self.base, ("auto", "skeleton", "linearised"))
        _one_of("objective", self.objective, ("auto", "exclusive", "inclusive"))
        if self.components is not None:
            _whole("components", self.components, 1, LARGEST["components"])
            if self.components > 1 and self.objective == "exclusive":
                raise ValueError(
                    "components: several need the inclusive objective, since no gradient flows "
                    f"through the choice of one; got {self.components} and objective='exclusive'"
                )
        _one_of("keep", self.keep, ("best", "last"))
        _one_of("precision", self.precision, ("float32", "float64"))
        for name, low in [
            ("width", 1),
            ("depth", 1),
            ("iterations", 1),
            ("samples", 1),
            ("round", 1),
            ("steps", 0),
            ("warmup", 0),
        ]:
            _whole(name, getattr(self, name), low, LARGEST.get(name))
        for name in ("batch", "patience"):
            if getattr(self, name) is not None:
                _whole(name, getattr(self, name), 1)
        _number("missing_rate", self.missing_rate, 0.0, 0.99)
        _number("defensive", self.defensive, 0.0, 1.0)
        _number("learning_rate", self.learning_rate, 0.0, float("inf"))
        if self.clip is not None:
            _number("clip", self.clip, 0.0, float("inf"))

    @classmethod
    def fast(cls, **changes: Any) -> "Recipe":
        """The default: a small network on innovations, seconds on two cores."""
        return cls(**changes)

    @classmethod
    def paper(cls, benchmark: str | None = None, **changes: Any) -> "Recipe":
        """The published recipe, with the network of one of its benchmarks (or the largest).

        Args:
            benchmark: one of the paper's, by its name.
            changes: fields that shall differ.
        """
        if benchmark is not None:
            _one_of("benchmark", benchmark, tuple(_PUBLISHED))
        width, blocks, batch = _PUBLISHED[benchmark or "unordered-range"]
        published: dict[str, Any] = {
            "name": "paper",
            "base": "skeleton",
            "objective": "exclusive",
            "components": 1,
            "innovations": False,
            "batch_norm": True,
            "width": width,
            "depth": blocks,
            "closed_form": False,
            "samples": 100,
            "batch": batch,
            "round": 1000 // batch,
            "steps": 500 * 1000 // batch,
            "patience": None,
            "keep": "last",
            "learning_rate": 1e-3,
            "warmup": 0,
            "clip": None,
            "defensive": 0.0,
        }
        return cls(**published | changes)


def as_recipe(recipe: "Recipe | str | None") -> Recipe:
    """The recipe meant by a name, or the recipe itself."""
    if isinstance(recipe, Recipe):
        return recipe
    known = {"fast": Recipe.fast, "paper": Recipe.paper}
    name = "fast" if recipe is None else recipe
    if not isinstance(name, str) or name not in known:
        raise ValueError(f'recipe: expected "fast", "paper" or a nopf.Recipe, got {shown(recipe)}')
    return known[name]()


def _one_of(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{name}: expected one of {', '.join(allowed)}, got {shown(value)}")


def _whole(name: str, value: Any, low: int, high: int | None = None) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise ValueError(f"{name}: expected a whole number of at least {low}, got {shown(value)}")
    if high is not None and value > high:
        raise ValueError(f"{name}: expected at most {high}, got {value}")


def _number(name: str, value: Any, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ValueError(f"{name}: expected a number from {low:g} to {high:g}, got {shown(value)}")
