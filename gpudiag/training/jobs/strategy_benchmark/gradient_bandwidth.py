"""Time all-reduces of the sizes of a model's buckets, for `gpudiag recommend` and `gpudiag bandwidth --like`."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

import torch

from gpudiag.model.benchmarks.gradient_bandwidth import (
    GRADIENT_BANDWIDTH_FILE,
    GradientBandwidth,
    GradientBandwidthPlan,
)
from gpudiag.model.facts import Collective
from gpudiag.model.run_directory import write_json
from gpudiag.training.jobs.strategy_benchmark.world import World
from gpudiag.training.session.progress import ProgressSender
from gpudiag.training.strategies.registry import pytorch_strategy
from gpudiag.units import bus_factor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from gpudiag.model.benchmarks.prediction import Candidate
    from gpudiag.training.strategies.pytorch_strategy import StartAllReduce

#: Maximum number of measured sizes per transport, from the smallest bucket to the largest.
_SIZES = 5
#: Seconds per transport. After this time, larger sizes are skipped.
_SECONDS = 0.5
#: Number of times that each size is timed. The median of these times is the result.
_REPEATS = 3
#: A size is measured only if it is less than this share of the next larger size.
_APART = 0.8
#: Number of concurrent all-reduces that are timed together, because the buckets of a step are reduced concurrently.
_CONCURRENT = 3


def chosen_sizes(buckets: Sequence[int], most: int = _SIZES) -> list[int]:
    """Return at most `most` sizes, in rising order, that span the sizes of the buckets (in bytes)."""
    distinct: list[int] = []
    for size in sorted(set(buckets), reverse=True):
        # Skip nearly equal sizes, because their times would differ by noise only.
        if not distinct or size < _APART * distinct[-1]:
            distinct.append(size)
    distinct.reverse()
    if len(distinct) <= most:
        return distinct
    # Choose by position, at equal distances from the smallest size to the largest.
    return sorted({distinct[round(i * (len(distinct) - 1) / (most - 1))] for i in range(most)})


def measure(world: World, transports: Mapping[str, Candidate], sizes: Sequence[int]) -> list[Collective]:
    """Time all-reduces of fp32 values for each transport and size. Skip transports that cannot be used.

    Args:
        world: this process and its process groups. All processes must call this function together.
        transports: for the name of each transport, a candidate strategy that uses it.
        sizes: bytes per rank, in rising order.
    """
    collectives: list[Collective] = []
    if world.size < 2 or not sizes:
        return collectives
    buffer = torch.zeros(max(sizes) // 4 + 1, device=world.device)  # 4 bytes per value, at least one value
    for transport, candidate in transports.items():
        strategy = pytorch_strategy(candidate.strategy)
        close: Callable[[], None] | None = None
        problem = None
        start: StartAllReduce | None = None
        try:
            with world.acting(strategy.backend):
                start, close = strategy.all_reduce(world.device, candidate)
        except Exception as error:  # noqa: BLE001  # other transports may work
            problem = f"{error}"
        if not any(world.gather(problem)) and start is not None:
            collectives += _measure(world, transport, start, buffer, sizes)
        if close is not None:
            close()
    return collectives


def _measure(
    world: World, transport: str, start: StartAllReduce, buffer: torch.Tensor, sizes: Sequence[int]
) -> list[Collective]:
    """Return the time per all-reduce for each size in bytes. After `_SECONDS`, skip the larger sizes.

    `start` begins an all-reduce of a tensor, and returns a handle to wait for. Its second argument numbers concurrent
    all-reduces. `buffer` has room for the largest size.
    """

    def all_reduce(values: torch.Tensor) -> None:
        # The concurrent all-reduces may use the same memory, because the values do not matter.
        for handle in [start(values, number) for number in range(_CONCURRENT)]:
            handle.wait()

    collectives = []
    # The first all-reduce makes connections and is not timed.
    all_reduce(buffer[: max(1, sizes[0] // 4)])
    world.settle()
    began = time.perf_counter()
    for size in sizes:
        values = buffer[: max(1, size // 4)]
        all_reduce(values)
        times = []
        for _ in range(_REPEATS):
            world.settle()
            world.gather(None)  # let all ranks begin together
            from_s = time.perf_counter()
            all_reduce(values)
            world.settle()
            times.append((time.perf_counter() - from_s) * 1e6 / _CONCURRENT)
        # An all-reduce takes as long as on its slowest rank.
        slowest = [max(by_rank) for by_rank in zip(*world.gather(times), strict=True)]
        time_us = statistics.median(slowest)
        factor = bus_factor("all_reduce", world.size) or 1.0  # all-reduces have a factor
        collectives.append(
            Collective(
                operation="all_reduce",
                strategy=transport,
                ranks=world.size,
                bytes=values.numel() * 4,
                time_us=time_us,
                algbw_gb_per_s=values.numel() * 4 / time_us / 1e3,
                busbw_gb_per_s=values.numel() * 4 / time_us / 1e3 * factor,
            )
        )
        if world.first(time.perf_counter() - began > _SECONDS):
            break
    return collectives


def measure_gradient_bandwidth(plan: GradientBandwidthPlan, run_dir: Path) -> None:
    """Time the plan's all-reduces together with the other processes. Rank 0 writes the result to the run directory."""
    world = World(plan.device)
    progress = ProgressSender(world.rank)
    world.save_rank(run_dir)
    progress.tell("timed")
    collectives = measure(world, plan.transports, plan.sizes)
    if world.rank == 0:
        write_json(run_dir / GRADIENT_BANDWIDTH_FILE, GradientBandwidth(collectives=tuple(collectives)))
    world.gather(None)  # wait until rank 0 has written
    progress.tell("done")
    world.close()
