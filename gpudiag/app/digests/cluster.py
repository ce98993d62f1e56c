"""Read the traces of a job on the workers of a Dask cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any

import msgspec

from gpudiag.app.digests.write import DigestEngine
from gpudiag.errors import GpudiagError, UsageError
from gpudiag.trace import ReadLimits
from gpudiag.trace.digest_files import Digested, digest_file
from gpudiag.trace.sources import TraceFile

#: Word that replaces a scheduler's address, for a cluster of processes on this machine.
LOCAL = "local"
_CONNECT_S = 20
#: Number of times that a file is read again if its worker is lost or fails.
_RETRIES = 3


def on_cluster(address: str) -> DigestEngine:
    """Return an engine that reads files on the workers of a Dask cluster. All workers need access to the files.

    Args:
        address: the scheduler's address (`tcp://host:8786`), or `local` for processes of this machine.

    The engine can be pickled. It raises GpudiagError if the scheduler cannot be reached or has no workers.

    Raises:
        UsageError: Dask is not installed.
    """
    if find_spec("distributed") is None:  # the extra `cluster`
        raise UsageError("--scheduler needs Dask, which is not installed", "Install it: pip install 'gpudiag[cluster]'")
    return partial(_read, address)


def _read(address: str, files: Sequence[TraceFile], limits: ReadLimits) -> Iterator[Digested]:
    """Yield the digests of each file as workers finish; `address` is as for `on_cluster`."""
    import distributed  # noqa: PLC0415  # an extra

    with contextlib.ExitStack() as stack:
        client = stack.enter_context(_client(distributed, address, stack))
        # With `pure=False`, Dask reads every file, also if it has an earlier result of equal arguments.
        futures = client.map(_digest, files, limits=limits, retries=_RETRIES, pure=False)
        of_file = {future.key: file for future, file in zip(futures, files, strict=True)}
        for future in distributed.as_completed(futures):
            yield _outcome(future, of_file[future.key])
            future.release()


def _digest(file: TraceFile, *, limits: ReadLimits) -> Digested:
    return digest_file(file, limits)


def _outcome(future: Any, file: TraceFile) -> Digested:
    """Return the digests of a file; if its worker failed, return no digests and the error."""
    if future.status == "finished":
        return msgspec.convert(future.result(), Digested)
    error = future.exception()
    return Digested(file.shown, error=f"{file.shown}: its worker failed: {type(error).__name__}: {error}")


def _client(distributed: Any, address: str, stack: contextlib.ExitStack) -> Any:
    """Return a client of the scheduler, or of new workers on this machine, which `stack` ends."""
    if address == LOCAL:
        cluster = stack.enter_context(
            distributed.LocalCluster(threads_per_worker=1, dashboard_address=None, silence_logs=50)
        )
        return distributed.Client(cluster)
    try:
        client = distributed.Client(address, timeout=_CONNECT_S)
    except (OSError, ValueError) as error:
        raise GpudiagError(
            f"no Dask scheduler answers at {address}: {error}", "Start one: dask scheduler; dask worker ADDRESS"
        ) from error
    if not client.scheduler_info()["workers"]:
        client.close()
        raise GpudiagError(
            f"the Dask scheduler at {address} has no workers", f"Start some on the nodes: dask worker {address}"
        )
    return client
