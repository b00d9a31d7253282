"""Files of arrays: what comes back is what was written."""

import numpy as np

from nopf.files import read_arrays, write_arrays


def test_arrays_come_back_however_they_lie_in_memory(tmp_path):
    plain = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    arrays = {"turned": plain.T, "strided": plain[:, ::2], "number": np.float32(3)}
    write_arrays(tmp_path / "x", "kind", {"a": 1}, arrays)
    header, found = read_arrays(tmp_path / "x", "kind")
    assert header == {"a": 1}
    for name, array in arrays.items():
        assert found[name].shape == np.shape(array)
        np.testing.assert_array_equal(found[name], array)
