"""Where tests keep what they compile."""

import atexit
import shutil
import sys
import tempfile
from pathlib import Path

from filelock import FileLock, Timeout

LARGEST = 2**30  # bytes; when there are more, all begins anew
# JAX does not write whole files or none: after a run that was killed, one may be cut short.
UNFINISHED = "unfinished"


def folder_of_this_run() -> Path:
    """The environment's folder; one that lasts as long as the run if another run is using it."""
    folder = Path(sys.prefix, "compiled-by-tests")
    unfinished = folder / UNFINISHED
    lock = FileLock(f"{folder}.lock")
    try:
        lock.acquire(timeout=0)
        if folder.exists():
            size = sum(file.stat().st_size for file in folder.iterdir())
            if unfinished.exists() or size > LARGEST:
                shutil.rmtree(folder)
        folder.mkdir(exist_ok=True)
        unfinished.touch()
    except (OSError, Timeout):
        folder = Path(tempfile.mkdtemp(prefix="nopf-tests-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return folder
    atexit.register(lock.release)
    return folder
