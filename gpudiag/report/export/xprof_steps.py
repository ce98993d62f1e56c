"""What xprof's overview is made of, so that its figures are gpudiag's.

xprof finds steps by following launches from step marks, and sums step by step what devices did, by priority and over
all devices together. With four ranks in one file that makes four times the steps, ops of a rank hide that another one
waited, and time without kernels is "all others", which it takes for input. But what says which step it is of
(`group_id`) is left as it is. So one rank's events say it, the one that the others wait for, and beside them lie

    gpudiag: steps    step windows, as long as the step was over all ranks
    gpudiag: parts    what no kernel or copy says, under names that xprof knows: waiting for input, exchange

so that a step and its parts are that rank's in the analysis. How xprof files events: xplane_to_step_events.cc,
event_span.cc and step_events_to_steps_db.cc of openxla/xprof; what a host did is counted only where there are no
devices. Kernel statistics are of all ranks.
"""

from __future__ import annotations

import itertools

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.model.event import NO_CORRELATION
from gpudiag.report.export.gpudiag_tracks import PARTS, QUEUED, STEPS, UNMARKED_INPUT
from gpudiag.report.export.model import ExportModel, Group, Track, TrackKind

STEPS_LINE, PARTS_LINE = "gpudiag: steps", "gpudiag: parts"

#: Parts of a device's step → names that xprof files under input, collectives and compute; none has a colon, behind
#: which it looks for the type of TensorFlow's op. The gaps between queued kernels are compute there: the device waits
#: for nobody.
_ON_DEVICE = {
    "input": "MEMCPYHtoD (waiting for input)",
    UNMARKED_INPUT: "MEMCPYHtoD (waiting for input, without marks)",
    "communication_transfer": "nccl (exchange)",
    "communication_wait": "nccl (waiting for a rank)",
    QUEUED: "between queued kernels",
}
#: Of a step without devices: input and host compute; an exchange goes from host to host.
_ON_HOST = {
    "input": "IteratorGetNext (waiting for input)",
    UNMARKED_INPUT: "IteratorGetNext (waiting for input, without marks)",
    "communication_transfer": "MEMCPYHtoH (exchange)",
    "communication_wait": "MEMCPYHtoH (waiting for a rank)",
    "compute": "compute",
    "copy": "copy",
    "launch": "between operators",
    QUEUED: "between operators",
}


class StepEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event that xprof counts: [start, end) ns on the export model's clock, its name and its step."""

    start: int
    end: int
    name: str
    step: int


class PacingGroup:
    """The steps of the group that the others wait for.

    Attributes:
        group: which it is.
        steps: its windows.
        mean_ns: the length of each step by its number, over all groups; set once they are known.
    """

    def __init__(self, group: Group, steps: Track, parts: Track) -> None:
        self.group = group
        self.steps = steps
        self.mean_ns: dict[int, int] = {}
        self._parts = parts

    def lengths_ns(self) -> list[tuple[int, int]]:
        """(number, length) of each step."""
        return list(zip(_numbers(self.steps).tolist(), (self.steps.end - self.steps.start).tolist(), strict=True))

    def waited_ns(self) -> int:
        """How long it waited for other ranks."""
        waits = self._parts.name == self._parts.names.index("communication_wait")
        return int((self._parts.end - self._parts.start)[waits].sum())

    def step_of(self, track: Track) -> NDArray[np.int64]:
        """int64[n]: each event's step, by its begin; -1 outside of the steps, and of what nobody launched."""
        place = np.searchsorted(self.steps.start, track.start, side="right") - 1
        inside = (place >= 0) & (track.start < self.steps.end[np.maximum(place, 0)])
        if track.correlation is not None:
            inside &= (track.correlation != NO_CORRELATION) & (track.kind is TrackKind.STREAM)
        return np.where(inside, _numbers(self.steps)[np.maximum(place, 0)], -1)

    def windows(self) -> list[StepEvent]:
        """The steps: begun as here, as long as on the mean of all ranks."""
        begins = zip(self.steps.start.tolist(), _numbers(self.steps).tolist(), strict=True)
        return [
            StepEvent(start=start, end=start + self.mean_ns[number], name=str(number), step=number)
            for start, number in begins
        ]

    def parts(self) -> list[StepEvent]:
        """What no recorded event tells xprof; without devices, all of a step."""
        names = _ON_HOST if self.group.device is None else _ON_DEVICE
        chosen = np.isin(self._parts.name, [i for i, name in enumerate(self._parts.names) if name in names])
        # A part that spans windows is one of each of them.
        start, end = self._parts.start[chosen], self._parts.end[chosen]
        first = np.searchsorted(self.steps.start, start, side="right") - 1
        last = np.searchsorted(self.steps.start, end, side="left") - 1
        events = []
        for place, name in enumerate(self._parts.name[chosen].tolist()):
            for window in range(int(first[place]), int(last[place]) + 1):
                begin = max(int(start[place]), int(self.steps.start[window]))
                until = min(int(end[place]), int(self.steps.end[window]))
                number = int(_numbers(self.steps)[window])
                events.append(StepEvent(start=begin, end=until, name=names[self._parts.names[name]], step=number))
        return events


def pacing_group(exported: ExportModel) -> PacingGroup | None:
    """The group that waits least for others, a device if any has steps; None where nothing has steps."""
    candidates = []
    for group in exported.groups:
        own = {track.title: track for track in group.tracks if track.kind is TrackKind.GPUDIAG}
        if STEPS in own and PARTS in own and (_numbers(own[STEPS]) >= 0).all():
            candidates.append(PacingGroup(group, own[STEPS], own[PARTS]))
    candidates = [one for one in candidates if one.group.device is not None] or candidates
    if not candidates:
        return None
    lengths: dict[int, list[int]] = {}
    for number, length in itertools.chain.from_iterable(one.lengths_ns() for one in candidates):
        lengths.setdefault(number, []).append(length)
    chosen = min(candidates, key=PacingGroup.waited_ns)
    chosen.mean_ns = {number: sum(of_all) // len(of_all) for number, of_all in lengths.items()}
    return chosen


def _numbers(steps: Track) -> NDArray[np.int64]:
    assert steps.step is not None  # noqa: S101 - the track of steps has numbers
    return steps.step
