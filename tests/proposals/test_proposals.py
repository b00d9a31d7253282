"""Every importance-corrected proposal against densities worked out in double precision."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import nopf
from nopf.proposals.linearised import tangent_fit
from tests import models

STEP = nopf.Step(jnp.asarray(1), jnp.asarray(1.0), jnp.asarray(1.0))


class RandomModel:
    """A model with random matrices; bent by `bend`, with full noise if `full`."""

    def __init__(self, seed, d, m, bend, full):
        draw = np.random.default_rng(seed)
        self.a, self.h = draw.normal(size=(d, d)) / np.sqrt(d), draw.normal(size=(m, d))
        self.bend = bend

        def covariance(size):
            root = np.eye(size) + (0.3 * draw.normal(size=(size, size)) if full else 0)
            scale = np.diag(draw.uniform(0.3, 1.0, size))
            return scale @ root @ root.T @ scale

        self.q, self.r, self.p0 = covariance(d), covariance(m), covariance(d)
        self.x, self.y = draw.normal(size=d), draw.normal(size=m)

        def noise(cov):
            return cov if full else np.sqrt(np.diag(cov))

        self.model = nopf.StateSpaceModel(
            prior=nopf.Gaussian(np.zeros(d), noise(self.p0)),
            transition=lambda x, step: self.move(x, jnp),
            process_noise=noise(self.q),
            observation=lambda x, step: self.see(x, jnp),
            observation_noise=noise(self.r),
        )

    def move(self, x, np=np):
        return self.a @ x + 0.5 * np.sin(x)

    def see(self, x, np=np):
        return self.h @ x + self.bend * np.sin(self.h @ x)

    def slope(self, x):
        return (1 + self.bend * np.cos(self.h @ x))[:, None] * self.h

    def log_weight(self, x, seen, mean, cov):
        """log p(y | x) + log p(x | ancestor) − log N(x; mean, cov)."""
        normal = scipy.stats.multivariate_normal
        r = self.r[np.ix_(seen, seen)]
        log_weight = normal(self.move(self.x), self.q).logpdf(x) - normal(mean, cov).logpdf(x)
        if seen.any():
            log_weight += normal(self.see(x)[seen], r).logpdf(self.y[seen])
        return log_weight


def transition(random, seen):
    return random.move(random.x), random.q


def gauss_newton(random, seen, iterations):
    """In the state's own coordinates, by the Kalman form."""
    centre = point = random.move(random.x)
    r = random.r[np.ix_(seen, seen)]
    for _ in range(iterations):
        h = random.slope(point)[seen]
        gain = random.q @ h.T @ np.linalg.inv(h @ random.q @ h.T + r)
        residual = random.y[seen] - random.see(point)[seen] - h @ (centre - point)
        point = centre + gain @ residual
    return point, random.q - gain @ h @ random.q


def unscented(random, seen):
    """Sigma points as the paper has them, α = 10⁻³."""
    d, m = random.x.size, random.y.size
    n, alpha, beta = 2 * d + m, 1e-3, 2.0
    lam = alpha**2 * n - n
    root = scipy.linalg.block_diag(
        *(np.linalg.cholesky(c) for c in (random.p0, random.q, random.r))
    )
    centre = np.concatenate([random.x, np.zeros(d + m)])
    spread = np.sqrt(n + lam) * root.T
    points = np.concatenate([centre[None], centre + spread, centre - spread])
    w_mean = np.full(2 * n + 1, 1 / (2 * (n + lam)))
    w_mean[0] = lam / (n + lam)
    w_cov = w_mean.copy()
    w_cov[0] += 1 - alpha**2 + beta
    x = np.stack([random.move(p[:d]) + p[d : 2 * d] for p in points])
    y = np.stack([random.see(xi) + p[2 * d :] for xi, p in zip(x, points, strict=True)])[:, seen]
    mean, mean_y = w_mean @ x, w_mean @ y
    dx, dy = x - mean, y - mean_y
    gain = (w_cov * dx.T) @ dy @ np.linalg.inv((w_cov * dy.T) @ dy)
    cov = (w_cov * dx.T) @ dx - gain @ ((w_cov * dy.T) @ dy) @ gain.T
    return mean + gain @ (random.y[seen] - mean_y), cov


