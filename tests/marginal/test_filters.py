"""What filters offer, they offer for marginalised models too."""

import itertools
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

import nopf
from nopf.catalogue import make_filter
from nopf.marginal.model import Marginal
from tests.marginal.test_evidence import LIMIT, YS, bent, z_score
from tests.models import linear


@pytest.fixture(scope="module")
def part():
    return nopf.marginalise(bent())


@pytest.fixture(scope="module")
def flt(part):
    return nopf.ParticleFilter(part, nopf.LinearisedProposal(), 300)


@pytest.fixture(scope="module")
def posterior(flt):
    return flt.run(YS, key=jax.random.key(0), keep="particles")


def test_steps_are_a_run(flt, posterior):
    state = flt.init(jax.random.key(0))
    for t, y in enumerate(YS):
        state, info = flt.step(state, y)
        np.testing.assert_allclose(info.mean, posterior.mean[t], atol=1e-5)
        np.testing.assert_allclose(info.cov, posterior.cov[t], atol=1e-5)
    first = flt.run(YS[:1], key=jax.random.key(0))
    rest = flt.resume(first.state, YS[1:])
    np.testing.assert_allclose(rest.mean, posterior.mean[1:], atol=1e-5)


def test_particles_stand_for_the_posterior(posterior):
    """Draws of all states, whose moments are those of the mixture of Gaussians."""
    assert posterior.particles.shape == (3, 300, 3)
    weights = np.exp(np.asarray(posterior.log_weights))[..., None]
    mean = (weights * posterior.particles).sum(1)
    apart = np.abs(mean - posterior.mean) / posterior.std
    assert np.max(apart) < 5 / np.sqrt(float(posterior.ess.min()))
    assert posterior.to_xarray()["mean"].shape == (3, 3)
    assert np.all(np.diff(np.asarray(posterior.quantiles), axis=1) > 0)


def test_nothing_observed_is_a_forecast(flt, posterior):
    later = flt.forecast(posterior, 2)
    assert np.all(np.asarray(later.std[1]) > np.asarray(posterior.std[-1]))


def test_smoothing_is_that_of_rauch_tung_and_striebel():
    """Also of the states that no particle stands for."""
    model = linear(True)
    ys = np.asarray(nopf.simulate(model, 8, jax.random.key(3)).observations)
    exact = nopf.KalmanFilter(model)
    truth = exact.smooth(exact.run(ys))
    flt = nopf.ParticleFilter(
        nopf.marginalise(model, ("x1",)), nopf.LinearisedProposal(), 4000, health=False
    )
    kept = flt.run(ys, key=jax.random.key(0), keep="particles")
    found = flt.smooth(kept, key=jax.random.key(1), trajectories=2000)
    assert np.max(np.abs(found.mean - truth.mean) / truth.std) < 0.12  # five standard errors
    np.testing.assert_allclose(found.std, truth.std, rtol=0.1)


def test_simulated_particles_are_consistent(part):
    """Over simulated data, a particle's mean is off by as much as its covariance says."""
    from nopf.simulate import simulate_steps

    steps = part.steps(4)

    def one(key):
        paths = simulate_steps(part, steps, key)
        draw = jax.vmap(part.complete)(paths.states, jax.random.normal(key, (4, 2)))
        return draw, paths.observations

    drawn, seen = jax.vmap(one)(jax.random.split(jax.random.key(0), 4000))
    truth = nopf.simulate(part, 4, jax.random.key(1), batch=4000)
    for ours, exact in ((drawn, truth.states), (seen, truth.observations)):
        for moment in (np.mean, np.std):
            first, second = moment(np.asarray(ours), axis=0), moment(np.asarray(exact), axis=0)
            spread = np.std(np.asarray(exact), axis=0)
            # Five standard errors of a difference of moments of 4000 draws each.
            assert np.max(np.abs(first - second) / spread) < 5 * np.sqrt(2 / 4000) * 1.3


