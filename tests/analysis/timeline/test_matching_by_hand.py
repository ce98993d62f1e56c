"""Test matches, last arrivals and clocks of the collectives of a few tracks. Times in µs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from gpudiag.analysis.timeline.collectives import Matching, TrackCalls, calls_by_start, match_collectives, track_calls
from gpudiag.analysis.timeline.process_groups import with_groups_and_peers
from gpudiag.model.event import HOST, CollectiveCall, ProcessGroup
from gpudiag.model.timeline import UNKNOWN
from tests.timeline_builder import TraceBuilder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpudiag.model.event import Trace
    from gpudiag.model.timeline import ClockAlignment

Call = tuple[float, float]
#: Ends of collectives; their distances differ, so that only one clock offset fits.
ENDS = (1000, 2100, 3500, 4200, 6000, 9900)


def calls_on(trace: Trace, devices: tuple[int, ...], *, rank: int = 0, origin_ns: int = 0) -> TrackCalls:
    """Return the collectives of a trace on `devices` as calls of one track."""
    rows = np.array([call.row for call in trace.collectives], np.int64)
    return track_calls(
        trace.collectives,
        calls_by_start(trace.events, rows, devices),
        trace.events.start_ns[rows],
        trace.events.end_ns[rows],
        rank=rank,
        trace=rank,
        on_host=devices == (HOST,),
        origin_ns=origin_ns,
        clock_known=True,
    )


def track(
    rank: int,
    calls: Sequence[Call],
    operation: str = "all_reduce",
    *,
    group: str = "0",
    ranks: tuple[int, ...] = (0, 1),
    clock_known: bool = True,
    sizes: Sequence[int | None] = (),
    trace: int | None = None,
) -> TrackCalls:
    """Make a track with the collectives `calls`, given as (start, end) in µs."""
    start, end = (np.array(calls, np.float64).reshape(-1, 2).T * 1000).astype(np.int64)
    return TrackCalls(
        rank=rank,
        trace=rank if trace is None else trace,
        clock_known=clock_known,
        start=start,
        end=end,
        row=np.arange(len(start)),
        calls=tuple(
            CollectiveCall(
                row=row, operation=operation, group=group, group_ranks=ranks,
                size_bytes=sizes[row] if sizes else None, sequence=None,
            )
            for row in range(len(start))
        ),
    )  # fmt: skip


def entering(before: float, *, ends: Sequence[float] = ENDS, ahead: float = 0) -> list[Call]:
    """Make collectives that start `before` µs before their ends, on a clock that is `ahead` µs ahead."""
    return [(end - before + ahead, end + ahead) for end in ends]


def arrivals(found: Matching, index: int) -> list[tuple[int, float]]:
    """Return (rank, time in µs) of the last arrival at each collective of a track."""
    of = found.collectives[index]
    return list(zip(of.last_rank.tolist(), (of.last_arrival / 1000).tolist(), strict=True))


def test_last_arrival_is_the_same_for_all_ranks() -> None:
    tracks = [
        track(0, entering(300), ranks=(0, 1, 2)),
        track(1, entering(100), ranks=(0, 1, 2)),
        track(2, entering(200), ranks=(0, 1, 2)),
    ]
    matching = match_collectives(tracks, {0, 1, 2})
    for index in range(3):
        assert arrivals(matching, index) == [(1, end - 100) for end in ENDS]
        assert matching.collectives[index].instance.tolist() == [0, 1, 2, 3, 4, 5]
    assert (matching.offsets, matching.missing_ranks, matching.ambiguous) == ([0, 0, 0], set(), False)


def test_unmatched_collective_has_no_wait() -> None:
    matching = match_collectives([track(0, entering(300)), track(1, entering(100, ends=ENDS[1:]))], {0, 1})
    assert arrivals(matching, 0) == [(UNKNOWN, UNKNOWN / 1000), *((1, end - 100) for end in ENDS[1:])]
    assert matching.collectives[0].instance.tolist() == [UNKNOWN, 1, 2, 3, 4, 5]
    assert matching.collectives[1].instance.tolist() == [1, 2, 3, 4, 5]
    (clock,) = matching.clocks
    assert (clock.rank, clock.matched) == (1, 5)
    (clock,) = match_collectives([track(0, entering(300, ends=ENDS[1:])), track(1, entering(100))], {0, 1}).clocks
    assert clock.matched == 5


def test_single_collective_matches() -> None:
    matching = match_collectives(
        [track(0, [(0, 100)]), track(1, [(50, 100)]), track(2, [(20, 100)], group="b", ranks=(2,))], {0, 1}
    )
    assert [arrivals(matching, index) for index in range(3)] == [[(1, 50)], [(1, 50)], [(2, 20)]]


def test_collectives_of_different_sizes_do_not_match() -> None:
    tracks = [
        track(rank, entering(100 * (rank + 1)), ranks=(0, 1, 2), sizes=[8 if rank == 1 else 4] * 6) for rank in range(3)
    ]
    matching = match_collectives(tracks, {0, 1, 2})
    assert [{rank for rank, _ in arrivals(matching, index)} for index in range(3)] == [{0}, {UNKNOWN}, {0}]
    assert [clock.rank for clock in matching.clocks] == [2]
    assert match_collectives(tracks[:2], {0, 1}).clocks == []


def test_all_to_alls_match_whatever_each_rank_sends() -> None:
    """One expert receives more tokens, so that ranks send different sizes."""
    tracks = [
        track(rank, entering(100 * (rank + 1)), "all_to_all", sizes=[4, 8, 4, 8, 8, 4] if rank else [8] * 6)
        for rank in range(2)
    ]
    matching = match_collectives(tracks, {0, 1})
    assert [{rank for rank, _ in arrivals(matching, index)} for index in range(2)] == [{0}, {0}]


def test_kernel_launched_before_the_trace_belongs_to_its_streams_group() -> None:
    """Each communicator uses separate streams. The other ranks' ends suggest the smaller group, which is wrong."""
    groups = {"all": ProcessGroup((0, 1, 2)), "pair": ProcessGroup((0, 1))}
    traces, calls = [], []
    for rank in range(3):
        builder = TraceBuilder(rank)
        if rank < 2:
            builder.collective(100, 200, stream=20, group="", launch=None)
        builder.collective(300, 400, stream=20, group="all", ranks=(0, 1, 2))
        trace = replace(builder.build(), groups=groups)
        traces.append(trace)
        calls.append(calls_on(trace, (0,), rank=rank))
    completed = with_groups_and_peers(calls, traces)
    assert [[(call.group, call.group_ranks) for call in each.calls] for each in completed] == [
        [("all", (0, 1, 2))] * (2 if rank < 2 else 1) for rank in range(3)
    ]


