"""What test_mesh.py starts with four devices, or as one of two processes: prints JSON."""

import json
import sys

import jax
import numpy as np

import nopf
from nopf.crowd import check_mesh, weigh_up
from tests.models import linear, unicycle

RUNS = 300


def evidence():
    """z-scores of the evidence with particles on four devices, against Kalman, and how much the
    same filter on one device differs."""
    model = linear(True)
    ys = np.asarray(nopf.simulate(model, 6, jax.random.key(3)).observations)
    exact = float(nopf.KalmanFilter(model).run(ys).log_evidence)
    mesh = jax.make_mesh((4,), ("particles",))
    threshold = {"ess_threshold": 0.5, "resampling": nopf.multinomial}
    filters = {
        "bootstrap": nopf.ParticleFilter(model, particles=64, mesh=mesh),
        "threshold": nopf.ParticleFilter(model, particles=64, mesh=mesh, **threshold),
        "auxiliary": nopf.AuxiliaryFilter(model, nopf.LinearisedProposal(), 64, mesh=mesh),
        "marginalised": nopf.ParticleFilter(
            nopf.marginalise(model, ("x1",)), particles=64, mesh=mesh
        ),
    }
    return {kind: compared(flt, ys, exact) for kind, flt in filters.items()}


def compared(flt, ys, exact):
    on_mesh, alone = runs(flt, ys, 0), runs(type(flt)(flt.model, flt.proposal, 64), ys, 1)
    ratios = np.exp(np.sum(on_mesh.log_evidence_increment, axis=1) - exact)
    means = [infos.mean for infos in (on_mesh, alone)]
    spread = np.sqrt(sum(mean.var(axis=0, ddof=1) for mean in means) / RUNS)
    return {
        "z": float((ratios.mean() - 1) / (ratios.std(ddof=1) / np.sqrt(RUNS))),
        "off": float(np.max(np.abs(means[0].mean(axis=0) - means[1].mean(axis=0)) / spread)),
        "ess": [float(np.mean(infos.ess)) for infos in (on_mesh, alone)],
    }


def runs(flt, ys, seed):
    """What a filter says in each of many runs."""
    # One after the other: devices that share few threads could wait for each other.
    keys = jax.random.split(jax.random.key(seed), RUNS)
    infos = jax.jit(lambda keys: jax.lax.map(lambda key: flt.run(ys, key=key).info, keys))(keys)
    return jax.device_get(infos)


def everything():
    """What else a filter on a mesh does."""
    model = linear()
    ys = np.array(nopf.simulate(model, 6, jax.random.key(3)).observations)
    ys[2] = np.nan
    mesh = jax.make_mesh((4,), ("particles",))
    flt = nopf.ParticleFilter(model, particles=4096, mesh=mesh)
    kept = flt.run(ys, key=jax.random.key(0), keep="particles")
    state, apart = flt.init(jax.random.key(0)), []
    for t, y in enumerate(ys):
        state, info = flt.step(state, y)
        apart.append(float(np.max(np.abs(info.mean - kept.mean[t]))))
    first = flt.run(ys[:3], key=jax.random.key(0))
    rest = flt.resume(first.state, ys[3:])
    apart.append(float(np.max(np.abs(rest.mean - kept.mean[3:]))))
    exact = nopf.KalmanFilter(model).run(ys)
    many = nopf.ParticleFilter(model, particles=65_536, mesh=mesh).run(ys, key=jax.random.key(0))
    weights = np.exp(np.asarray(kept.log_weights))
    own = np.einsum("tn,tnd->td", weights, np.asarray(kept.particles))
    batch = flt.run_batch(np.stack([ys] * 4), key=jax.random.key(5))
    plain = nopf.ParticleFilter(model, particles=4096)
    same = plain.run_batch(np.stack([ys] * 4), key=jax.random.key(5))
    smooth = flt.smooth(kept, key=jax.random.key(2), trajectories=50)
    quantiles = np.abs(kept.quantiles - exact.quantiles) / np.asarray(exact.std)[:, None]
    return {
        "steps_and_run": max(apart),
        "mean": float(np.max(np.abs(many.mean - exact.mean) / np.asarray(exact.std))),
        "own": float(np.max(np.abs(own - kept.mean))),
        "quantiles": float(np.max(quantiles)),
        "batch": float(np.max(np.abs(batch.mean - same.mean))),
        "p_values": np.asarray(kept.p_value).tolist(),
        "smooth": list(smooth.mean.shape),
        "devices": len(kept.particles.sharding.device_set),
    }


def sums():
    """Sums of weights over four devices, of which some may hold none, and on one."""
    mesh = check_mesh(jax.make_mesh((4,), ("particles",)))
    spread, same = jax.sharding.PartitionSpec("particles"), jax.sharding.PartitionSpec()
    found = {}
    for level in (0.0, -60.0, -1000.0, 1000.0, -np.inf):
        weights = np.linspace(level, level + 3, 16) if np.isfinite(level) else np.full(16, -np.inf)
        weights = np.where(np.arange(16) < 8, -np.inf, weights)

        def summed(own):
            sums = weigh_up(own, "particles")
            return sums.log_total, sums.ess

        where = {"mesh": mesh, "in_specs": spread, "out_specs": same}
        over_all = jax.shard_map(summed, **where, check_vma=False)
        alone = weigh_up(jax.numpy.asarray(weights), None)
        both = over_all(jax.numpy.asarray(weights)), (alone.log_total, alone.ess)
        found[str(level)] = np.asarray(both, float).tolist()
    return found


def training():
    """How well a proposal does that was trained on four devices, and on one."""
    model = unicycle()
    recipe = nopf.Recipe.fast(steps=200, base="skeleton")
    mesh = jax.make_mesh((4,), ("devices",))
    found = {}
    for name, where in [("four", mesh), ("again", mesh), ("one", None)]:
        proposal = nopf.train(model, 12, jax.random.key(0), recipe=recipe, mesh=where)
        found[name] = np.asarray(proposal.history)[:, 1:].tolist()
    return found


def process(number, port):
    """One of two processes."""
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"localhost:{port}", 2, int(number))
    model = linear()
    ys = np.asarray([[0.3, -0.2], [0.9, 0.4], [1.2, -0.3]])
    flt = nopf.ParticleFilter(model, particles=20_000, mesh=jax.make_mesh((2,), ("particles",)))
    posterior = flt.run(ys, key=jax.random.key(0))
    recipe = nopf.Recipe.fast(steps=50, base="skeleton")
    proposal = nopf.train(model, 6, jax.random.key(0), recipe=recipe, mesh=flt.mesh)
    return {
        "history": np.asarray(proposal.history)[1:].tolist(),
        "mean": np.asarray(posterior.mean).tolist(),
        "log_evidence": float(posterior.log_evidence),
    }


if __name__ == "__main__":
    arguments = sys.argv[2:]
    tasks = {"evidence": evidence, "all": everything, "sums": sums}
    tasks |= {"training": training, "process": process}
    print(json.dumps(tasks[sys.argv[1]](*arguments)))
