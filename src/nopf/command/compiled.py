"""Compiled code, kept from one call of the command to the next."""

import os
import sys
from pathlib import Path

LARGEST = 512 * 2**20  # bytes; what was used longest ago goes first
SHORTEST = 0.05  # seconds of compiling that are worth a file


def keep_compiled() -> None:
    """Tells JAX, before it is imported, to keep what it compiles.

    The folder belongs to the user alone, since code is loaded from it. Whoever has told JAX
    something else is left alone.
    """
    wanted = os.environ.get("NOPF_CACHE", "")
    if wanted == "off" or "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    folder = Path(wanted) if wanted else user_cache() / "nopf" / "compiled"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        mine = not hasattr(os, "getuid") or folder.stat().st_uid == os.getuid()
    except OSError:
        return  # no home, or a full disk: then without
    if not mine or not os.access(folder, os.W_OK):
        return
    os.environ |= {
        "JAX_COMPILATION_CACHE_DIR": str(folder),
        "JAX_COMPILATION_CACHE_MAX_SIZE": str(LARGEST),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": str(SHORTEST),
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


def user_cache() -> Path:
    """Where programs keep what can be made again."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    named = "LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME"
    return Path(os.environ.get(named) or Path.home() / ".cache")
