"""A filter that is lost, as of a robot that was carried away: some particles are drawn anew."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import nopf
from nopf.filters.lineage import Families, errors
from tests import models

SHARE = 0.2


def walk(**changes):
    """A point that walks in the plane and is seen; it may start anywhere."""
    settings = {
        "prior": nopf.Gaussian([0.0, 0.0], 10.0),
        "transition": lambda x, step: x,
        "process_noise": [0.02, 0.02],
        "observation": lambda x, step: x,
        "observation_noise": [0.1, 0.1],
        "state_names": ("east", "north"),
        "observation_names": ("seen_east", "seen_north"),
    }
    return nopf.StateSpaceModel(**(settings | changes))


def carried(steps: int = 60, when: int = 30):
    """Observations of one that is carried to another place."""
    path = nopf.simulate(walk(), steps, jax.random.key(0))
    away = np.where(np.arange(steps) < when, 0.0, 7.0)[:, None]
    return np.asarray(path.states) + away, np.asarray(path.observations) + away


@pytest.mark.parametrize("make", [nopf.ParticleFilter, nopf.AuxiliaryFilter])
def test_a_robot_that_is_carried_away_is_found_again(make):
    truth, ys = carried()
    flt = make(walk(), nopf.LinearisedProposal(), 500, recover=SHARE)
    posterior = flt.run(ys, key=jax.random.key(1))
    off = np.abs(np.asarray(posterior.mean) - truth) / np.asarray(posterior.std)
    assert off[45:].max() < 5
    assert off[:30].max() < 5
    lost, found = (
        next(text for text in posterior.warnings() if word in text)
        for word in ("the filter is lost", "found again")
    )
    assert "20% of the particles are drawn anew" in lost
    assert 30 < int(lost.split()[1]) <= 38
    assert int(lost.split()[1]) < int(found.split()[1]) < 50
    # The same, step by step.
    state = flt.init(jax.random.key(1))
    for t in range(45):
        state, info = flt.step(state, ys[t])
    np.testing.assert_array_equal(info.mean, np.asarray(posterior.mean)[44])
    with pytest.raises(ValueError, match=r"^posterior: some particles were drawn anew"):
        flt.smooth(flt.run(ys, key=jax.random.key(1), keep="particles"), key=jax.random.key(2))


def test_without_it_the_filter_is_far_and_sure():
    truth, ys = carried()
    flt = nopf.ParticleFilter(walk(), None, 500)
    posterior = flt.run(ys, key=jax.random.key(1))
    off = np.abs(np.asarray(posterior.mean) - truth) / np.asarray(posterior.std)
    assert off[45].max() > 20
    assert any("recover=" in text or "lost the state" in text for text in posterior.warnings())


def test_what_is_kept_stays_in_its_family():
    """A filter that is told it is lost, and is not: its means are worth no more draws than before
    the new particles came, which have next to no weight."""
    n = 640
    few = jnp.concatenate([jnp.zeros(16, jnp.int32), jnp.arange(16, 65, dtype=jnp.int32) * 0 + n])
    families = Families(few, few)  # all particles are of one family
    kept = jnp.arange(0, n, 2)
    joined = families.with_new(kept, n)
    assert joined.old[-1] == n
    np.testing.assert_array_equal(np.unique(joined.old), [0, n // 2, n])
    weights = jnp.concatenate([jnp.ones(n // 2), jnp.full(n // 2, 1e-6)]) / (n / 2)
    apart = jax.random.normal(jax.random.key(0), (1, n))
    error, _ = errors(joined, weights, apart, jnp.ones(1))
    assert error[0] == 1  # no more than one draw


def test_nothing_is_drawn_anew_where_the_model_is_right():
    ys = nopf.simulate(models.linear(), 50, jax.random.key(0)).observations
    plain, recovers = (
        nopf.ParticleFilter(models.linear(), None, 200, recover=share).run(
            ys, key=jax.random.key(1)
        )
        for share in (0.0, SHARE)
    )
    np.testing.assert_allclose(plain.mean, recovers.mean, rtol=1e-5)


@pytest.mark.parametrize("proposal", [None, nopf.LinearisedProposal()])
def test_weights_are_those_of_a_state_that_may_have_been_drawn_anew(proposal):
    """Against the exact mixture; 40 runs of 2000 particles, |z| < 4 for three numbers."""
    model = walk(prior=nopf.Gaussian([0.0, 0.0], 3.0), process_noise=[0.1, 0.1])
    ys = np.array([[0.5, 0.3], [0.4, 0.4], [0.85, 0.8]])
    # By the rules of normal distributions: what is predicted from before, and from the prior.
    kalman = nopf.KalmanFilter(model).run(ys[:2])
    noise = 0.1**2
    parts = [
        (1 - SHARE, np.asarray(kalman.mean)[1], np.asarray(kalman.cov)[1, 0, 0] + noise),
        (SHARE, np.zeros(2), 3.0**2 + noise),
    ]
    shares = np.array(
        [
            share * scipy.stats.norm.pdf(ys[2], mean, np.sqrt(var + noise)).prod()
            for share, mean, var in parts
        ]
    )
    means = [mean + var / (var + noise) * (ys[2] - mean) for _, mean, var in parts]
    exact = np.append(shares @ means / shares.sum(), shares.sum())
    assert 0.1 < shares[0] / shares.sum() < 0.9  # or one of them would not be tested
    flt = nopf.ParticleFilter(model, proposal, 2000, recover=SHARE)

    @jax.jit
    def run(key):
        state = flt.init(key)
        for y in ys[:2]:
            state, _ = flt.step(state, jnp.asarray(y))
        step = jax.tree.map(lambda leaf: leaf[2], flt.model.steps(3))
        info = flt.update(state.belief, jnp.asarray(ys[2]), step, lost=jnp.asarray(True)).info
        evidence = jnp.exp(info.log_evidence_increment)
        return jnp.append(info.mean * evidence, evidence)  # which are unbiased

    found = np.array([run(key) for key in jax.random.split(jax.random.key(3), 40)])
    exact[:2] *= exact[2]
    z = (found.mean(axis=0) - exact) / (found.std(axis=0, ddof=1) / np.sqrt(40))
    assert np.abs(z).max() < 4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"recover": 1.0}, "recover: expected"),
        ({"recover": -0.1}, "recover: expected"),
        ({"recover": 0.1, "health": False}, "recover: needs health=True"),
    ],
)
def test_refuses_what_cannot_be(settings, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        nopf.ParticleFilter(walk(), None, 100, **settings)
