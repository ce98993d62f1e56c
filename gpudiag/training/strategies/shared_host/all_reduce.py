"""All-reduce between the ranks of one node through shared host memory. The CPUs compute the sums.

A tensor is cut into chunks. Each chunk passes through four stages, and different chunks are in different stages at the
same time:

    1. each rank's device copies its values of the chunk into one of the rank's slots in shared memory
    2. when the chunk has arrived from every rank, the CPU threads of rank r sum the chunk's r-th share in float32
    3. when every rank has summed its share, the result is complete in a result slot
    4. each rank's device copies the result over its own gradients

A slot is reused as soon as every rank has read its content. Therefore the memory is small and stays in the processor's
cache. For each byte of gradients a rank copies one byte to the host and one byte back, for any number of ranks. A ring
of n ranks without peer access would copy 2(n-1)/n bytes each way.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Hashable
from typing import Any, Literal

import torch
from torch import distributed as dist

from gpudiag.errors import UsageError, WorkerFailedError
from gpudiag.training.strategies.pytorch_strategy import gather_objects
from gpudiag.training.strategies.shared_host import layout as at
from gpudiag.training.strategies.shared_host.control import Control
from gpudiag.training.strategies.shared_host.cpu_mover import CpuMover
from gpudiag.training.strategies.shared_host.cuda_mover import CudaMover
from gpudiag.training.strategies.shared_host.layout import ChunkedTensor, Layout, chunk_length
from gpudiag.training.strategies.shared_host.peers import PeerWatch
from gpudiag.training.strategies.shared_host.reducers import KINDS, make_reducer, processors_near
from gpudiag.training.strategies.shared_host.segment import Segment

# Defaults of the arguments of `SharedHostAllReduce`.
CHUNK_BYTES, SLOTS, LANES = 4 << 20, 8, 2
#: Minimum number of chunks of a tensor, so that copies in both directions and sums overlap.
PIECES = 8

#: Minimum bytes of a chunk. With smaller chunks, the overhead would outweigh the overlap.
_LEAST_CHUNK_BYTES = 256 << 10

#: Maximum number of summing threads per rank, for single and for half precision. More threads would not be faster,
#: because memory limits the speed. Half precision needs more work per byte.
_MOST_THREADS, _MOST_THREADS_HALF = 4, 8


class SharedHostAllReduce:
    """Sum or average tensors over the ranks of a process group on one node.

    All ranks must create the object at the same point of the program, and must reduce tensors of the same shapes and
    types in the same order. Results are bit-identical on all ranks. NaN and infinities are preserved.

    Args:
        group: the process group, by default the default group; used only to create the object.
        device: the device of the tensors.
        wire: precision of transport, by default that of the tensors. Sums are computed in float32, or in float64 if the
            tensors are float64.
        mean: True to divide the sum by the number of ranks.
        chunk_bytes, slots, lanes: see `Layout`.
        pieces: minimum number of chunks of a tensor, unless the chunks would be smaller than 256 KiB.
        threads: number of summing CPU threads per rank. By default it is half of the rank's share of the processors of
            its NUMA node, at most 4, or 8 for half precision.
        engine: `native` (compiled loops), `torch` (PyTorch's operators), or `auto`: `native` with a C compiler.
        timeout_s: maximum seconds to wait for a rank that makes no progress.

    Raises:
        UsageError: the ranks are not on one node or cannot share memory.
        HardwareMissingError: there is too little memory, or pinning fails. All ranks raise the same error.
    """

    def __init__(
        self,
        *,
        group: dist.ProcessGroup | None = None,
        device: torch.device,
        wire: torch.dtype | None = None,
        mean: bool = True,
        chunk_bytes: int = CHUNK_BYTES,
        slots: int = SLOTS,
        lanes: int = LANES,
        pieces: int = PIECES,
        threads: int | None = None,
        engine: Literal["auto", "native", "torch"] = "auto",
        timeout_s: float = 600.0,
    ) -> None:
        if wire is not None and wire not in KINDS:
            raise UsageError(f"gradients cannot travel as {wire}", "Choose float32, bfloat16 or float16.")
        self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)
        self.device, self._group, self._wire = device, group, wire
        self._mean, self._pieces = mean, pieces
        self._number = 0  # number of the next chunk; numbers wrap at `at.WRAP`
        self._wires: dict[Hashable, torch.Tensor] = {}  # buffers in the precision of transport, by `key`
        self._failure: tuple[str, str] | None = None
        self._lock = threading.Lock()
        self._closed = False
        layout = self._layout = Layout(world=self.world, chunk_bytes=chunk_bytes, slots=slots, lanes=lanes)
        near = processors_near(device)
        self._segment = Segment(layout.total_bytes, self.rank, self._gather)
        self._reserve(near)
        self._control = Control(self._segment, layout, self.rank)
        self._mover = self._make_mover(engine)
        if threads is None:
            most = _MOST_THREADS_HALF if wire in {torch.bfloat16, torch.float16} else _MOST_THREADS
            threads = max(1, min(most, len(near) // (2 * self.world)))
        self._control.set(at.STATE, at.ACTIVE)
        pids = self._gather(os.getpid())
        self._segment.close()  # the mapping remains
        self._reducer = make_reducer(self._control, engine=engine, threads=threads, cpus=near, mismatch=self._mismatch)
        self.engine = self._reducer.name
        self._peers = PeerWatch(self._control, pids, timeout_s, self._give_up)
        # If the process ends without calling `close`, the streams must not wait forever.
        self._at_exit = weakref.finalize(self, _finish, self._reducer, self._control)

    def start(self, tensor: torch.Tensor, key: Hashable = None) -> torch.futures.Future[torch.Tensor]:
        """Start to reduce `tensor` in place. Return a future whose value is the tensor.

        As with NCCL, only work that is enqueued after `wait()` may use the tensor. On a GPU, `wait()` does not block
        the host.

        Args:
            tensor: a contiguous tensor of a float type on the device.
            key: identifies the buffer for the values in the precision of transport. The buffer is only used if this
                precision is not the tensor's. Wait for the previous result with a key before using the key again.

        Raises:
            WorkerFailedError: another rank has died, has left, or makes no progress.
            UsageError: the tensor is sparse, complex or of integers.
        """
        self.check()
        if tensor.layout != torch.strided or tensor.dtype not in KINDS:
            what = "sparse" if tensor.layout != torch.strided else str(tensor.dtype).removeprefix("torch.")
            raise UsageError(
                f"cpu-reduce cannot communicate {what} gradients",
                "Use gloo, or make the model's gradients dense floats.",
            )
        flat = tensor.view(-1)
        wire = None
        if self._wire is not None and self._wire != flat.dtype:
            wire = self._wires.get(key)
            if wire is None or wire.numel() != flat.numel():
                wire = self._wires[key] = torch.empty(flat.numel(), dtype=self._wire, device=self.device)
        # Limits of a chunk's length in elements.
        size = flat.element_size() if wire is None else wire.element_size()
        most, least = self._layout.chunk_bytes // size, max(1, _LEAST_CHUNK_BYTES // size)
        chunked = ChunkedTensor(
            tensor=flat, wire=wire, first=self._number, length=chunk_length(flat.numel(), most, least, self._pieces)
        )
        chunks = chunked.chunks
        if len(chunks) > at.RING // 2:  # so that the next tensor's chunks can be submitted meanwhile
            raise UsageError(f"{len(chunks)} chunks are too many for one tensor", "Use a larger chunk_bytes.")
        kind, divisor = KINDS[chunked.packed.dtype], self.world if self._mean else 1
        self._await_room(len(chunks))
        for number, begin, end in chunks:
            self._control.put_piece(number, end - begin, kind, divisor)
        self._number = (self._number + len(chunks)) % at.WRAP
        self._control.set(at.SUBMITTED, self._number)
        self._reducer.submit(self._number)
        future = self._mover.enqueue(chunked)
        return future.then(lambda done: done.value().view_as(tensor)) if tensor.dim() != 1 else future

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Reduce `tensor` in place, wait for the result (on a GPU in stream order), and raise the errors of `start`."""
        result = self.start(tensor).wait()
        self.check()
        return result

    def check(self) -> None:
        """Raise WorkerFailedError if the all-reduce is closed or has failed. After a failure all results are NaN."""
        if self._failure is not None:
            raise WorkerFailedError(*self._failure)
        if self._closed:
            raise WorkerFailedError("this all-reduce has been closed", "Close it after the last step.")

    def close(self) -> None:
        """Finish all reductions and release all resources. Further calls do nothing."""
        if self._closed:
            return
        self._closed = True
        self._mover.drain()
        if self._failure is None:
            self._control.set(at.STATE, at.LEFT)
        self._peers.close()
        self._at_exit.detach()  # `_finish` would make results invalid
        self._reducer.stop()
        self._mover.close()
        # Deleting the last reference frees the memory.
        del self._mover, self._reducer, self._peers, self._control, self._segment, self._at_exit

    def _gather(self, value: Any) -> list[Any]:
        return gather_objects(value, self._group)

    def _reserve(self, near: set[int]) -> None:
        """Allocate this rank's share of the memory on the NUMA node of its device and threads (processors `near`).

        Linux allocates memory on the node of the processor on which this thread runs.
        """
        layout, rank = self._layout, self.rank
        parts = [
            (layout.control(rank), at.PAGE),
            (layout.ring(rank), at.RING * at.PIECE),
            (layout.slot(rank, 0), layout.slots * layout.chunk_bytes),
        ]
        for number in range(layout.slots):  # this rank's share of each result, in whole pages, at least one
            begin, end = (layout.chunk_bytes * share // layout.world // at.PAGE * at.PAGE for share in (rank, rank + 1))
            parts.append((layout.slot(layout.world, number) + begin, max(at.PAGE, end - begin)))
        before = os.sched_getaffinity(0)
        try:
            os.sched_setaffinity(0, near)
            self._segment.reserve(parts)
        finally:
            os.sched_setaffinity(0, before)

    def _make_mover(self, engine: str) -> CpuMover | CudaMover:
        """Make the object that copies chunks for this device. If this fails on any rank, raise on all ranks."""
        mover: CpuMover | CudaMover | None = None
        problem = None
        try:
            if self.device.type == "cuda":
                mover = CudaMover(self._control, self.device, native=engine != "torch")
            else:
                mover = CpuMover(self._control)
        except Exception as error:  # noqa: BLE001  # the other ranks must receive the error
            problem = error
        failed = next((reason for reason in self._gather(problem and str(problem)) if reason), None)
        if problem is not None:
            raise problem
        if failed is not None or mover is None:
            if mover is not None:
                mover.drain()
                mover.close()
            raise UsageError(failed or "there is no mover", "See that rank's output.")
        return mover

    def _await_room(self, count: int) -> None:
        """Wait until every rank has read the entries of the ring buffer that the next `count` entries overwrite."""
        while not self._control.is_ready(self._number + count - at.RING):
            self.check()
            time.sleep(1e-4)

    def _mismatch(self, rank: int) -> None:
        self._give_up(
            f"rank {rank} sends gradients of another size or type than rank {self.rank}",
            "All ranks must train the same model and use the same parameters in each step.",
        )

    def _give_up(self, what: str, hint: str) -> None:
        """Set results to NaN, let the device's streams continue, and make the next call raise WorkerFailedError.

        `what` and `hint` are the error's message and hint. Threads of the reducer and of the watch may call this.
        """
        with self._lock:
            if self._failure is not None or self._closed:
                return
            self._failure = (what, hint)
        self._mover.abandon(WorkerFailedError(what, hint))
        _finish(self._reducer, self._control)


def _finish(reducer: Any, control: Control) -> None:
    """Stop the threads, and let the streams continue with NaN: READY passes all submitted chunks.

    Counters wrap, so READY must be less than half of their range ahead (see `reached`).
    """
    reducer.stop()
    control.set(at.STATE, at.FAILED)
    control.spoil_results()
    control.set(at.READY, control.get(at.SUBMITTED) + at.WRAP // 4)
