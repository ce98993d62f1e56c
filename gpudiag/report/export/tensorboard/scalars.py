"""What to watch over runs, as TensorBoard's scalars: step time, buckets and efficiency, step by step. And the verdict.

Event files are written here and not by TensorBoard's own writer, as the interpreter that has TensorBoard need not be
the one that runs gpudiag.
"""

from __future__ import annotations

import struct
from pathlib import Path

import msgspec
import numpy as np

from gpudiag.model.analysis import BUCKETS
from gpudiag.model.attribution import Attribution
from gpudiag.model.protobuf import message_type
from gpudiag.model.timeline import Timeline
from gpudiag.units import milliseconds

#: The verdict's name among TensorBoard's texts.
VERDICT_TAG = "gpudiag/verdict"
#: TensorFlow's number of the type.
_STRING = 7


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """A curve.

    Attributes:
        tag: its name in TensorBoard; what stands before the slash is the group.
        points: (step number, value).
    """

    tag: str
    points: tuple[tuple[int, float], ...]


def series_of(timeline: Timeline, attribution: Attribution) -> tuple[Series, ...]:
    """The curves of a run, over the steps that all lanes have; each value is the mean over lanes.

    `efficiency/compute` is the share of a step in which the devices compute: what is left after everything else has
    been fixed.
    """
    tracks = [(track, cut) for track, cut in zip(timeline.tracks, attribution.tracks, strict=True) if len(cut.step_ns)]
    if not tracks:
        return ()
    common = sorted(set.intersection(*(set(track.window_steps.tolist()) for track, _ in tracks)))
    if not common:
        return ()
    rows = [np.searchsorted(track.window_steps, common) for track, _ in tracks]
    length = np.mean([cut.step_ns[row] for (_, cut), row in zip(tracks, rows, strict=True)], axis=0)
    parts = np.mean([cut.buckets_ns[row] for (_, cut), row in zip(tracks, rows, strict=True)], axis=0)
    hidden = np.mean([cut.hidden_ns[row] for (_, cut), row in zip(tracks, rows, strict=True)], axis=0)

    def curve(tag: str, values: list[float]) -> Series:
        return Series(tag=tag, points=tuple(zip(common, values, strict=True)))

    return (
        curve("step/ms", [milliseconds(value) for value in length.tolist()]),
        curve("efficiency/compute", (parts[:, BUCKETS.index("compute")] / length).tolist()),
        *(
            curve(f"buckets_ms/{bucket}", [milliseconds(value) for value in parts[:, place].tolist()])
            for place, bucket in enumerate(BUCKETS)
        ),
        curve("hidden_ms/communication", [milliseconds(value) for value in hidden.tolist()]),
    )


def write_events(series: tuple[Series, ...], verdict: str, path: Path, wall_time: float) -> None:
    """Write an event file.

    Args:
        series: the curves.
        verdict: Markdown, for TensorBoard's page of texts.
        path: the file; TensorBoard reads those with `tfevents` in their names.
        wall_time: when the run was, seconds since 1970.
    """
    event_type = message_type("summary", "Event")
    records = [event_type(wall_time=wall_time, file_version="brain.Event:2").SerializeToString()]
    event = event_type(wall_time=wall_time, step=0)
    value = event.summary.value.add(tag=VERDICT_TAG)
    value.metadata.plugin_data.plugin_name = "text"
    value.tensor.dtype = _STRING
    value.tensor.string_val.append(verdict.encode())
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
    path.write_bytes(b"".join(_framed(record) for record in records))


def _framed(data: bytes) -> bytes:
    """A TFRecord: length, its checksum, the data, its checksum (tensorflow.org/tutorials/load_data/tfrecord)."""
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", _masked(length)) + data + struct.pack("<I", _masked(data))


def _masked(data: bytes) -> int:
    checksum = crc32c(data)
    return (((checksum >> 15) | (checksum << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _table() -> tuple[int, ...]:
    """CRC-32C of every byte; 0x82F63B78 is Castagnoli's polynomial, lowest bit first."""
    entries = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        entries.append(value)
    return tuple(entries)


_TABLE = _table()


def crc32c(data: bytes) -> int:
    """CRC-32C (RFC 3720, appendix B.4: 32 bytes of zeros give 0x8A9136AA)."""
    value = 0xFFFFFFFF
    for byte in data:
        value = _TABLE[(value ^ byte) & 0xFF] ^ value >> 8
    return value ^ 0xFFFFFFFF
