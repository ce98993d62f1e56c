"""Test the conservation law: the buckets of every window sum to the window's length, to the nanosecond."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.analysis.attribution import attribute
from gpudiag.analysis.timeline import build_timeline
from gpudiag.intervals import intersect, length, union
from gpudiag.model.analysis import BUCKETS
from tests.examples import examples
from tests.timeline_builder import TraceBuilder

TIME = st.integers(-20, 400)
SPAN = st.tuples(TIME, st.integers(0, 120)).map(lambda pair: (pair[0], pair[0] + pair[1]))
LAUNCH = st.none() | st.integers(-20, 400) | SPAN


@st.composite
def ranks(draw: st.DrawFn) -> list[TraceBuilder]:
    """Draw one to three processes with any recorded events, in any order, on streams where ops may overlap."""
    world = draw(st.integers(1, 3))
    everyone = tuple(range(world))
    builders = []
    for rank in everyone:
        trace = TraceBuilder(rank, world_size=world, unit_ns=draw(st.sampled_from([1, 7, 1000, 250_000])))
        for at in sorted(draw(st.lists(TIME, max_size=6))):
            trace.step(at)
        trace.step(0, mark=None)
        for span in draw(st.lists(SPAN, max_size=5)):
            trace.on(draw(st.integers(0, 1))).compute(*span, launch=draw(LAUNCH), stream=draw(st.integers(7, 8)))
        for span in draw(st.lists(SPAN, max_size=3)):
            trace.copy(
                *span, launch=draw(LAUNCH), name=draw(st.sampled_from(["Memcpy DtoH (Device -> Pageable)", "x"]))
            )
        for span in draw(st.lists(SPAN, max_size=4)):
            operation = draw(st.sampled_from(["all_reduce", "broadcast", "send", "strange"]))
            trace.collective(*span, operation, launch=draw(LAUNCH), ranks=draw(st.sampled_from([(), everyone])))
        for span in draw(st.lists(SPAN, max_size=3)):
            trace.gloo(*span, ranks=everyone)
        for span in draw(st.lists(SPAN, max_size=6)):
            kind = draw(st.sampled_from(["operator", "loader", "sync", "overhead", "optimizer"]))
            getattr(trace.by(draw(st.integers(1, 2))), kind)(*span)
        # A process needs at least one event that can be analysed.
        (trace.operator if draw(st.booleans()) else trace.compute)(100, 200)
        builders.append(trace.clock_ahead(draw(st.sampled_from([0, 0, 5, -1_000_000, 10**12]))))
    return builders


@given(ranks())
@examples(300)
def test_buckets_sum_to_each_window(builders: list[TraceBuilder]) -> None:
    timeline = build_timeline([builder.build() for builder in builders])
    attribution = attribute(timeline)
    for track, cut in zip(timeline.tracks, attribution.tracks, strict=True):
        assert cut.buckets_ns.sum(axis=1).tolist() == np.diff(track.bounds).tolist()
        assert (np.diff(track.bounds) > 0).all()
        assert (cut.buckets_ns >= 0).all()
        parts = [cut.parts[bucket] for bucket in BUCKETS]
        assert length(union(*parts)) == sum(length(part) for part in parts) == track.bounds[-1] - track.bounds[0]
        waited = sum(share for share in cut.waits_ns.values()) if cut.waits_ns else np.zeros(len(cut.step_ns), np.int64)
        assert np.array_equal(waited, cut.buckets_ns[:, BUCKETS.index("communication_wait")])
        assert (cut.unsplit_ns <= cut.buckets_ns[:, BUCKETS.index("communication_transfer")]).all()
        assert (cut.hidden_ns <= cut.buckets_ns[:, BUCKETS.index("compute")]).all()
        for within_idle in (cut.unmarked_input, cut.queued):
            assert length(intersect(within_idle, cut.parts["idle"])) == length(within_idle)
        arrived = track.collectives.last_arrival
        known = track.collectives.instance != -1
        assert (arrived[known] >= track.collectives.start[known]).all()
        assert (arrived[known] <= track.collectives.end[known]).all()
