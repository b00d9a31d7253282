"""Compiled code, kept from one call of the command to the next."""

import os

from nopf.cache import NoCacheError, own_folder

LARGEST = 512 * 2**20  # bytes; what was used longest ago goes first
SHORTEST = 0.05  # seconds of compiling that are worth a file


def keep_compiled() -> None:
    """Tells JAX, before it is imported, to keep what it compiles, if there is a place for it.

    Whoever has told JAX something else is left alone.
    """
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    try:
        folder = own_folder("compiled")
    except NoCacheError:
        return  # then without
    os.environ |= {
        "JAX_COMPILATION_CACHE_DIR": str(folder),
        "JAX_COMPILATION_CACHE_MAX_SIZE": str(LARGEST),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": str(SHORTEST),
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
