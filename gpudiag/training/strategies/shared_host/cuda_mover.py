"""Chunks between a GPU and shared host memory, with no thread of the host in between.

The GPU's streams themselves wait for the counters that the CPUs' threads advance, and advance their own
(`cuStreamWaitValue32`, `cuStreamWriteValue32`), so a whole bucket is put into the streams' queues at once.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from gpudiag.errors import WorkerFailedError
from gpudiag.training.strategies.shared_host import layout as at
from gpudiag.training.strategies.shared_host.control import Control
from gpudiag.training.strategies.shared_host.native import Queues, library, new_queues
from gpudiag.training.strategies.shared_host.pinning import Pinned, checked
from gpudiag.training.strategies.shared_host.work import Work

#: CU_STREAM_WAIT_VALUE_GEQ: until the counter is at or past the value; both may wrap.
_AT_LEAST = 0


class CudaMover:
    """Moves chunks of one GPU. Outgoing and incoming copies run at the same time, each direction on `lanes` streams.

    Args:
        control: the shared memory, seen from this rank.
        device: the GPU.
        native: queue through compiled code where there is a C compiler.

    Raises:
        HardwareMissingError: the driver refuses to pin the memory, or cannot wait for host memory in a stream.
    """

    def __init__(self, control: Control, device: torch.device, *, native: bool = True) -> None:
        from cuda.bindings import driver

        self._driver = driver
        self._control = control
        self._device = device
        self._library = library() if native else None
        self._pinned = Pinned(control.address, control.layout.total_bytes, device)
        with torch.cuda.device(device):
            lanes = range(control.layout.lanes)
            # High priority, so that the kernels which change precision need not queue behind backward's.
            make: Any = torch.cuda.Stream
            self._pack, self._unpack = (make(device, priority=-1) for _ in range(2))
            self._out, self._in = ([make(device, priority=-1) for _ in lanes] for _ in range(2))
            self._try_waiting()
            self._queues = self._native_queues()

    def exchange(self, work: Work) -> torch.futures.Future[torch.Tensor]:
        """Queue all of the work's chunks. The future is done at once for the host; its value waits on the GPU."""
        packed = work.packed
        with torch.cuda.device(self._device):
            today = torch.cuda.current_stream(self._device)
            if work.wire is not None:
                self._pack.wait_stream(today)
                # The last use of this buffer was waited for by whoever used the last result, and so by today's stream.
                with torch.cuda.stream(self._pack):
                    work.wire.copy_(work.tensor)
                today = self._pack
            packed_already = today.record_event()
            for stream in self._out:
                stream.wait_event(packed_already)
            # Incoming copies need not wait for that: the sums that they wait for contain what goes out.
            self._queue(packed, work)
            for stream in self._in:
                self._unpack.wait_stream(stream)
            future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=[self._device])
            with torch.cuda.stream(self._unpack):
                if work.wire is not None:
                    work.tensor.copy_(work.wire)
                work.tensor.record_stream(self._unpack)
                future.set_result(work.tensor)
        return future

    def _queue(self, packed: torch.Tensor, work: Work) -> None:
        size = packed.element_size()
        if self._queues is not None and self._library is not None:
            problem = self._library.gpudiag_queue(
                ctypes.addressof(self._queues),
                packed.data_ptr(),
                packed.numel() * size,
                work.length * size,
                work.first,
            )
            if problem:
                checked(self._driver, (self._driver.CUresult(problem),), "queue a copy", self._device)
            return
        self._queue_from_python(packed.data_ptr(), size, work)

    def _queue_from_python(self, data: int, size: int, work: Work) -> None:
        """The same as `gpudiag_queue` of reduce.c, at some 3 us per call."""
        driver, control, layout = self._driver, self._control, self._control.layout
        wait, write = driver.cuStreamWaitValue32, driver.cuStreamWriteValue32
        page = self._pinned.on_device + layout.control(control.rank)
        outgoing, incoming = ([stream.cuda_stream for stream in side] for side in (self._out, self._in))
        for number, begin, end in work.chunks:
            lane, at_device, count = number % layout.lanes, data + begin * size, (end - begin) * size
            out, back, line = outgoing[lane], incoming[lane], lane * at.LINE
            own = control.address + layout.slot(control.rank, number)
            result = control.address + layout.slot(layout.world, number)
            following = (number + 1) % at.WRAP
            for answer in (
                wait(out, page + at.READY, (following - layout.slots) % at.WRAP, _AT_LEAST),
                driver.cuMemcpyDtoHAsync(own, at_device, count, out),
                write(out, page + at.ARRIVED + line, following, 0),
                wait(back, page + at.READY, following, _AT_LEAST),
                driver.cuMemcpyHtoDAsync(at_device, result, count, back),
                write(back, page + at.FETCHED + line, following, 0),
            ):
                checked(driver, answer, "queue a copy", self._device)

    def _native_queues(self) -> Queues | None:
        """What `gpudiag_queue` needs; None where there is no compiled library."""
        queues = None if self._library is None else new_queues()
        if queues is None:
            return None
        control, layout = self._control, self._control.layout
        queues.staging = control.address + layout.staging
        queues.page = self._pinned.on_device + layout.control(control.rank)
        queues.chunk_bytes = layout.chunk_bytes
        queues.rank, queues.world = control.rank, layout.world
        queues.slots, queues.lanes = layout.slots, layout.lanes
        for lane in range(layout.lanes):
            queues.outgoing[lane] = self._out[lane].cuda_stream
            queues.incoming[lane] = self._in[lane].cuda_stream
        return queues

    def drain(self) -> None:
        """Wait until everything queued has been done."""
        for stream in (*self._out, *self._in, self._unpack):
            stream.synchronize()

    def close(self) -> None:
        """Unpin the memory. Nothing may be under way."""
        self._pinned.close()

    def abandon(self, problem: WorkerFailedError) -> None:
        """Nothing to do: the streams go on once READY says so."""

    def _try_waiting(self) -> None:
        """Can streams of this GPU wait for and write this memory? Uses a counter's place before the first chunk."""
        driver, stream = self._driver, self._in[0].cuda_stream
        place = self._pinned.on_device + self._control.layout.control(self._control.rank) + at.FETCHED
        hint = "Use nccl: this driver or device lacks stream memory operations."
        what = "wait for host memory in a stream"
        checked(driver, driver.cuStreamWriteValue32(stream, place, 0, 0), what, self._device, hint)
        checked(driver, driver.cuStreamWaitValue32(stream, place, 0, _AT_LEAST), what, self._device, hint)
        self._in[0].synchronize()
