"""Count the events of each line (track) of an exported file and sum their durations, without gpudiag's readers."""

from __future__ import annotations

import csv
import gzip
import json
from collections import defaultdict
from typing import TYPE_CHECKING

from gpudiag.model.protobuf import message_type

if TYPE_CHECKING:
    from pathlib import Path

Lines = dict[tuple[str, str], tuple[int, int]]
"""(group, line) → (events, total ns)."""


def _summed(events: list[tuple[str, str, int]]) -> Lines:
    lines: Lines = defaultdict(lambda: (0, 0))
    for group, line, duration in events:
        count, total = lines[group, line]
        lines[group, line] = count + 1, total + duration
    return dict(lines)


def of_chrome(path: Path) -> Lines:
    """Return the lines of a file in Chrome's trace format."""
    opened = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    events = json.loads(opened)["traceEvents"]
    groups = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    tracks = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    return _summed(
        [(groups[e["pid"]], tracks[e["pid"], e["tid"]], round(e["dur"] * 1000)) for e in events if e["ph"] == "X"]
    )


def of_csv(path: Path) -> Lines:
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return _summed([(f"{row['rank']}/{row['device']}", row["line"], int(row["duration_ns"])) for row in rows])


def of_perfetto(path: Path) -> Lines:
    """Return the lines of a Perfetto trace, in which an event is a begin and an end on a track."""
    trace = message_type("perfetto", "Trace").FromString(path.read_bytes())
    described = {p.track_descriptor.uuid: p.track_descriptor for p in trace.packet if p.HasField("track_descriptor")}
    running: dict[int, list[int]] = defaultdict(list)
    last: dict[int, int] = {}
    events = []
    for packet in trace.packet:
        if not packet.HasField("track_event"):
            continue
        event = packet.track_event
        assert packet.timestamp >= last.get(event.track_uuid, 0), "an event of a track begins before the previous event"
        last[event.track_uuid] = packet.timestamp
        if event.type == 1:  # the begin of an event
            running[event.track_uuid].append(packet.timestamp)
        else:
            track = described[event.track_uuid]
            began = running[event.track_uuid].pop()
            events.append((described[track.parent_uuid].name, track.name, packet.timestamp - began))
    assert not any(running.values()), "an event has no end"
    return _summed(events)


def of_xspace(path: Path) -> Lines:
    """Return the lines of an XSpace, except those that only xprof's overview uses."""
    space = message_type("xplane", "XSpace").FromString(path.read_bytes())
    return _summed(
        [
            (plane.name, line.name, event.duration_ps // 1000)
            for plane in space.planes
            for line in plane.lines
            if not line.name.startswith("gpudiag: ")
            for event in line.events
        ]
    )
