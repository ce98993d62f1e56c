"""The training process's end of the ZeroMQ pipe: starts the servers, takes their batches in turn, ends them."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import msgspec
import torch
from torch import Tensor

from gpudiag.errors import FrameworkMissingError, UsageError, WorkerFailedError
from gpudiag.training.jobs.data.batch_server import WAITING, Header, Order

#: How often to look whether the servers still live while none of them sends anything.
_LOOK_MS = 500

#: What the path of a local socket may have (sun_path of unix(7) less what ZeroMQ and the final zero need).
_LONGEST_PATH = 100


class ServedBatches:
    """Endless batches from server processes of this process's own, over a local socket that only its user can open.

    Args:
        name: the workload, by its name in the registry.
        on_gpu: sized for a GPU or for a CPU process.
        batch_size: samples per batch.
        servers: how many server processes.
        pinned: put batches into pinned memory.
        seed: for the samples.

    Raises:
        FrameworkMissingError: this interpreter has no pyzmq.
        UsageError: the path of the directory for temporary files is too long for a socket.
        WorkerFailedError: (while iterating) a server has ended.
    """

    def __init__(self, name: str, *, on_gpu: bool, batch_size: int, servers: int, pinned: bool, seed: int) -> None:
        try:
            import zmq
        except ImportError as error:
            raise FrameworkMissingError(
                f"--data zmq needs pyzmq, which {sys.executable} does not have", "Install it: pip install pyzmq"
            ) from error
        self._zmq = zmq
        self._pinned = pinned
        self._orders = [
            Order(endpoint="", workload=name, on_gpu=on_gpu, batch_size=batch_size, seed=seed * 1009 + index)
            for index in range(servers)
        ]
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> ServedBatches:
        self._directory = tempfile.TemporaryDirectory(prefix="gpudiag-")  # which only the user can enter
        path = Path(self._directory.name) / "batches"
        if len(str(path)) > _LONGEST_PATH:
            self._directory.cleanup()
            raise UsageError(f"{path.parent} is too long a path for a socket", "Set TMPDIR to a shorter one.")
        self._context = self._zmq.Context()
        self._socket = self._context.socket(self._zmq.PULL)
        self._socket.set_hwm(WAITING)
        self._socket.bind(f"ipc://{path}")
        try:
            for order in self._orders:
                told = msgspec.json.encode(msgspec.structs.replace(order, endpoint=f"ipc://{path}")).decode()
                self._processes.append(
                    subprocess.Popen([sys.executable, "-P", "-m", "gpudiag.training.jobs.data.batch_server", told])
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
            process.kill()  # they have nothing to put in order
        for process in self._processes:
            process.wait()
        self._processes.clear()
        self._context.destroy(linger=0)
        self._directory.cleanup()

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            while not self._socket.poll(_LOOK_MS):
                self._check_servers()
            header, *payloads = self._socket.recv_multipart(copy=False)
            described = msgspec.json.decode(header.buffer, type=Header)
            inputs, targets = (
                self._received(piece.dtype, piece.shape, payload.buffer)
                for piece, payload in zip(described.pieces, payloads, strict=True)
            )
            yield inputs, targets

    def _received(self, dtype: str, shape: tuple[int, ...], payload: memoryview) -> Tensor:
        """A copy of the payload in memory of PyTorch's, pinned where it is to be copied to a GPU."""
        import numpy as np

        sent = np.frombuffer(payload, dtype=dtype).reshape(shape)
        kind = getattr(torch, str(sent.dtype))
        tensor = torch.empty(shape, dtype=kind, pin_memory=self._pinned)
        np.copyto(tensor.numpy(), sent)
        return tensor

    def _check_servers(self) -> None:
        for process in self._processes:
            code = process.poll()
            if code is not None:
                raise WorkerFailedError(
                    f"a process that makes batches ended with exit code {code}",
                    "What it printed is in this rank's log.",
                )
