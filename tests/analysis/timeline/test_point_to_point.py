"""Test the matching of sends with receives, in traces of simulated pipelines and by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.analysis.timeline import build_timeline
from gpudiag.analysis.timeline.collectives import TrackCalls
from gpudiag.analysis.timeline.point_to_point import clock_alignments, match_messages
from gpudiag.model.event import CollectiveCall
from gpudiag.model.timeline import UNKNOWN
from gpudiag.trace import read_traces
from tests.analysis.diagnosis.rule_examples.pipelines import pipeline

MS = 1_000_000


def track_of(rank: int, calls: list[tuple[str, int, float, float]], *, clock_known: bool = True) -> TrackCalls:
    """Return a track of messages, given as (operation, peer, start in ms, end in ms)."""
    return TrackCalls(
        rank=rank,
        trace=rank,
        clock_known=clock_known,
        start=np.array([round(start * MS) for _, _, start, _ in calls], np.int64),
        end=np.array([round(end * MS) for *_, end in calls], np.int64),
        row=np.arange(len(calls), dtype=np.int64),
        calls=tuple(
            CollectiveCall(row=row, operation=operation, peer=peer) for row, (operation, peer, *_) in enumerate(calls)
        ),
    )


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_every_message_of_a_pipeline_is_matched_with_its_sender(schedule: Any) -> None:
    job = pipeline(4, 2, 8, schedule=schedule, pace={4: 1.3, 5: 1.3})
    timeline = build_timeline(job.traces())
    sent: dict[int, tuple[int, int]] = {}
    for track in timeline.tracks:
        table = track.collectives
        for at in range(len(table)):
            if table.kinds[table.kind[at]][0] == "send":
                sent[int(table.instance[at])] = (track.rank, int(table.start[at]))
    calls = {track.rank: timeline.traces[track.trace].collectives for track in timeline.tracks}
    for track in timeline.tracks:
        table = track.collectives
        peer = {call.row: call.peer for call in calls[track.rank]}
        for at in range(len(table)):
            if table.kinds[table.kind[at]][0] == "recv":
                rank, begun = sent[int(table.instance[at])]
                assert rank == peer[int(table.row[at])]
                assert begun <= table.end[at]
                # The receiver waits until the sender begins.
                assert table.last_arrival[at] == min(max(int(table.start[at]), begun), int(table.end[at]))
    assert timeline.validity == ()


@given(late=st.integers(0, 20), early_end=st.integers(0, 20))
def test_traces_that_begin_at_different_messages_are_matched(late: int, early_end: int) -> None:
    """Message i is sent at 10 i ms and received at 10 i + 1 ms."""
    sends = [("send", 1, 10.0 * number, 10.0 * number + 0.5) for number in range(60 - early_end)]
    receives = [("recv", 0, 10.0 * number - 3, 10.0 * number + 1) for number in range(late, 60)]
    (messages,) = match_messages([track_of(0, sends), track_of(1, receives)])
    pairs = list(zip(messages.send.tolist(), messages.receive.tolist(), strict=True))
    assert pairs == [(number, number - late) for number in range(late, 60 - early_end)]


def test_messages_in_both_directions_bound_the_offset_of_clocks() -> None:
    """The clock of rank 1 is 100 ms ahead; a message takes at least 1 ms."""
    to_b = [(10.0 * number, 10.0 * number + 1 + number % 2) for number in range(10)]
    to_a = [(10.0 * number + 5, 10.0 * number + 6) for number in range(10)]
    a = [("send", 1, begun, ended) for begun, ended in to_b] + [("recv", 1, begun, ended) for begun, ended in to_a]
    b = [("recv", 0, begun + 100, ended + 100) for begun, ended in to_b]
    b += [("send", 0, begun + 100, ended + 100) for begun, ended in to_a]
    tracks = [track_of(0, a, clock_known=False), track_of(1, b, clock_known=False)]
    ((first, second, alignment),) = clock_alignments(tracks, match_messages(tracks))
    assert (first, second) == (0, 1)
    assert alignment.offset_ns == pytest.approx(100 * MS, abs=MS)
    assert alignment.residual_ns <= MS


def test_one_kernel_can_send_and_receive() -> None:
    """As in 1F1B, a batch of stage 0 sends the next activations and receives the gradients of earlier activations."""
    first = [("send", 1, 0.0, 1.0), ("send_recv", 1, 10.0, 20.0), ("send_recv", 1, 30.0, 40.0), ("recv", 1, 50.0, 60.0)]
    last = [("recv", 0, 0.0, 1.0), ("send_recv", 0, 19.0, 20.0), ("send_recv", 0, 39.0, 40.0), ("send", 0, 59.0, 60.0)]
    matched = match_messages([track_of(0, first), track_of(1, last)])
    assert [(one.sender, one.send.tolist(), one.receive.tolist()) for one in matched] == [
        (0, [0, 1, 2], [0, 1, 2]),
        (1, [1, 2, 3], [1, 2, 3]),
    ]


def test_messages_to_missing_ranks_have_no_partner() -> None:
    timeline = build_timeline(pipeline(2, 1, 4).traces()[:1], world_size=2)
    (track,) = timeline.tracks
    assert set(track.collectives.instance.tolist()) == {UNKNOWN}


def test_send_of_a_process_without_devices_ends_when_it_is_received(whole_recording: Callable[[str], Path]) -> None:
    """The recorded send lasts until its process waits for it, which may be a microbatch later."""
    tracks = build_timeline(read_traces([whole_recording("parallel/pp2dp2_1f1b")])).tracks
    ends: dict[str, dict[int, int]] = {"send": {}, "recv": {}}
    for track in tracks:
        table = track.collectives
        for kind, instance, end in zip(table.kind.tolist(), table.instance.tolist(), table.end.tolist(), strict=True):
            operation = table.kinds[kind][0]
            if operation in ends and instance != UNKNOWN:
                ends[operation][instance] = end
    assert len(ends["send"]) == len(ends["recv"]) > 0
    assert all(end <= ends["recv"][instance] for instance, end in ends["send"].items())
