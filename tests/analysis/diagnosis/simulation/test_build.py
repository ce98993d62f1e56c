"""Test how a graph is built: bounds of each op's start, peers of collectives, and host chains."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gpudiag.analysis.diagnosis.simulation import host_chain
from gpudiag.analysis.diagnosis.simulation.build import _latency_and_gap, _peers, _shifted, build_graph
from gpudiag.analysis.diagnosis.simulation.graph import NONE, HostBlock
from gpudiag.analysis.diagnosis.simulation.job_model import _devices, contention_free_gaps
from gpudiag.analysis.timeline import build_timeline
from gpudiag.model.timeline import UNKNOWN, OpClass
from tests.analysis.diagnosis.simulation.few_nodes import device_of, graph_of, host_of
from tests.timeline_builder import TraceBuilder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpudiag.analysis.diagnosis.simulation.graph import Graph

COMPUTE, COMMUNICATION, COPY = OpClass
LONG = 20_001
"""Time in ns, 1 ns more than the 20 µs after which an op counts as queued."""


def bounds(*ops: tuple[float | None, float, float], track: Sequence[int] | None = None) -> list[tuple[float, float]]:
    """Return (latency, gap) of ops, given as (launch time or None if unknown, end of the previous op, start)."""
    launch = [NONE if at is None else place for place, (at, _, _) in enumerate(ops)]
    host = host_of(time=[at or 0 for at, _, _ in ops])
    latency, gap = _latency_and_gap(
        host,
        np.array(launch),
        np.array([start for _, _, start in ops], np.float64),
        np.array([free for _, free, _ in ops], np.float64),
        np.array([0] * len(ops) if track is None else track),
    )
    return list(zip(latency.tolist(), gap.tolist(), strict=True))


def test_delay_is_measured_from_the_later_of_launch_and_previous_end() -> None:
    assert bounds((100, 50, 130)) == [(30, 0)]
    assert bounds((100, 120, 130)) == [(0, 10)]
    assert bounds((100, 100, 130)) == [(30, 0)]
    assert bounds((None, 100, 130)) == [(0, 30)]
    assert bounds((100, -np.inf, 130)) == [(30, 0)]
    assert bounds((None, -np.inf, 130)) == [(0, 0)]


def test_delay_from_the_earlier_bound_is_at_most_the_usual_delay() -> None:
    """The usual latency is measured at launches to an idle device, and the usual gap between ops queued long before."""
    usual_latency = [(100_000, 50_000, 100_000 + each) for each in (3, 9, 5)]
    usual_gap = [(10_000, 200_000, 200_000 + each) for each in (2, 4, 8)]
    delays = bounds(*usual_latency, *usual_gap, (190_000, 200_000, 200_040), (200_000, 190_000, 200_040))
    assert delays[:6] == [(3, 4), (9, 4), (5, 4), (5, 2), (5, 4), (5, 8)]
    assert delays[6:] == [(5, 40), (40, 4)]
    # The bound is never later than the recorded start.
    assert bounds(*usual_gap, *usual_latency, (199_998, 200_000, 200_001))[-1] == (3, 1)
    assert bounds(*usual_gap, *usual_latency, (200_000, 199_999, 200_002))[-1] == (2, 3)


@pytest.mark.parametrize(("apart", "usual"), [(LONG, 7), (LONG - 1, 0)])
def test_usual_times_need_an_idle_device_or_a_queue_of_20_microseconds(apart: int, usual: float) -> None:
    assert bounds((1000, 1007 - apart, 1007), (50, 100, 500))[1] == (usual, 400)
    assert bounds((1007 - apart, 1000, 1007), (100, 50, 500))[1] == (400, usual)


def test_usual_times_are_per_device() -> None:
    assert bounds((100_000, 1, 100_003), (5, 10, 20), (100_000, 1, 100_009), (5, 10, 20), track=[0, 0, 1, 1]) == [
        (3, 0), (3, 10), (9, 0), (9, 10)
    ]  # fmt: skip


def peers_of(*tracks: Sequence[tuple[int | None, float, float]]) -> tuple[dict[int, list[int]], list[float]]:
    """Return (peers, transfer times) of the collective ops (instance, start, end) of `tracks`."""
    parts: Any = []
    tables: Any = []
    for index, ops in enumerate(tracks):
        rows = np.arange(len(ops))[::-1] + 5
        parts.append(SimpleNamespace(track=index, row=rows, op_class=np.full(len(ops), COMMUNICATION)))
        instance = np.array([UNKNOWN if of is None else of for of, _, _ in ops], np.int64)
        tables.append(SimpleNamespace(collectives=SimpleNamespace(row=rows, instance=instance)))
    first = np.cumsum([0, *map(len, tracks)])
    start, end = (np.array([op[at] for ops in tracks for op in ops], np.float64) for at in (1, 2))
    found, transfer = _peers(SimpleNamespace(tracks=tables), parts, first, start, end)  # type: ignore[arg-type]
    return {op: of.tolist() for op, of in sorted(found.items())}, transfer.tolist()


def test_collective_waits_for_peers_that_started_before_it_ended() -> None:
    found, transfer = peers_of([(0, 10, 100), (None, 110, 120), (1, 130, 150)], [(0, 60, 101), (1, 100_151, 100_170)])
    # In the second collective, the root has left before the other rank arrives.
    assert found == {0: [0, 3], 2: [2], 3: [0, 3], 4: [2, 4]}
    assert transfer == pytest.approx([40, np.nan, 20, 41, 19], nan_ok=True)
    found, transfer = peers_of([(0, 10, 60)], [(0, 60, 80)])
    assert (found, transfer) == ({0: [0, 1], 1: [0, 1]}, [0, 20])
    # Clocks agree to 0.1 ms at best: rank 0 waited for rank 1, although it seems to have left earlier.
    assert peers_of([(0, 10, 60)], [(0, 70, 80)]) == ({0: [0, 1], 1: [0, 1]}, [-10, 10])
    assert peers_of([(None, 0, 1)], [])[0] == {}


def test_track_indices_become_graph_indices() -> None:
    shifted = _shifted([np.array([0, NONE, 2]), np.array([NONE, 1])], np.array([0, 3]))
    assert shifted.tolist() == [0, NONE, 2, NONE, 4]


def test_graph_holds_whole_steps_and_their_length() -> None:
    def graph(*counts: int) -> Graph | None:
        """Return the graph of ranks that recorded `counts[rank]` steps of different lengths."""
        traces = [
            TraceBuilder(rank, world_size=len(counts))
            .steps(count, 100 * (rank + 1), lambda trace: trace.compute(5, 80))
            .build()
            for rank, count in enumerate(counts)
        ]
        return build_graph(build_timeline(traces))

    of = graph(6, 6)
    assert of is not None
    assert (of.steps, of.length_ns, of.ranks) == (4, 4 * 150_000, {0: 0, 1: 1})
    assert (of.chains, of.streams) == (((0, 4), (4, 8)), ((0, 4), (4, 8)))
    assert of.device.launch.tolist() == list(range(8))
    assert of.device.track.tolist() == [0] * 4 + [1] * 4
    # The number of steps in the graph is the smallest number of steps of a rank.
    of = graph(4, 2)
    assert of is not None
    assert (of.steps, of.length_ns) == (1, 150_000)
    assert graph(6, 1) is None


def gaps(
    *ops: tuple[float, float, int], busy: Sequence[tuple[int, int]], track: Sequence[int] | None = None
) -> list[float]:
    """Return contention-free gaps of kernels (start, gap, launch time), while collectives run at the `busy` times."""
    device = device_of(
        start=[start for start, _, _ in ops], gap=[gap for _, gap, _ in ops],
        launch=[NONE if at < 0 else place for place, (_, _, at) in enumerate(ops)],
        track=[0] * len(ops) if track is None else track,
    )  # fmt: skip
    table = SimpleNamespace(
        start=np.array([a for a, _ in busy], np.int64), end=np.array([b for _, b in busy], np.int64)
    )
    timeline: Any = SimpleNamespace(tracks=[SimpleNamespace(collectives=table)] * 2)
    gaps = contention_free_gaps(graph_of(host_of(time=[max(at, 0) for _, _, at in ops]), device), timeline)
    return [float(gap) for gap in gaps]


#: A collective, and kernels before it whose median gap is 4 ns.
BUSY = [(100_000, 200_000)]
CALM = [(50_000.0, 3.0, 0), (60_000.0, 5.0, 0), (70_000.0, 4.0, 0)]


def test_gap_beside_a_collective_becomes_the_usual_gap() -> None:
    assert gaps(*CALM, (150_000, 30, 0), (160_000, 2, 0), busy=BUSY) == [3, 5, 4, 4, 2]
    # A gap is contended if a collective runs between the end of the previous op and the kernel's start.
    edges = [gaps(*CALM, (start, 30, 0), busy=BUSY)[-1] for start in (200_029, 200_030, 100_000, 100_001)]
    assert edges == [4, 30, 30, 4]


def test_contention_free_gaps_are_of_queued_ops_only() -> None:
    assert gaps(*CALM, (150_000, 30, 130_000), (150_000, 30, 129_999), (150_000, 30, -1), busy=BUSY)[3:] == [30, 4, 30]
    assert gaps((150_000, 30, 0), busy=BUSY) == [30]
    assert gaps(*CALM, (150_000, 30, 0), busy=[]) == [3, 5, 4, 30]
    assert gaps(*CALM, (50_000, 9, 0), (150_000, 30, 0), busy=BUSY, track=[0, 0, 0, 1, 1])[3:] == [9, 9]


def test_one_thread_launches_for_all_devices_without_an_executor() -> None:
    """One thread launches for both devices of trace 0. For trace 1, TensorFlow's executor has a thread per device."""
    timeline: Any = SimpleNamespace(
        tracks=[SimpleNamespace(trace=0), SimpleNamespace(trace=0), SimpleNamespace(trace=1), SimpleNamespace(trace=1)],
        traces=[SimpleNamespace(waits_in_collectives=waits) for waits in (False, True, False)],
    )
    assert _devices(timeline).tolist() == [2, 1, 1]


