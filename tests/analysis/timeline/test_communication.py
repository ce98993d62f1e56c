"""Test communication by host threads and on devices in traces like PyTorch's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gpudiag.analysis.attribution import attribute
from gpudiag.analysis.timeline import build_timeline
from gpudiag.analysis.timeline.host import awaited_inside
from gpudiag.model.event import Role
from gpudiag.model.timeline import OpClass
from tests.trace.documents import document, event, kernel, launch, read_one

if TYPE_CHECKING:
    from pathlib import Path

    from gpudiag.model.timeline import DeviceTrack, Timeline

STEP_US = 10_000
#: The world size is 2, because a job of one rank has no communication. Only the trace of rank 0 is given.
ONE_OF_TWO = {"rank": 0, "world_size": 2}


def copy(kind: str, start_us: float, length_us: float, correlation: int, stream: int = 7) -> dict[str, Any]:
    facts = {"device": 0, "stream": stream, "correlation": correlation, "bytes": 1000}
    return event("gpu_memcpy", f"Memcpy {kind}", start_us, length_us, pid=0, tid=stream, args=facts)


def copy_call(start_us: float, correlation: int, **more: Any) -> dict[str, Any]:
    return event("cuda_runtime", "cudaMemcpyAsync", start_us, 2, args={"correlation": correlation}, **more)


def steps(*one: dict[str, Any], count: int = 5) -> list[dict[str, Any]]:
    """Repeat a step, with times from its start and unique correlation ids."""
    events = []
    for number in range(count):
        begin = number * STEP_US
        events.append(event("user_annotation", f"ProfilerStep#{number}", begin, STEP_US))
        for each in one:
            arguments = dict(each.get("args", {}))
            if "correlation" in arguments:
                arguments["correlation"] += 1000 * (number + 1)
            events.append(each | {"ts": each["ts"] + begin} | ({"args": arguments} if arguments else {}))
    return events


def timeline(directory: Path, *one: dict[str, Any]) -> Timeline:
    return build_timeline([read_one(directory, document(*steps(*one), distributedInfo=ONE_OF_TWO))])


def classes(track: DeviceTrack) -> list[str]:
    """Return the classes of the ops of a middle step, in order of start."""
    return [OpClass(c).name for c in track.ops.op_class[track.ops.step == 2]]


def buckets(found: Timeline) -> dict[str, float]:
    """Return bucket → µs per step."""
    (cut,) = attribute(found).tracks
    return {
        bucket: float(part.end.sum() - part.start.sum()) / 1e3 / len(cut.step_ns) for bucket, part in cut.parts.items()
    }


def test_enqueue_of_zero_length_does_not_wait(tmp_path: Path) -> None:
    trace = read_one(tmp_path, document(event("cpu_op", "outer", 1, 100), event("cpu_op", "c10d::allreduce_", 9, 0)))
    assert len(awaited_inside(trace, int(trace.events.thread[0]))) == 0


def test_copies_launched_in_a_communication_range_are_communication(tmp_path: Path) -> None:
    built = timeline(
        tmp_path,
        launch(10, 1),
        kernel("gemm", 20, 1000, 1),
        event("user_annotation", "gpudiag.exchange", 1100, 500),
        copy_call(1110, 2),
        copy("DtoH (Device -> Pinned)", 1200, 300, 2),
        copy_call(2000, 3),
        copy("HtoD (Pinned -> Device)", 2100, 300, 3),
    )
    assert classes(built.tracks[0]) == ["COMPUTE", "COMMUNICATION", "COPY"]
    spent = buckets(built)
    # The whole range of 500 µs is transfer, because the device computes nothing during the range.
    assert (spent["communication_transfer"], spent["copy"]) == (500, 300)


def test_copy_between_devices_is_always_communication(tmp_path: Path) -> None:
    built = timeline(tmp_path, launch(10, 1), kernel("gemm", 20, 50, 1), copy_call(80, 2), copy("PtoP", 100, 30, 2))
    assert classes(built.tracks[0]) == ["COMPUTE", "COMMUNICATION"]


def test_copies_of_library_threads_belong_to_their_streams_range(tmp_path: Path) -> None:
    facts = {"device": 0, "stream": 28}
    built = timeline(
        tmp_path,
        launch(10, 1),
        kernel("gemm", 20, 1000, 1),
        event("gpu_user_annotation", "gpudiag.exchange", 1100, 500, pid=0, tid=28, args=facts),
        copy("DtoH (Device -> Pinned)", 1200, 300, 77, stream=28),
        copy("DtoH (Device -> Pinned)", 1800, 300, 78, stream=28),
    )
    track = built.tracks[0]
    on_it = track.ops.stream == 28
    assert [OpClass(c).name for c in track.ops.op_class[on_it][:2]] == ["COMMUNICATION", "COPY"]


@pytest.mark.parametrize("launches", [False, True])
def test_update_in_host_memory_is_part_of_its_communication(tmp_path: Path, launches: bool) -> None:
    """An update on the device is not communication, because a job without communication has the same update."""
    update = [launch(1700, 5), kernel("multi_tensor_apply", 1750, 10, 5)] if launches else []
    built = timeline(
        tmp_path,
        launch(10, 1),
        kernel("gemm", 20, 1000, 1),
        event("user_annotation", "Optimizer.step#CentralOptimizer.step", 1100, 900),
        event("user_annotation", "gpudiag.exchange", 1110, 90),
        event("user_annotation", "Optimizer.step#SGD.step", 1200, 700),
        event("cpu_op", "aten::add_", 1210, 600),
        *update,
    )
    (spans,) = built.tracks[0].communication.values()
    per_step = int((spans.end - spans.start).sum()) / 1e3 / 5
    assert per_step == (90 if launches else 900)


def test_wait_for_communication_of_an_unrecorded_thread(tmp_path: Path) -> None:
    """The thread waits from the end of its operators, which follow the hook's range, until the update."""
    built = timeline(
        tmp_path,
        event("cpu_op", "aten::mm", 10, 1000),
        event("user_annotation", "gpudiag.exchange", 1100, 10),
        event("cpu_op", "aten::mm", 1200, 800),
        event("user_annotation", "Optimizer.step#SGD.step", 6000, 500),
        event("cpu_op", "aten::add_", 6010, 480),
    )
    (spans,) = built.tracks[0].communication.values()
    assert (spans.start[:2] / 1e3).tolist() == [1100, 2000]
    assert (spans.end[:2] / 1e3).tolist() == [1110, 6000]
    assert buckets(built)["communication_transfer"] == 4010