@pytest.mark.parametrize("prior", ["mixture", "custom"])
def test_other_priors(prior):
    """Against the bootstrap filter on the whole model, with many particles."""

    class Uniform:
        def sample(self, key):
            return jax.random.uniform(key, (3,), minval=-1.0)

        def log_prob(self, x):
            return jnp.where(jnp.all(jnp.abs(x) < 1), -3 * jnp.log(2.0), -jnp.inf)

    chosen = {
        "mixture": nopf.GaussianMixture(
            [0.3, 0.7], [[1.0, 0.5, 0.0], [-1.0, 0.0, 0.3]], [0.4, 0.5, 0.6]
        ),
        "custom": Uniform(),
    }[prior]
    model = bent(prior=chosen)
    plain = nopf.ParticleFilter(model, particles=400_000, health=False, quantiles=())
    runs = [float(plain.run(YS, key=jax.random.key(k)).log_evidence) for k in range(4)]
    flt = nopf.ParticleFilter(
        nopf.marginalise(model), nopf.LinearisedProposal(), 60, health=False, quantiles=()
    )
    assert np.std(runs) < 0.02
    assert abs(z_score(flt, YS, np.mean(runs))) < LIMIT + 1  # whose own error counts too


def sensors(x, step):
    return jnp.stack([x[0] + x[1], 2.0 + x[0] - x[1], x[1]])


def unordered(**changes):
    settings = {
        "prior": nopf.Gaussian([0.2, 0.1], [0.8, 0.6]),
        "transition": lambda x, step: jnp.stack([jnp.sin(x[0]), 0.8 * x[1]]),
        "process_noise": [0.5, 0.4],
        "likelihood": nopf.UnorderedLikelihood(sensors, [0.6, 0.5, 0.7], (0, 1), 3),
    }
    return nopf.StateSpaceModel(**(settings | changes))


def test_unordered_likelihood_is_the_mean_over_orders():
    model = unordered()
    y, x = np.array([0.3, 1.4, 0.2]), np.array([0.5, -0.3])
    step, noise = model.nominal_step(), np.array([0.6, 0.5, 0.7])
    expected = np.asarray(sensors(x, None))
    cases = [
        scipy.stats.norm.logpdf(y[list(order)], expected, noise).sum()
        for order in ((0, 1, 2), (1, 0, 2))
    ]
    exact = scipy.special.logsumexp(cases) - np.log(2)
    found = model.log_likelihood(jnp.asarray(y), jnp.asarray(x), step)
    np.testing.assert_allclose(found, exact, rtol=1e-5)
    nearest = model.residual(jnp.asarray(y), jnp.asarray(x), step)
    sizes = [np.sum(((y[list(o)] - expected) / noise) ** 2) for o in ((0, 1, 2), (1, 0, 2))]
    np.testing.assert_allclose(jnp.sum(nearest**2), min(sizes), rtol=1e-5)
    with pytest.raises(ValueError, match="unordered: expected indices from 0 to 2, got"):
        nopf.UnorderedLikelihood(sensors, [0.6, 0.5, 0.7], (0, 3), 3)


