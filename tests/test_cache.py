"""The user's cache: nobody else can put anything there."""

import os
import stat

import pytest

from nopf.cache import NoCacheError, own_folder


@pytest.fixture
def root(monkeypatch, tmp_path):
    monkeypatch.setenv("NOPF_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_folders_are_the_users_alone_whatever_the_umask(root):
    before = os.umask(0)
    try:
        folder = own_folder("proposals")
    finally:
        os.umask(before)
    assert folder == root / "proposals"
    for made in (root, folder):
        assert stat.S_IMODE(made.stat().st_mode) == 0o700
    assert own_folder("proposals") == folder  # also when it is there


def test_a_folder_that_others_can_fill_is_left_alone(root, tmp_path, monkeypatch):
    folder = own_folder("compiled")
    for mode in (0o770, 0o702):
        folder.chmod(mode)
        with pytest.raises(NoCacheError, match=r"others may write to .*compiled: .*NOPF_CACHE"):
            own_folder("compiled")
    folder.chmod(0o700)
    root.chmod(0o777)  # There the folder itself could be exchanged.
    with pytest.raises(NoCacheError, match=r"others may write to .*cache: .*NOPF_CACHE"):
        own_folder("compiled")
    root.chmod(0o700)
    monkeypatch.setattr(os, "getuid", lambda: folder.stat().st_uid + 1)
    with pytest.raises(NoCacheError, match="cache belongs to somebody else"):
        own_folder("compiled")
    monkeypatch.undo()
    monkeypatch.setenv("NOPF_CACHE", str(root))
    (tmp_path / "other").mkdir()
    (root / "link").symlink_to(tmp_path / "other")
    with pytest.raises(NoCacheError, match="link is a link and no folder"):
        own_folder("link")


def test_why_there_is_none_is_said(root, monkeypatch):
    root.write_text("")
    with pytest.raises(NoCacheError, match=r"there can be no cache .*cache"):
        own_folder("compiled")
    monkeypatch.setenv("NOPF_CACHE", "off")
    with pytest.raises(NoCacheError, match="NOPF_CACHE is off"):
        own_folder("compiled")
