"""Particles spread over several devices and processes: the same answers."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

import nopf
from nopf.crowd import check_mesh
from tests.models import linear

ROOT = Path(__file__).parents[2]


def start(devices, *arguments):
    flags = os.environ.get("XLA_FLAGS", "")
    flags = f"{flags} --xla_force_host_platform_device_count={devices}"
    return subprocess.Popen(
        [sys.executable, "-m", "tests.filters.on_mesh", *arguments],
        cwd=ROOT,
        env=os.environ | {"XLA_FLAGS": flags},
        stdout=subprocess.PIPE,
        text=True,
    )


def answer(process):
    try:
        out, _ = process.communicate(timeout=300)
    finally:
        process.kill()  # of no effect on one that has ended
    assert process.returncode == 0
    return json.loads(out.splitlines()[-1])


def test_evidence_on_four_devices():
    found = answer(start(4, "evidence"))
    assert set(found) == {"bootstrap", "threshold", "auxiliary", "marginalised"}
    for kind in found.values():
        assert abs(kind["z"]) < 4  # fails once in 16 000 tests of a right filter
        # Posterior means are those of the same filter on one device, at twelve places: a right
        # filter fails once in 80 000 tests.
        assert kind["off"] < 5
        # The exchange keeps the load even, even with 16 particles on a device.
        on_mesh, alone = kind["ess"]
        assert on_mesh > 0.7 * alone


def test_sums_of_weights_where_devices_hold_none():
    """Also far from a weight of one, where what is added up could overflow."""
    for level, (on_mesh, alone) in answer(start(4, "sums")).items():
        np.testing.assert_allclose(on_mesh, alone, rtol=1e-6, err_msg=level)
        assert not np.isnan(on_mesh).any()


def test_what_filters_do_they_do_on_a_mesh():
    found = answer(start(4, "all"))
    assert found["steps_and_run"] == 0
    assert found["own"] < 1e-4
    assert found["mean"] < 0.11  # five times the largest standard deviation over 60 keys
    assert found["quantiles"] < 0.3
    assert found["batch"] < 1e-5
    assert np.isnan(found["p_values"][2])
    assert np.all(np.delete(found["p_values"], 2) > 0)
    assert found["smooth"] == [6, 2]
    assert found["devices"] == 4


def test_training_on_four_devices():
    found = {name: np.asarray(rows) for name, rows in answer(start(4, "training")).items()}
    assert np.array_equal(found["four"], found["again"], equal_nan=True)
    # Losses and effective sample sizes on the same held-out data: it learns what one device does.
    (_, before, _), (_, after, share) = found["four"][0], found["four"][-1]
    _, alone, share_alone = found["one"][-1]
    assert after < before - 0.5 * (before - alone)
    assert share > share_alone - 0.05


def test_two_processes_agree():
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    first, second = (start(1, "process", str(i), port) for i in range(2))
    one, other = answer(first), answer(second)
    assert one == other
    steps, losses = np.asarray(one["history"]).T[:2]
    assert steps[-1] == 50
    assert np.all(np.isfinite(losses))
    ys = np.asarray([[0.3, -0.2], [0.9, 0.4], [1.2, -0.3]])
    exact = nopf.KalmanFilter(linear()).run(ys)
    apart = np.abs(np.asarray(one["mean"]) - exact.mean) / np.asarray(exact.std)
    assert np.max(apart) < 0.06  # about five standard errors
    assert abs(one["log_evidence"] - float(exact.log_evidence)) < 0.06


def test_meshes_that_do_not_fit():
    mesh = jax.make_mesh((1,), ("particles",))
    one = nopf.ParticleFilter(linear(), particles=7, mesh=mesh)  # on one device anything goes
    assert one.run(np.ones((2, 2)), key=jax.random.key(0)).mean.shape == (2, 2)
    with pytest.raises(TypeError, match=r"mesh: expected a jax\.sharding\.Mesh, got int"):
        check_mesh(4, 8)
    with pytest.raises(ValueError, match="particles: expected a multiple of 4, so that each of 2"):
        check_mesh(Mesh(np.array(jax.devices() * 2), ("particles",)), 6)
    with pytest.raises(ValueError, match="mesh: expected one axis"):
        nopf.ParticleFilter(linear(), particles=8, mesh=jax.make_mesh((1, 1), ("a", "b")))