def test_instances_are_unique_across_groups() -> None:
    matching = match_collectives(
        [
            track(0, entering(300), group="a"),
            track(1, entering(100), group="a"),
            track(2, entering(300), group="b", ranks=(2, 3)),
            track(3, entering(200), group="b", ranks=(2, 3)),
        ],
        {0, 1, 2},
    )
    assert [of.instance.min() for of in matching.collectives] == [0, 0, 6, 6]
    assert arrivals(matching, 2) == [(3, end - 200) for end in ENDS]
    assert matching.missing_ranks == {3}
    # Each group keeps the clock of the first of its ranks.
    assert [clock.rank for clock in matching.clocks] == [1, 3]


def test_groups_of_one_rank_and_sends_do_not_wait() -> None:
    matching = match_collectives([track(1, entering(300), ranks=(1,)), track(0, entering(300), ranks=(1,))], {0, 1})
    assert arrivals(match_collectives([track(1, entering(300), ranks=(1,))], {1}), 0) == [
        (1, end - 300) for end in ENDS
    ]
    assert arrivals(match_collectives([track(1, entering(300), ranks=(0,))], {1}), 0)[0][0] == UNKNOWN
    assert len(matching.clocks) == 1
    sent = match_collectives([track(0, entering(300), "send"), track(1, entering(300), "send")], {0, 1})
    assert {rank for index in range(2) for rank, _ in arrivals(sent, index)} == {UNKNOWN}
    assert sent.clocks == []


def test_rank_that_arrived_after_departure_was_not_waited_for() -> None:
    """After each all-reduce there is a broadcast, which its root leaves 500 µs after the all-reduce.

    The other rank arrives up to 100 µs later, which is the tolerance of clocks, or 101 µs later.
    """
    for late, expected in ((0, [1, 1]), (100, [1, 1]), (101, [0, 1])):
        tracks = []
        for rank in range(2):
            reduced = track(rank, entering(100))
            begin, length = (400.0, 100.0) if rank == 0 else (500.0 + late, 50.0)
            sent = track(rank, [(end + begin, end + begin + length) for end in ENDS], "broadcast")
            order = np.argsort(np.concatenate([reduced.start, sent.start]), kind="stable")
            tracks.append(
                TrackCalls(
                    rank=rank, trace=rank, clock_known=True,
                    start=np.concatenate([reduced.start, sent.start])[order],
                    end=np.concatenate([reduced.end, sent.end])[order],
                    row=np.arange(12), calls=tuple((*reduced.calls, *sent.calls)[at] for at in order),
                )
            )  # fmt: skip
        matching = match_collectives(tracks, {0, 1})
        assert [matching.collectives[rank].last_rank[1] for rank in range(2)] == expected


