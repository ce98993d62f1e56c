"""Test host and device work of communication in graphs of a few nodes. Times in ns."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gpudiag.analysis.diagnosis.simulation.graph import NONE, HostBlock
from gpudiag.analysis.diagnosis.simulation.job_model import CommunicationWork, bucket_copy_ops, communication_work
from gpudiag.intervals import EMPTY, Intervals, as_set, union
from gpudiag.model.event import HOST, Role
from gpudiag.model.timeline import OpClass
from tests.analysis.diagnosis.simulation.few_nodes import device_of, graph_of, host_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    Spans = Sequence[tuple[int, int]]

COMPUTE, COMMUNICATION, COPY = OpClass


def timeline_of(
    *rows: tuple[int, int, int, Role],
    communication: dict[int, Spans] | None = None,
    calls: dict[int, Spans] | None = None,
    busy: dict[int, Spans] | None = None,
    moved: Spans = (),
    blocked: Spans = (),
    shift: int = 0,
    is_cpu: bool = False,
) -> Any:
    """Return the timeline of a process whose training thread is thread 1.

    Host events are `rows`: (thread, start, end, role). `communication`, `calls` and `busy` map a thread to ranges of
    communication, of calls that enqueue it, and of work. The threads of `busy` wait in the ranges `blocked`, and
    communication copies data on the device in the ranges `moved`. `shift` is the common clock minus the process's
    clock.
    """
    thread, start, end, role = np.array(
        [(*row[:3], int(row[3])) for row in rows or [(1, 0, 1, Role.OTHER)]], np.int64
    ).T
    events = SimpleNamespace(
        thread=thread, start_ns=start, end_ns=end, role=role.astype(np.uint8), device=np.full(len(thread), HOST)
    )
    sets = [{of: as_set(list(spans)) for of, spans in (each or {}).items()} for each in (communication, calls, busy)]
    threads = {of: SimpleNamespace(busy=spans, blocked=as_set(list(blocked))) for of, spans in sets[2].items()}
    track = SimpleNamespace(
        trace=0,
        shift_ns=shift,
        is_cpu=is_cpu,
        steps=SimpleNamespace(thread=1),
        threads=threads,
        communication=sets[0],
        communication_calls=sets[1],
        host_communication=union(*sets[0].values()) if sets[0] else EMPTY,
        ops=SimpleNamespace(intervals=lambda _: as_set(list(moved))),
        collectives=Intervals(np.empty(0, np.int64), np.empty(0, np.int64)),
    )
    return SimpleNamespace(tracks=[track], traces=[SimpleNamespace(events=events, waits_in_collectives=False)])


def test_bucket_copies_are_launched_in_their_operators_only() -> None:
    rows = [
        (1, 0, 100, Role.BUCKET_COPY),
        (1, 10, 11, Role.LAUNCH),
        (1, 100, 101, Role.LAUNCH),
        (2, 20, 21, Role.LAUNCH),
    ]
    timeline = timeline_of(*rows)
    host = host_of(row=[1, 2, 3, NONE], time=[11, 101, 21, 30])
    device = device_of(
        launch=[0, 0, 0, 1, 2, 3, NONE], op_class=[COMPUTE, COMMUNICATION, COMPUTE, COMPUTE, COMPUTE, COMPUTE, COMPUTE],
        host_copy=[False, False, True, False, False, False, False],
    )  # fmt: skip
    assert bucket_copy_ops(graph_of(host, device), timeline).tolist() == [True, *[False] * 6]


def test_optimizer_update_inside_communication_is_no_bucket_copy() -> None:
    rows = [(1, 0, 100, Role.COMMUNICATION), (1, 20, 40, Role.OPTIMIZER), (1, 200, 240, Role.OPTIMIZER)]
    launches = [(1, at, at + 1, Role.LAUNCH) for at in (10, 20, 39, 40, 200)]
    timeline = timeline_of(*rows, *launches)
    host = host_of(row=[3, 4, 5, 6, 7])
    copies = bucket_copy_ops(graph_of(host, device_of(launch=[0, 1, 2, 3, 4])), timeline)
    assert copies.tolist() == [True, False, False, True, False]


def part(timeline: Any, host: Any, device: Any = None) -> CommunicationWork:
    return communication_work(graph_of(host, device), timeline)


def test_host_work_inside_communication_ranges_is_communication() -> None:
    """Nodes end at 0, 100, 200 and 300 ns. Communication calls last from 110 to 130 ns, and a range from 220 to 260
    ns."""
    timeline = timeline_of(communication={1: [(220, 260)]}, calls={1: [(110, 130), (230, 240)]}, busy={1: [(0, 250)]})
    host = host_of(time=[0, 100, 200, 300], busy=[0, 100, 15, 25], untraced=[0, 0, 0, 5], row=[NONE] * 4)
    work = part(timeline, host)
    assert work.calls.tolist() == [0, 0, 15, 0]
    assert work.busy.tolist() == [0, 0, 0, 25]
    assert work.waiting.tolist() == [0, 0, 0, 5]
    assert work.any()
    idle = timeline_of(communication={}, calls={1: [(110, 130)]}, busy={1: [(0, 250)]})
    assert not part(idle, host).any()


def test_communication_of_all_chain_threads_counts() -> None:
    """Thread 7, which makes the second node's call, communicates from 120 to 180 ns."""
    timeline = timeline_of(
        (7, 150, 160, Role.LAUNCH), communication={7: [(120, 180)]}, busy={1: [(0, 110)], 7: [(110, 300)]}
    )
    host = host_of(time=[100, 200], busy=[0, 100], row=[NONE, 0])
    work = part(timeline, host)
    assert (work.busy.tolist(), work.waiting.tolist()) == ([0, 60], [0, 0])


