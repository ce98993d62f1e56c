"""Make batches, and push them to a training process over ZeroMQ. This module is a program:

    python -m gpudiag.training.jobs.data.batch_server OPTIONS

Each message contains a `BatchHeader` as JSON, the raw bytes of the inputs, and the raw bytes of the targets. The bytes
are sent without copying them. The server waits while the receiver's queue is full, and ends with its parent process.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from torch import Tensor

#: Maximum number of batches in the queue on each side of the socket.
WAITING = 2


class ServerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The command-line argument of a server, as JSON."""

    endpoint: str
    workload: str
    on_gpu: bool
    batch_size: int
    seed: int


class ArrayHeader(msgspec.Struct, frozen=True):
    """Describe an array in a message: NumPy's name of its type, and its shape."""

    dtype: str
    shape: tuple[int, ...]


class BatchHeader(msgspec.Struct, frozen=True):
    """Describe the two arrays of a message: inputs and targets."""

    arrays: tuple[ArrayHeader, ArrayHeader]


def message(inputs: Tensor, targets: Tensor) -> list[object]:
    """Return the frames of one batch's message. The tensors must not change until the message is sent."""
    arrays = [tensor.contiguous().numpy() for tensor in (inputs, targets)]
    first, second = (ArrayHeader(str(array.dtype), array.shape) for array in arrays)
    return [msgspec.json.encode(BatchHeader((first, second))), *arrays]


def serve(options: ServerOptions) -> None:
    """Send batches until the process is ended."""
    import torch
    import zmq

    from gpudiag.training.jobs.data.batches import loader
    from gpudiag.training.models.registry import load_workload

    torch.set_num_threads(1)  # as in DataLoader workers, so that both are comparable
    workload = load_workload(options.workload, on_gpu=options.on_gpu)
    batches = loader(workload, batch_size=options.batch_size, workers=0, pinned=False, seed=options.seed)
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PUSH)
    socket.set_hwm(WAITING)
    socket.connect(options.endpoint)
    for inputs, targets in batches:
        socket.send_multipart(message(inputs, targets), copy=False)  # type: ignore[arg-type]  # any buffer is accepted


if __name__ == "__main__":
    from gpudiag.training.jobs.parent import die_with_parent

    die_with_parent()
    serve(msgspec.json.decode(sys.argv[1], type=ServerOptions))
