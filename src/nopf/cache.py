"""The user's cache: folders of what can be made again, in which nobody else can put anything."""

import os
import stat
import sys
from pathlib import Path


class NoCacheError(Exception):
    """Nothing can be kept; the text says why."""


def own_folder(name: str) -> Path:
    """A folder of the cache, made if need be: in `$NOPF_CACHE`, or in `nopf` in the user's cache.

    What lies there is used without asking, and compiled code is run: so it has mode 0700, and one
    that belongs to somebody else, or in which others may write, is left alone.

    Raises:
        NoCacheError: if there is none.
    """
    named = os.environ.get("NOPF_CACHE", "")
    if named == "off":
        raise NoCacheError("NOPF_CACHE is off")
    try:
        root = Path(named) if named else _user_cache() / "nopf"
        folder = root / name
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        _check_own(root)
        _check_own(folder)
    except (OSError, RuntimeError) as error:  # no home, a full disk, a file in its place
        raise NoCacheError(f"there can be no cache ({error})") from None
    if not os.access(folder, os.W_OK):
        raise NoCacheError(f"{folder} cannot be written to")
    return folder


def _check_own(folder: Path) -> None:
    """Refuses a folder whose content somebody else could exchange."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise NoCacheError(f"{folder} is a link and no folder")
    if hasattr(os, "getuid"):  # Elsewhere the user's folders are the user's.
        if found.st_uid != os.getuid():
            raise NoCacheError(f"{folder} belongs to somebody else")
        if found.st_mode & 0o022:
            raise NoCacheError(f"others may write to {folder}: name another one with NOPF_CACHE")


def _user_cache() -> Path:
    """Where programs keep what can be made again."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    named = "LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME"
    return Path(os.environ.get(named) or Path.home() / ".cache")