def graph_of_steps(*traces: TraceBuilder) -> Graph:
    built = build_graph(build_timeline([trace.build() for trace in traces]))
    assert built is not None
    return built


def us(column: Any) -> list[float]:
    """Return a column's values in the second of three equal steps, in µs."""
    count = len(column) // 3
    return [float(value) / 1000 for value in column[count : 2 * count]]


def test_host_chain_of_launches_and_a_wait() -> None:
    """Short pauses count as work. The time of a wait after its op has ended counts as delay."""
    trace = TraceBuilder()
    for step in range(5):
        trace.step(1000 * step).loader(0, 100).operator(150, 400, "mm").compute(300, 500, launch=(200, 210))
        trace.operator(420, 430).sync(450, 510).operator(900, 950).compute(930, 980, launch=(910, 920))
    of = graph_of_steps(trace)
    host, device = of.host, of.device
    assert us(host.time) == [2210, 2510, 2920]
    assert (us(host.busy), us(host.input)) == ([190, 240, 410], [100, 0, 0])
    assert [part.any() for part in (host.before_first_op, host.untraced, host.slow, host.profiler)] == [False] * 4
    assert host.events.tolist() == [4, 3, 1] * 3
    assert host.step.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert host.block.tolist() == [HostBlock.NOT, HostBlock.SYNC, HostBlock.NOT] * 3
    assert host.block_on.tolist() == [NONE, 0, NONE, NONE, 2, NONE, NONE, 4, NONE]
    assert us(host.block_delay) == [0, 10, 0]
    assert device.launch.tolist() == [0, 2, 3, 5, 6, 8]
    assert us(device.latency) == [90, 10]
    assert device.step.tolist() == [0, 0, 1, 1, 2, 2]
    assert (of.steps, of.length_ns, of.ranks) == (3, 3_000_000, {0: 0})


