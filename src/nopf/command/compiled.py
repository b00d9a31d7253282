"""Compiled code, kept from one call of the command to the next."""

import contextlib
import functools
import os
from collections.abc import Iterator

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


class Compiled:
    """What has been compiled so far.

    Attributes:
        count: how many functions.
        seconds: how long that took.
        kept: how many of them came from the cache.
    """

    def __init__(self) -> None:
        self.count, self.seconds, self.kept = 0, 0.0, 0

    def __str__(self) -> str:
        folder = os.environ.get("JAX_COMPILATION_CACHE_DIR")
        cache = "no cache" if folder is None else f"{self.kept} from the cache in {folder}"
        return f"{self.count} functions compiled in {self.seconds:.1f} s ({cache})"


_watching: list[Compiled] = []


@contextlib.contextmanager
def watch_compiling() -> Iterator[Compiled]:
    """Counts what JAX compiles meanwhile."""
    _listen()
    found = Compiled()
    _watching.append(found)
    try:
        yield found
    finally:
        _watching.remove(found)


@functools.cache
def _listen() -> None:
    """Has JAX tell when it compiles; that cannot be taken back."""
    import jax.monitoring

    def lasted(event: str, duration_secs: float, **_: object) -> None:
        if event.endswith("/backend_compile_duration"):
            for one in _watching:
                one.count, one.seconds = one.count + 1, one.seconds + duration_secs

    def happened(event: str, **_: object) -> None:
        if event.endswith("/cache_hits"):
            for one in _watching:
                one.kept += 1

    jax.monitoring.register_event_duration_secs_listener(lasted)
    jax.monitoring.register_event_listener(happened)
