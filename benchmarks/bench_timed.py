"""What timing steps costs a job: blocks of steps within `prof.steps` beside blocks of the same loop alone.

    python benchmarks/bench_timed.py [--device cuda] [--step-ms 1 5 20]

The blocks are short and alternate (without, with, with, without, …) in one process, so that a machine that drifts drifts
in both. The result is the median ratio of neighbours and its 95 % interval. Beside it stands what gpudiag does in a step,
timed by itself over many steps that do nothing: the cost without the scatter of the job.

`--device cpu` multiplies small matrices for about that long; `--device cuda` queues kernels that take the device so long,
and synchronizes at the ends of blocks only.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import cycle, islice, repeat
from pathlib import Path
from typing import Any

import torch

import gpudiag
from gpudiag.statistics import MAD_TO_SIGMA


def main() -> None:
    """Print a row per length of step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--step-ms", type=float, nargs="+", default=[1.0, 5.0, 20.0])
    parser.add_argument("--pairs", type=int, default=600)
    parser.add_argument("--block-ms", type=float, default=20.0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    settle: Callable[[], Any] = torch.cuda.synchronize if options.device == "cuda" else (lambda: None)
    print(f"of its own: {own_us(options.device):.1f} us per step")
    print("| step, ms | with / without | 95 % |")
    print("| ---: | ---: | ---: |")
    for step_ms in options.step_ms:
        step = work(options.device, step_ms)
        steps = max(2, round(options.block_ms / step_ms))
        ratios = measured(step, settle, steps=steps, pairs=options.pairs, device=options.device)
        middle = statistics.median(ratios)
        # The standard error of a median of n normal values is 1.2533 sigma / sqrt(n).
        sigma = MAD_TO_SIGMA * statistics.median([abs(ratio - middle) for ratio in ratios])
        print(f"| {step_ms:g} | {middle:.4f} | ±{1.96 * 1.2533 * sigma / math.sqrt(len(ratios)):.4f} |")


def measured(
    step: Callable[[], None], settle: Callable[[], Any], *, steps: int, pairs: int, device: str
) -> list[float]:
    """Ratios of blocks with timed steps to their neighbours without."""
    ratios = []
    with (
        tempfile.TemporaryDirectory() as directory,
        gpudiag.profile(Path(directory), steps=2 * steps * pairs, warmup=1, device=device) as prof,
    ):
        for _ in islice(prof.steps(repeat(0)), 4):
            step()

        def timed() -> float:
            settle()
            began = time.perf_counter()
            for _ in islice(prof.steps(repeat(0)), steps):
                step()
            settle()
            return time.perf_counter() - began

        def bare() -> float:
            settle()
            began = time.perf_counter()
            for _ in islice(repeat(0), steps):
                step()
            settle()
            return time.perf_counter() - began

        for first_bare in islice(cycle((True, False)), pairs):
            without, with_it = (bare(), timed()) if first_bare else reversed((timed(), bare()))
            ratios.append(with_it / without)
    return ratios


def own_us(device: str, steps: int = 20_000) -> float:
    """What a timed step costs in which nothing is done, less what the loop itself costs."""
    with (
        tempfile.TemporaryDirectory() as directory,
        gpudiag.profile(Path(directory), steps=10 * steps, warmup=1, device=device) as prof,
    ):
        batches: Iterator[int] = iter(prof.steps(repeat(0)))
        for _ in islice(batches, 100):
            pass
        best = math.inf
        for _ in range(5):
            began = time.perf_counter()
            for _ in islice(batches, steps):
                pass
            best = min(best, time.perf_counter() - began)
    began = time.perf_counter()
    for _ in islice(repeat(0), steps):
        pass
    return 1e6 * (best - (time.perf_counter() - began)) / steps


def work(device: str, step_ms: float) -> Callable[[], None]:
    """A step that takes about so long here."""
    if device == "cuda":
        size = torch.ones(1024, 1024, device=device)

        def once() -> None:
            size @ size
    else:
        small = torch.ones(64, 64)

        def once() -> None:
            small @ small

    for _ in range(100):
        once()
    if device == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(1000):
        once()
    if device == "cuda":
        torch.cuda.synchronize()
    times = max(1, round(step_ms / (time.perf_counter() - began)))

    def step() -> None:
        for _ in range(times):
            once()

    return step


if __name__ == "__main__":
    main()
