"""Test memory allocation within steps: which calls count, their savings, and which calls do not count."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpudiag.model.event import Role
from gpudiag.trace.readers.names import role_of_call
from tests.analysis.diagnosis.cases import diagnosis_of
from tests.analysis.diagnosis.rule_examples.jobs import DDP, Job, kernels, memory
from tests.conftest import WHOLE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gpudiag.model.analysis import Analysis

TAKEN, GIVEN_BACK = memory(0.2, count=20), memory(0.1, count=20, released=True)


@pytest.mark.parametrize(
    ("role", "names"),
    [
        (
            Role.ALLOCATION,
            "cudaMalloc cudaMallocHost cudaHostAlloc cuMemAlloc_v2 cuMemCreate cuMemMap cuMemSetAccess hipMalloc",
        ),
        (Role.RELEASE, "cudaFree cudaFreeHost cudaHostUnregister cuMemFree_v2 cuMemUnmap hipFree cudaFree_v3020"),
        # Calls of the driver's memory pool are queued like kernels.
        (Role.OTHER, "cudaMallocAsync cudaFreeAsync cuMemAllocAsync cuMemAllocFromPoolAsync cudaMallocFromPoolAsync"),
    ],
)
def test_memory_calls_are_recognized_by_name(role: Role, names: str) -> None:
    assert {name: role_of_call(name) for name in names.split()} == dict.fromkeys(names.split(), role)


def test_allocation_costs_the_time_of_an_idle_device() -> None:
    job = Job(ranks=1, step=(TAKEN, kernels(5), GIVEN_BACK))
    without = Job(ranks=1, step=(kernels(5),))
    found, _ = diagnosis_of(job.traces())
    saved = sum(job.step_times_ms()) / len(job.step_times_ms()) - sum(without.step_times_ms()) / len(
        without.step_times_ms()
    )
    assert found["memory-allocation"].recoverable_ms_per_step == pytest.approx(saved, rel=0.05)
    assert found["memory-allocation"].evidence["calls_per_step"] == {"cudaFree": 20, "cudaMalloc": 20}
    assert found.keys() & {"host-sync", "launch-bound"} == set()


@pytest.mark.parametrize(
    ("taken", "code"), [(dict.fromkeys(range(4), (TAKEN,)), "memory-allocation"), ({2: (TAKEN,)}, "straggler")]
)
def test_rank_that_allocates_alone_is_late(taken: dict[int, tuple[object, ...]], code: str) -> None:
    # Each rank reads its loss, so that no host runs ahead of its device.
    pieces = {rank: (*extra, GIVEN_BACK) for rank, extra in taken.items()}
    found, _ = diagnosis_of(Job(ranks=4, step=DDP, extra=pieces).traces())  # type: ignore[arg-type]
    assert next(iter(found)) == code
    assert {"memory-allocation", "straggler"} & found.keys() == {code}


@pytest.mark.long
def test_emptied_cache_is_found_on_a_gpu(analysis_of: Callable[[Path], Analysis]) -> None:
    """Unprofiled steps of 37 ms are 18.3 ms shorter without `empty_cache`. The kernel-only trace has steps of 51 ms."""
    first = analysis_of(WHOLE / "faults" / "allocator-light.npz").findings[0]
    assert (first.code, first.cause) == ("memory-allocation", "cudaMalloc")
    assert first.evidence["calls_per_step"] == {"cudaMalloc": 56, "cudaFree": 56}
    assert first.recoverable_ms_per_step == pytest.approx(18.3, rel=0.25)
