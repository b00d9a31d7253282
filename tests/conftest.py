"""Every test runs with shapes checked at run time and silent broadcasting forbidden.

Most of the time of a test run is compiling, and much of what is compiled has been before: by the
last run, by another test, by the other process of pytest-xdist, by a command that a test has
started. So what is compiled is kept in the environment's folder, and all of these share it.
"""

import os

from tests.compiled import UNFINISHED, folder_of_this_run

if "JAX_COMPILATION_CACHE_DIR" not in os.environ:  # Processes started from here inherit it.
    os.environ |= {
        "JAX_COMPILATION_CACHE_DIR": str(folder_of_this_run()),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }

from jaxtyping import install_import_hook

with install_import_hook("nopf", "beartype.beartype"):
    import nopf

    for name in nopf.__all__:  # Parts of nopf are imported when they are first asked for.
        getattr(nopf, name)

import gc
from pathlib import Path

import equinox as eqx
import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")

ENDED = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)
MAPS = Path("/proc/self/maps")
MOST_MAPS = 40_000  # Linux lets a process have 65 530 unless told otherwise


@pytest.fixture(autouse=True)
def few_compiled_functions():
    """Forgets what was compiled before there is too much of it.

    Every function that XLA compiles takes a few hundred memory maps; a process that has used up
    what the system allows dies without a word.
    """
    yield
    if MAPS.exists() and MAPS.read_bytes().count(b"\n") > MOST_MAPS:
        eqx.clear_caches()
        jax.clear_caches()
        gc.collect()


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Says that what was compiled is whole."""
    if exitstatus in ENDED and not hasattr(session.config, "workerinput"):
        Path(os.environ["JAX_COMPILATION_CACHE_DIR"], UNFINISHED).unlink(missing_ok=True)
