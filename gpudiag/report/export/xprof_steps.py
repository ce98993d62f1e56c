"""Make step events with which xprof's overview shows gpudiag's results.

xprof finds steps by following launches from step marks. In each step, xprof merges the events of all devices; at each
moment only the event type of highest priority counts. With four ranks in one file, the overview has three faults. xprof
finds four times as many steps. Ops of one rank hide the waits of other ranks. Time without kernels becomes
"all others", which xprof counts as input.

If an event states its step (`group_id`), xprof keeps it. Therefore the export chooses the rank for which the other
ranks wait, and writes the step into each event of this rank. Two additional lines have the step windows and the time
without device events, so that the overview shows the steps of this rank as gpudiag's analysis does:

    gpudiag: steps    step windows, as long as the mean step over all ranks
    gpudiag: parts    time without kernel or copy, under names that xprof knows: waiting for input, communication

xprof classifies events in xplane_to_step_events.cc, event_span.cc and step_events_to_steps_db.cc of openxla/xprof.
Host activity counts only if there are no devices. Kernel statistics include all ranks.
"""

from __future__ import annotations

import itertools

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.model.event import NO_CORRELATION
from gpudiag.report.export.assemble import PARTS, QUEUED, STEPS, UNMARKED_INPUT
from gpudiag.report.export.model import ExportModel, ExportTrack, TrackGroup, TrackKind

STEPS_LINE, PARTS_LINE = "gpudiag: steps", "gpudiag: parts"

#: Names that xprof counts as input, collective or compute, by part of a device's step. No name has a colon, because
#: xprof expects an op type of TensorFlow after a colon. Gaps between queued kernels count as compute, because the
#: device does not wait for another process.
_ON_DEVICE = {
    "input": "MEMCPYHtoD (waiting for input)",
    UNMARKED_INPUT: "MEMCPYHtoD (waiting for input, without marks)",
    "communication_transfer": "nccl (communication)",
    "communication_wait": "nccl (waiting for a rank)",
    QUEUED: "between queued kernels",
}
#: Names by part of a step for a recording without devices. Communication has names of copies from host to host.
_ON_HOST = {
    "input": "IteratorGetNext (waiting for input)",
    UNMARKED_INPUT: "IteratorGetNext (waiting for input, without marks)",
    "communication_transfer": "MEMCPYHtoH (communication)",
    "communication_wait": "MEMCPYHtoH (waiting for a rank)",
    "compute": "compute",
    "copy": "copy",
    "launch": "between operators",
    QUEUED: "between operators",
}


class StepEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event that xprof counts, [start, end) in ns on the export model's clock."""

    start: int
    end: int
    name: str
    step: int


class PacingGroup:
    """The group of tracks for which the other groups wait. `parts` is the group's track of buckets.

    Attributes:
        steps: the step windows of the group.
        mean_ns: step number → mean length of the step over all groups; set when all groups are known.
    """

    def __init__(self, group: TrackGroup, steps: ExportTrack, parts: ExportTrack) -> None:
        self.group = group
        self.steps = steps
        self.mean_ns: dict[int, int] = {}
        self._parts = parts

    def lengths_ns(self) -> list[tuple[int, int]]:
        """Return (number, length) of each step."""
        return list(zip(_numbers(self.steps).tolist(), (self.steps.end - self.steps.start).tolist(), strict=True))

    def waited_ns(self) -> int:
        """Return the time spent waiting for other ranks."""
        waits = self._parts.name == self._parts.names.index("communication_wait")
        return int((self._parts.end - self._parts.start)[waits].sum())

    def step_of(self, track: ExportTrack) -> NDArray[np.int64]:
        """Return int64[n]: the step in which each event begins, or -1 for events outside of steps.

        Among recorded events, only the work of a stream that a launch caused has a step.
        """
        window = np.searchsorted(self.steps.start, track.start, side="right") - 1
        inside = (window >= 0) & (track.start < self.steps.end[np.maximum(window, 0)])
        if track.correlation is not None:
            inside &= (track.correlation != NO_CORRELATION) & (track.kind is TrackKind.STREAM)
        return np.where(inside, _numbers(self.steps)[np.maximum(window, 0)], -1)

    def windows(self) -> list[StepEvent]:
        """Return the steps. Each step starts as in this group, and has its mean length over all groups."""
        begins = zip(self.steps.start.tolist(), _numbers(self.steps).tolist(), strict=True)
        return [
            StepEvent(start=start, end=start + self.mean_ns[number], name=str(number), step=number)
            for start, number in begins
        ]

    def parts(self) -> list[StepEvent]:
        """Return the parts of the steps that `_ON_DEVICE` names, or for a host `_ON_HOST`, split at step boundaries."""
        names = _ON_HOST if self.group.device is None else _ON_DEVICE
        named = np.isin(self._parts.name, [i for i, name in enumerate(self._parts.names) if name in names])
        # Intervals are split at the boundaries of windows, because a step event belongs to one step.
        start, end = self._parts.start[named], self._parts.end[named]
        first = np.searchsorted(self.steps.start, start, side="right") - 1
        last = np.searchsorted(self.steps.start, end, side="left") - 1
        events = []
        for index, name in enumerate(self._parts.name[named].tolist()):
            for window in range(int(first[index]), int(last[index]) + 1):
                begin = max(int(start[index]), int(self.steps.start[window]))
                until = min(int(end[index]), int(self.steps.end[window]))
                number = int(_numbers(self.steps)[window])
                events.append(StepEvent(start=begin, end=until, name=names[self._parts.names[name]], step=number))
        return events


def pacing_group(exported: ExportModel) -> PacingGroup | None:
    """Return the group that waits least for other groups, so the others wait for it; None if no group has steps.

    Groups of hosts are considered only if no device has steps.
    """
    candidates = []
    for group in exported.groups:
        tracks = {track.title: track for track in group.tracks if track.kind is TrackKind.GPUDIAG}
        if STEPS in tracks and PARTS in tracks and (_numbers(tracks[STEPS]) >= 0).all():  # -1: no step
            candidates.append(PacingGroup(group, tracks[STEPS], tracks[PARTS]))
    candidates = [candidate for candidate in candidates if candidate.group.device is not None] or candidates
    if not candidates:
        return None
    lengths: dict[int, list[int]] = {}
    for number, length in itertools.chain.from_iterable(map(PacingGroup.lengths_ns, candidates)):
        lengths.setdefault(number, []).append(length)
    pacing = min(candidates, key=PacingGroup.waited_ns)
    pacing.mean_ns = {number: sum(ns) // len(ns) for number, ns in lengths.items()}
    return pacing


def _numbers(steps: ExportTrack) -> NDArray[np.int64]:
    assert steps.step is not None  # noqa: S101 - the track of steps has numbers
    return steps.step