CASES = {
    "transition": (nopf.TransitionProposal(), transition, 0.4),
    "optimal": (nopf.OptimalProposal(), lambda r, s: gauss_newton(r, s, 1), 0.0),
    "linearised once": (nopf.LinearisedProposal(1), lambda r, s: gauss_newton(r, s, 1), 0.4),
    "linearised": (nopf.LinearisedProposal(), lambda r, s: gauss_newton(r, s, 2), 0.4),
    "unscented": (nopf.UnscentedProposal(), unscented, 0.4),
}


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", CASES)
def test_log_weight_is_the_ratio_of_densities(name, seed):
    """Random sizes, so that Woodbury's form and the plain one both occur; then with a gap in y."""
    proposal, reference, bend = CASES[name]
    d, m = [(1, 1), (2, 3), (3, 2), (4, 4), (5, 1), (2, 6)][seed]
    random = RandomModel(seed, d, m, bend, full=seed % 2 == 1)

    def move(key, y):
        return models.move_one(proposal, key, random.model, jnp.array(random.x), y, STEP)

    for missing in (None, 0):
        seen = np.arange(m) != missing if m > 1 else np.ones(m, bool)
        mean, cov = reference(random, seen)
        moved = move(jax.random.key(seed), jnp.where(jnp.array(seen), random.y, jnp.nan))
        expected = random.log_weight(np.asarray(moved.state, np.float64), seen, mean, cov)
        np.testing.assert_allclose(moved.log_weight, expected, rtol=1e-3, atol=3e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_particles_are_drawn_from_that_density(name):
    proposal, reference, bend = CASES[name]
    for d, m in [(2, 3), (3, 2)]:
        random = RandomModel(7, d, m, bend, full=True)
        mean, cov = reference(random, np.ones(m, bool))
        x, y = jnp.array(random.x), jnp.array(random.y)
        law = dataclasses.replace(proposal, defensive=0.0) if "linearised" in name else proposal
        draws = models.move_copies(law, jax.random.key(0), random.model, x, y, STEP, 40_000).state
        white = np.linalg.solve(np.linalg.cholesky(cov), (np.asarray(draws) - mean).T)
        # Standard normal: means within 5 / √40000, covariances within 5 · √2 / √40000.
        np.testing.assert_allclose(white.mean(1), 0, atol=0.025)
        np.testing.assert_allclose(np.cov(white), np.eye(d), atol=0.036)


def test_one_iteration_is_optimal_for_a_linear_observation():
    random = RandomModel(3, 3, 2, bend=0.0, full=True)
    weights = [
        models.move_one(
            proposal,
            jax.random.key(k),
            random.model,
            jnp.array(random.x),
            jnp.array(random.y),
            STEP,
        ).log_weight
        for k in range(3)
        for proposal in (nopf.OptimalProposal(), nopf.LinearisedProposal(1))
    ]
    np.testing.assert_allclose(weights, weights[0], atol=2e-4)  # it does not depend on the draw


def test_angles_wrap_in_the_linearised_and_the_unscented_fit():
    model = models.unicycle()
    x, y = jnp.array([0.1, 0.2, 3.0]), jnp.array([2.0, -2.0])
    turn = jnp.array([0.0, 2 * jnp.pi])
    for proposal in (nopf.LinearisedProposal(), nopf.UnscentedProposal()):
        one, other = (
            models.move_one(proposal, jax.random.key(0), model, x, y + k * turn, STEP)
            for k in (0, 1)
        )
        np.testing.assert_allclose(one.state, other.state, atol=1e-4)
        np.testing.assert_allclose(one.log_weight, other.log_weight, atol=1e-2)
        assert abs(one.state[2]) <= np.float32(np.pi)


def test_nudging_climbs_and_is_rare():
    model = models.linear()
    y = jnp.array([2.0, -1.0])
    x = jnp.array([0.5, 0.1])

    def states(particles, eta):
        proposal = nopf.NudgedProposal(particles, eta)
        return models.move_copies(proposal, jax.random.key(0), model, x, y, STEP, 4000)

    tiny, nudged = states(100, 1e-9), states(100, 0.05)
    moved = np.any(np.abs(nudged.state - tiny.state) > 1e-4, axis=1)
    assert 0.08 < moved.mean() < 0.12  # 100^(−1/2), four standard errors
    assert np.all(nudged.log_weight[moved] > tiny.log_weight[moved])
    gradient = jax.vmap(jax.grad(model.log_likelihood, argnums=1), in_axes=(None, 0, None))
    push = 0.05 * gradient(y, tiny.state, STEP)
    np.testing.assert_allclose(nudged.state[moved], (tiny.state + push)[moved], atol=1e-4)


def test_inner_sampling_draws_by_likelihood_and_weighs_by_its_mean():
    """On a linear model both are known: the optimal proposal and the predictive likelihood."""
    random = RandomModel(3, 2, 2, bend=0.0, full=False)
    mean, cov = gauss_newton(random, np.ones(2, bool), 1)
    s = random.h @ random.q @ random.h.T + random.r
    normal = scipy.stats.multivariate_normal(random.see(random.move(random.x)), s)
    proposal = nopf.InnerSamplingProposal(candidates=200)
    x, y = jnp.array(random.x), jnp.array(random.y)
    moves = models.move_copies(proposal, jax.random.key(0), random.model, x, y, STEP, 4000)
    weights = np.exp(np.asarray(moves.log_weight, np.float64)) / normal.pdf(random.y)
    assert abs(weights.mean() - 1) < 4 * weights.std() / np.sqrt(4000)
    # Weighted draws follow the optimal proposal exactly, whatever the number of candidates.
    weights /= weights.sum()
    found = weights @ np.asarray(moves.state)
    np.testing.assert_allclose(found, mean, atol=5 * np.sqrt(cov.max() / 3000))


def custom_likelihood():
    return models.linear(
        observation_noise=None,
        observation_log_prob=lambda y, x, step: -jnp.sum(jnp.abs(y - x)),
        observation_sample=lambda key, x, step: x,
    )


@pytest.mark.parametrize(
    ("model", "proposal", "message"),
    [
        (models.unicycle, nopf.OptimalProposal(), "observation has angles.*LinearisedProposal"),
        (
            lambda: models.linear(observation=lambda x, step: x**2),
            nopf.OptimalProposal(),
            r"not linear in the state.*LinearisedProposal",
        ),
        (
            lambda: models.unicycle(observation=lambda x, step: x[1:], observation_angles=()),
            nopf.OptimalProposal(),
            "reads an angle",
        ),
        (custom_likelihood, nopf.OptimalProposal(), r"observation_log_prob.*InnerSampling"),
        (custom_likelihood, nopf.LinearisedProposal(), r"observation_log_prob.*InnerSampling"),
        (custom_likelihood, nopf.UnscentedProposal(), r"observation_log_prob.*observation_noise="),
    ],
)
def test_a_model_that_does_not_fit_is_refused_with_what_does(model, proposal, message):
    for make in (nopf.ParticleFilter, nopf.AuxiliaryFilter):
        with pytest.raises(ValueError, match=f"proposal: .*{message}"):
            make(model(), proposal)


@pytest.mark.parametrize(
    "make",
    [
        lambda: nopf.LinearisedProposal(0),
        lambda: nopf.InnerSamplingProposal(0),
        lambda: nopf.NudgedProposal(10, -1.0),
    ],
)
def test_refuses_bad_settings(make):
    with pytest.raises(ValueError, match="expected"):
        make()


@pytest.mark.slow
def test_inner_sampling_of_many_particles_stays_in_memory():
    """50 000 particles × 200 candidates × 20 states would be 800 MB; they are never kept."""
    model = nopf.benchmarks.unordered_range.model
    flt = nopf.ParticleFilter(model, nopf.InnerSamplingProposal(), 50_000, quantiles=())
    belief = jax.eval_shape(flt.begin, jax.random.key(0))
    step = jax.jit(lambda belief, y: flt.update(belief, y, STEP))
    compiled = step.lower(belief, jnp.zeros(7)).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 200e6


@pytest.mark.parametrize(("d", "m"), [(3, 5), (5, 3), (4, 4), (4, 1)])
def test_tangent_fit_is_the_posterior_of_a_linear_residual(d, m):
    draw = np.random.default_rng(d)
    jacobian, b = draw.normal(size=(m, d)), draw.normal(size=m)
    with jax.enable_x64(True):
        mean, root = tangent_fit(lambda z: jnp.asarray(b) + jnp.asarray(jacobian) @ z, jnp.ones(d))
        factor = jax.vmap(root.colour, in_axes=1, out_axes=1)(jnp.eye(d))
        back = jax.vmap(root.whiten, in_axes=1, out_axes=1)(factor)
        precision = np.eye(d) + jacobian.T @ jacobian
        np.testing.assert_allclose(mean, -np.linalg.solve(precision, jacobian.T @ b), rtol=1e-9)
        np.testing.assert_allclose(factor @ factor.T, np.linalg.inv(precision), atol=1e-12)
        np.testing.assert_allclose(back, np.eye(d), atol=1e-12)
        np.testing.assert_allclose(root.log_det, np.linalg.slogdet(factor)[1], rtol=1e-9)


def test_jitter_widens_the_covariance_that_a_particle_carries():
    """Of a linear model, the unscented step is the Kalman filter's: from a covariance of C, that of
    C + jitter."""
    model = models.linear(full=True)
    step = jax.tree.map(lambda leaf: leaf[0], model.steps(1))
    ancestor, y = jnp.zeros(model.space.size), jnp.ones(model.observation_space.size)
    wide = jnp.eye(model.space.size) * 0.3
    carried = [
        nopf.UnscentedProposal(jitter=jitter).fit(model, ancestor, y, step, memory)[1]
        for jitter, memory in [(0.2, wide), (0.0, wide + 0.2 * jnp.eye(model.space.size))]
    ]
    np.testing.assert_allclose(carried[0], carried[1], rtol=1e-5)
    with pytest.raises(ValueError, match=r"jitter: expected a number of at least 0, got -1"):
        nopf.UnscentedProposal(jitter=-1.0)
