"""Test that every format keeps the number and total duration of events per line."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest

from gpudiag.analysis.attribution import attribute
from gpudiag.analysis.timeline import build_timeline
from gpudiag.errors import UsageError
from gpudiag.model.protobuf import message_type
from gpudiag.report.export.assemble import export_model_of
from gpudiag.report.export.formats import format_named, formats
from gpudiag.report.export.model import ExportModel, TrackKind
from gpudiag.trace import read_traces
from tests.report.export.exported import exported_job, total_ns
from tests.report.export.lines_of import Lines, of_chrome, of_csv, of_perfetto, of_xspace
from tests.trace.documents import TRACES, read_one
from tests.trace.marked_modules import job

if TYPE_CHECKING:
    from pathlib import Path

JOBS = ("slow_loader_rank2", "gloo_dataloader", "tensorflow")
#: Categories that contain only the span of the profiler, which is no event of the job.
_NOT_EVENTS = {"Trace"}
_SHADOW = "gpu_user_annotation"


def source_lines(rank_file: Path) -> dict[tuple[bool, str], tuple[int, int]]:
    """Return (is on a device, stream or thread) → (events, total ns) of PyTorch's JSON."""
    events = json.loads(gzip.decompress(rank_file.read_bytes()))["traceEvents"]
    lines: dict[tuple[bool, str], tuple[int, int]] = defaultdict(lambda: (0, 0))
    for event in events:
        if event.get("ph") != "X" or event["cat"] in _NOT_EVENTS:
            continue
        device = event["cat"] in {"kernel", "gpu_memcpy", "gpu_memset", _SHADOW}
        key = device, f"{event['tid']}{'s' * (event['cat'] == _SHADOW)}"
        count, total = lines[key]
        lines[key] = count + 1, total + round(event["dur"] * 1000)
    return dict(lines)


def model_lines(exported: ExportModel, process: int) -> dict[tuple[bool, str], tuple[int, int]]:
    """Return a process's lines in the export model as `source_lines` does, without gpudiag's own tracks."""
    return {
        (group.device is not None, f"{track.ident}{'s' * (track.kind is TrackKind.SHADOWS)}"): (
            len(track),
            total_ns(track),
        )
        for group in exported.groups
        if group.process == process
        for track in group.tracks
        if track.kind is not TrackKind.GPUDIAG
    }


@pytest.mark.long
@pytest.mark.parametrize("job", ["slow_loader_rank2", "clean", "vgg_p2poff", "gloo_dataloader"])
def test_export_model_has_every_event_of_the_trace(job: str) -> None:
    files = sorted((TRACES / job).glob("rank*.json.gz"))
    assert files
    for process, path in enumerate(files):
        assert model_lines(exported_job(job).export_model, process) == source_lines(path)


def totals(exported: ExportModel, key: Any) -> Lines:
    lines: Lines = defaultdict(lambda: (0, 0))
    for group in exported.groups:
        for track in group.tracks:
            count, total = lines[key(group, track)]
            lines[key(group, track)] = count + len(track), total + total_ns(track)
    return dict(lines)


@pytest.mark.long
@pytest.mark.parametrize("job", JOBS)
def test_chrome_trace_keeps_all_events(job: str, tmp_path: Path) -> None:
    format_named("chrome").write(exported_job(job).export_model, path := tmp_path / "a.json.gz")
    assert of_chrome(path) == totals(exported_job(job).export_model, lambda group, track: (group.title, track.title))


@pytest.mark.long
@pytest.mark.parametrize("job", JOBS)
def test_perfetto_trace_keeps_all_events(job: str, tmp_path: Path) -> None:
    format_named("perfetto").write(exported_job(job).export_model, path := tmp_path / "a.pftrace")
    assert of_perfetto(path) == totals(exported_job(job).export_model, lambda group, track: (group.title, track.title))


@pytest.mark.long
@pytest.mark.parametrize("job", JOBS)
def test_csv_keeps_all_events(job: str, tmp_path: Path) -> None:
    format_named("csv").write(exported_job(job).export_model, path := tmp_path / "a.csv")

    def key(group: Any, track: Any) -> tuple[str, str]:
        return f"{' '.join(map(str, group.ranks))}/{'' if group.device is None else group.device}", track.title

    assert of_csv(path) == totals(exported_job(job).export_model, key)


@pytest.mark.long
@pytest.mark.parametrize("job", JOBS)
def test_xspace_keeps_all_events(job: str, tmp_path: Path) -> None:
    format_named("xspace").write(exported_job(job).export_model, path := tmp_path / "a.xplane.pb")
    written = of_xspace(path)
    exported = exported_job(job).export_model
    assert sum(count for count, _ in written.values()) == exported.events()
    assert sum(total for _, total in written.values()) == sum(total_ns(t) for g in exported.groups for t in g.tracks)
    devices = [group for group in exported.groups if group.device is not None]
    for position, group in enumerate(devices):
        for track in group.tracks:
            rank = f"rank {group.ranks[0]}"
            if track.kind is TrackKind.GPUDIAG:
                assert written[f"/device:CUSTOM:{rank} · gpudiag", track.title] == (len(track), total_ns(track))
            elif track.kind is TrackKind.STREAM:
                (line,) = [
                    value
                    for (plane, name), value in written.items()
                    if plane == f"/device:GPU:{position}" and name.startswith(f"Stream #{track.ident}(")
                ]
                assert line == (len(track), total_ns(track))


