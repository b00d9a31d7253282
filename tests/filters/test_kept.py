"""Posteriors in files: what comes back is what was written, and forged files are refused."""

import json

import jax
import numpy as np
import pytest

import nopf
from nopf.files import FileError, read_arrays, write_arrays
from tests import models

KIND = "nopf posterior"


@pytest.fixture(scope="module")
def flt():
    own = {"robust": nopf.Outliers(0.1, 8.0), "origin": {"x0": 1e6, "y0": 1e6}}
    model = models.linear(**own, plane=("x1", "x0"))
    return nopf.ParticleFilter(model, particles=40)


@pytest.fixture(scope="module")
def posterior(flt):
    ys = np.array(nopf.simulate(flt.model, 25, jax.random.key(0)).observations)
    ys[12] += 40.0  # something to warn of
    ys[3, 1] = np.nan
    return flt.run(ys, key=jax.random.key(1), keep="particles")


@pytest.fixture
def file(posterior, tmp_path):
    posterior.save(tmp_path / "run.nopf")
    return tmp_path / "run.nopf"


def same(a, b):
    a, b = (jax.tree.leaves_with_path(nopf_arrays(tree)) for tree in (a, b))
    assert [path for path, _ in a] == [path for path, _ in b]
    for (path, left), (_, right) in zip(a, b, strict=True):
        np.testing.assert_array_equal(left, right, err_msg=str(path))
        assert np.asarray(left).dtype == np.asarray(right).dtype, path


def nopf_arrays(tree):
    def plain(leaf):
        is_key = hasattr(leaf, "dtype") and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return jax.random.key_data(leaf) if is_key else leaf

    return jax.tree.map(plain, tree)


def test_everything_comes_back(flt, posterior, file):
    found = nopf.Posterior.load(file, flt)
    same(posterior, found)
    assert repr(found) == repr(posterior)
    assert found.warnings() == posterior.warnings() != []
    assert found.verdict == posterior.verdict
    assert found.space == posterior.space
    assert found.plane == posterior.plane == ("x1", "x0")
    assert found.space.origin == (1e6, 0.0)
    assert found.tails == nopf.Outliers(0.1, 8.0)
    smoothed, again = (
        flt.smooth(p, key=jax.random.key(2), trajectories=20) for p in (posterior, found)
    )
    np.testing.assert_array_equal(smoothed.trajectories, again.trajectories)
    # The filter goes on from there with the same numbers.
    more = np.asarray(posterior.observations)[:4]
    same(flt.resume(posterior.state, more), flt.resume(found.state, more))


def test_without_the_filter_there_is_no_state(flt, posterior, file):
    found = nopf.Posterior.load(file)
    assert found.state is None
    same(posterior.info, found.info)
    with pytest.raises(ValueError, match="forecast: this posterior was loaded without its filter"):
        flt.forecast(found, 3)
    found.save(file)
    with pytest.raises(FileError, match="it holds no state of a filter; load it without one"):
        nopf.Posterior.load(file, flt)


def test_of_another_filter_the_state_is_refused(flt, file):
    other = nopf.ParticleFilter(flt.model, particles=41)
    with pytest.raises(FileError, match=r"has shape .*is it the filter that made it\?"):
        nopf.Posterior.load(file, other)
    with pytest.raises(FileError, match="is it the filter that made it"):
        nopf.Posterior.load(file, nopf.KalmanFilter(models.linear()))


def test_exact_batched_and_blind_ones(tmp_path):
    flt, file = nopf.KalmanFilter(models.linear()), tmp_path / "run.nopf"
    batch = flt.run_batch(np.zeros((2, 3, 2)))
    batch.save(file)
    same(batch.info, nopf.Posterior.load(file).info)
    with pytest.raises(FileError, match="after run_batch there is a state a series"):
        nopf.Posterior.load(file, flt)
    exact = flt.run(np.zeros((3, 2)))
    exact.save(file)
    same(exact, nopf.Posterior.load(file, flt))
    # One that waits for its first observation remembers the steps since the prior.
    waiting = nopf.ParticleFilter(models.linear(), nopf.LinearisedProposal(), 20)
    blind = waiting.run(np.full((2, 2), np.nan), key=jax.random.key(0))
    blind.save(file)
    found = nopf.Posterior.load(file, waiting)
    assert len(found.state.before) == 2
    same(blind.state, found.state)


def test_damaged_and_foreign_files_are_refused(file, tmp_path):
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FileError, match="expected a nopf posterior, but the file is damaged"):
        nopf.Posterior.load(file)
    changed = bytearray(whole)
    changed[-3] ^= 1
    file.write_bytes(bytes(changed))
    with pytest.raises(FileError, match="the content was changed after it was written"):
        nopf.Posterior.load(file)
    write_arrays(file, "nopf proposal", {}, {"a": np.zeros(2)})
    with pytest.raises(FileError, match="expected a nopf posterior, found nopf proposal"):
        nopf.Posterior.load(file)
    with pytest.raises(FileNotFoundError, match="no such file"):
        nopf.Posterior.load(tmp_path / "none.nopf")


FORGED = {
    "steps": [24, -1, 10**12, "25", None, True, 2.5],
    "series": [1, "x"],
    "kept": [39, None, []],
    "state_names": [["a"], "ab", [1, 2], ["a", "a"], None],
    "state_angles": [[7], ["x0"], 3],
    "origin": [[1.0], ["a", "b"], 5],
    "quantile_levels": [[0.5], [2.0, 3.0, 4.0], "abc"],
    "tails": [{"kind": "os.system"}, {"kind": "outliers", "rate": 7, "scale": 2}, 3],
    "recover": ["a", [1]],
    "particle_count": [0, "many"],
    "weighted": [False, 1],
    "plane": [["x0"], "x0", 3, ["x0", "nothing"]],
}


@pytest.mark.parametrize("name", FORGED)
def test_forged_headers_are_refused(file, name):
    """With a right checksum: whoever forges a file can count it."""
    header, arrays = read_arrays(file, KIND)
    for value in FORGED[name]:
        write_arrays(file, KIND, header | {name: value}, arrays)
        with pytest.raises(FileError) as raised:
            nopf.Posterior.load(file)
        assert "\n" not in str(raised.value)
        assert str(file) in str(raised.value)
    write_arrays(file, KIND, {k: v for k, v in header.items() if k != name}, arrays)
    with pytest.raises(FileError, match="the header does not fit this version of nopf"):
        nopf.Posterior.load(file)


def test_forged_states_are_refused(flt, file):
    header, arrays = read_arrays(file, KIND)
    for changed in [
        {"index": -1},
        {"time": "x"},
        {"before": "many"},
        {"keyed": False},
        {"before": 10**8, "index": 10**8},
    ]:
        forged = header | {"state": header["state"] | changed}
        write_arrays(file, KIND, json.loads(json.dumps(forged)), arrays)
        with pytest.raises(FileError):
            nopf.Posterior.load(file, flt)
    write_arrays(file, KIND, header, arrays | {"extra": np.zeros(3)})
    with pytest.raises(FileError, match="the arrays do not fit the header: extra"):
        nopf.Posterior.load(file)