def test_host_chain_with_untraced_time_before_the_first_op_and_later() -> None:
    trace = TraceBuilder()
    for step in range(5):
        trace.step(20_000 * step).operator(5000, 5100).compute(5100, 5200, launch=(5050, 5060))
        trace.operator(15_000, 15_100).compute(15_100, 15_200, launch=(15_050, 15_060))
    host = graph_of_steps(trace).host
    assert us(host.time) == [45_060, 55_060]
    assert us(host.before_first_op) == [5000, 0]
    assert us(host.untraced) == [0, 9900]
    assert us(host.busy) == [5000, 100]
    assert host.events.tolist() == [3, 2] * 3


def test_profiler_overhead_is_separate_and_synchronization_with_an_idle_device_is_work() -> None:
    """The synchronization at 600 µs does not wait, because its op ended at 500 µs."""
    trace = TraceBuilder()
    for step in range(5):
        trace.step(1000 * step).operator(0, 990).compute(300, 500, launch=(200, 210)).overhead(220, 250).sync(600, 700)
    host = graph_of_steps(trace).host
    assert us(host.time) == [2210, 2700]
    assert (us(host.busy), us(host.profiler)) == ([510, 490], [0, 30])
    assert host.block.tolist() == [HostBlock.NOT, HostBlock.SYNC] * 3
    assert us(host.block_delay) == [0, 100]