def clock(a: TrackCalls, b: TrackCalls) -> tuple[list[float], ClockAlignment]:
    matching = match_collectives([a, b], {0, 1})
    (one,) = matching.clocks
    return [offset / 1000 for offset in matching.offsets], one


def test_clock_moves_only_by_more_than_the_spread_of_ends() -> None:
    offsets, clock_warnings = clock(track(0, entering(300)), track(1, entering(100, ahead=5000)))
    assert (offsets, clock_warnings.offset_ns, clock_warnings.residual_ns) == ([0, -5000], -5_000_000, 0)
    offsets, clock_warnings = clock(track(0, entering(300)), track(1, entering(100, ahead=21)))
    assert (offsets, clock_warnings.residual_ns) == ([0, -21], 0)
    # If the difference is too small to move a clock, it becomes the residual.
    offsets, clock_warnings = clock(track(0, entering(300)), track(1, entering(100, ahead=-20)))
    assert (offsets, clock_warnings.residual_ns) == ([0, 0], 20_000)


def test_last_arrival_is_on_the_common_clock() -> None:
    """Rank 1's clock is 5 ms ahead or behind, and rank 1 arrives 200 µs later than rank 0."""
    for ahead in (5000, -5000):
        matching = match_collectives([track(0, entering(300)), track(1, entering(100, ahead=ahead))], {0, 1})
        for index in range(2):
            assert arrivals(matching, index) == [(1, end - 100) for end in ENDS]


def test_first_process_keeps_its_clock() -> None:
    offsets, clock_warnings = clock(track(0, entering(300, ends=ENDS[1:], ahead=5000)), track(1, entering(100)))
    assert offsets == [0, 5000]
    assert (clock_warnings.rank, clock_warnings.offset_ns) == (1, 5_000_000)
    # Clocks of unknown origin are also aligned to the clock of the first process.
    offsets, _ = clock(
        track(0, entering(300), clock_known=False), track(1, entering(100, ahead=1e9), clock_known=False)
    )
    assert offsets == [0, -1e9]


def test_clock_offsets_chain_across_groups() -> None:
    """Ranks 0 and 1 share a group, and ranks 1 and 2 share another group."""
    first = track(0, entering(300), group="a")
    last = track(2, entering(100, ahead=7000), group="b", ranks=(1, 2))
    both = [
        track(1, entering(200, ahead=3000), group=group, ranks=ranks) for group, ranks in (("a", (0, 1)), ("b", (1, 2)))
    ]
    matching = match_collectives([first, *both, last], {0, 1, 2})
    assert [offset / 1000 for offset in matching.offsets] == [0, -3000, -3000, -7000]
    assert {clock.rank: clock.matched for clock in matching.clocks} == {1: 12, 2: 6}


def test_collectives_between_tracks_of_one_process_align_no_clocks() -> None:
    tracks = [track(0, entering(300), trace=0), track(0, entering(200), trace=0), track(1, entering(100, ahead=5000))]
    matching = match_collectives(tracks, {0, 1})
    assert [offset / 1000 for offset in matching.offsets] == [0, 0, -5000]
    assert [clock.rank for clock in matching.clocks] == [1]


def test_kinds_of_collectives_differ_by_size() -> None:
    of = match_collectives([track(0, entering(300), sizes=[4, 8, 4, None, 8, 4])], {0}).collectives[0]
    assert of.kind.tolist() == [0, 1, 0, 2, 1, 0]
    assert of.kinds == (("all_reduce", "0", 2, 4), ("all_reduce", "0", 2, 8), ("all_reduce", "0", 2, None))


def test_calls_of_a_track_are_sorted_by_start() -> None:
    trace = (
        TraceBuilder().gloo(5, 6).on(0).collective(30, 40, ranks=(7,)).collective(10, 20).on(1).collective(1, 2).build()
    )

    def of(*devices: int) -> list[tuple[float, float]]:
        calls = calls_on(replace(trace, collectives=trace.collectives[::-1]), devices, origin_ns=1000)
        assert [call.row for call in calls.calls] == calls.row.tolist()
        return [(a / 1000, b / 1000) for a, b in zip(calls.start.tolist(), calls.end.tolist(), strict=True)]

    assert of(0) == [(11, 21), (31, 41)]
    assert of(0, HOST) == [(6, 7), (11, 21), (31, 41)]
    assert of(1) == [(2, 3)]
    assert of(2) == []
