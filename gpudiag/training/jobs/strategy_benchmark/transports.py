"""All-reduces of the sizes in which a model's gradients travel, over each transport that its candidates use."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

import torch

from gpudiag.model.facts import Collective
from gpudiag.training.strategies.registry import pytorch_strategy
from gpudiag.units import bus_factor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gpudiag.model.benchmarks.prediction import Candidate
    from gpudiag.training.jobs.strategy_benchmark.world import World
    from gpudiag.training.strategies.pytorch_strategy import StartAllReduce

#: Sizes measured per transport: the smallest and the largest bucket and some between.
_SIZES = 5
#: A transport gets about this long; slow ones leave out the largest sizes.
_SECONDS = 0.5
_REPEATS = 3
#: A size is measured where it is below this share of the next larger one.
_APART = 0.8
#: All-reduces that are under way and timed together, as a step's buckets are: the time of one is a share of it.
_TOGETHER = 3


def chosen_sizes(buckets: Sequence[int], most: int = _SIZES) -> list[int]:
    """A few of the buckets' sizes that span all of them, rising."""
    every: list[int] = []
    for size in sorted(set(buckets), reverse=True):
        # Between two sizes that are nearly the same there is only noise to see.
        if not every or size < _APART * every[-1]:
            every.append(size)
    every.reverse()
    if len(every) <= most:
        return every
    return sorted({every[round(i * (len(every) - 1) / (most - 1))] for i in range(most)})


def measure(world: World, transports: Mapping[str, Candidate], sizes: Sequence[int]) -> list[Collective]:
    """Time of an all-reduce of fp32 values per transport and size; a transport that cannot be used is left out.

    Args:
        world: the processes; all of them call this at once.
        transports: names, each with a candidate that exchanges over it.
        sizes: bytes per rank, rising.
    """
    found: list[Collective] = []
    if world.size < 2 or not sizes:
        return found
    buffer = torch.zeros(max(sizes) // 4 + 1, device=world.device)
    for transport, candidate in transports.items():
        strategy = pytorch_strategy(candidate.strategy)
        close: Callable[[], None] | None = None
        problem = None
        start: StartAllReduce | None = None
        try:
            with world.acting(strategy.backend):
                start, close = strategy.all_reduce(world.device, candidate)
        except Exception as error:  # noqa: BLE001  # whatever keeps one transport from working, the others go on
            problem = f"{error}"
        if not any(world.gather(problem)) and start is not None:
            found += _measure(world, transport, start, buffer, sizes)
        if close is not None:
            close()
    return found


def _measure(
    world: World, transport: str, start: StartAllReduce, buffer: torch.Tensor, sizes: Sequence[int]
) -> list[Collective]:
    def several(part: torch.Tensor) -> None:
        # The values do not count, so all of them may be of the same memory.
        for one in [start(part, number) for number in range(_TOGETHER)]:
            one.wait()

    found = []
    # The first one makes connections, which is not what is measured and counts for no time.
    several(buffer[: max(1, sizes[0] // 4)])
    world.settle()
    began = time.perf_counter()
    for size in sizes:
        part = buffer[: max(1, size // 4)]
        several(part)
        times = []
        for _ in range(_REPEATS):
            world.settle()
            world.gather(None)
            from_s = time.perf_counter()
            several(part)
            world.settle()
            times.append((time.perf_counter() - from_s) * 1e6 / _TOGETHER)
        # The slowest rank has taken part from the start to the end.
        slowest = [max(one) for one in zip(*world.gather(times), strict=True)]
        time_us = statistics.median(slowest)
        factor = bus_factor("all_reduce", world.size) or 1.0
        found.append(
            Collective(
                operation="all_reduce",
                strategy=transport,
                ranks=world.size,
                bytes=part.numel() * 4,
                time_us=time_us,
                algbw_gb_per_s=part.numel() * 4 / time_us / 1e3,
                busbw_gb_per_s=part.numel() * 4 / time_us / 1e3 * factor,
            )
        )
        if world.first(time.perf_counter() - began > _SECONDS):
            break
    return found
