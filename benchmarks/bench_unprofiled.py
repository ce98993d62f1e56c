"""Measure the overhead of timing unprofiled steps, relative to the same loop without gpudiag.

    python benchmarks/bench_unprofiled.py [--device cuda] [--step-ms 5 20 50]

Short blocks of steps alternate in one process: without gpudiag, timed within `prof.steps`, and with only the host's
part of each step recorded. Then the three kinds of blocks follow in reverse order, so that drift of the machine affects
all kinds equally. The result is the median of the ratios to the loop without gpudiag, and its 95 % interval.

`--device cpu` multiplies small matrices for about the given time. It measures the thread's CPU time, so that other
programs do not count. `--device cuda` enqueues kernels of the given duration, synchronizes at the ends of blocks only,
and measures elapsed time.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from itertools import islice, repeat
from pathlib import Path
from typing import Any

import torch

import gpudiag
from gpudiag.statistics import MAD_TO_SIGMA
from gpudiag.training.session.clock import host_clock


def main() -> None:
    """Print a row for each step length in `--step-ms`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--step-ms", type=float, nargs="+", default=[5.0, 20.0, 50.0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--block-ms", type=float, default=40.0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| step, ms | a timed step | of which the host's part |")
    print("| ---: | ---: | ---: |")
    for step_ms in options.step_ms:
        steps = max(2, round(options.block_ms / step_ms))
        timed, noted = measured(options.device, work(options.device, step_ms), steps=steps, rounds=options.rounds)
        print(f"| {step_ms:g} | {share(timed)} | {share(noted)} |", flush=True)


def measured(device: str, step: Callable[[], None], *, steps: int, rounds: int) -> tuple[list[float], list[float]]:
    """Return two lists of a value per round: the time with `prof.steps`, and with only the host's part of each step
    recorded, each divided by the plain loop's."""
    settle: Callable[[], Any] = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    now = time.perf_counter if device == "cuda" else time.thread_time
    clock = host_clock()

    def block(batches: Iterable[int]) -> float:
        settle()
        began = now()
        for _ in islice(batches, steps):
            step()
        settle()
        return now() - began

    def noting() -> Iterable[int]:
        # Yield batches as `prof.steps` does, and report only the host's times of each step.
        while True:
            begin_ns = time.perf_counter_ns()
            fetched_ns = time.perf_counter_ns()
            yield 0
            clock.host_step(begin_ns, fetched_ns, time.perf_counter_ns())

    timed, noted = [], []
    # The session plans about twice as many unprofiled steps as are run, so that it records no trace.
    with (
        tempfile.TemporaryDirectory() as directory,
        gpudiag.profile(Path(directory), steps=4 * steps * rounds, warmup=1, device=device) as prof,
    ):
        block(prof.steps(repeat(0)))
        for _ in range(rounds):
            loops = (repeat(0), prof.steps(repeat(0)), noting(), noting(), prof.steps(repeat(0)), repeat(0))
            took = [block(loop) for loop in loops]
            alone = took[0] + took[5]
            timed.append((took[1] + took[4]) / alone)
            noted.append((took[2] + took[3]) / alone)
    return timed, noted


def share(ratios: list[float]) -> str:
    """Format the median overhead in percent, and half its 95 % interval."""
    middle = statistics.median(ratios)
    # The standard error of a median of n normal values is 1.2533 sigma / sqrt(n).
    sigma = MAD_TO_SIGMA * statistics.median([abs(ratio - middle) for ratio in ratios])
    return f"{100 * (middle - 1):.2f} % ± {100 * 1.96 * 1.2533 * sigma / math.sqrt(len(ratios)):.2f}"


def work(device: str, step_ms: float) -> Callable[[], None]:
    """Return a step function that takes about `step_ms` on this machine."""
    size = 1024 if device == "cuda" else 64
    matrix = torch.ones(size, size, device=device)

    def run(times: int) -> float:
        began = time.perf_counter()
        for _ in range(times):
            matrix @ matrix
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - began

    run(1000)  # warm-up
    times = max(1, round(step_ms / run(1000)))  # the seconds of 1000 products are the ms of one

    def step() -> None:
        for _ in range(times):
            matrix @ matrix

    return step


if __name__ == "__main__":
    main()
