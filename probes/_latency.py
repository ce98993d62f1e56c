"""Measure the latency of a copy of 16 bytes, and of a load that depends on the previous load."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

import numpy as np
from _cuda import call
from _flows import GateGaveUpError, run_on_gpu
from _protocol import ProbeError
from _stopwatch import coefficient_of_variation

if TYPE_CHECKING:
    from _cuda import Gpu
    from _flows import Flow, Gate

SMALL_BYTES = 16
#: Lines of a table, and 8-byte words of a line. The table's 2 MiB exceed any L1 cache, but one TLB entry covers them.
_LINES, _WORDS_PER_LINE = 16384, 16
_REPEATS = 3
#: Number of loads of a timed walk, which takes milliseconds over any link.
_TIMED_LOADS = 4096


def small_copy(gate: Gate, flow: Flow, copies: int) -> dict[str, Any]:
    """Queue `copies` copies of 16 bytes together; return `time_us` per copy, its `cv`, and whether it was `gated`.

    A first run, which is not timed, shows whether the gate can be used.
    """
    gated = True
    try:
        run_on_gpu(gate, [flow], SMALL_BYTES, copies)
    except GateGaveUpError:
        gated = False
    times = [run_on_gpu(gate, [flow], SMALL_BYTES, copies, gated=gated)[0][-1] / copies for _ in range(_REPEATS + 2)]
    return {"time_us": statistics.median(times) * 1e6, "cv": coefficient_of_variation(times), "gated": gated}


def chase_table(seed: int) -> np.ndarray:
    """Return a table for `Gpu.chase`: one random cycle through all lines, which no prefetcher can predict.

    The first word of each line is the position of the first word of the next line.
    """
    order = np.random.default_rng(seed).permutation(_LINES)
    table = np.zeros(_LINES * _WORDS_PER_LINE, dtype=np.uint64)
    table[order * _WORDS_PER_LINE] = np.roll(order, -1) * _WORDS_PER_LINE
    return table


def dependent_load(gate: Gate, gpu: Gpu, table: int) -> dict[str, Any]:
    """Measure loads while `gpu` walks a quarter of the table at address `table`.

    Return `time_us` per load, and its `cv`. A first walk through the whole table, which is not timed, brings the table
    into the cache of the memory's owner (for a remote GPU its L2). Flags by which GPUs communicate would be there too.
    """
    if gpu.kernels_missing:
        raise ProbeError(gpu.kernels_missing)
    gpu.chase(table, _LINES, gpu.stream)
    gpu.wait()
    times = []
    for _ in range(_REPEATS):
        gate.close()
        start, end = gpu.events(0, 2)
        try:
            gate.hold(gpu, gpu.stream)
            call("cuEventRecord", start, gpu.stream)
            gpu.chase(table, _TIMED_LOADS, gpu.stream)
            call("cuEventRecord", end, gpu.stream)
        finally:
            gate.open()
        call("cuEventSynchronize", end)
        times.append(call("cuEventElapsedTime", start, end) / 1e3 / _TIMED_LOADS)
    return {"time_us": statistics.median(times) * 1e6, "cv": coefficient_of_variation(times)}
