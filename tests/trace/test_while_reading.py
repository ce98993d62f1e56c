"""Test that a task done by the process that read a trace is not done again: its outcome is used."""

from __future__ import annotations

import msgspec

from gpudiag.model.event import Trace
from gpudiag.model.large_jobs.packed_events import with_packed_events
from gpudiag.trace.parallel import WhileReading
from tests.timeline_builder import TraceBuilder


def test_outcomes_are_returned_once_and_for_unchanged_events_only() -> None:
    """An outcome belongs to the events of a trace, whatever the trace's name, and is forgotten after its use."""
    called: list[int | None] = []

    def task(trace: Trace) -> str:
        called.append(trace.rank)
        return f"{trace.rank}: {len(trace.events)} events"

    read = [with_packed_events(TraceBuilder(rank).compute(0, 10 + rank).build()) for rank in range(3)]
    reading = WhileReading(task)
    reading.keep([(trace, task(trace)) for trace in read])
    called.clear()
    named = msgspec.structs.replace(read[0], source="another name")
    other_events = with_packed_events(TraceBuilder(1).compute(0, 5).compute(5, 10).build())
    plain = TraceBuilder(2).compute(0, 5).build()
    outcomes = reading(task, [named, other_events, plain])
    assert outcomes == [f"{trace.rank}: {len(trace.events)} events" for trace in (named, other_events, plain)]
    assert called == [1, 2]
    assert reading(task, [named]) == outcomes[:1]
    assert called == [1, 2, 0]
