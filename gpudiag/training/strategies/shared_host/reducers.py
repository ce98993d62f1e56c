"""Sum one rank's share of each chunk in separate threads, with compiled loops or with PyTorch's operators."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Protocol

import torch

from gpudiag.training.strategies.shared_host import layout as at
from gpudiag.training.strategies.shared_host.control import Control
from gpudiag.training.strategies.shared_host.native import MOST_THREADS, library, new_engine

#: Numbers of element types in reduce.c.
KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.float64: 3}
DTYPES = {number: dtype for dtype, number in KINDS.items()}

#: Number of rounds (15 to 70 ns each) that a thread spins before it sleeps. The first value applies if every thread has
#: a processor (about 1 ms in total), the second if threads share processors.
_SPIN, _SPIN_IN_TURN = 20_000, 300

#: Maximum number of threads of PyTorch's operators. More threads would wait for each other.
_TORCH_THREADS = 4

_PCI = Path("/sys/bus/pci/devices")

#: Maximum seconds to wait for the end of a thread, which first finishes its current chunk.
_JOIN_S = 10.0


class Reducer(Protocol):
    """Sum one rank's share of each chunk as soon as the chunk has arrived from every rank."""

    name: str

    def submit(self, number: int) -> None:
        """Announce that `number` chunks have been submitted in total. The ring buffer contains their descriptions."""

    def stop(self) -> None:
        """Stop the threads, and wait for their end."""


class NativeReducer:
    """Run the loops of reduce.c: one thread coordinates, the others sum. `make_reducer` explains the arguments."""

    name = "native"

    def __init__(
        self,
        control: Control,
        *,
        threads: int,
        cpus: Collection[int],
        mismatch: Callable[[int], None],
        loaded: ctypes.CDLL,
    ) -> None:
        self._library = loaded
        engine, self._memory = new_engine(loaded)
        base, layout = control.address, control.layout
        engine.control, engine.pieces, engine.staging = base, base + layout.pieces, base + layout.staging
        engine.page_bytes, engine.chunk_bytes = at.PAGE, layout.chunk_bytes
        engine.rank, engine.world = control.rank, layout.world
        engine.slots, engine.lanes, engine.ring = layout.slots, layout.lanes, at.RING
        engine.threads = min(threads, MOST_THREADS)
        # With fewer processors than threads, a spinning thread would take the processor of a working thread. Each rank
        # also has the coordinating thread and the training thread.
        roomy = len(cpus) >= layout.world * (engine.threads + 2)
        engine.spin = _SPIN if roomy else _SPIN_IN_TURN
        engine.in_turn = not roomy
        self._control = control  # keeps the memory alive that the engine points to
        self._engine = ctypes.addressof(engine)

        def coordinate() -> None:
            answer = loaded.gpudiag_coordinate(self._engine)
            if answer:  # not stopped: the upper bits are the rank whose chunk differs
                mismatch(answer >> 8)

        loops: list[Callable[[], Any]] = [coordinate]
        loops += [lambda thread=thread: loaded.gpudiag_reduce(self._engine, thread) for thread in range(engine.threads)]  # type: ignore[misc]  # mypy cannot infer a lambda with a default
        self._threads = [_start(loop, cpus) for loop in loops]

    def submit(self, number: int) -> None:
        """See `Reducer`."""
        self._library.gpudiag_submit(self._engine, number % at.WRAP)

    def stop(self) -> None:
        """See `Reducer`."""
        self._library.gpudiag_stop(self._engine)
        _join(self._threads)


