"""Test that launch calls that run nothing are ignored: memsets, captured launches, graphs without kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gpudiag.analysis.timeline.completeness import device_activities, incomplete_activity
from gpudiag.analysis.timeline.rank_events import events_of_rank
from gpudiag.model.event import EventKind, Role
from gpudiag.trace import read_traces
from gpudiag.trace.readers.names import role_of_call
from tests.trace.documents import TRACES, document, event, kernel, launch, read_one

if TYPE_CHECKING:
    from pathlib import Path

    from gpudiag.model.event import Trace


def call(name: str, start_us: float, correlation: int = 0, *, thread: int = 11) -> dict[str, Any]:
    arguments = {"correlation": correlation} if correlation else {}
    return event("cuda_runtime", name, start_us, 2, tid=thread, args=arguments)


def launched(count: int, first: int = 1, at: float = 0.0) -> list[dict[str, Any]]:
    """Return launches with their kernels, 10 µs apart."""
    return [
        item
        for index in range(count)
        for item in (launch(at + 10 * index, first + index), kernel("gemm", at + 10 * index + 4, 3, first + index))
    ]


def roles(trace: Trace, name: str) -> list[Role]:
    events = trace.events
    return [Role(events.role[row]) for row in events.rows_of(EventKind.RUNTIME).tolist() if events.name_of(row) == name]


def warnings(trace: Trace) -> list[tuple[str, str]]:
    return [
        (item.code, item.message)
        for item in incomplete_activity([trace], device_activities([trace], [events_of_rank(trace)]))
    ]


def test_real_memsets_without_device_work_are_not_lost_launches() -> None:
    (trace,) = read_traces([TRACES / "others" / "h100_falcon.json.gz"])
    launch_roles = roles(trace, "cudaMemsetAsync")
    assert (launch_roles.count(Role.OTHER), launch_roles.count(Role.LAUNCH)) == (49, 2)
    assert warnings(trace) == []
    (activity,) = device_activities([trace], [events_of_rank(trace)])
    assert (activity.lost, activity.missing) == (0, False)


def test_memset_with_its_device_op_stays_a_launch(tmp_path: Path) -> None:
    sets = event(
        "gpu_memset", "Memset (Device)", 505, 1, pid=0, tid=7, args={"device": 0, "stream": 7, "correlation": 90}
    )
    trace = read_one(tmp_path, document(*launched(3), call("cudaMemsetAsync", 500, 90), sets))
    assert roles(trace, "cudaMemsetAsync") == [Role.LAUNCH]


@pytest.mark.parametrize("prefix", ["cuda", "hip", "cu"])
def test_launches_under_capture_are_not_lost(tmp_path: Path, prefix: str) -> None:
    captured = [call("cudaLaunchKernel", 1005 + index, 500 + index) for index in range(40)]
    trace = read_one(
        tmp_path,
        document(
            *launched(20),
            call(f"{prefix}StreamBeginCapture", 1000, 400),
            *captured,
            call(f"{prefix}StreamEndCapture", 1100, 401),
            *launched(20, 800, 1200),
        ),
    )
    launch_roles = roles(trace, "cudaLaunchKernel")
    assert (launch_roles.count(Role.OTHER), launch_roles.count(Role.LAUNCH)) == (40, 40)
    assert warnings(trace) == []


def test_launches_of_another_thread_or_after_the_capture_are_lost(tmp_path: Path) -> None:
    begin, end = call("cudaStreamBeginCapture", 1000, 400), call("cudaStreamEndCapture", 1100, 401)
    elsewhere = [call("cudaLaunchKernel", 1005 + index, 500 + index, thread=12) for index in range(20)]
    later = [call("cudaLaunchKernel", 1105 + index, 600 + index) for index in range(20)]
    trace = read_one(tmp_path, document(*launched(20), begin, *elsewhere, end, *later, *launched(20, 800, 1200)))
    assert set(roles(trace, "cudaLaunchKernel")) == {Role.LAUNCH}
    ((code, message),) = warnings(trace)
    assert code == "lost-kernels"
    assert message.startswith("40 of 80 launches (50 %)")


def test_capture_begun_before_the_recording_starts_with_it(tmp_path: Path) -> None:
    captured = [call("cudaLaunchKernel", 5 + index, 500 + index) for index in range(12)]
    trace = read_one(tmp_path, document(*captured, call("cudaStreamEndCapture", 100, 401), *launched(20, 800, 1200)))
    assert roles(trace, "cudaLaunchKernel").count(Role.OTHER) == 12


def test_python_functions_mark_a_capture_without_recorded_calls(tmp_path: Path) -> None:
    def python(name: str, start_us: float) -> dict[str, Any]:
        return event("python_function", name, start_us, 2)

    captured = [call("cudaLaunchKernel", 1005 + index, 500 + index) for index in range(12)]
    trace = read_one(
        tmp_path,
        document(
            *launched(3),
            python("torch/cuda/graphs.py(112): capture_begin", 1000),
            *captured,
            python("<built-in method capture_end of CUDAGraph object at 0x7f>", 1100),
            *launched(3, 800, 1200),
        ),
    )
    assert roles(trace, "cudaLaunchKernel").count(Role.OTHER) == 12


def test_graphs_without_recorded_kernels_are_reported(tmp_path: Path) -> None:
    graphs = [call("cudaGraphLaunch", 300 + 10 * index, 700 + index) for index in range(5)]
    trace = read_one(tmp_path, document(*launched(20), *graphs, *launched(20, 800, 1200)))
    assert trace.unrecorded_graphs == 5
    ((code, message),) = warnings(trace)
    assert code == "lost-kernels"
    assert "kernels of 5 launches of CUDA graphs of rank 0 were not recorded" in message
    assert "enforce_eager" in message


def test_graphs_alone_are_missing_device_activity(tmp_path: Path) -> None:
    graphs = [call("cudaGraphLaunch", 300 + 10 * index, 700 + index) for index in range(5)]
    trace = read_one(tmp_path, document(event("cpu_op", "aten::add", 0, 5), *graphs))
    ((code, message),) = warnings(trace)
    assert code == "missing-device-activity"
    assert "before the graphs are captured" in message


def test_graphs_with_kernels_are_recorded(tmp_path: Path) -> None:
    of_graph = [call("cudaGraphLaunch", 300, 700), kernel("gemm", 310, 5, 700), kernel("gemm", 316, 5, 700)]
    trace = read_one(tmp_path, document(*launched(3), *of_graph, *launched(3, 800, 1200)))
    assert trace.unrecorded_graphs == 0
    # Some profilers give the kernels a correlation that no call has.
    graph = [call("hipGraphLaunch", 300, 700), kernel("gemm", 310, 5, 9000), kernel("gemm", 316, 5, 9001)]
    assert read_one(tmp_path, document(*launched(3), *graph, *launched(3, 800, 1200))).unrecorded_graphs == 0


def test_last_graphs_may_run_after_the_recording(tmp_path: Path) -> None:
    trace = read_one(tmp_path, document(*launched(20), call("cudaGraphLaunch", 900, 700)))
    assert trace.unrecorded_graphs == 0
    assert warnings(trace) == []


def test_real_amd_graph_has_kernels() -> None:
    (trace,) = read_traces([TRACES / "others" / "sglang_decode.json.gz"])
    assert "hipGraphLaunch" in trace.events.names
    assert trace.unrecorded_graphs == 0


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("hipMemcpyWithStream", Role.SYNCHRONIZATION),
        ("hipMemcpy", Role.SYNCHRONIZATION),
        ("hipMemcpy_spt", Role.SYNCHRONIZATION),
        ("hipMemcpyDtoH", Role.SYNCHRONIZATION),
        ("hipStreamSynchronize", Role.SYNCHRONIZATION),
        ("hipDeviceSynchronize", Role.SYNCHRONIZATION),
        ("hipEventSynchronize", Role.SYNCHRONIZATION),
        ("hipFree", Role.RELEASE),
        ("hipHostFree", Role.RELEASE),
        ("hipHostMalloc", Role.ALLOCATION),
        ("hipMemcpyDtoHAsync", Role.COPY),
        ("hipFreeAsync", Role.OTHER),
    ],
)
def test_hip_calls_have_the_roles_of_cuda_calls(name: str, role: Role) -> None:
    assert role_of_call(name) == role
