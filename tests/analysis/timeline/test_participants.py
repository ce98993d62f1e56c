"""Test that communication of a single participant becomes compute, copies and host work."""

from __future__ import annotations

import pytest

from gpudiag.analysis.timeline import build_timeline
from gpudiag.analysis.timeline.lone_communication import without_lone_communication
from gpudiag.model.event import EventKind, Role, Trace
from tests.timeline_builder import TraceBuilder

_OF_COMMUNICATION = {Role.COMMUNICATION, Role.BUCKET_COPY, Role.ENQUEUE}


def process(
    rank: int | None = 0, world_size: int | None = None, group: tuple[int, ...] = (), *, collectives: bool = True
) -> TraceBuilder:
    """Build a trace with the range `DataParallel.forward`, operators of DistributedDataParallel, and a collective."""
    trace = TraceBuilder(rank, world_size=world_size).step(0).annotation(0, 90, "DataParallel.forward")
    trace.operator(1, 5, "torch::distributed::reducer::mul_out").operator(6, 9, "c10d::allreduce_")
    trace.compute(10, 20).copy(20, 30)
    return trace.collective(30, 40, ranks=group) if collectives else trace


def communicates(trace: Trace) -> bool:
    """Return whether any event has a role of communication."""
    return bool({Role(role) for role in trace.events.role.tolist()} & _OF_COMMUNICATION or trace.collectives)


@pytest.mark.parametrize(
    ("rank", "world_size", "group"),
    [
        (0, 1, ()),
        (0, 1, (0,)),
        (None, 1, ()),
        (0, None, (0,)),
        (None, None, (0,)),
    ],
)
def test_single_device_has_no_communication(rank: int | None, world_size: int | None, group: tuple[int, ...]) -> None:
    (trace,) = without_lone_communication([process(rank, world_size, group).build()])
    assert not communicates(trace)
    roles = {trace.events.name_of(row): Role(int(trace.events.role[row])) for row in range(len(trace.events))}
    assert roles["DataParallel.forward"] is Role.OTHER
    assert roles["c10d::allreduce_"] is roles["torch::distributed::reducer::mul_out"] is Role.OPERATOR
    assert {Role(role) for role in trace.events.role[trace.events.kind == EventKind.KERNEL].tolist()} == {Role.COMPUTE}
    assert {Role(role) for role in trace.events.role[trace.events.kind == EventKind.COPY].tolist()} == {Role.COPY}


def test_single_device_without_world_size_has_no_communication() -> None:
    (trace,) = without_lone_communication([process(collectives=False).build()])
    assert not communicates(trace)


@pytest.mark.parametrize(
    ("rank", "world_size", "group"),
    [
        (0, 2, ()),
        (0, 2, (0, 1)),
        (0, None, (0, 1)),
        (0, None, ()),  # an unknown group may include ranks without traces
        (1, None, (1,)),  # rank 1 implies that there is a rank 0
    ],
)
def test_trace_that_mentions_other_ranks_keeps_its_communication(
    rank: int, world_size: int | None, group: tuple[int, ...]
) -> None:
    before = process(rank, world_size, group).build()
    (trace,) = without_lone_communication([before])
    roles = {trace.events.name_of(row): Role(int(trace.events.role[row])) for row in range(len(trace.events))}
    assert roles["DataParallel.forward"] is Role.COMMUNICATION
    assert len(trace.collectives) == (group != (1,))


def test_given_world_size_applies_if_the_trace_has_none() -> None:
    (trace,) = without_lone_communication([process(0, None, (0,), collectives=False).build()], 2)
    assert communicates(trace)


def test_peer_copy_implies_a_peer() -> None:
    built = process(0, 1).copy(50, 60, "Memcpy PtoP (Device -> Device)").build()
    assert without_lone_communication([built]) == [built]


def test_two_devices_of_one_process_communicate() -> None:
    trace = process(0, 1, collectives=False).on(1).compute(10, 20).build()
    assert communicates(without_lone_communication([trace])[0])


def test_only_groups_of_one_rank_become_compute() -> None:
    traces = [
        process(rank, 2, (rank,)).collective(50, 60, ranks=(0, 1)).collective(70, 80, ranks=()).build()
        for rank in range(2)
    ]
    for trace in without_lone_communication(traces):
        assert [call.group_ranks for call in trace.collectives] == [(0, 1), ()]
        kernels = trace.events.role[trace.events.kind == EventKind.KERNEL].tolist()
        assert [Role(role) for role in kernels[:2]] == [Role.COMPUTE, Role.COMPUTE]
        assert Role.COMPUTE not in kernels[2:]


def test_traces_without_communication_are_unchanged() -> None:
    trace = TraceBuilder(0, world_size=1).compute(0, 10).build()
    assert without_lone_communication([trace])[0] is trace


def test_a_timeline_of_one_device_has_no_collectives() -> None:
    trace = TraceBuilder(0, world_size=1).steps(4, 100, lambda trace: trace.compute(0, 40).collective(40, 90))
    (track,) = build_timeline([trace.build()]).tracks
    assert len(track.collectives) == 0
