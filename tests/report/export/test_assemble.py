"""Test that exported tracks equal the attribution, and that rows have only nested or disjoint events."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.app.analyze import analyze
from gpudiag.report.export.model import ExportTrack, TrackKind, rows_apart
from tests.report.export.exported import exported_job, total_ns
from tests.trace.documents import TRACES


def track_of(spans: list[tuple[int, int]]) -> ExportTrack:
    """Return a track with events at `spans`: (start, duration) in ns."""
    spans = sorted(((begin, begin + length) for begin, length in spans), key=lambda span: (span[0], -span[1]))
    table = np.array(spans, np.int64).reshape(-1, 2)
    return ExportTrack(
        kind=TrackKind.THREAD,
        title="",
        ident=0,
        start=table[:, 0],
        end=table[:, 1],
        name=np.zeros(len(table), np.int32),
        names=("a",),
    )


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 20)), max_size=30))
def test_events_of_a_row_are_nested_or_disjoint(spans: list[tuple[int, int]]) -> None:
    track = track_of(spans)
    rows = rows_apart(track)
    assert sorted(index for row in rows for index in row.tolist()) == list(range(len(spans)))
    for row in rows:
        for position, a in enumerate(row):
            for b in row[position + 1 :]:
                assert track.start[b] >= track.end[a] or track.end[b] <= track.end[a]


def test_nested_events_take_one_row() -> None:
    assert len(rows_apart(track_of([(0, 10), (1, 3), (1, 2), (5, 5), (10, 4)]))) == 1
    assert len(rows_apart(track_of([(0, 4), (2, 4)]))) == 2


def test_gpudiag_tracks_equal_the_attribution() -> None:
    job = "slow_loader_rank2"
    analysis = analyze([TRACES / job])
    groups = [group for group in exported_job(job).export_model.groups if group.device is not None]
    for group, device in zip(groups, analysis.devices, strict=True):
        lines = {track.title: track for track in group.tracks if track.kind is TrackKind.GPUDIAG}
        steps, parts = lines["gpudiag steps"], lines["gpudiag buckets"]
        assert group.ranks == (device.rank,)
        assert total_ns(steps) == total_ns(parts) == round(device.step_ms * 1e6 * len(steps))
        assert parts.start[0] == steps.start[0]
        assert (parts.start[1:] == parts.end[:-1]).all(), "buckets tile the steps"
        lengths = parts.end - parts.start
        for bucket, mean_ms in device.buckets_ms.items():
            indices = [index for index, name in enumerate(parts.names) if name.partition(":")[0] == bucket]
            bucket_ns = lengths[np.isin(parts.name, indices)].sum()
            assert abs(bucket_ns - mean_ms * 1e6 * len(steps)) < 1
    waits = {name for group in groups for track in group.tracks if "waits" in track.title for name in track.names}
    assert "waits for rank 2" in waits


def test_all_ranks_are_on_one_clock() -> None:
    """All ranks leave an all-reduce at the same time, so its kernels end together in the export model."""
    groups = [group for group in exported_job("clean").export_model.groups if group.device is not None]
    ends = []
    for group in groups:
        for track in group.tracks:
            reduces = [
                end
                for _, end, name in track.rows()
                if track.kind is TrackKind.STREAM and name.startswith("ncclDevKernel_AllReduce")
            ]
            ends += [np.array(reduces[2:-2])] if reduces else []
    assert len(ends) == 4
    for other in ends[1:]:
        nearest = np.abs(ends[0][:, None] - other[None, :]).min(axis=1)
        assert np.median(nearest) < 100_000


def test_no_event_begins_before_zero() -> None:
    exported = exported_job("slow_loader_rank2").export_model
    starts = [int(track.start[0]) for group in exported.groups for track in group.tracks]
    assert min(starts) == 0
    assert exported.origin_ns > 1_700_000_000 * 10**9
