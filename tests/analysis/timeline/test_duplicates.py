"""Test which traces are duplicates of a rank."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from msgspec.structs import replace

from gpudiag.analysis.timeline import build_timeline
from gpudiag.analysis.timeline.calibration import FEWEST_DURATIONS
from gpudiag.app.analyze import analyze
from tests.timeline_builder import TraceBuilder
from tests.trace.documents import TRACES

if TYPE_CHECKING:
    from pathlib import Path

ORIGIN_NS = 10**18


def recording(rank: int, longer: int = 0, *, origin_ns: int = ORIGIN_NS) -> TraceBuilder:
    """Make steps with more kernels than a recording needs to be identified, each kernel with a different length."""
    trace = TraceBuilder(rank, world_size=2, origin_ns=origin_ns)
    for step in range(4):
        trace.step(step * 100_000)
        at = 0
        for kernel in range(FEWEST_DURATIONS):
            trace.compute(at, at + 100 + kernel + longer)
            at += 400
    return trace


def doubts(*traces: TraceBuilder) -> list[tuple[str, str]]:
    timeline = build_timeline([replace(trace.build(), source=f"{i}.json") for i, trace in enumerate(traces)])
    return [(warning.code, warning.message) for warning in timeline.validity if warning.code == "duplicate-ranks"]


def test_first_claim_of_a_rank_is_kept_and_both_are_named() -> None:
    (found,) = doubts(recording(0), recording(1, 1), recording(1, 2))
    assert "1.json and 2.json both claim rank 1" in found[1]


def test_recording_under_two_ranks_is_detected_by_its_events() -> None:
    (found,) = doubts(recording(0), recording(1))
    assert "0.json and 1.json hold the same events" in found[1]


def test_recordings_with_any_difference_are_kept() -> None:
    assert doubts(recording(0), recording(1, 1)) == []
    assert doubts(recording(0), recording(1, origin_ns=ORIGIN_NS + 1)) == []
    assert doubts(recording(0), recording(1, origin_ns=ORIGIN_NS - 1)) == []


def test_devices_of_one_file_are_no_duplicates() -> None:
    twins = [replace(recording(rank).build(), source="job.xplane.pb") for rank in (0, 1)]
    timeline = build_timeline(twins)
    assert timeline.ranks_present == (0, 1)
    assert "duplicate-ranks" not in {warning.code for warning in timeline.validity}


def test_duplicates_are_detected_in_any_order() -> None:
    for sources in (("a.json", "b.json"), ("b.json", "a.json")):
        twins = [replace(recording(rank).build(), source=source) for rank, source in enumerate(sources)]
        assert "duplicate-ranks" in {warning.code for warning in build_timeline(twins).validity}


def test_duplicate_has_no_rank_and_is_not_missing() -> None:
    files = [
        replace(recording(0, longer).build(), source=name, rank=None, world_size=None)
        for name, longer in (("a.json", 0), ("copy of a.json", 0), ("b.json", 1))
    ]
    timeline = build_timeline(files)
    assert (timeline.ranks_present, timeline.world_size) == ((0, 1), 2)
    assert {warning.code for warning in timeline.validity} >= {"duplicate-ranks"}
    assert "missing-ranks" not in {warning.code for warning in timeline.validity}


def test_repeated_rank_is_reported_once() -> None:
    traces = [
        replace(recording(rank, longer).build(), source=f"{rank}.json", world_size=3)
        for rank, longer in ((0, 0), (1, 0), (2, 1))
    ]
    timeline = build_timeline(traces)
    said = {warning.code: warning.message for warning in timeline.validity}
    assert "so that rank 1 has no trace of its own" in said["duplicate-ranks"]
    assert "missing-ranks" not in said
    (also,) = [warning.message for warning in build_timeline(traces[:2]).validity if warning.code == "missing-ranks"]
    assert also.startswith("1 of 3 ranks missing (2)")


def test_duplicate_of_a_real_file_of_several_gpus_counts_no_ranks(tmp_path: Path) -> None:
    for name in ("a", "b"):
        shutil.copy(TRACES / "tensorflow" / "mirrored_nccl.xplane.pb.gz", tmp_path / f"{name}.xplane.pb.gz")
    analysis = analyze([tmp_path])
    assert (analysis.world_size, analysis.ranks_present) == (4, (0, 1, 2, 3))
    (message,) = [warning.message for warning in analysis.validity if warning.code == "duplicate-ranks"]
    assert message.startswith(f"{tmp_path}/a.xplane.pb.gz and {tmp_path}/b.xplane.pb.gz hold the same events")
    assert "missing-ranks" not in {warning.code for warning in analysis.validity}
