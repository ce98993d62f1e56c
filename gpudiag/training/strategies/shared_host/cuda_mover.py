"""Copy chunks between a GPU and shared host memory without a host thread.

The GPU's streams wait for counters that CPU threads advance (`cuStreamWaitValue32`), and advance other counters
(`cuStreamWriteValue32`). Therefore all chunks of a bucket can be enqueued at once.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from gpudiag.errors import WorkerFailedError
from gpudiag.training.strategies.shared_host import layout as at
from gpudiag.training.strategies.shared_host.control import Control
from gpudiag.training.strategies.shared_host.layout import ChunkedTensor
from gpudiag.training.strategies.shared_host.native import Queues, library, new_queues
from gpudiag.training.strategies.shared_host.segment import Pinned, checked

#: CU_STREAM_WAIT_VALUE_GEQ: wait until the counter has reached the value. Counter and value may wrap.
_AT_LEAST = 0


class CudaMover:
    """Copy chunks of one GPU. Each direction has `lanes` streams, and all streams run concurrently.

    Args:
        control: this rank's access to the shared memory.
        device: the GPU.
        native: True to enqueue with compiled code if there is a C compiler.

    Raises:
        HardwareMissingError: the driver refuses to pin the memory, or cannot wait for host memory in a stream.
    """

    def __init__(self, control: Control, device: torch.device, *, native: bool = True) -> None:
        from cuda.bindings import driver

        self._driver, self._control, self._device = driver, control, device
        self._library = library() if native else None
        self._pinned = Pinned(control.address, control.layout.total_bytes, device)
        with torch.cuda.device(device):
            lanes = range(control.layout.lanes)
            # The streams have high priority, so that conversions of precision do not wait for the kernels of backward.
            make: Any = torch.cuda.Stream
            # `_pack` and `_unpack` convert precision, `_out` copies to the host, and `_in` copies to the device.
            self._pack, self._unpack = (make(device, priority=-1) for _ in range(2))
            self._out, self._in = ([make(device, priority=-1) for _ in lanes] for _ in range(2))
            self._try_waiting()
            self._queues = self._native_queues()

    def enqueue(self, chunked: ChunkedTensor) -> torch.futures.Future[torch.Tensor]:
        """Enqueue the copies of a tensor; return a future whose `wait` makes the current stream wait, not the host."""
        packed = chunked.packed
        with torch.cuda.device(self._device):
            source = torch.cuda.current_stream(self._device)
            if chunked.wire is not None:
                self._pack.wait_stream(source)
                # The buffer is free, because the current stream has waited for the buffer's previous result.
                with torch.cuda.stream(self._pack):
                    chunked.wire.copy_(chunked.tensor)
                source = self._pack
            packed_already = source.record_event()
            for stream in self._out:
                stream.wait_event(packed_already)
            # The incoming streams need no event: they wait for the sums, which follow the outgoing copies.
            self._enqueue(packed, chunked)
            for stream in self._in:
                self._unpack.wait_stream(stream)
            future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=[self._device])
            with torch.cuda.stream(self._unpack):
                if chunked.wire is not None:
                    chunked.tensor.copy_(chunked.wire)
                chunked.tensor.record_stream(self._unpack)  # keep the memory until the stream has used it
                future.set_result(chunked.tensor)
        return future

    def _enqueue(self, packed: torch.Tensor, chunked: ChunkedTensor) -> None:
        """Enqueue the copies of all chunks of `packed`, the transported tensor, with compiled code if available."""
        size = packed.element_size()
        if self._queues is not None and self._library is not None:
            problem = self._library.gpudiag_queue(
                ctypes.addressof(self._queues),
                packed.data_ptr(),
                packed.numel() * size,
                chunked.length * size,
                chunked.first,
            )
            if problem:
                checked(self._driver, (self._driver.CUresult(problem),), "queue a copy", self._device)
            return
        self._enqueue_from_python(packed.data_ptr(), size, chunked)

    def _enqueue_from_python(self, data: int, size: int, chunked: ChunkedTensor) -> None:
        """Enqueue the copies of all chunks as `gpudiag_queue` of reduce.c does. Each call of the driver takes 3 us.

        `data` is the address of the tensor on the device, and `size` the number of bytes of an element. Each chunk
        waits for a free slot. The copy of its result waits until all ranks have summed the chunk.
        """
        driver, control, layout = self._driver, self._control, self._control.layout
        wait, write = driver.cuStreamWaitValue32, driver.cuStreamWriteValue32
        page = self._pinned.on_device + layout.control(control.rank)
        outgoing, incoming = ([stream.cuda_stream for stream in side] for side in (self._out, self._in))
        for number, begin, end in chunked.chunks:
            lane, at_device, count = number % layout.lanes, data + begin * size, (end - begin) * size
            out, back, line = outgoing[lane], incoming[lane], lane * at.LINE
            slot = control.address + layout.slot(control.rank, number)
            result = control.address + layout.slot(layout.world, number)
            following = (number + 1) % at.WRAP
            for answer in (
                wait(out, page + at.READY, (following - layout.slots) % at.WRAP, _AT_LEAST),
                driver.cuMemcpyDtoHAsync(slot, at_device, count, out),
                write(out, page + at.ARRIVED + line, following, 0),
                wait(back, page + at.READY, following, _AT_LEAST),
                driver.cuMemcpyHtoDAsync(at_device, result, count, back),
                write(back, page + at.FETCHED + line, following, 0),
            ):
                checked(driver, answer, "queue a copy", self._device)

    def _native_queues(self) -> Queues | None:
        """Return the streams and addresses for `gpudiag_queue`; None without the library or the driver's functions."""
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
        """Wait until all enqueued copies are done."""
        for stream in (*self._out, *self._in, self._unpack):
            stream.synchronize()

    def close(self) -> None:
        """Unpin the memory. No copy may use the memory afterwards."""
        self._pinned.close()

    def abandon(self, problem: WorkerFailedError) -> None:
        """Do nothing. The streams continue when `SharedHostAllReduce` sets the counter READY."""

    def _try_waiting(self) -> None:
        """Check, with an unused counter, that this GPU's streams can wait for shared memory and write to it."""
        driver, stream = self._driver, self._in[0].cuda_stream
        counter = self._pinned.on_device + self._control.layout.control(self._control.rank) + at.FETCHED
        hint = "Use nccl: this driver or device lacks stream memory operations."
        what = "wait for host memory in a stream"
        checked(driver, driver.cuStreamWriteValue32(stream, counter, 0, 0), what, self._device, hint)
        checked(driver, driver.cuStreamWaitValue32(stream, counter, 0, _AT_LEAST), what, self._device, hint)
        self._in[0].synchronize()
