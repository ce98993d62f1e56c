"""Test that Kineto's JSON of different years and vendors gives the same columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gpudiag.model.event import HOST, NO_CORRELATION, NO_SIZE, EventKind, Role
from gpudiag.trace import read_traces
from tests.trace.documents import document, event, kernel, launch, names, read_one, write

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("category", "kind"),
    [
        ("cpu_op", EventKind.OPERATOR),
        ("Operator", EventKind.OPERATOR),
        ("user_annotation", EventKind.ANNOTATION),
        ("python_function", EventKind.PYTHON),
        ("cuda_runtime", EventKind.RUNTIME),
        ("cuda_driver", EventKind.RUNTIME),
        ("Runtime", EventKind.RUNTIME),
        ("hip_runtime", EventKind.RUNTIME),
        ("xpu_runtime", EventKind.RUNTIME),
        ("privateuse1_driver", EventKind.RUNTIME),
        ("kernel", EventKind.KERNEL),
        ("Kernel", EventKind.KERNEL),
        ("gpu_memcpy", EventKind.COPY),
        ("Memcpy", EventKind.COPY),
        ("gpu_memset", EventKind.MEMSET),
        ("Memset", EventKind.MEMSET),
        ("gpu_user_annotation", EventKind.DEVICE_ANNOTATION),
        ("cuda_sync", EventKind.DEVICE_SYNC),
        ("overhead", EventKind.OVERHEAD),
    ],
)
def test_categories_of_all_years_are_read(tmp_path: Path, category: str, kind: EventKind) -> None:
    trace = read_one(tmp_path, document(event(category, "x", 5, 2)))
    assert trace.events.kind.tolist() == [kind]
    assert trace.notes == ()


def test_flows_counters_metadata_and_profiler_span_are_left_out(tmp_path: Path) -> None:
    others = [
        {"ph": phase, "cat": "ac2g", "name": "ac2g", "pid": 1, "tid": 2, "ts": 3} for phase in ("s", "f", "i", "M", "C")
    ]
    span = event("Trace", "PyTorch Profiler (0)", 0, 100, pid="Spans", tid="PyTorch Profiler")
    trace = read_one(tmp_path, document(*others, span, event("cpu_op", "aten::add", 5, 2)))
    assert names(trace) == ["aten::add"]
    assert trace.notes == ()


def test_unknown_category_is_left_out_with_a_note(tmp_path: Path) -> None:
    trace = read_one(tmp_path, document(event("mystery", "x", 5, 2), event("cpu_op", "y", 5, 2)))
    assert names(trace) == ["y"]
    assert trace.notes == ("events of unknown categories were left out: mystery",)


@pytest.mark.parametrize(
    "name",
    [
        "ProfilerStep#4",
        "Optimizer.step#SGD.step",
        "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
        "DistributedDataParallel.forward",
        "nccl:all_reduce",
        "gloo:all_reduce",
        "gpudiag.input",
    ],
)
def test_ranges_recorded_as_operators_in_2021_are_annotations(tmp_path: Path, name: str) -> None:
    trace = read_one(tmp_path, document(event("Operator", name, 5, 2), event("Operator", "aten::add", 6, 1)))
    assert trace.events.kind.tolist() == [EventKind.ANNOTATION, EventKind.OPERATOR]


@pytest.mark.parametrize(("category", "name"), [("user_annotation", "gpudiag.gc"), ("python_function", "Python GC")])
def test_garbage_collection_marks_are_recognised(tmp_path: Path, category: str, name: str) -> None:
    trace = read_one(tmp_path, document(event(category, name, 0, 5), event(category, f"{name} of mine", 9, 5)))
    assert trace.events.role.tolist() == [Role.GARBAGE_COLLECTION, Role.OTHER]


def test_device_and_stream_come_from_arguments_or_pid_and_tid(tmp_path: Path) -> None:
    trace = read_one(
        tmp_path,
        document(
            event("kernel", "a", 1, 1, pid=3, tid="stream 21", args={"correlation": 9}),
            event("kernel", "b", 2, 1, pid=3, tid=21, args={"device": 2, "stream": 7, "correlation": 10}),
            event("gpu_user_annotation", "c", 3, 1, pid=1, tid=20),
            event("cuda_runtime", "hipLaunch", 4, 1, tid="5555", args={"stream": "0x0", "correlation": 11}),
        ),
    )
    assert trace.events.device.tolist() == [3, 2, 1, HOST]
    assert trace.events.thread.tolist() == [21, 7, 20, 5555]
    assert trace.events.correlation.tolist() == [9, 10, NO_CORRELATION, 11]


def test_copy_sizes_are_read(tmp_path: Path) -> None:
    copies = [
        event("gpu_memcpy", "known", 1, 1, pid=0, args={"bytes": 4096, "correlation": 1}),
        event("gpu_memcpy", "float", 2, 1, pid=0, args={"bytes": 5e6, "correlation": 2}),
        event("gpu_memcpy", "ROCm", 3, 1, pid=0, args={"kind": "HtoD", "correlation": 3}),
    ]
    assert read_one(tmp_path, document(*copies)).events.size_bytes.tolist() == [4096, 5_000_000, NO_SIZE]


def test_correlation_zero_means_none(tmp_path: Path) -> None:
    trace = read_one(tmp_path, document(launch(1, 0), kernel("k", 2, 1, 0)))
    assert trace.events.correlation.tolist() == [NO_CORRELATION, NO_CORRELATION]


def test_kernels_of_a_cuda_graph_share_their_launch(tmp_path: Path) -> None:
    graph = event("cuda_runtime", "cudaGraphLaunch", 1, 5, args={"correlation": 40})
    trace = read_one(tmp_path, document(graph, *(kernel(f"k{i}", 10 + i, 1, 40) for i in range(3))))
    assert trace.events.correlation.tolist() == [40] * 4


def test_absolute_time_is_origin_plus_start(tmp_path: Path) -> None:
    events = [event("cpu_op", "later", 1_000_200.5, 1), event("cpu_op", "first", 1_000_100.25, 1)]
    based = read_one(tmp_path, document(*events, baseTimeNanoseconds=1_711_964_646_000_000_000))
    assert based.origin_ns == 1_711_964_646_000_000_000 + 1_000_100_250
    assert based.events.start_ns.tolist() == [0, 100_250]
    bare = read_one(tmp_path, document(*events))
    assert bare.origin_ns == 1_000_100_250


@pytest.mark.parametrize("start", [1_695_835_542_514_261, 1_695_835_542_514_261.0])
def test_absolute_unix_microseconds_are_exact(tmp_path: Path, start: float) -> None:
    trace = read_one(tmp_path, document(event("cpu_op", "a", start, 104), event("cpu_op", "b", start + 1, 103)))
    assert trace.origin_ns == 1_695_835_542_514_261_000
    assert trace.events.start_ns.tolist() == [0, 1000]
    assert trace.events.end_ns.tolist() == [104_000, 104_000]


def test_list_of_events_without_header_is_a_trace(tmp_path: Path) -> None:
    assert names(read_one(tmp_path, [event("cpu_op", "aten::add", 1, 1)])) == ["aten::add"]


def test_header_is_read(tmp_path: Path) -> None:
    trace = read_one(
        tmp_path,
        document(
            kernel("k", 1, 1, 5, device=1),
            distributedInfo={"backend": "nccl", "rank": 5, "world_size": 8},
            deviceProperties=[{"id": 0, "name": "NVIDIA H200"}, {"id": 1, "name": "NVIDIA H200 NVL"}],
            host_name="node-7",
            WARNING=["CuptiActivityApi.cpp:242] Dropped 12 activity records", "Dropped 30 activity records"],
            INFO=["Record counts: Out-of-range = 4, CUPTI stopped early? = 1"],
        ),
        name="trace.json",
    )
    assert (trace.rank, trace.world_size, trace.host, trace.framework) == (5, 8, "node-7", "pytorch")
    assert trace.device_names == {1: "NVIDIA H200 NVL"}
    assert trace.dropped_events == 42
    assert trace.notes == ("the profiler says that it stopped early, out of buffers",)


@pytest.mark.parametrize(
    "header",
    [
        {"distributedInfo": "none"},
        {"distributedInfo": {"rank": -1, "world_size": 0, "pg_config": "x"}},
        {"distributedInfo": {"rank": [], "pg_config": [{"ranks": ["a"]}]}},
        {"deviceProperties": {"0": {}}},
        {"deviceProperties": [{"id": "first"}], "baseTimeNanoseconds": -5},
        {"baseTimeNanoseconds": 1e300, "host_name": 7, "INFO": {"a": 1}},
        {"WARNING": ["Dropped 99999999999999999999999999 activity records"]},
    ],
)
def test_header_of_unknown_form_is_ignored(tmp_path: Path, header: dict[str, Any]) -> None:
    trace = read_one(tmp_path, document(event("cpu_op", "a", 1, 1), **header), name="trace.json")
    assert (trace.rank, trace.world_size, trace.host, trace.device_names) == (None, None, "", {})
    assert trace.origin_ns == 1000


def test_isal_and_zlib_read_the_same_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import zlib

    from gpudiag.trace import unpack

    path = write(
        tmp_path / "rank0.json.gz", document(*(event("cpu_op", f"op{i}", i, 1) for i in range(5000))), indent=1
    )
    (fast,) = read_traces([path])
    monkeypatch.setattr(unpack, "_deflate", zlib)
    (plain,) = read_traces([path])
    assert len(plain.events) == 5000
    assert np.array_equal(fast.events.start_ns, plain.events.start_ns)
    assert fast.events.names == plain.events.names


@pytest.mark.parametrize(
    ("name", "on_gpus"), [("aten::cudnn_convolution", True), ("aten::cudnn_is_acceptable", False), ("aten::gru", False)]
)
def test_cudnn_availability_check_does_not_imply_a_gpu(tmp_path: Path, name: str, *, on_gpus: bool) -> None:
    assert read_one(tmp_path, document(event("cpu_op", name, 5, 2))).uses_devices == on_gpus
