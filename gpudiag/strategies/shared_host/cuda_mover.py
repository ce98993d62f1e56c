"""Chunks between a GPU and shared host memory, with no thread of the host in between.

The GPU's streams themselves wait for the counters that the CPUs' threads advance, and advance their own
(`cuStreamWaitValue32`, `cuStreamWriteValue32`), so a whole bucket is put into the streams' queues at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from gpudiag.errors import HardwareMissingError
from gpudiag.strategies.shared_host import layout as at

if TYPE_CHECKING:
    from gpudiag.strategies.shared_host.control import Control
    from gpudiag.strategies.shared_host.work import Work


class CudaMover:
    """Moves chunks of one GPU. Outgoing and incoming copies run at the same time, each direction on `lanes` streams.

    Args:
        control: the shared memory, seen from this rank.
        device: the GPU.

    Raises:
        HardwareMissingError: the driver refuses to pin the memory, or cannot wait for host memory in a stream.
    """

    def __init__(self, control: Control, device: torch.device) -> None:
        from cuda.bindings import driver

        self._driver = driver
        self._control = control
        self._device = device
        self._registered = False
        self._made = False
        torch.cuda.current_stream(device).synchronize()  # makes the context, if need be
        flags = driver.CU_MEMHOSTREGISTER_PORTABLE | driver.CU_MEMHOSTREGISTER_DEVICEMAP
        with torch.cuda.device(device):
            self._call(
                "cuMemHostRegister",
                driver.cuMemHostRegister(control.address, control.layout.total_bytes, flags),
                f"pin {control.layout.total_bytes / 1e6:.0f} MB of shared memory",
                "Raise the limit on locked memory (ulimit -l, docker --ulimit memlock=-1), or use another strategy.",
            )
            self._registered = True
            (pointer,) = self._call(
                "cuMemHostGetDevicePointer", driver.cuMemHostGetDevicePointer(control.address, 0), "map shared memory"
            )
            self._base = int(pointer)
            lanes = range(control.layout.lanes)
            # High priority, so that the kernels which change precision need not queue behind backward's.
            make: Any = torch.cuda.Stream
            self._pack, self._unpack = (make(device, priority=-1) for _ in range(2))
            self._out, self._in = ([make(device, priority=-1) for _ in lanes] for _ in range(2))
            self._try_waiting()

    def exchange(self, work: Work) -> torch.futures.Future[torch.Tensor]:
        """Queue all of the work's chunks. The future is done at once for the host; its value waits on the GPU."""
        driver, control, layout = self._driver, self._control, self._control.layout
        wait, write = driver.cuStreamWaitValue32, driver.cuStreamWriteValue32
        at_least = driver.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ
        page = self._base + layout.control(control.rank)
        with torch.cuda.device(self._device):
            packed = self._packed(work)
            for stream in (*self._out, *self._in):
                stream.wait_stream(self._pack)
            outgoing, incoming = ([stream.cuda_stream for stream in side] for side in (self._out, self._in))
            size, data = packed.element_size(), packed.data_ptr()
            problems = []
            for number, begin, end in work.chunks:
                lane, offset, count = number % layout.lanes, data + begin * size, (end - begin) * size
                out, back = outgoing[lane], incoming[lane]
                own, result = layout.slot(control.rank, number), layout.slot(layout.world, number)
                line = lane * at.LINE
                problems += [
                    wait(out, page + at.READY, (number + 1 - layout.slots) % at.WRAP, at_least)[0],
                    driver.cuMemcpyDtoHAsync(control.address + own, offset, count, out)[0],
                    write(out, page + at.ARRIVED + line, (number + 1) % at.WRAP, 0)[0],
                    wait(back, page + at.READY, (number + 1) % at.WRAP, at_least)[0],
                    driver.cuMemcpyHtoDAsync(offset, control.address + result, count, back)[0],
                    write(back, page + at.FETCHED + line, (number + 1) % at.WRAP, 0)[0],
                ]
            for problem in problems:
                if problem != driver.CUresult.CUDA_SUCCESS:
                    self._call("a copy", (problem,), "queue a copy")
            for stream in self._in:
                self._unpack.wait_stream(stream)
            future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=[self._device])
            with torch.cuda.stream(self._unpack):
                if packed.data_ptr() != work.tensor.data_ptr():
                    work.tensor.copy_(packed)
                work.tensor.record_stream(self._unpack)
                future.set_result(work.tensor)
        return future

    def _packed(self, work: Work) -> torch.Tensor:
        """The tensor in the precision of the wire, on the packing stream; the tensor itself where that is its own."""
        self._pack.wait_stream(torch.cuda.current_stream(self._device))
        if work.wire is None:
            return work.tensor
        # The last use of this buffer was waited for by whoever used the last result, and so by the stream of today.
        with torch.cuda.stream(self._pack):
            work.wire.copy_(work.tensor)
        return work.wire

    def drain(self) -> None:
        """Wait until everything queued has been done."""
        for stream in (*self._out, *self._in, self._unpack):
            stream.synchronize()

    def close(self) -> None:
        """Unpin the memory. Nothing may be under way."""
        if self._registered:
            self._registered = False
            with torch.cuda.device(self._device):
                self._driver.cuMemHostUnregister(self._control.address)

    def abandon(self) -> None:
        """Nothing to do: the streams go on once READY says so."""

    def _try_waiting(self) -> None:
        """Can streams of this GPU wait for and write this memory? Uses a counter's place before the first chunk."""
        driver, stream = self._driver, self._in[0].cuda_stream
        place = self._base + self._control.layout.control(self._control.rank) + at.FETCHED
        hint = "Use nccl: this driver or device lacks stream memory operations."
        at_least = driver.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ
        what = "wait for host memory in a stream"
        self._call("cuStreamWriteValue32", driver.cuStreamWriteValue32(stream, place, 0, 0), what, hint)
        self._call("cuStreamWaitValue32", driver.cuStreamWaitValue32(stream, place, 0, at_least), what, hint)
        self._in[0].synchronize()

    def _call(self, name: str, answer: tuple[Any, ...], what: str, hint: str | None = None) -> tuple[Any, ...]:
        if answer[0] != self._driver.CUresult.CUDA_SUCCESS:
            _, text = self._driver.cuGetErrorName(answer[0])
            told = text.decode() if isinstance(text, bytes) else str(answer[0])
            self.close()
            raise HardwareMissingError(f"cpu-reduce cannot {what} on {self._device} ({name}: {told})", hint)
        return answer[1:]