def test_replica_threads_are_not_communication(tmp_path: Path) -> None:
    built = timeline(
        tmp_path,
        event("user_annotation", "DataParallel.forward", 100, 5000),
        event("cpu_op", "Broadcast", 200, 300),
        launch(2000, 1) | {"tid": 99},
        kernel("gemm", 2010, 100, 1),
        launch(2200, 2) | {"tid": 99},
        kernel("gemm", 2210, 100, 2),
    )
    (spans,) = built.tracks[0].communication.values()
    # The replica's thread is busy from 2000 to 2202 µs, including the pause between its two launches.
    assert (spans.start[:2] / 1e3).tolist() == [100, 2202]
    assert (spans.end[:2] / 1e3).tolist() == [2000, 5100]


AROUND = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"


@pytest.mark.parametrize("under_ddp", [True, False])
def test_user_hook_is_recognised_by_its_caller(tmp_path: Path, under_ddp: bool) -> None:
    mark = "DistributedDataParallel.forward" if under_ddp else "Net.forward"
    trace = read_one(
        tmp_path,
        document(
            event("user_annotation", mark, 0, 50),
            event("cpu_op", AROUND, 100, 500),
            event("cpu_op", "torch::autograd::AccumulateGrad", 110, 50),
            event("cpu_op", "aten::add_", 120, 30),
            event("cpu_op", "torch.distributed.ddp.reducer::mul_out" if under_ddp else "aten::mul", 200, 20),
            event("cpu_op", "aten::to", 300, 40),
            event("cpu_op", "c10d::allreduce_", 400, 20),
            event("cpu_op", "aten::mm", 700, 20),
        ),
    )
    events = trace.events
    roles = {events.name_of(row): Role(int(events.role[row])).name for row in range(len(events))}
    assert roles["aten::to"] == ("COMMUNICATION" if under_ddp else "OPERATOR")
    assert (roles["aten::add_"], roles["aten::mm"], roles["c10d::allreduce_"]) == ("OPERATOR", "OPERATOR", "ENQUEUE")
    if under_ddp:
        assert roles["torch.distributed.ddp.reducer::mul_out"] == "BUCKET_COPY"


@pytest.mark.parametrize(
    ("category", "name", "role"),
    [
        ("cpu_op", "_c10d_functional::all_gather_into_tensor", Role.ENQUEUE),
        ("cpu_op", "fsdp::all_gather_copy_in", Role.BUCKET_COPY),
        ("cpu_op", "GatherBackward", Role.COMMUNICATION),
        ("cpu_op", "autograd::engine::evaluate_function: BroadcastBackward", Role.COMMUNICATION),
        ("cpu_op", "aten::gather", Role.OPERATOR),
        ("cpu_op", "GatherByKey", Role.OPERATOR),
        ("user_annotation", "FSDP::pre_forward (layers.3)", Role.COMMUNICATION),
        ("user_annotation", "FullyShardedDataParallel._post_backward_hook", Role.COMMUNICATION),
        ("user_annotation", "FullyShardedDataParallel.forward", Role.OTHER),
        ("user_annotation", "DistributedDataParallel.forward", Role.OTHER),
        ("user_annotation", "gpudiag.exchange", Role.COMMUNICATION),
    ],
)
def test_communication_is_recognized_by_name(tmp_path: Path, category: str, name: str, role: Role) -> None:
    trace = read_one(tmp_path, document(event(category, name, 0, 5), event("cpu_op", "aten::mm", 6, 5)))
    assert Role(int(trace.events.role[0])) is role


def test_gradient_accumulated_by_ddp_alone_is_no_communication_hook(tmp_path: Path) -> None:
    """DDP's ranges contain all operators that autograd runs for the gradient, so the user has no hook."""
    trace = read_one(
        tmp_path,
        document(
            event("cpu_op", AROUND, 100, 100),
            event("cpu_op", "torch::autograd::AccumulateGrad", 100, 50),
            event("cpu_op", "torch.distributed.ddp.reducer::mul_out", 150, 50),
            event("cpu_op", "aten::mul", 160, 20),
        ),
    )
    assert not (trace.events.role == Role.COMMUNICATION).any()
