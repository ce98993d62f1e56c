"""Write a directory for TensorBoard, which has the scalars, the report as a text, and the profile of each run.

    <directory>/<run>/events.out.tfevents.gpudiag
    <directory>/<run>/plugins/profile/<when>/<host>.xplane.pb

Event files are written without TensorBoard's writer, because TensorBoard may be installed for a different interpreter.
"""

from __future__ import annotations

import re
import struct
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from gpudiag.model.analysis import BUCKETS
from gpudiag.model.protobuf import message_type
from gpudiag.model.timeline import Attribution, Timeline
from gpudiag.report.export.formats import xspace
from gpudiag.report.export.model import ExportModel
from gpudiag.units import milliseconds

_UNSAFE = re.compile(r"[^\w.+-]+")
#: Name of the report among TensorBoard's texts.
VERDICT_TAG = "gpudiag/verdict"
#: TensorFlow's number of the data type `string`.
_STRING = 7


class ScalarSeries(msgspec.Struct, frozen=True, kw_only=True):
    """Points (step number, value) of a curve; TensorBoard shows it under the tag `group/name`."""

    tag: str
    points: tuple[tuple[int, float], ...]


def run_name(path: Path) -> str:
    """Make a name from the path of a run. The name is a valid directory name."""
    return _safe_name(path.resolve().name, "run")


def _safe_name(name: str, default: str) -> str:
    return _UNSAFE.sub("-", name).strip(".-") or default


def write_run(
    directory: Path,
    exported: ExportModel,
    series: tuple[ScalarSeries, ...],
    verdict: str,
    profiles: Sequence[tuple[str, bytes]] = (),
) -> None:
    """Write the files that TensorBoard shows for one run.

    Args:
        directory: the directory of the run.
        exported: the events of the run; written as the run's profile if `profiles` is empty, as it is for PyTorch.
        series: the scalars of the run.
        verdict: the report in Markdown.
        profiles: TensorFlow's files (host name, XSpace). A single file gets gpudiag's tracks above its GPUs; several
            files are written unchanged.
    """
    when = exported.origin_ns / 1e9 or time.time()  # 0: unknown
    stamp = time.strftime("%Y_%m_%d_%H_%M_%S", time.localtime(when))
    recording = directory / "plugins" / "profile" / stamp
    recording.mkdir(parents=True)
    write_events(series, verdict, directory / "events.out.tfevents.gpudiag", when)
    if not profiles:
        xspace.FORMAT.write(exported, recording / "gpudiag.xplane.pb")
    for host, data in profiles:
        profile = xspace.with_gpudiag_tracks(data, exported) if len(profiles) == 1 else data
        (recording / f"{_safe_name(host, 'host')}.xplane.pb").write_bytes(profile)


def series_of(timeline: Timeline, attribution: Attribution) -> tuple[ScalarSeries, ...]:
    """Return step time, buckets and efficiency of each step, as means over device tracks.

    Only steps that all tracks with steps have in common are included. `efficiency/compute` is the share of a step in
    which devices compute, and `hidden_ms/communication` is the communication that overlaps with compute.
    """
    tracks = [
        (track, attributed)
        for track, attributed in zip(timeline.tracks, attribution.tracks, strict=True)
        if len(attributed.step_ns)
    ]
    common = sorted(set.intersection(*(set(track.window_steps.tolist()) for track, _ in tracks))) if tracks else []
    if not common:
        return ()
    rows = [(attributed, np.searchsorted(track.window_steps, common)) for track, attributed in tracks]
    length = np.mean([attributed.step_ns[row] for attributed, row in rows], axis=0)
    buckets = np.mean([attributed.buckets_ns[row] for attributed, row in rows], axis=0)
    hidden = np.mean([attributed.hidden_ns[row] for attributed, row in rows], axis=0)

    def curve(tag: str, values: list[float]) -> ScalarSeries:
        return ScalarSeries(tag=tag, points=tuple(zip(common, values, strict=True)))

    return (
        curve("step/ms", [milliseconds(value) for value in length.tolist()]),
        curve("efficiency/compute", (buckets[:, BUCKETS.index("compute")] / length).tolist()),
        *(
            curve(f"buckets_ms/{bucket}", [milliseconds(value) for value in buckets[:, column].tolist()])
            for column, bucket in enumerate(BUCKETS)
        ),
        curve("hidden_ms/communication", [milliseconds(value) for value in hidden.tolist()]),
    )


def write_events(series: tuple[ScalarSeries, ...], verdict: str, path: Path, wall_time: float) -> None:
    """Write an event file; TensorBoard reads files with `tfevents` in their names.

    The file has one record with the format's version, one with the verdict, and one per step with all values of the
    step. `wall_time` is Unix time in seconds.
    """
    event_type = message_type("summary", "Event")
    records = [event_type(wall_time=wall_time, file_version="brain.Event:2").SerializeToString()]
    event = event_type(wall_time=wall_time, step=0)
    text = event.summary.value.add(tag=VERDICT_TAG)
    text.metadata.plugin_data.plugin_name = "text"
    text.tensor.dtype = _STRING
    text.tensor.string_val.append(verdict.encode())
    records.append(event.SerializeToString())
    by_step: dict[int, list[tuple[str, float]]] = {}
    for curve in series:
        for step, value in curve.points:
            by_step.setdefault(step, []).append((curve.tag, value))
    for step, values in sorted(by_step.items()):
        event = event_type(wall_time=wall_time, step=step)
        for tag, value in values:
            event.summary.value.add(tag=tag, simple_value=value)
        records.append(event.SerializeToString())
    path.write_bytes(b"".join(map(_tf_record, records)))


def _tf_record(data: bytes) -> bytes:
    """Return a TFRecord: length, its checksum, data, its checksum (tensorflow.org/tutorials/load_data/tfrecord)."""
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", _masked_checksum(length)) + data + struct.pack("<I", _masked_checksum(data))


def _masked_checksum(data: bytes) -> int:
    """Return the CRC-32C as TFRecords store it: rotated by 15 bits, plus a constant."""
    checksum = crc32c(data)
    return (((checksum >> 15) | (checksum << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _crc_table() -> tuple[int, ...]:
    """Return the CRC-32C of every byte; 0x82F63B78 is Castagnoli's polynomial, lowest bit first."""
    entries = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        entries.append(value)
    return tuple(entries)


_CRC_TABLE = _crc_table()


def crc32c(data: bytes) -> int:
    """Return the CRC-32C (RFC 3720, appendix B.4: 32 bytes of zeros give 0x8A9136AA)."""
    value = 0xFFFFFFFF
    for byte in data:
        value = _CRC_TABLE[(value ^ byte) & 0xFF] ^ value >> 8
    return value ^ 0xFFFFFFFF
