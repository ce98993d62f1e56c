"""Compare attribution with a classification of every instant that follows only the table in docs/report.md."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from gpudiag.analysis.attribution import attribute
from gpudiag.analysis.timeline import build_timeline
from gpudiag.model.analysis import BUCKETS
from gpudiag.units import NS_PER_MS
from tests.examples import examples
from tests.timeline_builder import TraceBuilder

if TYPE_CHECKING:
    from gpudiag.model.timeline import TrackAttribution

SPAN = 24
"""Length of a case in ms. Pauses of 1 ms are too long to count as Python code between two calls."""


@dataclass
class Case:
    """A rank as lists of (start, end) in milliseconds, from which both classifications are computed."""

    compute: list[tuple[int, int]] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    collectives: list[tuple[int, int]] = field(default_factory=list)
    loaders: list[tuple[int, int]] = field(default_factory=list)
    syncs: list[tuple[int, int]] = field(default_factory=list)
    operators: list[tuple[int, int]] = field(default_factory=list)
    overheads: list[tuple[int, int]] = field(default_factory=list)
    launches: dict[tuple[int, int], tuple[int, int] | None] = field(default_factory=dict)

    def builder(self, rank: int = 0) -> TraceBuilder:
        """Return a trace of three steps. The middle step is the case, and its window is [0, SPAN)."""
        trace = TraceBuilder(rank, unit_ns=NS_PER_MS, world_size=2)
        trace.step(-9).compute(0, 1)
        trace.step(0).compute(0, 1).compute(SPAN - 1, SPAN)
        for op in self.compute:
            trace.compute(*op, launch=self.launches.get(op, 0), stream=7)
        for op in self.copies:
            trace.copy(*op, stream=9)
        for op in self.collectives:
            trace.collective(*op, ranks=(0, 1))
        for span in self.loaders:
            trace.loader(*span)
        for span in self.syncs:
            trace.sync(*span)
        for span in self.operators:
            trace.operator(*span)
        for span in self.overheads:
            trace.overhead(*span)
        return trace.step(SPAN).compute(0, 1)


def spans(most: int = 5, longest: int = 8) -> st.SearchStrategy[list[tuple[int, int]]]:
    one = st.tuples(st.integers(1, SPAN - 2), st.integers(0, longest)).map(
        lambda pair: (pair[0], min(pair[0] + pair[1], SPAN - 1))
    )
    return st.lists(one, max_size=most)


@st.composite
def pairs_of_ranks(draw: st.DrawFn) -> tuple[Case, Case]:
    """Draw two ranks with separate compute and copies, and collectives that start at different times and end
    together."""
    ends = sorted(draw(st.sets(st.integers(3, SPAN - 2), max_size=4)))
    ranks = []
    for _ in range(2):
        starts = [draw(st.integers(max(1, end - 6), end - 1)) for end in ends]
        ranks.append(
            Case(
                compute=draw(spans()),
                copies=draw(spans(3)),
                # A stream runs collectives in sequence.
                collectives=[
                    (max(start, before), end) for start, end, before in zip(starts, ends, [1, *ends], strict=False)
                ],
            )
        )
    return ranks[0], ranks[1]


def covers(intervals: list[tuple[int, int]], at: int) -> bool:
    return any(start <= at < end for start, end in intervals)


def busy_buckets(own: Case, other: Case) -> Counter[str]:
    """Count the milliseconds per bucket by the first four rows of the table; all other time is `idle`."""
    count: Counter[str] = Counter()
    for at in range(SPAN):
        transferring = waiting = False
        for mine, theirs in zip(own.collectives, other.collectives, strict=True):
            if mine[0] <= at < mine[1]:
                arrived = theirs[0] <= at
                transferring |= arrived
                waiting |= not arrived
        if covers([*own.compute, (0, 1), (SPAN - 1, SPAN)], at):
            count["compute"] += 1
        elif transferring:
            count["communication_transfer"] += 1
        elif waiting:
            count["communication_wait"] += 1
        elif covers(own.copies, at):
            count["copy"] += 1
        else:
            count["idle"] += 1
    return count


def in_ms(track: TrackAttribution) -> Counter[str]:
    (window,) = track.buckets_ns.tolist()
    assert all(value % NS_PER_MS == 0 for value in window)
    return Counter({bucket: value // NS_PER_MS for bucket, value in zip(BUCKETS, window, strict=True) if value})


@given(pairs_of_ranks())
def test_device_buckets_equal_instant_by_instant_classification(ranks: tuple[Case, Case]) -> None:
    traces = [case.builder(rank).build() for rank, case in enumerate(ranks)]
    attribution = attribute(build_timeline(traces))
    for rank, track in enumerate(attribution.tracks):
        own, other = ranks[rank], ranks[1 - rank]
        assert in_ms(track) == busy_buckets(own, other)
        assert set(track.waits_ns) <= {1 - rank}
        waited = sum(int(share.sum()) for share in track.waits_ns.values())
        assert waited == track.buckets_ns[:, BUCKETS.index("communication_wait")].sum()


@st.composite
def single_ranks(draw: st.DrawFn) -> Case:
    """Draw one rank whose ops are launched in the gap before them, early, or at an unknown time."""
    starts = sorted(draw(st.sets(st.integers(2, SPAN - 2), min_size=1, max_size=4)))
    case = Case(
        loaders=draw(spans(2)),
        operators=draw(spans(3)),
        overheads=draw(spans(2)),
    )
    previous = 1
    for start in starts:
        if start < previous:
            continue
        op = (start, start + draw(st.integers(1, 3)))
        launch = draw(st.integers(previous, start))
        case.compute.append(op)
        case.launches[op] = draw(st.sampled_from([(launch, launch), (launch, min(launch + 1, start)), None, (0, 0)]))
        previous = op[1]
    return case


def idle_buckets(case: Case) -> Counter[str]:
    """Count the milliseconds per bucket by all rows except `sync`, for a case whose host never blocks."""
    count: Counter[str] = Counter()
    ops = [*case.compute, (0, 1), (SPAN - 1, SPAN)]
    calls = [span for span in case.launches.values() if span is not None]
    for at in range(SPAN):
        if covers(ops, at):
            count["compute"] += 1
            continue
        gap_begin = at
        while not covers(ops, gap_begin - 1):
            gap_begin -= 1
        following = min(op for op in ops if op[0] > at)
        launch = case.launches.get(following, (0, 0))
        if launch is None or launch[0] < gap_begin:
            count["idle"] += 1  # the launch of the next op is unknown, or was early enough
        elif at < launch[0] and covers(case.loaders, at):
            count["input"] += 1
        elif covers(case.overheads, at):
            count["idle"] += 1  # profiler overhead
        elif at >= launch[0] or covers([*case.operators, *calls], at):
            count["launch"] += 1
        else:
            count["idle"] += 1
    return count


@given(single_ranks())
@examples(200)
def test_idle_causes_equal_instant_by_instant_classification(case: Case) -> None:
    (track,) = attribute(build_timeline([case.builder().build()], world_size=1)).tracks
    assert in_ms(track) == idle_buckets(case)
