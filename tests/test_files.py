"""Files of arrays: what comes back is what was written."""

import os
import socket
import stat
import time

import numpy as np
import pytest

from nopf.files import PART, FileError, read_arrays, read_json, write_arrays, write_whole


def test_arrays_come_back_however_they_lie_in_memory(tmp_path):
    plain = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    arrays = {"turned": plain.T, "strided": plain[:, ::2], "number": np.float32(3)}
    write_arrays(tmp_path / "x", "kind", {"a": 1}, arrays)
    header, found = read_arrays(tmp_path / "x", "kind")
    assert header == {"a": 1}
    for name, array in arrays.items():
        assert found[name].shape == np.shape(array)
        np.testing.assert_array_equal(found[name], array)


def test_a_file_keeps_its_mode(tmp_path):
    file = tmp_path / "x"
    for mode in (0o600, 0o640, 0o755):
        file.write_bytes(b"old")
        file.chmod(mode)
        write_whole(file, b"new")
        assert file.read_bytes() == b"new"
        assert stat.S_IMODE(file.stat().st_mode) == mode
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "fresh", b"new")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "fresh").stat().st_mode) == 0o640


def test_a_link_stays_and_the_file_behind_it_is_written(tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "file").write_bytes(b"old")
    (tmp_path / "link").symlink_to("far/file")
    write_whole(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "far" / "file").read_bytes() == b"new"
    assert [file.name for file in (tmp_path / "far").iterdir()] == ["file"]


def test_what_is_no_file_is_not_replaced(tmp_path):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "nothing").symlink_to(tmp_path / "gone")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "device").symlink_to(os.devnull)
    with socket.socket(socket.AF_UNIX) as listening:
        here = os.getcwd()
        os.chdir(tmp_path)  # Names of sockets are short.
        try:
            listening.bind("socket")
        finally:
            os.chdir(here)
    before = sorted(tmp_path.iterdir())
    for name in ("folder", "pipe", "nothing", "loop", "device", "socket"):
        with pytest.raises(FileError, match=rf"{name} is a .*; .*name a") as raised:
            write_whole(tmp_path / name, b"new")
        assert "\n" not in str(raised.value)
    with pytest.raises(FileNotFoundError, match="does not exist; make it first"):
        write_whole(tmp_path / "none" / "x", b"new")
    assert sorted(tmp_path.iterdir()) == before


def test_what_a_kill_has_left_is_swept_up_after_a_day(tmp_path):
    names = (f"{PART}old", f"{PART}young", ".mine", f"{PART}link")
    for name in names[:3]:
        (tmp_path / name).write_bytes(b"half")
    (tmp_path / names[3]).symlink_to(tmp_path / ".mine")
    yesterday = time.time() - 25 * 3600
    for name in (names[0], ".mine"):
        os.utime(tmp_path / name, (yesterday, yesterday))
    write_whole(tmp_path / "x", b"new")
    assert {file.name for file in tmp_path.iterdir()} == {*names[1:], "x"}


def test_what_is_no_json_object_is_named(tmp_path):
    file = tmp_path / "x.json"
    for text in (b"", b"{", b"7", b"[]", b"\xff", b"[" * 200_000, b'{"a":' * 200_000):
        file.write_bytes(text)
        with pytest.raises(FileError, match=r"x\.json: not readable"):
            read_json(file)
    with pytest.raises(FileError, match=r"none\.json: not readable"):
        read_json(tmp_path / "none.json")
    file.write_text('{"a": 1}')
    assert read_json(file) == {"a": 1}
