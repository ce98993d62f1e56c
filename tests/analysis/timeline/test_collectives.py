"""Test last arrivals, clocks and groups of collectives of several ranks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gpudiag.analysis.attribution import attribute
from gpudiag.analysis.timeline import build_timeline
from gpudiag.model.analysis import BUCKETS
from gpudiag.units import NS_PER_MS, NS_PER_S, NS_PER_US
from tests.examples import examples
from tests.timeline_builder import TraceBuilder

WAIT = BUCKETS.index("communication_wait")
TRANSFER = BUCKETS.index("communication_transfer")


def job(
    arrivals: list[int], *, steps: int = 6, period: int = 30_000, clocks_ns: list[int] | None = None, jitter: int = 0
) -> list[TraceBuilder]:
    """Make ranks with an all-reduce per step, which rank i enters at `arrivals[i]` µs and all leave at 20 000 µs.

    Steps take `period` µs and up to 900 µs more. The clock of rank i is ahead by `clocks_ns[i]`. Ranks leave up to
    `jitter` µs later.
    """
    noise = np.random.default_rng(5)
    lengths = noise.integers(0, 900, steps)
    builders = []
    for rank, arrival in enumerate(arrivals):
        trace = TraceBuilder(rank, world_size=len(arrivals), host=f"node{rank}")
        at = 0
        for step in range(steps):
            end = 20_000 + int(noise.integers(0, jitter + 1))
            trace.step(at).compute(0, arrival).collective(arrival, end, ranks=tuple(range(len(arrivals))))
            at += period + int(lengths[step])
        builders.append(trace.clock_ahead(clocks_ns[rank]) if clocks_ns else trace)
    return builders


@pytest.mark.parametrize("clocks_ns", [None, [0, 3 * NS_PER_MS, -7 * NS_PER_MS]])
def test_all_ranks_wait_for_the_last_arrival(clocks_ns: list[int] | None) -> None:
    builders = job([4_000, 15_000, 9_000], clocks_ns=clocks_ns, jitter=10)
    timeline = build_timeline([builder.build() for builder in builders])
    attribution = attribute(timeline)
    for track, late_us in zip(attribution.tracks, (11_000, 0, 6_000), strict=True):
        assert set(track.waits_ns) == ({1} if late_us else set())
        each = track.buckets_ns[:, WAIT] / NS_PER_US
        assert each == pytest.approx([late_us] * len(each), abs=30)
    if clocks_ns:
        offsets = {clock.rank: clock.offset_ns for clock in timeline.clocks}
        reference = {0, 1, 2} - set(offsets)
        assert len(reference) == 1
        zero = clocks_ns[reference.pop()]
        for rank, offset in offsets.items():
            assert offset == pytest.approx(zero - clocks_ns[rank], abs=30 * NS_PER_US)


def test_separate_components_of_clocks_are_aligned() -> None:
    """Two groups have two ranks each. The clock of rank 3 is 4 ms ahead, which only collectives with rank 2 show."""
    traces = []
    for rank in range(4):
        ranks = (0, 1) if rank < 2 else (2, 3)
        trace = TraceBuilder(rank, world_size=4)
        for step, at in enumerate((0, 30_000, 61_000, 90_500, 121_000, 150_000)):
            trace.step(at).compute(0, 100).collective(5_000 + 100 * rank, 20_000 + step, group="tp", ranks=ranks)
        traces.append(trace.clock_ahead(4 * NS_PER_MS if rank == 3 else 0).build())
    timeline = build_timeline(traces)
    shifts = [track.shift_ns for track in timeline.tracks]
    assert shifts[:3] == [0, 0, 0]
    assert shifts[3] == -4 * NS_PER_MS
    assert attribute(timeline).tracks[2].waits_ns.keys() == {3}


def test_devices_of_one_process_share_its_clock() -> None:
    """The second device has no collectives; its clock offset equals that of the first."""
    reference, other = (
        TraceBuilder(rank, world_size=2).steps(
            6, 30_000, lambda s: s.on(0).compute(0, 100).collective(5_000, 20_000, ranks=(0, 1)).on(1).compute(0, 100)
        )
        for rank in range(2)
    )
    timeline = build_timeline([reference.build(), other.clock_ahead(9 * NS_PER_MS).build()])
    assert [track.shift_ns for track in timeline.tracks] == [0, 0, -9 * NS_PER_MS, -9 * NS_PER_MS]


def test_groups_with_equal_names_and_different_ranks_are_different() -> None:
    traces = []
    for rank in range(4):
        ranks = (0, 1) if rank < 2 else (2, 3)
        late = {0: 2_000, 1: 10_000, 2: 14_000, 3: 2_000}[rank]
        trace = TraceBuilder(rank, world_size=4)
        for step in range(5):
            trace.step(30_000 * step).collective(late, 20_000, group="tp", ranks=ranks)
        traces.append(trace.build())
    waits = [set(track.waits_ns) for track in attribute(build_timeline(traces)).tracks]
    assert waits == [{1}, set(), set(), {2}]


def test_several_groups_of_one_process_are_matched_separately() -> None:
    """Tensor-parallel pairs communicate within the step, and a data-parallel all-reduce ends it."""
    traces = []
    for rank in range(4):
        pair = (0, 1) if rank < 2 else (2, 3)
        trace = TraceBuilder(rank, world_size=4)
        for step in range(6):
            trace.step(30_000 * step).collective(1_000 + 500 * (rank % 2), 3_000, group="tp", ranks=pair)
            trace.collective(10_000 + 1_000 * rank, 20_000, group="dp", ranks=(0, 1, 2, 3), stream=21)
        traces.append(trace.build())
    tracks = attribute(build_timeline(traces)).tracks
    assert [set(track.waits_ns) for track in tracks] == [{1, 3}, {3}, {3}, set()]
    assert tracks[0].waits_ns[1].tolist() == [500 * NS_PER_US] * 4
    assert tracks[0].waits_ns[3].tolist() == [3_000 * NS_PER_US] * 4


def test_root_of_a_broadcast_may_leave_early() -> None:
    """The root does not wait for other ranks, but other ranks wait for a late root."""
    traces = []
    for rank in range(2):
        trace = TraceBuilder(rank, world_size=2)
        for step in range(6):
            trace.step(30_000 * step)
            # In odd steps the other rank arrives after the root has left, in even steps 1 ms before the root.
            start, end = ((5_000, 5_040), (6_000, 6_040))[rank] if step % 2 else ((5_000, 5_040), (4_000, 5_045))[rank]
            trace.collective(start, end, "broadcast", ranks=(0, 1))
            trace.compute(7_000, 9_000).collective(10_000, 20_000, ranks=(0, 1))
        traces.append(trace.build())
    root, other = attribute(build_timeline(traces)).tracks
    assert not root.waits_ns
    assert other.waits_ns[0].tolist() == [0, 1_000 * NS_PER_US, 0, 1_000 * NS_PER_US]


def test_collectives_of_a_single_rank_have_no_wait() -> None:
    trace = TraceBuilder(0, world_size=1).steps(4, 100, lambda s: s.collective(10, 60, ranks=(0,)))
    (track,) = attribute(build_timeline([trace.build()])).tracks
    assert track.buckets_ns[:, BUCKETS.index("compute")].tolist() == [50 * NS_PER_US] * 2
    assert track.buckets_ns[:, TRANSFER].tolist() == [0, 0]
    assert not track.waits_ns
    assert track.unsplit_ns.tolist() == [0, 0]


def test_single_rank_shows_its_wait_as_transfer() -> None:
    trace = TraceBuilder(5, world_size=8).steps(4, 100, lambda s: s.collective(10, 60, ranks=tuple(range(8))))
    timeline = build_timeline([trace.build()])
    (track,) = attribute(timeline).tracks
    assert timeline.world_size == 8
    assert track.unsplit_ns.tolist() == [50 * NS_PER_US] * 2
    assert "missing-ranks" in {v.code for v in timeline.validity}


def test_present_ranks_match_despite_missing_ones() -> None:
    builders = job([4_000, 15_000, 9_000])
    timeline = build_timeline([builders[0].build(), builders[2].build()])
    first, second = attribute(timeline).tracks
    assert set(first.waits_ns) == {2}
    assert not second.waits_ns
    assert "missing-ranks" in {v.code for v in timeline.validity}


def test_send_and_receive_do_not_match() -> None:
    traces = []
    for rank, operation in enumerate(("send", "recv")):
        trace = TraceBuilder(rank, world_size=2)
        for step in range(4):
            trace.step(100 * step).collective(10, 60, operation, ranks=(0, 1))
        traces.append(trace.build())
    timeline = build_timeline(traces)
    for track, cut in zip(timeline.tracks, attribute(timeline).tracks, strict=True):
        assert (track.collectives.instance == -1).all()
        assert cut.unsplit_ns.tolist() == cut.buckets_ns[:, TRANSFER].tolist()


def test_traces_that_end_early_or_lose_collectives_are_matched() -> None:
    builders = [job([4_000, 12_000], steps=9)[rank] for rank in range(2)]
    whole, cut = (builder.build() for builder in builders)
    lost = cut.collectives[4]
    cut = replace(cut, collectives=tuple(call for call in cut.collectives if call is not lost))
    first, second = build_timeline([whole, cut]).tracks
    matched = set(first.collectives.instance.tolist()) & set(second.collectives.instance.tolist())
    assert len(matched - {-1}) == 8
    assert (first.collectives.last_rank[first.collectives.instance >= 0] == 1).all()


def test_clocks_of_unknown_origin_are_aligned() -> None:
    """The files lack baseTimeNanoseconds, so each clock has an arbitrary zero."""
    builders = job([4_000, 15_000], steps=8, jitter=3, clocks_ns=[0, 17 * NS_PER_S])
    traces = [replace(builder.build(), origin_ns=0) for builder in builders]
    timeline = build_timeline(traces)
    first, second = attribute(timeline).tracks
    assert (set(first.waits_ns), set(second.waits_ns)) == ({1}, set())
    assert timeline.tracks[1].shift_ns == pytest.approx(-17 * NS_PER_S, abs=50 * NS_PER_US)


def test_gloo_order_differs_between_worker_threads() -> None:
    """Two threads run the collectives, in a different order on each rank."""
    traces = []
    for rank in range(2):
        trace = TraceBuilder(rank, world_size=2)
        for step in range(6):
            trace.step(40_000 * step).operator(0, 8_000, "aten::mm")
            first, second = (10_000, 10_100) if (step + rank) % 2 else (10_100, 10_000)
            trace.gloo(first, 20_000, thread=91, ranks=(0, 1), size_bytes=4_000)
            trace.gloo(second, 26_000, thread=92, ranks=(0, 1), size_bytes=900)
        traces.append(trace.build())
    a, b = (track.collectives for track in build_timeline(traces).tracks)
    of_a = {int(i): a.kinds[k] for i, k in zip(a.instance, a.kind, strict=True)}
    of_b = {int(i): b.kinds[k] for i, k in zip(b.instance, b.kind, strict=True)}
    assert -1 not in of_a
    assert of_a == of_b


@given(
    arrivals=st.lists(st.integers(100, 19_000), min_size=2, max_size=4, unique=True),
    jitter=st.integers(0, 60),
    offset=st.integers(-20, 20),
)
@examples(40)
def test_waits_name_the_right_rank(arrivals: list[int], jitter: int, offset: int) -> None:
    builders = job(
        arrivals, jitter=jitter, clocks_ns=[offset * NS_PER_MS * (rank % 2) for rank in range(len(arrivals))]
    )
    attribution = attribute(build_timeline([builder.build() for builder in builders]))
    ranked = sorted(arrivals)
    if ranked[-1] - ranked[-2] < 200:
        return  # the clocks' residual is too large to determine which rank arrived last
    last = arrivals.index(ranked[-1])
    for track in attribution.tracks:
        total = sum(int(share.sum()) for share in track.waits_ns.values())
        assert total == track.buckets_ns[:, WAIT].sum()
        assert set(track.waits_ns) == (set() if track.rank == last else {last})
