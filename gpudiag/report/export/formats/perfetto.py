"""Write Perfetto's protobuf trace: https://perfetto.dev/docs/reference/synthetic-track-event.

Events are pairs of a begin and an end on a track. Therefore events that overlap without being nested are put into
separate rows.
"""

from __future__ import annotations

from gpudiag.model.protobuf import message_type
from gpudiag.report.export.formats import Format
from gpudiag.report.export.model import ExportModel, ExportTrack, TrackGroup, rows_apart

#: Id of the only sequence of packets.
_SEQUENCE = 1
#: TracePacket.SequenceFlags of a packet that begins interned names, and of a packet that needs interned names.
_CLEARED, _NEEDED = 1, 2
#: TrackEvent.Type of the begin and of the end of an event.
_BEGIN, _END = 1, 2
#: TrackDescriptor.ChildTracksOrdering: by `sibling_order_rank`.
_IN_ORDER = 3


class _Writer:
    """Writer of a trace. Tracks and names are numbered from 1 in order of appearance, because 0 means "none"."""

    def __init__(self, exported: ExportModel) -> None:
        self.trace = message_type("perfetto", "Trace")()
        self._add = self.trace.packet.add
        self._tracks = 0
        self._names: dict[str, int] = {}
        # A reader needs the names before the first event. After the last event, all names are known and added here.
        first = self._add(trusted_packet_sequence_id=_SEQUENCE, sequence_flags=_CLEARED)
        for group in exported.groups:
            self._group(group)
        for name, number in self._names.items():
            first.interned_data.event_names.add(iid=number, name=name)

    def _track(self, title: str, parent: int | None, rank: int | None) -> int:
        """Add a track below track `parent` at position `rank` (None for a group), and return its number."""
        self._tracks += 1
        described = self._add(trusted_packet_sequence_id=_SEQUENCE).track_descriptor
        described.uuid, described.name = self._tracks, title
        described.child_ordering = _IN_ORDER
        if parent is not None:
            described.parent_uuid = parent
        if rank is not None:
            described.sibling_order_rank = rank
        return self._tracks

    def _group(self, group: TrackGroup) -> None:
        parent = self._track(group.title, None, None)
        position = 0
        for track in group.tracks:
            for rows in rows_apart(track):
                self._events(track, rows.tolist(), self._track(track.title, parent, position))
                position += 1

    def _events(self, track: ExportTrack, rows: list[int], uuid: int) -> None:
        """Write begins and ends to track `uuid`, by time; at the same time, ends before begins.

        `rows` are indices of events that are nested or disjoint, so that the ends of open events are a stack.
        """
        starts, ends, names = track.start.tolist(), track.end.tolist(), track.name.tolist()
        running: list[int] = []
        for row in rows:
            while running and running[-1] <= starts[row]:
                self._event(running.pop(), uuid, _END)
            name = track.names[names[row]]
            number = self._names.setdefault(name, len(self._names) + 1)
            self._event(starts[row], uuid, _BEGIN, number)
            running.append(ends[row])
        while running:
            self._event(running.pop(), uuid, _END)

    def _event(self, time: int, uuid: int, kind: int, name: int | None = None) -> None:
        packet = self._add(timestamp=time, trusted_packet_sequence_id=_SEQUENCE, sequence_flags=_NEEDED)
        event = packet.track_event
        event.type, event.track_uuid = kind, uuid
        if name is not None:
            event.name_iid = name


def encode_perfetto(exported: ExportModel) -> bytes:
    """Return a serialized `Trace` message."""
    data: bytes = _Writer(exported).trace.SerializeToString()
    return data


FORMAT = Format(name="perfetto", ending=".pftrace", opens="https://ui.perfetto.dev", encode=encode_perfetto)
