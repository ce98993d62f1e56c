"""Measure all-reduce over all GPUs with NCCL, from 1 KiB to 512 MiB, for each requested algorithm.

The method is that of nccl-tests: one process, fp32 sums out of place, up to 20 all-reduces launched in sequence,
after a warm-up. The result is the host's time until all GPUs have finished, divided by the number of all-reduces. Up
to 1 MiB a launch takes longer than an all-reduce. Therefore these sizes are also measured with all launches queued
behind a gate (strategy `<name>-queued`). Each size is verified. To measure without peer access, start this program with
NCCL_P2P_DISABLE=1. The program prints one JSON object, gpudiag/probe-allreduce/1.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import statistics
from typing import TYPE_CHECKING, Any

from _clocks import Sensors, warm_up
from _cuda import MIB, Gpu, buffer_bytes, open_gpus
from _flows import Gate, GateGaveUpError
from _nccl import FLOAT_BYTES, AllReduce, Nccl, fastest_cpu
from _pattern import fresh_seed
from _protocol import Probe
from _stopwatch import CV_BOUND, coefficient_of_variation

if TYPE_CHECKING:
    import ctypes
    from collections.abc import Callable, Iterator

SCHEMA = "gpudiag/probe-allreduce/1"
_LARGEST = 512 * MIB
_ITERATIONS = 20
#: Largest size that is also measured queued. Up to this size, launching takes longer than reducing.
_LARGEST_QUEUED = MIB
#: Strategies whose queued times are measured, because training steps use them.
_QUEUED = {"nccl", "nccl-no-p2p"}
#: Minimum number of all-reduces of a run. In shorter runs the first launch adds 2 % (128 MiB, without peer access).
_FEWEST = 4
#: Share of the free device memory for one buffer. Up to four programs with two buffers each load at once.
_SHARE = 0.05
#: NCCL's algorithm of each strategy; None lets NCCL choose.
_ALGORITHMS = {"nccl": None, "nccl-ring": "Ring", "nccl-tree": "Tree", "nccl-no-p2p": None}
#: Bytes of the all-reduces that run during loading, because NCCL connects its channels at each protocol's first use.
_CONNECT = (1024, 64 * 1024, MIB, 8 * MIB, 64 * MIB)


def sizes(largest: int, *, quick: bool) -> list[int]:
    """Return the sizes to measure in bytes: powers of two from 1 KiB on, or five of them with `quick`."""
    powers = [1 << power for power in range(10, 30) if 1 << power <= largest]
    return [size for size in powers if size in {1 << 10, 1 << 16, 1 << 20, 1 << 25, 1 << 28}] if quick else powers


class Bench:
    """All GPUs, their buffers, and the communicators of each strategy.

    Args:
        probe: records communicators that cannot be created.
        nccl: the library.
        gpus: the GPUs.
        strategies: names of the strategies to measure.
        buffers: source and target address on each GPU, to be overwritten.
        largest: bytes of each buffer.
    """

    def __init__(
        self,
        probe: Probe,
        nccl: Nccl,
        gpus: list[Gpu],
        *,
        strategies: list[str],
        buffers: list[tuple[int, int]],
        largest: int,
    ) -> None:
        self.gpus = gpus
        self.seed = fresh_seed()
        self.largest = largest
        self.buffers = buffers
        self.verify = not any(gpu.kernels_missing for gpu in gpus)
        if self.verify:
            for rank, (gpu, (source, _)) in enumerate(zip(gpus, self.buffers, strict=True)):
                gpu.fill_summands(source, self.largest // FLOAT_BYTES, self.seed, rank)
        self.nccl = nccl
        self._not_queued: set[str] = set()
        self.communicators: dict[str, list[ctypes.c_void_p]] = {}
        for strategy in strategies:
            with probe.attempt(f"{strategy}: communicator"):
                with probe.phase("communicators"):
                    self.communicators[strategy] = self.nccl.communicators(gpus, _ALGORITHMS[strategy])
                with probe.phase("connecting"):
                    for size in _CONNECT:
                        if size <= self.largest:
                            step = self.all_reduce(strategy, size)
                            step.queue(1)
                            step.wait()

    def all_reduce(self, strategy: str, size: int) -> AllReduce:
        """Return the all-reduce of this strategy and size."""
        return AllReduce(self.nccl, self.gpus, self.communicators[strategy], self.buffers, size // FLOAT_BYTES)

    def measure_all(self, probe: Probe, gate: Gate, seconds: float, *, quick: bool) -> dict[str, Any]:
        """Measure every strategy at every size in about `seconds`, and return the fields of the result."""
        todo = [(name, size) for name in self.communicators for size in sizes(self.largest, quick=quick)]
        target_s = max(0.005, min(0.06, seconds / max(1, len(todo)) / 4))  # a size takes at least about four runs
        repeats = (3, 5) if quick else (4, 8)  # see `measure`
        collectives: list[dict[str, Any]] = []
        # Garbage collection would lengthen the launch times.
        gc.disable()
        with contextlib.ExitStack() as stack:
            if todo:
                with probe.phase("choosing a CPU"):
                    stack.enter_context(fastest_cpu(self.all_reduce(todo[0][0], min(64 * 1024, self.largest))))
            for done, (strategy, size) in enumerate(todo):
                label = f"{strategy} all-reduce, {size // 1024} KiB"
                probe.progress(label, done, len(todo))
                with probe.attempt(label), probe.phase(f"measuring {strategy}"):
                    collectives += self.measure(probe, gate, strategy, size, target_s=target_s, repeats=repeats)
        gc.enable()
        return {"gpus": [gpu.describe() for gpu in self.gpus], "collectives": collectives}

    def measure(
        self, probe: Probe, gate: Gate, strategy: str, size: int, *, target_s: float, repeats: tuple[int, int]
    ) -> Iterator[dict[str, Any]]:
        """Verify one size. Yield the result of launched all-reduces and, for small sizes, of queued all-reduces.

        Args:
            size: bytes of a rank's buffer.
            target_s: approximate duration of a run in seconds.
            repeats: minimum and maximum number of runs.
        """
        step = self.all_reduce(strategy, size)
        wrong = self._wrong(step, size) if self.verify else None
        trial_s = step.launched_s(2)
        iterations = max(_FEWEST, min(_ITERATIONS, int(target_s / trial_s)))
        record = {
            "operation": "all_reduce",
            "ranks": len(self.gpus),
            "bytes": size,
            "iterations": iterations,
            "wrong_values": wrong,
        }
        if size <= _LARGEST_QUEUED:
            # Small sizes are repeated more often, because they take little time and launch times vary.
            repeats = (repeats[0], 2 * repeats[1])
        yield {**record, "strategy": strategy, **_settled(lambda: step.launched_s(iterations), repeats)}
        if size <= _LARGEST_QUEUED and gate.kernels and strategy in _QUEUED and strategy not in self._not_queued:
            try:
                step.queued_s(gate, 2)
                queued = _settled(lambda: step.queued_s(gate, iterations), repeats)
                yield {**record, "strategy": f"{strategy}-queued", **queued}
            except GateGaveUpError as error:
                # Every failed attempt takes the gate's whole time limit, so this strategy is not tried at other sizes.
                self._not_queued.add(strategy)
                probe.skip(f"{strategy} all-reduce, queued", str(error))

    def _wrong(self, step: AllReduce, size: int) -> int:
        """Run an all-reduce into overwritten buffers, and count its wrong sums on all GPUs."""
        for gpu, (_, target) in zip(self.gpus, self.buffers, strict=True):
            gpu.poison(target, size)
        step.queue(1)
        step.wait()
        count, ranks = size // FLOAT_BYTES, len(self.gpus)
        return sum(
            gpu.count_wrong_sums(target, count, self.seed, ranks)
            for gpu, (_, target) in zip(self.gpus, self.buffers, strict=True)
        )


def _settled(measure: Callable[[], float], repeats: tuple[int, int]) -> dict[str, Any]:
    """Repeat `measure` (in s) until the last results agree; return `time_us`, `cv` and the number of repeats.

    `repeats` has the number of last results that must agree, and the maximum number of repeats. If the maximum is
    reached, all results count.
    """
    least, most = repeats
    times: list[float] = []
    while len(times) < least or (len(times) < most and coefficient_of_variation(times[-least:]) >= CV_BOUND):
        times.append(measure())
    settled = times[-least:] if len(times) < most else times
    return {
        "time_us": statistics.median(settled) * 1e6,
        "cv": coefficient_of_variation(settled),
        "repeats": len(times),
    }


def add_strategies(parser: argparse.ArgumentParser) -> None:
    """Add the option --strategies."""
    known = ", ".join(_ALGORITHMS)
    parser.add_argument("--strategies", type=_strategies, default="nccl", help=f"comma-separated, of {known}")


def _strategies(text: str) -> list[str]:
    names = [name for name in text.split(",") if name]
    for name in names:
        if name not in _ALGORITHMS:
            raise argparse.ArgumentTypeError(f"there is no strategy {name!r}; there are {', '.join(_ALGORITHMS)}")
    return names


def largest_buffer(gpus: list[Gpu]) -> int:
    """Return the bytes of the largest message that fits on these GPUs. Raises ProbeError."""
    return buffer_bytes(gpus, _LARGEST, _SHARE)


def load_nccl(probe: Probe) -> Nccl | str:
    """Load NCCL's library, or return the reason why it cannot be used."""
    try:
        with probe.phase("NCCL's library"):
            nccl = Nccl()
    except OSError as error:
        return f"NCCL cannot be loaded ({error}); pip install nvidia-nccl-cu12 or -cu13 brings it"
    probe.versions["nccl"] = nccl.version()
    return nccl


def main() -> None:
    """Measure each strategy at each size."""
    probe = Probe(SCHEMA, __doc__.splitlines()[0])
    add_strategies(probe.parser)
    options = probe.options()
    gpus = open_gpus(probe)
    if len(gpus) < 2:
        probe.unavailable("an all-reduce between GPUs needs two of them")
    nccl = load_nccl(probe)
    if isinstance(nccl, str):
        probe.unavailable(nccl)
    bench: Bench | None = None
    with probe.attempt("all-reduce buffers"):
        largest = largest_buffer(gpus)
        with probe.phase("buffers"):
            buffers = [(gpu.allocate(largest), gpu.allocate(largest)) for gpu in gpus]
            gate = Gate(gpus)
        bench = Bench(probe, nccl, gpus, strategies=options.strategies, buffers=buffers, largest=largest)
    sensors = Sensors(gpus)
    probe.ready()
    if bench is None:
        probe.finish(gpus=[gpu.describe() for gpu in gpus])
    probe.progress("warming up", 0, 1)
    warm_up(gpus, sensors, bench.buffers, bench.largest)
    probe.finish(**bench.measure_all(probe, gate, options.seconds, quick=options.quick))


if __name__ == "__main__":
    main()
