"""All-reduce over all GPUs with NCCL: 1 KiB to 512 MiB, for each algorithm asked for.

As nccl-tests measures: one process, fp32 sums out of place, 20 of them queued from the host after warm-up, time by the
host's clock until all GPUs are done, divided by 20. Each size is verified. Peer access off: start this program with
NCCL_P2P_DISABLE=1. Prints one JSON object, gpudiag/probe-allreduce/1.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any

from _clocks import Sensors, warm_up
from _cuda import MIB, Gpu, buffer_bytes, open_gpus
from _nccl import FLOAT_BYTES, AllReduce, Nccl
from _pattern import fresh_seed
from _protocol import Probe
from _stopwatch import CV_BOUND, coefficient_of_variation

if TYPE_CHECKING:
    import argparse
    import ctypes

_LARGEST = 512 * MIB
_ITERATIONS = 20
#: Of the free device memory for one buffer: up to four programs with two each are loaded at once.
_SHARE = 0.05
_ALGORITHMS = {"nccl": None, "nccl-ring": "Ring", "nccl-tree": "Tree", "nccl-no-p2p": None}
#: NCCL connects its channels at the first use of a protocol, which depends on the size: touch each while loading.
_TOUCH = (1024, 64 * 1024, MIB, 8 * MIB, 64 * MIB)


def sizes(largest: int, *, quick: bool) -> list[int]:
    """Bytes to measure: powers of two from 1 KiB; five of them when quick."""
    every = [1 << power for power in range(10, 30) if 1 << power <= largest]
    return [size for size in every if size in {1 << 10, 1 << 16, 1 << 20, 1 << 25, 1 << 28}] if quick else every


class Bench:
    """All GPUs, their buffers, and the communicators of each strategy."""

    def __init__(self, probe: Probe, nccl: Nccl, gpus: list[Gpu], strategies: list[str]) -> None:
        self.probe = probe
        self.gpus = gpus
        self.seed = fresh_seed()
        self.largest = min(_LARGEST, buffer_bytes(gpus, _LARGEST, _SHARE))
        self.buffers = [(gpu.allocate(self.largest), gpu.allocate(self.largest)) for gpu in gpus]
        self.verify = not any(gpu.kernels_missing for gpu in gpus)
        if self.verify:
            for rank, (gpu, (source, _)) in enumerate(zip(gpus, self.buffers, strict=True)):
                gpu.fill_summands(source, self.largest // FLOAT_BYTES, self.seed, rank)
        self.nccl = nccl
        self.communicators: dict[str, list[ctypes.c_void_p]] = {}
        for strategy in strategies:
            with probe.attempt(f"{strategy}: communicator"):
                self.communicators[strategy] = self.nccl.communicators(gpus, _ALGORITHMS[strategy])
                for size in _TOUCH:
                    if size <= self.largest:
                        step = self.all_reduce(strategy, size)
                        step.queue(1)
                        step.wait()

    def all_reduce(self, strategy: str, size: int) -> AllReduce:
        """The collective of one size."""
        return AllReduce(self.nccl, self.gpus, self.communicators[strategy], self.buffers, size // FLOAT_BYTES)

    def measure(self, strategy: str, size: int, target_s: float, repeats: tuple[int, int]) -> dict[str, Any]:
        """Median time of one all-reduce, verified. Raises ProbeError."""
        step = self.all_reduce(strategy, size)
        wrong = self._wrong(step, size) if self.verify else None
        began = time.perf_counter()
        step.queue(2)
        step.wait()
        taste_s = (time.perf_counter() - began) / 2
        iterations = max(3, min(_ITERATIONS, int(target_s / taste_s)))
        least, most = repeats
        times: list[float] = []
        while len(times) < least or (len(times) < most and coefficient_of_variation(times[-least:]) >= CV_BOUND):
            began = time.perf_counter()
            step.queue(iterations)
            step.wait()
            times.append((time.perf_counter() - began) / iterations)
        settled = times[-least:] if len(times) < most else times
        return {
            "operation": "all_reduce",
            "strategy": strategy,
            "ranks": len(self.gpus),
            "bytes": size,
            "time_us": statistics.median(settled) * 1e6,
            "cv": coefficient_of_variation(settled),
            "iterations": iterations,
            "repeats": len(times),
            "wrong_values": wrong,
        }

    def _wrong(self, step: AllReduce, size: int) -> int:
        for gpu, (_, target) in zip(self.gpus, self.buffers, strict=True):
            gpu.poison(target, size)
        step.queue(1)
        step.wait()
        count, ranks = size // FLOAT_BYTES, len(self.gpus)
        return sum(
            gpu.count_wrong_sums(target, count, self.seed, ranks)
            for gpu, (_, target) in zip(self.gpus, self.buffers, strict=True)
        )


def options_of(probe: Probe) -> argparse.Namespace:
    """The command line, with the strategies to measure."""
    known = ", ".join(_ALGORITHMS)
    probe.parser.add_argument("--strategies", default="nccl", help=f"comma-separated, of {known}")
    options = probe.options()
    options.strategies = [name for name in options.strategies.split(",") if name]
    unknown = [name for name in options.strategies if name not in _ALGORITHMS]
    if unknown:
        probe.parser.error(f"there is no strategy {unknown[0]!r}; there are {known}")
    return options


def main() -> None:
    """Measure each strategy at each size, largest time last."""
    probe = Probe("gpudiag/probe-allreduce/1", __doc__.splitlines()[0])
    options = options_of(probe)
    gpus = open_gpus(probe)
    if len(gpus) < 2:
        probe.unavailable("an all-reduce between GPUs needs two of them")
    try:
        nccl = Nccl()
    except OSError as error:
        probe.unavailable(f"NCCL cannot be loaded ({error}); pip install nvidia-nccl-cu12 or -cu13 brings it")
    bench: Bench | None = None
    with probe.attempt("all-reduce buffers"):
        probe.versions["nccl"] = nccl.version()
        bench = Bench(probe, nccl, gpus, options.strategies)
    sensors = Sensors(gpus)
    probe.ready()
    if bench is None:
        probe.finish(gpus=[gpu.describe() for gpu in gpus])

    probe.progress("warming up", 0, 1)
    warm_up(gpus, sensors, bench.buffers, bench.largest)
    todo = [(name, size) for name in bench.communicators for size in sizes(bench.largest, quick=options.quick)]
    target_s = max(0.005, min(0.06, options.seconds / max(1, len(todo)) / 4))
    collectives: list[dict[str, Any]] = []
    for done, (strategy, size) in enumerate(todo):
        label = f"{strategy} all-reduce, {size // 1024} KiB"
        probe.progress(label, done, len(todo))
        with probe.attempt(label):
            collectives.append(bench.measure(strategy, size, target_s, (3, 5) if options.quick else (4, 8)))
    probe.finish(gpus=[gpu.describe() for gpu in gpus], collectives=collectives)


if __name__ == "__main__":
    main()