def test_xspace_of_a_pytorch_trace_is_read_with_the_same_device_work(tmp_path: Path) -> None:
    exported = exported_job("slow_loader_rank2").export_model
    format_named("xspace").write(exported, path := tmp_path / "a.xplane.pb")
    converted = read_traces([path])
    sources = read_traces([TRACES / "slow_loader_rank2"])
    assert len(converted) == len(sources) == 4
    for trace, source in zip(converted, sources, strict=True):
        assert [call.operation for call in trace.collectives] == [call.operation for call in source.collectives]
        assert trace.origin_ns > 10**18
        lengths = [(e.end_ns - e.start_ns)[e.device >= 0].sum() for e in (trace.events, source.events)]
        shadows = source.events
        hidden = (shadows.end_ns - shadows.start_ns)[(shadows.device >= 0) & (shadows.kind == 6)].sum()
        assert lengths[0] == lengths[1] - hidden


def test_correlation_ids_are_unique_across_ranks(tmp_path: Path) -> None:
    format_named("xspace").write(exported_job("slow_loader_rank2").export_model, path := tmp_path / "a.xplane.pb")
    space = message_type("xplane", "XSpace").FromString(path.read_bytes())
    seen: dict[int, str] = {}
    for plane in space.planes:
        names = {number: entry.name for number, entry in plane.stat_metadata.items()}
        for line in plane.lines:
            for event in line.events:
                for stat in event.stats:
                    if plane.name.startswith("/device") and names[stat.metadata_id] == "correlation_id":
                        assert seen.setdefault(stat.uint64_value, plane.name) == plane.name
    assert len(set(seen.values())) == 4


def test_tensorflow_profile_is_kept_with_gpudiag_lines_above_each_gpu() -> None:
    from gpudiag.report.export.formats.xspace import with_gpudiag_tracks

    job = exported_job("tensorflow")
    (profile,) = job.profiles
    kind = message_type("xplane", "XSpace")
    before, after = kind.FromString(profile.data), kind.FromString(with_gpudiag_tracks(profile.data, job.export_model))
    planes = {plane.name: plane for plane in after.planes}
    for plane in before.planes:
        if plane.name.startswith("/device:GPU:"):
            plane.id = planes[plane.name].id
        assert planes.pop(plane.name) == plane
    assert sorted(planes) == [f"/device:CUSTOM:rank {rank} · gpudiag" for rank in range(4)]
    for rank in range(4):
        added = planes[f"/device:CUSTOM:rank {rank} · gpudiag"]
        assert [line.name for line in added.lines][:2] == ["gpudiag steps", "gpudiag buckets"]
        (gpu,) = [plane for plane in after.planes if plane.name == f"/device:GPU:{rank}"]
        begins = [line.timestamp_ns * 1000 + event.offset_ps for line in gpu.lines for event in line.events]
        step = added.lines[0].events[0]
        opens = added.lines[0].timestamp_ns * 1000 + step.offset_ps
        assert any(opens <= begin < opens + step.duration_ps for begin in begins)


def test_every_format_has_module_calls(tmp_path: Path) -> None:
    timeline = build_timeline([read_one(tmp_path, job())])
    exported = export_model_of(timeline, attribute(timeline), timeline.traces)
    for name in formats():
        format_named(name).write(exported, tmp_path / name)
        assert b"Net/a (Linear)" in (tmp_path / name).read_bytes()
    (again,) = read_traces([tmp_path / "chrome"])
    assert again.modules is not None
    assert [module.path for module in again.modules.modules] == ["", "a", "b"]


def test_kernel_names_in_csv_are_no_formulas(tmp_path: Path) -> None:
    from msgspec.structs import replace

    exported = exported_job("gloo_dataloader").export_model
    track = replace(
        exported.groups[0].tracks[-1], names=("=cmd|' /C calc'!A0",) * len(exported.groups[0].tracks[-1].names)
    )
    format_named("csv").write(
        replace(exported, groups=(replace(exported.groups[0], tracks=(track,)),)), path := tmp_path / "a.csv"
    )
    assert ",'=cmd" in path.read_text(encoding="utf-8")
    assert ",=cmd" not in path.read_text(encoding="utf-8")


def test_unknown_formats_list_the_known_ones() -> None:
    with pytest.raises(UsageError) as caught:
        format_named("pdf")
    assert all(name in caught.value.hint for name in formats())
