"""Start processes that make batches, and receive the batches over ZeroMQ."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import msgspec
import torch
from torch import Tensor

from gpudiag.errors import FrameworkMissingError, UsageError, WorkerFailedError
from gpudiag.model.job import DataSource
from gpudiag.training.jobs.data.batch_server import WAITING, ArrayHeader, BatchHeader, ServerOptions
from gpudiag.training.jobs.data.batches import Batch, batches
from gpudiag.training.models.pytorch.workload import Workload

#: Interval in ms at which the server processes are checked while no batch arrives.
_CHECK_MS = 500

#: Maximum length of the path of a local socket: the size of `sun_path` (unix(7)), less some bytes that ZeroMQ adds.
_LONGEST_PATH = 100


@contextmanager
def open_batches(
    name: str, workload: Workload, source: DataSource, *, batch_size: int, workers: int, device: torch.device, seed: int
) -> Iterator[Iterable[Batch]]:
    """Yield endless batches from any source. For `zmq`, `workers` server processes run within the context.

    The servers load the workload by its `name` in the registry. See `batches` for the other arguments.

    Raises:
        FrameworkMissingError: `zmq` is requested but pyzmq is missing.
    """
    if source != "zmq":
        yield batches(workload, source, batch_size=batch_size, workers=workers, device=device, seed=seed)
        return
    with ServedBatches(
        name,
        on_gpu=workload.on_gpu,
        batch_size=batch_size,
        servers=max(1, workers),
        pinned=device.type == "cuda",
        seed=seed,
    ) as served:
        yield served


class ServedBatches:
    """Receive endless batches from `servers` child processes, over a local socket that only this user can open.

    `name` is the workload's name in the registry. With `on_gpu` the workload has its sizes for GPUs. With `pinned` the
    batches are received into pinned memory. Samples are random, with a different seed for each server and `seed`.

    Raises:
        FrameworkMissingError: this interpreter has no pyzmq.
        UsageError: the path of the directory for temporary files is too long for a socket.
        WorkerFailedError: a server has ended. Iterating raises this error.
    """

    def __init__(self, name: str, *, on_gpu: bool, batch_size: int, servers: int, pinned: bool, seed: int) -> None:
        try:
            import zmq
        except ImportError as error:
            raise FrameworkMissingError(
                f"--data zmq needs pyzmq, which {sys.executable} does not have", "Install it: pip install pyzmq"
            ) from error
        self._zmq, self._pinned = zmq, pinned
        # With a factor above the number of servers, no two servers of a job have the same seed.
        self._options = [
            ServerOptions(endpoint="", workload=name, on_gpu=on_gpu, batch_size=batch_size, seed=seed * 1009 + index)
            for index in range(servers)
        ]
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> ServedBatches:
        self._directory = tempfile.TemporaryDirectory(prefix="gpudiag-")  # only this user can enter it
        path = Path(self._directory.name) / "batches"
        if len(str(path)) > _LONGEST_PATH:
            self._directory.cleanup()
            raise UsageError(f"{path.parent} is too long a path for a socket", "Set TMPDIR to a shorter one.")
        self._context = self._zmq.Context()
        self._socket = self._context.socket(self._zmq.PULL)
        self._socket.set_hwm(WAITING)  # maximum number of waiting batches
        self._socket.bind(f"ipc://{path}")
        try:
            for options in self._options:
                text = msgspec.json.encode(msgspec.structs.replace(options, endpoint=f"ipc://{path}")).decode()
                # -P: the current directory may contain a module with the name of an imported one.
                self._processes.append(
                    subprocess.Popen([sys.executable, "-P", "-m", "gpudiag.training.jobs.data.batch_server", text])
                )
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the servers and remove the socket."""
        for process in self._processes:
            process.kill()  # the servers have no state to save
        for process in self._processes:
            process.wait()
        self._processes.clear()
        self._context.destroy(linger=0)
        self._directory.cleanup()

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            while not self._socket.poll(_CHECK_MS):
                self._check_servers()
            header, *payloads = self._socket.recv_multipart(copy=False)
            arrays = msgspec.json.decode(header.buffer, type=BatchHeader).arrays
            inputs, targets = (
                self._received(array, payload.buffer) for array, payload in zip(arrays, payloads, strict=True)
            )
            yield inputs, targets

    def _received(self, array: ArrayHeader, payload: memoryview) -> Tensor:
        """Copy a payload into a new tensor, which is in pinned memory if training runs on a GPU."""
        import numpy as np

        sent = np.frombuffer(payload, dtype=array.dtype).reshape(array.shape)
        tensor = torch.empty(array.shape, dtype=getattr(torch, str(sent.dtype)), pin_memory=self._pinned)
        np.copyto(tensor.numpy(), sent)
        return tensor

    def _check_servers(self) -> None:
        """Raise WorkerFailedError if a server has ended."""
        for process in self._processes:
            code = process.poll()
            if code is not None:
                raise WorkerFailedError(
                    f"a process that makes batches ended with exit code {code}",
                    "What it printed is in this rank's log.",
                )
