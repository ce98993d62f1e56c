"""Test reading TensorFlow's traces, and the one-line errors for unreadable traces."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import numpy as np
import pytest

from gpudiag.analysis.attribution import attribute
from gpudiag.analysis.timeline import build_timeline
from gpudiag.app.analyze import analyze
from gpudiag.errors import NotATraceError, TooLargeError, UnreadableInputError
from gpudiag.model.analysis import BUCKETS
from gpudiag.model.event import DEVICE_WORK, NO_CORRELATION, EventKind, Role
from gpudiag.model.protobuf import message_type
from gpudiag.trace import ReadLimits, read_traces
from gpudiag.trace.profiles import read_processes
from gpudiag.trace.readers.xspace.waits import COMMUNICATION_WAIT
from tests.trace.documents import TRACES
from tests.trace.readers.xspace.spaces import SpaceBuilder, two_gpus

if TYPE_CHECKING:
    from pathlib import Path

MIRRORED = TRACES / "tensorflow"


def test_each_gpu_is_a_rank(tmp_path: Path) -> None:
    traces = read_traces([two_gpus().write(tmp_path / "host.xplane.pb")])
    assert [trace.rank for trace in traces] == [0, 1]
    assert {trace.world_size for trace in traces} == {2}
    assert {trace.framework for trace in traces} == {"tensorflow"}
    assert {trace.host for trace in traces} == {"node-a"}
    for trace in traces:
        work = trace.events.rows_of(*DEVICE_WORK)
        assert set(trace.events.device[work].tolist()) == {trace.rank}
        calls = trace.events.rows_of(EventKind.RUNTIME)
        assert {trace.events.name_of(row) for row in calls} == {"cuLaunchKernel", COMMUNICATION_WAIT}
        calls = calls[trace.events.correlation[calls] != NO_CORRELATION]
        assert set(trace.events.correlation[work]) == set(trace.events.correlation[calls])
        assert [call.size_bytes for call in trace.collectives] == [4096] * 4


def test_steps_waits_and_input_are_found(tmp_path: Path) -> None:
    timeline = build_timeline(read_traces([two_gpus(steps=6).write(tmp_path / "host.xplane.pb")]))
    attribution = attribute(timeline)
    for track, cut in zip(timeline.tracks, attribution.tracks, strict=True):
        assert track.steps.source == "step_num"
        assert track.window_steps.tolist() == [1, 2, 3, 4]
        means = dict(zip(BUCKETS, cut.buckets_ns.mean(axis=0).tolist(), strict=True))
        waits = 100_000 if track.rank == 0 else 0
        assert means["communication_wait"] == waits
        # The transfer consists of 300 µs of the all-reduce, and of the executor's wait until the function ends.
        assert 300_000 < means["communication_transfer"] < 450_000
        assert means["compute"] == 400_000 + (100_000 - waits)
        assert means["input"] == 40_000
        assert set(cut.waits_ns) == ({1} if waits else set())


def test_ranks_are_numbered_through_files_of_several_hosts(tmp_path: Path) -> None:
    for host in ("a", "b"):
        two_gpus().write(tmp_path / f"{host}.xplane.pb")
    traces = read_traces([tmp_path])
    assert [trace.rank for trace in traces] == [0, 1, 2, 3]
    assert {trace.world_size for trace in traces} == {4}


def test_processes_with_one_gpu_have_the_ranks_in_their_file_names(tmp_path: Path) -> None:
    for rank in (0, 7):
        built = SpaceBuilder()
        built.thread(1).event("gemm", 0, 5, correlation_id=1).event("gemm", 10, 15, correlation_id=2)
        built.gpu(rank, 7).event("gemm", 5, 9, correlation_id=1).event("gemm", 15, 19, correlation_id=2)
        built.write(tmp_path / f"rank{rank}.xplane.pb")
    traces = read_traces([tmp_path])
    assert [trace.rank for trace in traces] == [0, 7]
    assert {trace.world_size for trace in traces} == {8}


def test_tensorboard_directory_is_read(tmp_path: Path) -> None:
    for when in ("2026_01_01_00_00_00", "2026_01_02_00_00_00"):
        directory = tmp_path / "plugins" / "profile" / when
        directory.mkdir(parents=True)
        two_gpus().write(directory / "host.xplane.pb")
        (directory / "host.trace.json.gz").write_bytes(gzip.compress(b'{"traceEvents": []}'))
    traces = read_traces([tmp_path])
    assert len(traces) == 2
    assert all("2026_01_02" in trace.source for trace in traces)


def test_plain_and_gzipped_files_are_read_equally(tmp_path: Path) -> None:
    built = two_gpus()
    plain = read_traces([built.write(tmp_path / "a.xplane.pb")])
    packed = tmp_path / "b.xplane.pb.gz"
    packed.write_bytes(gzip.compress(built.data()))
    for trace, other in zip(plain, read_traces([packed]), strict=True):
        assert trace.events.start_ns.tolist() == other.events.start_ns.tolist()
        assert trace.events.name.tolist() == other.events.name.tolist()


def test_copies_have_pytorchs_names(tmp_path: Path) -> None:
    built = SpaceBuilder()
    details = "kind_src:pageable kind_dst:device size:38535168 dest:0 async:1"
    built.thread(1).event("MemcpyH2D", 0, 5, correlation_id=1)
    built.gpu(0, 7).event("MemcpyH2D", 5, 9, correlation_id=1, memcpy_details=details)
    built.gpu(0, 8).event("Memset", 5, 9, correlation_id=2, Memset_details="kind:device num_bytes:64 async:1")
    (trace,) = read_traces([built.write(tmp_path / "a.xplane.pb")])
    events = trace.events
    copies = [(EventKind(events.kind[row]), events.name_of(row), int(events.size_bytes[row])) for row in range(3)]
    assert (EventKind.RUNTIME, "cuMemcpyHtoDAsync", -1) in copies
    assert (EventKind.COPY, "Memcpy HtoD (Pageable -> Device)", 38535168) in copies
    assert (EventKind.MEMSET, "Memset", 64) in copies


def test_real_xspace_is_read() -> None:
    traces = read_traces([MIRRORED])
    assert len(traces) == 4
    assert {trace.device_names[trace.rank or 0] for trace in traces} == {"NVIDIA H200"}
    for trace in traces:
        assert [call.operation for call in trace.collectives] == ["all_reduce"] * 3
        assert [call.size_bytes for call in trace.collectives] == [102334368] * 3
        events = trace.events
        waits = [row for row in events.rows_of(EventKind.RUNTIME) if events.name_of(row) == COMMUNICATION_WAIT]
        assert {Role(events.role[row]) for row in waits} == {Role.COMMUNICATION}
        # In each step the optimizer is launched after the end of the all-reduce.
        for call in trace.collectives:
            end = int(events.end_ns[call.row])
            (wait,) = [row for row in waits if events.start_ns[row] < end <= events.end_ns[row]]
            assert events.end_ns[wait] - end < 2_000_000
        assert len(events.rows_of(EventKind.OVERHEAD)) > 0


def test_analysis_of_a_real_xspace() -> None:
    analysis = analyze([MIRRORED])
    assert analysis.framework == "tensorflow"
    assert [device.device for device in analysis.devices] == [f"cuda:{rank}" for rank in range(4)]
    assert analysis.steps.mean_ms == pytest.approx(86.1, rel=0.05)
    for device in analysis.devices:
        assert sum(device.buckets_ms.values()) == pytest.approx(device.step_ms, abs=1e-9)
        # The all-reduce takes 0.5 ms; the executor notices its end 0.5 to 0.8 ms later.
        assert 0.8 < device.buckets_ms["communication_transfer"] < 6
    (collective,) = analysis.collectives
    assert collective.busbw_gb_per_s == pytest.approx(338, rel=0.1)
    assert any(wait.ms_per_step > 0.1 for wait in analysis.waits)
    assert "no-step-marks" not in {warning.code for warning in analysis.validity}


def test_all_events_of_planes_are_in_the_trace() -> None:
    (path,) = MIRRORED.iterdir()
    space = message_type("xplane", "XSpace").FromString(gzip.decompress(path.read_bytes()))
    events = [event for plane in space.planes for line in plane.lines for event in line.events]
    (process,) = read_processes([path])
    table = process.trace.events
    assert len(table) == len(events)
    assert int((table.end_ns - table.start_ns).sum()) == sum(
        (event.offset_ps + event.duration_ps) // 1000 - event.offset_ps // 1000 for event in events
    )
    assert np.all(np.diff(table.start_ns) >= 0)


def test_xspace_without_a_device_plane_is_analysed(tmp_path: Path) -> None:
    built = SpaceBuilder()
    python = built.thread(1, "python3")
    for step in range(5):
        at = 1000.0 * step
        python.event("train", at, at + 950, step_num=step).event("EagerExecute", at + 100, at + 900)
        python.event("TFE_Py_FastPathExecute_C", at + 10, at + 60).event(
            "IteratorGetNextOp::DoCompute", at + 20, at + 50
        )
    analysis = analyze([built.write(tmp_path / "a.xplane.pb")])
    (device,) = analysis.devices
    assert device.device == "cpu"
    assert device.buckets_ms["compute"] == pytest.approx(0.8)
    assert device.buckets_ms["input"] == pytest.approx(0.03)
    (note,) = [warning.message for warning in analysis.validity if "no device plane" in warning.message]
    assert "the program saw no GPU" in note


def test_xspace_without_steps_is_read(tmp_path: Path) -> None:
    built = two_gpus()
    for plane in built.space.planes:
        for line in plane.lines:
            for event in line.events:
                if plane.event_metadata[event.metadata_id].name == "train":
                    del event.stats[:]
    analysis = analyze([built.write(tmp_path / "a.xplane.pb")])
    (message,) = [warning.message for warning in analysis.validity if warning.code == "no-step-marks"]
    assert "step_num" in message


def refused(path: Path) -> UnreadableInputError:
    with pytest.raises(UnreadableInputError) as caught:
        read_traces([path])
    assert "\n" not in str(caught.value)
    assert caught.value.hint.endswith(".")
    return caught.value


def test_truncated_xspace_is_refused(tmp_path: Path) -> None:
    (source,) = MIRRORED.iterdir()
    data = gzip.decompress(source.read_bytes())
    path = tmp_path / "a.xplane.pb"
    path.write_bytes(data[: len(data) // 2])
    assert "breaks off or is damaged" in str(refused(path))
    path = tmp_path / "b.xplane.pb.gz"
    path.write_bytes(source.read_bytes()[:1000])
    assert "cut short" in str(refused(path))


def test_broken_event_is_refused(tmp_path: Path) -> None:
    space = message_type("xplane", "XSpace", undecoded="XLine.events")()
    line = space.planes.add(name="/host:CPU").lines.add(name="python3")
    line.events.append(b"\x22\x50\x01")
    path = tmp_path / "a.xplane.pb"
    path.write_bytes(space.SerializeToString())
    assert "damaged" in str(refused(path))


def test_planes_of_several_hosts_are_separate(tmp_path: Path) -> None:
    built = two_gpus()
    built.space.hostnames.append("node-b")
    error = refused(built.write(tmp_path / "a.xplane.pb"))
    assert "several hosts (node-a, node-b)" in str(error)
    assert "file of each host" in error.hint


def test_xspace_without_events_is_refused(tmp_path: Path) -> None:
    assert "nothing was recorded" in str(refused(SpaceBuilder().write(tmp_path / "a.xplane.pb")))


@pytest.mark.parametrize("data", [b"", b'{"traceEvents": []}', b"\xff" * 100])
def test_file_without_an_xspace_is_refused(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.xplane.pb"
    path.write_bytes(data)
    refused(path)


def test_empty_message_is_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "a.xplane.pb.gz"
    path.write_bytes(gzip.compress(b""))
    with pytest.raises(NotATraceError):
        read_traces([path])


def test_xspace_bomb_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.xplane.pb.gz"
    path.write_bytes(gzip.compress(bytes(100 << 20)))
    with pytest.raises(TooLargeError):
        read_traces([path], limits=ReadLimits(max_bytes=10 << 20))


def test_impossible_times_are_left_out(tmp_path: Path) -> None:
    built = two_gpus()
    built.thread(9).event("late", 10**12, 10**12 + 1)
    (first, _) = read_traces([built.write(tmp_path / "a.xplane.pb")])
    assert any("impossible times" in note for note in first.notes)


@pytest.mark.parametrize("told", [-(2**63), -1, 2**63 - 1])
def test_line_with_invalid_time_is_left_out(told: int, tmp_path: Path) -> None:
    built = two_gpus()
    built.thread(9).event("lost", 0, 1)
    (line,) = (line for plane in built.space.planes for line in plane.lines if line.id == 9)
    line.timestamp_ns = told
    (first, _) = read_traces([built.write(tmp_path / "a.xplane.pb")])
    assert any("impossible times" in note for note in first.notes)


def test_traces_of_two_frameworks_are_refused(tmp_path: Path) -> None:
    path = two_gpus().write(tmp_path / "a.xplane.pb")
    with pytest.raises(UnreadableInputError, match="two jobs"):
        read_traces([path, TRACES / "clean"])
