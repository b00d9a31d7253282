"""Cells on a Dask cluster: a local one, or one that is running somewhere."""

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from nopf.benchmarks.results import Cell, Row, Trace

Job = tuple[Cell, bytes | None]  # with the file of the proposal, if it needs one
Result = tuple[Row, Trace | None]
Outcome = Result | Exception
RunCell = Callable[[Cell, bytes | None], Result]
RunAll = Callable[[Sequence[Job]], Iterator[tuple[Cell, Outcome]]]


class ClusterError(ConnectionError):
    """Dask is not there, or does not answer."""


@contextlib.contextmanager
def on_cluster(run_cell: RunCell, workers: int, address: str | None) -> Iterator[RunAll]:
    """A function that runs jobs on a cluster and gives cells with their rows as they are done.

    A worker that dies costs the time of its cell: the scheduler gives the cell to another one.

    Args:
        run_cell: what a worker does with a job.
        workers: processes to start on this machine, if there is no address.
        address: of a running scheduler.
    """
    try:
        import distributed
    except ImportError:
        raise ClusterError(
            "running on several workers needs Dask: python -m pip install 'nopf[cluster]'"
        ) from None
    # Quiet: what a lost worker costs is nothing that a user has to act on.
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    with contextlib.ExitStack() as stack:
        try:
            target: Any = address
            if address is None:
                target = stack.enter_context(
                    distributed.LocalCluster(
                        n_workers=workers,
                        threads_per_worker=1,
                        dashboard_address=None,
                        silence_logs=50,
                    )
                )
            client = stack.enter_context(distributed.Client(target, timeout="20s"))
        except OSError as error:
            raise ClusterError(f"{address}: no Dask scheduler answers there ({error})") from None

        def there(jobs: Sequence[Job]) -> Iterator[tuple[Cell, Outcome]]:
            futures = {
                client.submit(run_cell, cell, proposal, pure=False): cell for cell, proposal in jobs
            }
            for future in distributed.as_completed(futures):
                yield futures[future], future.exception() or future.result()

        yield there
