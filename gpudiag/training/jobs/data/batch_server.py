"""A process that makes batches and pushes them to a training process over ZeroMQ.

    python -m gpudiag.training.jobs.data.batch_server ORDER

Each message has a header and two payloads: the inputs' and the targets' raw bytes, sent without copying. The header is
a `Header` as JSON. The server waits while its receiver has enough, and ends with its parent.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from torch import Tensor

#: Batches that wait on each side of the socket.
WAITING = 2


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What to send where."""

    endpoint: str
    workload: str
    on_gpu: bool
    batch_size: int
    seed: int


class Piece(msgspec.Struct, frozen=True):
    """One payload: its type as NumPy names it, and its shape."""

    dtype: str
    shape: tuple[int, ...]


class Header(msgspec.Struct, frozen=True):
    """What the payloads are."""

    pieces: tuple[Piece, Piece]


def message(inputs: Tensor, targets: Tensor) -> list[object]:
    """The frames of one batch. The tensors must not change until they are sent."""
    arrays = [tensor.contiguous().numpy() for tensor in (inputs, targets)]
    first, second = (Piece(str(array.dtype), array.shape) for array in arrays)
    return [msgspec.json.encode(Header((first, second))), *arrays]


def serve(order: Order) -> None:
    """Send batches until the process is ended."""
    import torch
    import zmq

    from gpudiag.training.jobs.data.pool import loader
    from gpudiag.training.models.registry import load_workload

    torch.set_num_threads(1)  # as in a DataLoader's workers, which this is compared with
    workload = load_workload(order.workload, on_gpu=order.on_gpu)
    made = loader(workload, batch_size=order.batch_size, workers=0, pinned=False, seed=order.seed)
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PUSH)
    socket.set_hwm(WAITING)
    socket.connect(order.endpoint)
    for inputs, targets in made:
        socket.send_multipart(message(inputs, targets), copy=False)  # type: ignore[arg-type]  # any buffer will do


if __name__ == "__main__":
    from gpudiag.training.jobs.parent import die_with_parent

    die_with_parent()
    serve(msgspec.json.decode(sys.argv[1], type=Order))