def test_blocking_copy_has_nodes_at_start_and_return() -> None:
    trace = TraceBuilder()
    for step in range(5):
        trace.step(1000 * step).operator(0, 990)
        trace.copy(120, 400, "Memcpy HtoD (Pageable -> Device)", launch=(100, 405)).compute(500, 600, launch=(450, 460))
    of = graph_of_steps(trace)
    assert us(of.host.time) == [2100, 2405, 2460]
    assert us(of.host.busy) == [640, 0, 55]
    assert of.host.block.tolist() == [HostBlock.NOT, HostBlock.PAGEABLE, HostBlock.NOT] * 3
    assert us(of.host.block_delay) == [0, 5, 0]
    assert of.device.launch.tolist() == [0, 2, 3, 5, 6, 8]
    assert of.device.host_copy.tolist() == [True, False] * 3


def test_host_chains_of_two_cpu_processes() -> None:
    """Each process enqueues a collective at 420 µs, waits for it until 710 µs, and works until the next step mark."""
    traces = [TraceBuilder(rank, world_size=2) for rank in range(2)]
    for trace in traces:
        for step in range(5):
            trace.step(1000 * step).loader(0, 50).operator(50, 400).operator(400, 420, "c10d::allreduce_")
            trace.gloo(410, 700, ranks=(0, 1)).operator(710, 990)
    of = graph_of_steps(*traces)
    host = of.host
    assert of.chains == ((0, 9), (9, 18))
    for rank, chain in enumerate((slice(0, 9), slice(9, 18))):
        assert us(host.time[chain]) == [2420, 2710, 3000]
        assert (us(host.busy[chain]), us(host.input[chain])) == ([370, 0, 290], [50, 0, 0])
        assert host.events[chain].tolist() == [3, 0, 2] * 3
        assert host.block[chain].tolist() == [HostBlock.NOT, HostBlock.COLLECTIVE, HostBlock.NOT] * 3
        first = 3 * rank
        assert host.block_on[chain].tolist() == [NONE, first, NONE, NONE, first + 1, NONE, NONE, first + 2, NONE]
        assert us(host.block_delay[chain]) == [0, 10, 0]
        assert host.step[chain].tolist() == [
            0,
            0,
            1,
            1,
            1,
            2,
            2,
            2,
            2,
        ]  # a mark belongs to the step that it begins, but the last mark begins no step
    assert of.device.launch.tolist() == [0, 3, 6, 9, 12, 15]
    assert us(of.device.transfer) == [290, 290]


def test_launch_blocked_by_a_full_queue_is_not_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call at 700 µs waits for the full launch queue until an op ends at 790 µs. The profiler takes 20 µs per
    step."""
    monkeypatch.setattr(host_chain, "FULL_QUEUE_OPS", 1)
    monkeypatch.setattr(host_chain, "_ONE_HELD_UP_PER_NS", 1000)
    trace = TraceBuilder()
    for step in range(5):
        trace.step(1000 * step).operator(0, 990).compute(110, 500, launch=(100, 104)).overhead(600, 620)
        trace.compute(500, 760, launch=(200, 204)).compute(760, 790, launch=(300, 304))
        trace.compute(810, 900, launch=(700, 800))
    host = graph_of_steps(trace).host
    assert us(host.time) == [2104, 2204, 2304, 2800]
    assert host.block.tolist() == [HostBlock.NOT, HostBlock.NOT, HostBlock.NOT, HostBlock.QUEUE] * 3
    assert us(host.block_delay) == [0, 0, 0, 10]
    assert us(host.busy) == [304, 100, 100, 376]
    assert not host.profiler.any()


def test_no_graph_without_calls_or_operators() -> None:
    unseen = TraceBuilder().steps(5, 1000, lambda trace: trace.compute(0, 900, launch=None))
    assert build_graph(build_timeline([unseen.build()])) is None
    seen = TraceBuilder(1).steps(5, 1000, lambda trace: trace.compute(0, 900))
    assert build_graph(build_timeline([unseen.build(), seen.build()])) is None
    assert build_graph(build_timeline([seen.build()])) is not None
    other = TraceBuilder().steps(5, 1000, lambda trace: trace.by(9).operator(0, 900).gloo(100, 800, thread=4))
    assert build_graph(build_timeline([other.build()])) is None