def test_evidence_with_unknown_order():
    """By quadrature over x0 at two steps and all orders; x1 is linear and Gaussian given these."""
    model, ys = unordered(), np.array([[0.4, 1.9, 0.3], [0.1, 2.4, -0.2]])
    part = nopf.marginalise(model)
    assert part.linear_states == ("x1",)
    nodes = np.linspace(-5, 5, 401)
    width = nodes[1] - nodes[0]
    # p(x0 at step 1) by quadrature over the prior; x1 moves on its own.
    first = scipy.stats.norm.pdf(nodes[:, None], np.sin(nodes)[None], 0.5)
    first = first @ (scipy.stats.norm.pdf(nodes, 0.2, 0.8) * width)
    move = scipy.stats.norm.pdf(nodes[None, :], np.sin(nodes)[:, None], 0.5)
    mean = np.array([0.8 * 0.1, 0.64 * 0.1])
    one = 0.64 * 0.36 + 0.16
    cov = np.array([[one, 0.8 * one], [0.8 * one, 0.64 * one + 0.16]])
    slope = np.array([1.0, -1.0, 1.0])
    see = np.kron(np.eye(2), slope[:, None])
    spread = see @ cov @ see.T + np.diag(np.tile([0.6, 0.5, 0.7], 2) ** 2)
    total = np.zeros((401, 401))
    for a, b in itertools.product(((0, 1, 2), (1, 0, 2)), repeat=2):
        arranged = np.concatenate([ys[0][list(a)], ys[1][list(b)]])
        base = see @ mean + np.tile([0.0, 2.0, 0.0], 2)
        shift = np.zeros((401, 401, 6))
        shift[..., 0:2] = nodes[:, None, None]
        shift[..., 3:5] = nodes[None, :, None]
        normal = scipy.stats.multivariate_normal(np.zeros(6), spread)
        total += normal.pdf(arranged - base - shift) / 4
    exact = np.log(first @ (move * total).sum(1) * width**2)
    for proposal in (None, nopf.LinearisedProposal()):
        flt = nopf.ParticleFilter(part, proposal, 60, health=False, quantiles=())
        assert abs(z_score(flt, ys, exact)) < LIMIT
    plain = nopf.ParticleFilter(model, nopf.LinearisedProposal(), 60, health=False, quantiles=())
    assert abs(z_score(plain, ys, exact)) < LIMIT


def test_a_learned_proposal(part, tmp_path):
    recipe = nopf.Recipe(steps=100, base="skeleton")
    proposal = nopf.train(part, 6, jax.random.key(0), recipe=recipe, progress=False)
    assert proposal.history[-1, 3] > proposal.history[0, 3]  # it has learned something
    proposal.save(tmp_path / "bent.nopf")
    loaded = nopf.NeuralProposal.load(tmp_path / "bent.nopf", part)
    runs = [
        nopf.ParticleFilter(part, one, 100).run(YS, key=jax.random.key(0)).mean
        for one in (proposal, loaded)
    ]
    np.testing.assert_array_equal(*runs)
    with pytest.raises(ValueError, match="linear_states was"):
        nopf.NeuralProposal.load(tmp_path / "bent.nopf", part.whole)
    with pytest.raises(ValueError, match="trained for a model of another shape"):
        nopf.ParticleFilter(part.whole, loaded, 100)


def test_the_catalogue_has_them():
    model = bent()
    flt = make_filter("mlpf", model, 50)
    assert isinstance(flt.model, nopf.MarginalisedModel)
    assert flt.model is make_filter("mbpf", model, 50).model  # found out once
    with pytest.raises(ValueError, match="no state is linear"):
        make_filter("malpf", linear(observation=lambda x, step: x**2), 50)


def test_exact_filters_take_the_model_as_it_was():
    part = nopf.marginalise(linear())
    ys = np.ones((3, 2))
    np.testing.assert_array_equal(
        nopf.KalmanFilter(part).run(ys).mean, nopf.KalmanFilter(part.whole).run(ys).mean
    )


def test_a_collapsed_step_counts_as_none(part):
    """Every weight zero: particles move on, and their covariances grow as without observation."""

    class Impossible(nopf.MarginalisedModel):
        def log_likelihood(self, y, x, step):
            return jnp.full((), -jnp.inf)

    blind = nopf.ParticleFilter(Impossible(part.whole, part.structure), None, 50, health=False)
    found = blind.run(YS[:1], key=jax.random.key(0))
    assert bool(found.collapsed[0])
    free = nopf.ParticleFilter(part, None, 50, health=False)
    nothing = free.run(np.full((1, 3), np.nan), key=jax.random.key(0))
    np.testing.assert_allclose(found.cov, nothing.cov, rtol=1e-4)


def test_particles_can_be_pickled(flt, posterior):
    part = nopf.marginalise(linear())
    again = pickle.loads(pickle.dumps(part))
    assert again.structure == part.structure
    assert isinstance(posterior.state.belief.states, Marginal)