def test_communication_of_other_threads_counts_only_while_the_chain_waits() -> None:
    """Thread 5 communicates from 110 to 180 ns, while thread 1 works until 130 ns and from 170 ns on."""
    timeline = timeline_of(communication={5: [(110, 180)], 1: [(140, 150)]}, busy={1: [(0, 130), (170, 300)]})
    host = host_of(time=[100, 200], busy=[0, 60], before_first_op=[0, 90], row=[NONE] * 2)
    work = part(timeline, host)
    assert (work.busy.tolist(), work.waiting.tolist()) == ([0, 0], [0, 40])


def test_blocked_node_works_until_its_call() -> None:
    """The node's call begins at 150 ns (on the common clock), and the node's thread communicates from 120 ns on."""
    rows = [(1, 50, 200, Role.SYNCHRONIZATION)]
    timeline = timeline_of(*rows, communication={1: [(120, 300)]}, busy={1: [(0, 300)]}, shift=100)
    device = device_of(end=[180.0], track=[0])
    waits = host_of(time=[100, 200], busy=[0, 100], row=[NONE, 0], block_on=[NONE, 0], block=[0, HostBlock.SYNC])
    work = part(timeline, waits, device)
    assert (work.busy.tolist(), work.blocks.tolist()) == ([0, 30], [False, True])
    free = host_of(time=[100, 200], busy=[0, 100], row=[NONE, 0])
    work = part(timeline, free, device)
    assert (work.busy.tolist(), work.blocks.tolist()) == ([0, 80], [False, False])


@pytest.mark.parametrize(
    ("op_class", "transfer", "block", "is_cpu", "blocks"),
    [
        (COMMUNICATION, np.nan, HostBlock.SYNC, False, True),  # the call waits for a communication copy
        (COMMUNICATION, 5.0, HostBlock.SYNC, False, False),
        (COMPUTE, np.nan, HostBlock.SYNC, False, False),
        (COMPUTE, np.nan, HostBlock.COLLECTIVE, False, True),
        (COMPUTE, np.nan, HostBlock.COLLECTIVE, True, False),
    ],
)
def test_node_may_wait_for_communication(
    op_class: OpClass, transfer: float, block: HostBlock, is_cpu: bool, blocks: bool
) -> None:
    timeline = timeline_of((1, 150, 200, Role.SYNCHRONIZATION), busy={1: [(0, 300)]}, is_cpu=is_cpu)
    device = device_of(end=[180.0], op_class=[op_class], transfer=[transfer])
    host = host_of(time=[100, 200], row=[NONE, 0], block_on=[NONE, 0], block=[0, block])
    assert part(timeline, host, device).blocks.tolist() == [False, blocks]


def test_gaps_and_latencies_during_communication_are_attributed_to_it() -> None:
    """Communication copies data from 100 to 200 ns.

    The usual part of each gap and latency, which is the median, is not attributed to communication.
    """
    timeline = timeline_of(communication={}, busy={1: [(0, 9)]}, moved=[(100, 200)])
    device = device_of(
        start=[150, 250, 90, 400, 150], gap=[40, 80, 50, 10, 30], latency=[0, -9, 20, 5, 60],
        op_class=[COMPUTE, COMPUTE, COPY, COMPUTE, COMMUNICATION],
    )  # fmt: skip
    work = part(timeline, host_of(time=[0]), device)
    # The median of the gaps 40, 80, 50 and 10 ns is 45 ns. Communication overlaps 30 ns of the gap of 80 ns, which is
    # less than the excess of 35 ns.
    assert work.gap.tolist() == [0, 30, 0, 0, 0]
    assert work.latency.tolist() == [0, 0, 0, 0, 0]
    late = device_of(start=[150, 150, 150], gap=[0, 0, 0], latency=[10, 10, 45])
    assert part(timeline, host_of(time=[0]), late).latency.tolist() == [0, 0, 35]
    assert part(timeline_of(moved=[(100, 200)], is_cpu=True), host_of(time=[0]), late).latency.tolist() == [0, 0, 0]


def test_waiting_host_does_no_communication_for_its_device() -> None:
    timeline = timeline_of(communication={1: [(100, 200)]}, busy={1: [(0, 9)]}, blocked=[(100, 160)])
    device = device_of(start=[180, 150, 50], gap=[60, 50, 0], latency=[0, 0, 0])
    assert part(timeline, host_of(time=[0]), device).gap.tolist() == [10, 0, 0]
