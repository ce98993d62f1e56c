"""Test real traces of several years, vendors and kinds with known content."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pytest

from gpudiag.model.event import DEVICE_WORK, HOST, NO_CORRELATION, EventKind, EventTable, Trace
from gpudiag.trace import is_communication_kernel, read_traces
from tests.trace.documents import TRACES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

H200 = ("clean", "slow_loader_rank2", "vgg_p2poff", "tiny", "resnet50_dataloader")


def _public(name: str) -> Trace:
    (trace,) = read_traces([TRACES / "public" / name])
    return trace


def _kinds(trace: Trace) -> dict[EventKind, int]:
    return {EventKind(kind): count for kind, count in Counter(trace.events.kind.tolist()).items()}


def _operations(trace: Trace) -> dict[str, int]:
    return dict(Counter(call.operation for call in trace.collectives))


def _steps(trace: Trace) -> list[str]:
    rows = trace.events.rows_of(EventKind.ANNOTATION).tolist()
    return [name for row in rows if (name := trace.events.name_of(row)).startswith("ProfilerStep#")]


@pytest.mark.parametrize("run", H200)
def test_four_ranks_on_h200(run: str) -> None:
    traces = read_traces([TRACES / run])
    assert [(trace.rank, trace.world_size) for trace in traces] == [(rank, 4) for rank in range(4)]
    for trace in traces:
        table = trace.events
        assert trace.device_names == {trace.rank: "NVIDIA H200"}
        assert len(_steps(trace)) == 4
        assert trace.dropped_events == 0
        work = table.rows_of(*DEVICE_WORK)
        assert set(table.device[work].tolist()) == {trace.rank}
        assert (table.correlation[work] != NO_CORRELATION).all()
        assert (table.device[table.rows_of(EventKind.OPERATOR, EventKind.RUNTIME)] == HOST).all()
        kernels = table.rows_of(EventKind.KERNEL).tolist()
        assert [call.row for call in trace.collectives] == [
            row for row in kernels if is_communication_kernel(table.name_of(row))
        ]
        assert {call.group_ranks for call in trace.collectives} == {(0, 1, 2, 3)}
    # The traces were recorded at the same time on one host, so their absolute times overlap.
    assert max(trace.origin_ns for trace in traces) - min(trace.origin_ns for trace in traces) < 10**8


def test_sizes_of_gradient_buckets_are_read() -> None:
    (trace, *_) = read_traces([TRACES / "vgg_p2poff"])
    sizes = Counter(call.size_bytes for call in trace.collectives)
    assert sizes[411_058_176] >= 3  # VGG-16's first fully connected layer has 102 764 544 weights and biases
    assert sizes[None] < len(trace.collectives) / 2  # sizes of collectives launched before the recording are unknown
    assert _operations(trace) == {"all_reduce": len(trace.collectives)}


def test_collectives_differ_in_number_between_ranks() -> None:
    counts = [len(trace.collectives) for trace in read_traces([TRACES / "slow_loader_rank2"])]
    assert len(set(counts)) > 1


def test_loader_ranges_are_read() -> None:
    (trace, *_) = read_traces([TRACES / "resnet50_dataloader"])
    names = Counter(trace.events.name_of(row) for row in trace.events.rows_of(EventKind.ANNOTATION).tolist())
    assert names["gpudiag.input"] == 4
    assert sum(count for name, count in names.items() if name.startswith("enumerate(DataLoader)#")) == 4


def test_gloo_on_cpus_is_read() -> None:
    traces = read_traces([TRACES / "gloo_dataloader"])
    assert [(trace.rank, trace.world_size, trace.host) for trace in traces] == [(0, 2, "node-a"), (1, 2, "node-a")]
    for trace in traces:
        assert set(_kinds(trace)) == {EventKind.OPERATOR, EventKind.ANNOTATION}
        assert len(_steps(trace)) == 6
        sizes = Counter(call.size_bytes for call in trace.collectives)
        assert sizes[4000] == 6  # each step has one all-reduce of 1000 floats, in addition to DDP's buckets
        assert {(call.operation, call.group, call.group_ranks) for call in trace.collectives} == {
            ("all_reduce", "0", (0, 1))
        }
        training = {trace.events.thread[row] for row in trace.events.rows_of(EventKind.OPERATOR).tolist()}
        assert not training & {int(trace.events.thread[call.row]) for call in trace.collectives}


def test_trace_of_2021_is_read() -> None:
    trace = _public("kineto_2021_resnet50_workers4.pt.trace.json.gz")
    kinds = _kinds(trace)
    assert kinds[EventKind.KERNEL] > 1000
    assert {EventKind.COPY, EventKind.MEMSET, EventKind.RUNTIME, EventKind.OPERATOR} <= set(kinds)
    assert len(_steps(trace)) == 3
    assert (trace.rank, trace.world_size, trace.collectives) == (None, None, ())
    assert trace.device_names == {0: "Tesla V100-DGXS-32GB"}
    assert trace.origin_ns // 10**9 == 1_623_212_388  # the recording is of 9 June 2021
    assert _launched(trace.events).all()


def test_nccl_217_arguments_are_read() -> None:
    trace = _public("nccl_data.json.gz")
    assert (trace.rank, trace.world_size) == (0, 2)
    assert _operations(trace) == {"all_reduce": 15, "broadcast": 6}
    assert {call.group_ranks for call in trace.collectives} == {(0, 1)}
    assert all(call.size_bytes for call in trace.collectives)


def test_one_rank_of_128_with_shapes_on_the_host_is_read() -> None:
    trace = _public("sampled_rank-1.json.gz")
    assert (trace.rank, trace.world_size) == (1, 128)
    assert _operations(trace) == {"all_to_all": 4, "all_reduce": 4, "all_gather": 2}
    sizes = [call.size_bytes for call in trace.collectives if call.operation == "all_to_all"]
    assert {339_738_624, 394_073_856} <= set(sizes)  # the inputs' shapes give 324 and 376 MiB


def test_trace_without_device_work_is_read() -> None:
    trace = _public("rank_non_gpu.json.gz")
    assert set(_kinds(trace)) == {EventKind.OPERATOR, EventKind.ANNOTATION}
    assert trace.collectives == ()  # the `nccl:` ranges enqueue collectives that were not recorded


def test_gpu_trace_without_steps_is_read() -> None:
    trace = _public("benchmark_result_alexnet.json.gz")
    assert _steps(trace) == []
    assert _kinds(trace)[EventKind.DEVICE_SYNC] == 41
    assert trace.device_names == {0: "NVIDIA A100-PG509-200"}


def test_amd_trace_is_read() -> None:
    trace = _public("mi250_minitoy_train_ROCm6_2_kineto.json.gz")
    table = trace.events
    assert trace.device_names == {2: "AMD Radeon Graphics"}
    assert len(table.rows_of(*DEVICE_WORK)) == 16
    assert _launched(table).all()
    assert trace.notes == ()


def test_cpu_only_rank_34_of_300_is_read() -> None:
    trace = _public("rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz")
    assert (trace.rank, trace.world_size) == (34, 300)
    assert _operations(trace) == {"all_reduce": 10}
    assert {call.size_bytes for call in trace.collectives} == {1_285_084, 8_329_644}


def test_range_longer_than_the_recording_is_cut() -> None:
    trace = _public("triton_example.json.gz")
    assert trace.notes == ("1 events claim to last longer than the recording; cut at its end",)
    assert trace.events.end_ns.max() < 10**9


def _launched(table: EventTable) -> NDArray[np.bool_]:
    work = table.rows_of(*DEVICE_WORK)
    calls = table.correlation[table.rows_of(EventKind.RUNTIME)]
    return np.isin(table.correlation[work], calls)


@pytest.mark.parametrize(("run", "steps"), [(run, None if run == "resnet50_dataloader" else 4) for run in H200])
def test_cut_down_traces_agree_with_full_ones(
    run: str, steps: int | None, whole_recording: Callable[[str], Path]
) -> None:
    full_traces = read_traces([whole_recording(run)])
    for small, full in zip(read_traces([TRACES / run]), full_traces, strict=True):
        assert (small.rank, small.world_size, small.device_names) == (full.rank, full.world_size, full.device_names)
        for kinds in (DEVICE_WORK, (EventKind.ANNOTATION,), (EventKind.DEVICE_ANNOTATION,), (EventKind.OVERHEAD,)):
            ours, theirs = _absolute(small, *kinds), _absolute(full, *kinds)
            assert not ours - theirs
            assert ours == theirs or steps is not None
        assert _absolute(small, EventKind.OPERATOR) <= _absolute(full, EventKind.OPERATOR)
        if steps is not None:
            assert _launched(small.events).sum() > _launched(full.events).sum() * 0.7
        assert (~_launched(small.events)).sum() == (~_launched(full.events)).sum()


def _absolute(trace: Trace, *kinds: EventKind) -> Counter[tuple[int, ...]]:
    """Count the events of `kinds` by all columns except names, in absolute time."""
    table, rows = trace.events, trace.events.rows_of(*kinds)
    columns = (
        table.kind[rows],
        table.start_ns[rows] + trace.origin_ns,
        table.end_ns[rows] + trace.origin_ns,
        table.thread[rows],
        table.device[rows],
        table.correlation[rows],
        table.size_bytes[rows],
    )
    return Counter(zip(*(column.tolist() for column in columns), strict=True))
