"""Arguments of the public functions: of other types, of odd values, of other shapes."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

import nopf
from nopf.catalogue import NAMES, make_filter
from nopf.steps import Step
from tests import models
from tests.fuzz.outcome import Wrong, expect

STEPS, PARTICLES = 3, 16  # of all that is run, so that it is compiled once
KEY = jax.random.key(0)


class Odd:
    """Something of a type that nobody expects; its text is short."""

    def __init__(self, name, value):
        self.name, self.value = name, value

    def __repr__(self):
        return self.name


def _no_numbers(*_):
    return "a"


def _raising(*_):
    raise KeyError("x")


ODD = [
    None, True, False, 0, 1, 2, -1, 7, 2**31, 2**63, -(2**63), 10**400, 0.0, -0.0, 0.5, 1.0, 1.5,
    -2.5, 1e-30, 1e-45, 1e-320, 1e20, 1e38, 1e39, 1e308, math.nan, math.inf, -math.inf, 1j, "",
    "a", "x0", "0", b"1", (), [], {}, set(), [0.5, 0.5], (1.0, 2.0), [1, 2], ["a", "b"],
    ["x", "x"], [None, None], [1.0, "a"], [[1.0], [1.0, 2.0]], [0.0, 0.0], [math.nan, 1.0],
    [1.0, -1.0], [1e200, 1.0], [math.inf, 1.0], [10**400, 1], [1j, 1.0], [[1.0, 0.0], [0.0, 1.0]],
    [[1.0, 2.0], [2.0, 1.0]], [[1.0, 1.0], [1.0, 1.0]], [[0.0, 0.0], [0.0, 0.0]],
    [[1.0, 0.5], [0.4, 1.0]], [[math.nan] * 2] * 2, [[1e300] * 2] * 2, [0.1, 0.5, 0.9], [0.9, 0.1],
    [0, 1], {"a": 1.0}, {1.0, 2.0}, range(2), iter([1.0, 2.0]), object, int, nopf, Ellipsis,
    NotImplemented, np.float64(0.5), np.int8(3), np.bool_(True), np.datetime64("2024-01-01"),
    np.str_("a"), np.zeros(()), np.zeros(0), np.zeros(1), np.ones(2), np.ones(3), np.ones((2, 2)),
    np.zeros((0, 2)), np.ones((1, 2)), np.ones((2, 1)), np.ones((2, 2, 2)), np.ones(2, int),
    np.ones(2, bool), np.ones(2, complex), np.array(["a", "b"]), np.array([None, 1.0]),
    np.array([object()] * 2), np.ones(2, np.float16), np.ones(2, "datetime64[s]"),
    np.ma.masked_array([1.0, 2.0], [True, False]), np.ones(2, [("a", float)]), np.full(2, np.nan),
    np.full(2, np.inf), jnp.ones(2), jnp.ones((2, 2)), jnp.ones(2, int), jnp.array([jnp.nan, 1.0]),
    KEY, jax.random.PRNGKey(0), jax.random.split(KEY, 2), np.ones((STEPS, 2)), np.ones((STEPS, 1)),
    np.ones((STEPS, 3)), np.ones(STEPS), np.arange(STEPS, dtype=float),
    np.full((STEPS, 2), np.nan), np.full((STEPS, 2), 1e38), np.full((STEPS, 2), -1e30),
    np.full((STEPS, 2), np.inf), np.ones((STEPS, 2), int), np.ones((STEPS, 2), bool),
    np.ones((STEPS, 2), complex), np.ones((STEPS, 2)) * 1e-40, np.array([["a", "b"]] * STEPS),
    np.array([[None, 1.0]] * STEPS), [[0.5, 0.5]] * STEPS, np.ones((2, STEPS)),
    np.array([1.0, 2.0, 1.0]), np.array([1e9, 1e9 + 1, 1e9 + 2]), np.array([np.nan, 1, 2]),
    [1.0, 2.0, 1e300], Odd("function of nothing", lambda: 1.0), Odd("identity", lambda x, step: x),
    Odd("sum", lambda x, step: x.sum()), Odd("text", _no_numbers), Odd("raises", _raising),
    Odd("None", lambda *_: None), Odd("x[5]", lambda x, *_: x[5]),
    Odd("NaN", lambda x, *_: x * jnp.nan), Odd("infinite", lambda x, *_: x / 0.0),
    Odd("np.sin", lambda x, *_: np.sin(x)), Odd("if", lambda x, *_: x if x[0] > 0 else -x),
    Odd("complex", lambda x, *_: x * 1j), Odd("list", lambda x, *_: [x[0], 1]),
    Odd("whole", lambda x, *_: x.astype(int)), Odd("ones", lambda *_: jnp.ones(2)),
    Odd("three", lambda *_: jnp.ones(3)), Odd("zero noise", lambda *_: jnp.zeros(2)),
    Odd("negative noise", lambda *_: -jnp.ones(2)), Odd("huge", lambda x, *_: x * 1e38),
    Odd("generator", lambda *_: (i for i in range(2))), nopf.Gaussian([0.0, 0.0], [1.0, 1.0]),
    nopf.Gaussian([0.0], [1.0]), nopf.StudentT(4.0), nopf.Outliers(), nopf.StudentT,
    nopf.GaussianMixture([0.5, 0.5], [[0.0, 0.0], [1.0, 1.0]], np.ones((2, 2, 2)) * np.eye(2)),
    nopf.Recipe.fast(), nopf.LinearisedProposal(), nopf.LinearisedProposal, nopf.OptimalProposal(),
    nopf.systematic, jnp.argsort, models.linear(), Step(1, 1.0, 1.0), nopf.Space(2),
]  # fmt: skip


def _value(odd):
    return odd.value if isinstance(odd, Odd) else odd


GOOD_MODEL = {
    "prior": nopf.Gaussian([0.5, -0.2], [1.0, 0.7]),
    "transition": models.linear_transition,
    "process_noise": [0.6, 0.4],
    "observation": models.linear_observation,
    "observation_noise": [0.7, 0.5],
    "noise_size": None,
    "observation_log_prob": None,
    "observation_sample": None,
    "likelihood": None,
    "robust": None,
    "state_names": None,
    "state_angles": (),
    "observation_angles": (),
    "observation_names": None,
    "control_names": None,
    "dt": 1.0,
}
ENGINE = {"resampling": nopf.systematic, "quantiles": (0.05, 0.5, 0.95), "health": True}
ENGINE |= {"mesh": None, "first_step": None, "recover": 0.0}


class Arguments:
    """Each function with good arguments, of which one or two are something else."""

    def __init__(self, counts, folder):
        self.counts = counts
        self.model = models.linear()
        self.filter = nopf.ParticleFilter(self.model, None, PARTICLES)
        self.state = self.filter.init(KEY)
        self.posterior = self.filter.run(np.ones((STEPS, 2)), key=KEY, keep="particles")
        m, flt = self.model, self.filter
        fields = {f.name: f.default for f in dataclasses.fields(nopf.Recipe)}
        self.building = {
            "Gaussian": (nopf.Gaussian, {"mean": [0.0, 1.0], "std": [1.0, 2.0]}),
            "GaussianMixture": (
                nopf.GaussianMixture,
                {"weights": [0.5, 0.5], "means": [[0.0, 0.0], [1.0, 1.0]], "stds": [1.0, 1.0]},
            ),
            "Space": (nopf.Space, {"size": 2, "angles": (1,)}),
            "Outliers": (nopf.Outliers, {"rate": 0.05, "scale": 10.0}),
            "StudentT": (nopf.StudentT, {"freedom": 4.0}),
            "UnorderedLikelihood": (
                nopf.UnorderedLikelihood,
                {
                    "observation": models.linear_observation,
                    "noise": [0.5, 0.5],
                    "unordered": (0, 1),
                    "size": 2,
                },
            ),
            "StateSpaceModel": (nopf.StateSpaceModel, GOOD_MODEL),
            "Recipe": (nopf.Recipe, fields),
            "LinearisedProposal": (
                nopf.LinearisedProposal,
                {"iterations": 2, "defensive": None, "pattern": None},
            ),
            "UnscentedProposal": (
                nopf.UnscentedProposal,
                {"observation_noise": None, "beta": 2.0},
            ),
            "NudgedProposal": (nopf.NudgedProposal, {"particles": 10, "eta": 2e-4}),
            "InnerSamplingProposal": (nopf.InnerSamplingProposal, {"candidates": 20}),
            "ParticleFilter": (
                nopf.ParticleFilter,
                {"model": m, "proposal": None, "particles": 10, "ess_threshold": 1.0} | ENGINE,
            ),
            "AuxiliaryFilter": (
                nopf.AuxiliaryFilter,
                {"model": m, "proposal": None, "particles": 10, "defensive": None} | ENGINE,
            ),
            "KalmanFilter": (
                nopf.KalmanFilter,
                {"model": m, "particles": 10, "quantiles": (0.5,), "health": True},
            ),
            "EnsembleKalmanFilter": (
                nopf.EnsembleKalmanFilter,
                {"model": m, "particles": 10, "quantiles": (0.5,), "health": True},
            ),
            "make_filter": (
                make_filter,
                {"name": "bpf", "model": m, "particles": 10, "recover": 0.0, "proposal": None},
            ),
            "train": (  # A recipe is always wrong here, so that nothing is trained.
                nopf.train,
                {"recipe": "slow", "model": m, "horizon": 3, "key": KEY, "checkpoint": None},
            ),
        }
        series = {"ys": np.ones((STEPS, 2)), "times": None, "controls": None, "start": None}
        self.running = {
            "Filter.init": (flt.init, {"key": KEY, "time": 0.0}),
            "Filter.step": (
                flt.step,
                {"state": self.state, "y": np.ones(2), "time": None, "control": None},
            ),
            "Filter.run": (flt.run, series | {"key": KEY, "keep": None}),
            "Filter.run_batch": (
                flt.run_batch,
                series | {"ys": np.ones((2, STEPS, 2)), "key": KEY, "keep": None},
            ),
            "Filter.resume": (
                flt.resume,
                {"state": self.state, "ys": np.ones((STEPS, 2)), "times": None, "controls": None},
            ),
            "Filter.forecast": (
                flt.forecast,
                {"posterior": self.posterior, "steps": STEPS, "times": None, "controls": None},
            ),
            "Filter.smooth": (
                flt.smooth,
                {"posterior": self.posterior, "key": KEY, "trajectories": 4, "lag": None},
            ),
            "simulate": (
                nopf.simulate,
                {"model": m, "horizon": STEPS, "key": KEY, "initial_state": None, "times": None}
                | {"controls": None, "start": None, "batch": None},
            ),
        }

    def _attempt(self, kind, functions, given):
        name, changes = given
        function, good = functions[name]
        odd = {argument: _value(value) for argument, value in changes.items()}

        def call():
            found = function(**(good | odd))
            check_finite(name, found)
            return found

        found = expect(self.counts, kind, call)
        if isinstance(found, nopf.StateSpaceModel):
            # A model that was taken can be moved and seen, whatever it is made of.
            expect(self.counts, "model that was taken", lambda: _try_out(found))

    def build(self, given):
        self._attempt("arguments of what is built", self.building, given)

    def run(self, given):
        self._attempt("arguments of what is run", self.running, given)

    def kinds(self):
        return [
            (changes(self.building), self.build, 6),
            (changes(self.running), self.run, 3),
        ]


@st.composite
def changes(draw, functions):
    often = [name for name in functions if name in ("StateSpaceModel", "Filter.run")] * 5
    name = draw(st.sampled_from([*functions, *often]))
    arguments = list(functions[name][1])
    if name == "train":
        arguments.remove("recipe")
    chosen = draw(st.lists(st.sampled_from(arguments), min_size=1, max_size=2, unique=True))
    names = st.sampled_from([*NAMES, "x"])
    return name, {
        argument: draw(names if argument == "name" and name == "make_filter" else VALUES)
        for argument in chosen
    }


VALUES = st.one_of(
    st.sampled_from(ODD),
    st.sampled_from(ODD),
    st.floats(),
    st.integers(max_value=STEPS),  # A count that is taken is run, and each is compiled anew.
    st.text(max_size=3),
)


def check_finite(name, found):
    """No NaN in what was computed, but where it says that there is none."""
    if name == "simulate":
        leaves = (found.states, found.observations)
    elif isinstance(found, nopf.Posterior):
        leaves = (found.mean, found.std, found.quantiles)
        if np.isnan(found.log_evidence).any():
            raise Wrong("log-evidence that is no number")
    elif name == "Filter.step":
        leaves = (found[1].mean, found[1].std, found[1].quantiles)
    elif isinstance(found, nopf.Smoothed):
        leaves = (found.mean, found.std)
    else:
        return
    for leaf in leaves:
        if not np.isfinite(np.asarray(leaf)).all():
            raise Wrong(f"{name} gave {leaf}")


def _try_out(model):
    """The functions of a model on shapes; its filter is built."""
    if not model.reads_control:
        jax.eval_shape(model.sample_prior, KEY)
    nopf.ParticleFilter(model, None, PARTICLES)
