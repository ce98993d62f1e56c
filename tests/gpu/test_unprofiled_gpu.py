"""Test how far the host runs ahead of a real GPU in unprofiled steps, and the kernel-only and full traces of the job.

    pytest tests/gpu/test_unprofiled_gpu.py -m gpu

The tests take under a minute on one GPU. The tests compare times with each other, never with a fixed value.
"""

from __future__ import annotations

import gzip
import json
import statistics
import time
from typing import TYPE_CHECKING, Any

import pytest
import torch

import gpudiag
from gpudiag.machine.inventory.gather import gather_inventory
from gpudiag.model.run import RUN_SCHEMA, RankRecord, RunRecord
from gpudiag.model.run_directory import RUN_FILE, read_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

GPUS = sum(gpu.visible for gpu in gather_inventory().gpus)
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(GPUS < 1, reason="there is no NVIDIA GPU")]


def profiled(run_dir: Path, step: Callable[[], None], batches: Iterator[int]) -> RankRecord:
    """Profile a loop with 30 unprofiled steps, and return the record of its rank."""
    with gpudiag.profile(run_dir, warmup=5, steps=30, active=4, stop=True, device="cuda") as prof:
        for _ in prof.steps(batches):
            step()
    (rank,) = read_json(run_dir / RUN_FILE, RunRecord, RUN_SCHEMA).ranks
    assert rank.timed is not None
    assert rank.timed.lead_ms is not None
    assert len(rank.timed.lead_ms) == 30
    return rank


def events(run_dir: Path, folder: str) -> list[dict[str, Any]]:
    path = run_dir / folder / "rank0.pt.trace.json.gz"
    return [event for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"] if event.get("ph") == "X"]


def kernels(count: int, size: int = 2048) -> Callable[[], None]:
    """Return a step that launches `count` matrix products of `size` x `size`."""
    matrix = torch.ones(size, size, device="cuda")

    def step() -> None:
        for _ in range(count):
            matrix @ matrix

    return step


def numbers(pause_s: float = 0.0) -> Iterator[int]:
    number = 0
    while True:
        time.sleep(pause_s)
        yield (number := number + 1)


def test_host_that_only_launches_runs_ahead_by_whole_steps(tmp_path: Path) -> None:
    rank = profiled(tmp_path, kernels(20), numbers())
    assert rank.unprofiled is not None
    assert rank.timed is not None
    assert rank.timed.lead_ms is not None
    # In each step the host's lead grows by the difference between the device's and the host's time.
    assert rank.timed.lead_ms[-1] > 5 * rank.unprofiled.median_ms
    gained = rank.timed.lead_ms[-1] - rank.timed.lead_ms[0]
    slower = sum(rank.unprofiled.step_ms[1:]) - sum(rank.timed.host_ms[1:]) - sum((rank.timed.input_ms or ())[1:])
    assert gained == pytest.approx(slower, rel=0.2)


def test_host_that_waits_for_its_device_never_runs_ahead(tmp_path: Path) -> None:
    step = kernels(20)

    def and_wait() -> None:
        step()
        torch.cuda.synchronize()

    rank = profiled(tmp_path, and_wait, numbers())
    assert rank.unprofiled is not None
    assert rank.timed is not None
    assert statistics.median(rank.timed.lead_ms or ()) < 0.1 * rank.unprofiled.median_ms + 0.05


def test_host_that_waits_for_input_does_not_run_ahead(tmp_path: Path) -> None:
    rank = profiled(tmp_path, kernels(2), numbers(0.02))
    assert rank.unprofiled is not None
    assert rank.timed is not None
    assert statistics.median(rank.timed.lead_ms or ()) < 0.5 * rank.unprofiled.median_ms
    assert statistics.median(rank.timed.input_ms or ()) >= 20


def test_kernel_only_trace_has_no_operators(tmp_path: Path) -> None:
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch's own
    work = kernels(4, 512)

    def two_streams() -> None:
        work()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            work()
        torch.cuda.current_stream().wait_stream(stream)

    rank = profiled(tmp_path, two_streams, numbers())
    assert rank.notes == {}
    light, full = events(tmp_path, "traces/light"), events(tmp_path, "traces")
    assert {"kernel", "cuda_runtime", "user_annotation"} <= {event["cat"] for event in light}
    assert "cpu_op" not in {event["cat"] for event in light}
    assert "cpu_op" in {event["cat"] for event in full}
    assert any(event["cat"] == "cuda_sync" for event in light)
    assert sum(event["cat"] == "kernel" for event in light) == pytest.approx(
        sum(event["cat"] == "kernel" for event in full), rel=0.2
    )