class TorchReducer:
    """Sum with PyTorch's operators, in one thread that uses PyTorch's intra-op threads. See `make_reducer`.

    This reducer reacts later than `NativeReducer`, because it polls in Python and waits for the interpreter lock.
    """

    name = "torch"

    def __init__(self, control: Control, *, cpus: Collection[int], mismatch: Callable[[int], None]) -> None:
        self._control, self._mismatch = control, mismatch
        self._submitted = 0
        self._stopped = False
        self._sum, self._term = torch.empty(0), torch.empty(0)
        self._wake = threading.Event()
        threads, set_up = torch.get_num_threads(), threading.Event()

        def run() -> None:
            torch.set_num_threads(min(threads, _TORCH_THREADS))
            set_up.set()
            self._loop()

        self._threads = [_start(run, cpus)]
        set_up.wait()
        # Restore the number of threads for new threads, which inherit the last value that any thread has set.
        torch.set_num_threads(threads)

    def submit(self, number: int) -> None:
        """See `Reducer`."""
        self._submitted = number % at.WRAP
        self._wake.set()

    def stop(self) -> None:
        """See `Reducer`."""
        self._stopped = True
        self._wake.set()
        _join(self._threads)

    def _loop(self) -> None:
        """Sum chunks that have arrived, and publish the number of chunks that all ranks have summed."""
        control, done, ready, idle = self._control, 0, 0, 0
        while not self._stopped:
            moved = False
            if done != self._submitted and control.may_reduce(done):
                other = control.unlike(done)
                if other is not None:
                    self._mismatch(other)
                    return
                self._reduce(done)
                done = (done + 1) % at.WRAP
                control.set(at.REDUCED, done)
                moved = True
            least = control.least_reduced(done)
            if least != ready:
                ready = least
                control.set(at.READY, ready)
                moved = True
            idle = 0 if moved else idle + 1
            if ready == self._submitted and idle > 100:  # nothing to do: sleep until `submit`
                self._wake.clear()
                if ready == self._submitted and not self._stopped:  # still nothing to do after `clear`
                    self._wake.wait(0.1)
            elif idle:  # poll; yield the processor in the first rounds, and sleep 20 us in later rounds
                time.sleep(0 if idle < 20 else 2e-5)

    def _reduce(self, number: int) -> None:
        """Sum this rank's share of a chunk over the ranks, and divide the sum. Sums are in float32 or float64."""
        control = self._control
        count, kind, divisor = control.piece(control.rank, number)
        dtype, world = DTYPES[kind], control.layout.world
        # Shares begin at multiples of `at.ALIGNMENT`, as in reduce.c. The last rank sums the rest.
        begin, end = (count * share // world & ~31 for share in (control.rank, control.rank + 1))
        end = count if control.rank == world - 1 else end
        if begin >= end:
            return
        terms = [control.slot(rank, number, dtype)[begin:end] for rank in range(world)]
        result = control.slot(world, number, dtype)[begin:end]
        if dtype in {torch.float32, torch.float64}:
            torch.add(terms[0], terms[1], out=result)
            for term in terms[2:]:
                result.add_(term)
            result.mul_(1.0 / divisor)
            return
        if self._sum.numel() < end - begin:  # half precision is summed in float32
            self._sum, self._term = torch.empty(end - begin), torch.empty(end - begin)
        total, wide = self._sum[: end - begin], self._term[: end - begin]
        total.copy_(terms[0])
        for term in terms[1:]:
            total.add_(wide.copy_(term))
        result.copy_(total.mul_(1.0 / divisor))


def make_reducer(
    control: Control, *, engine: str, threads: int, cpus: Collection[int], mismatch: Callable[[int], None]
) -> Reducer:
    """Make and start a reducer.

    Args:
        control: this rank's access to the shared memory.
        engine: `native`; `torch`; or `auto` for `native` if there is a C compiler, else `torch`.
        threads: number of summing threads of the native reducer.
        cpus: processors on which the threads run.
        mismatch: called in a thread of the reducer with a rank whose chunk differs from this rank's chunk.

    Raises:
        ValueError: `native` is requested, but there is no C compiler.
    """
    loaded = None if engine == "torch" else library()
    if loaded is not None:
        return NativeReducer(control, threads=threads, cpus=cpus, mismatch=mismatch, loaded=loaded)
    if engine == "native":
        raise ValueError("the native engine needs a C compiler (cc, gcc or clang), which was not found")
    return TorchReducer(control, cpus=cpus, mismatch=mismatch)


def _start(loop: Callable[[], Any], cpus: Collection[int]) -> threading.Thread:
    """Start a thread that runs `loop` on these processors."""

    def run() -> None:
        if cpus:
            with contextlib.suppress(OSError):  # these processors may no longer be allowed for this process
                os.sched_setaffinity(0, cpus)
        loop()

    thread = threading.Thread(target=run, name="gpudiag-reduce", daemon=True)
    thread.start()
    return thread


def _join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join(_JOIN_S)


def processors_near(device: torch.device) -> set[int]:
    """Return the usable processors of a GPU's NUMA node.

    Return all usable processors for a CPU, for an unknown node, and for a node without usable processors.
    """
    allowed = os.sched_getaffinity(0)
    if device.type != "cuda":
        return allowed
    try:
        near = parse_cpu_list((_PCI / _pci_address(device) / "local_cpulist").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return allowed
    return near & allowed or allowed


def _pci_address(device: torch.device) -> str:
    """Return the GPU's PCI address as sysfs writes it (0000:3b:00.0); raise ValueError if the address is unknown."""
    from cuda.bindings import runtime

    error, name = runtime.cudaDeviceGetPCIBusId(32, device.index or 0)  # up to 32 characters
    if error != runtime.cudaError_t.cudaSuccess:
        raise ValueError(str(error))
    text = name.decode("ascii") if isinstance(name, bytes) else str(name)
    return text.split("\0")[0].strip().lower()


def parse_cpu_list(text: str) -> set[int]:
    """Return the processors in a list such as '0-3,8', as Linux writes it; raise ValueError for other text."""
    cpus: set[int] = set()
    for interval in filter(None, text.strip().split(",")):
        first, _, last = interval.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return cpus
