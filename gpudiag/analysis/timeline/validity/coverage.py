"""Judge how much of a recording was analysed, and how much of the analysed steps was recorded."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.timeline.calibration import COVERED_SHARE, THIN_SHARE
from gpudiag.analysis.timeline.validity.wording import ranks_in_words
from gpudiag.intervals import Intervals, length, lengths_between, union
from gpudiag.model.analysis import Validity
from gpudiag.model.event import EventKind, Role, Trace, any_of, framework_of
from gpudiag.model.timeline import UNKNOWN, DeviceTrack
from gpudiag.units import milliseconds

_RECORD = {
    "pytorch": 'Record both CPU and CUDA activities, and mark where data is waited for with gpudiag.range("input")',
    "tensorflow": 'Record host and devices, and mark where data is waited for with gpudiag.range("input")',
    "jax": "Record while steps run, with host_tracer_level=2 (jax.profiler.ProfileOptions)",
    "unknown": "Record host and devices while steps run",
}

#: Sources of steps that the program did not mark.
_UNMARKED = frozenset({"optimizer", "range", "pattern", "none"})


def covered_share(track: DeviceTrack) -> float:
    """Return the share of the device's busy time in the recording that the track's steps represent, 0 to 1.

    The analysed windows count, and the step before and the step after them. Those two are not analysed because their
    bounds are not known, so each counts at most as much as the longest analysed step holds. Everything that follows the
    start of the last step counts as one step at most, because its end is not known. On a CPU, operators of the training
    thread and collectives replace device work.

        recording   ··██··│ #1  │ #2  │ #3  │ #4 │████████      first and last step left out: #2 and #3 analysed
        busy ms       4      20    21    20   9    60           (20 + 21 + 20 + 21) of 130 ms: 63 %

    The 4 ms before the first mark were launched before the recording began and do not count.
    """
    if len(track.ops) == 0 or len(track.bounds) < 2:
        return 1.0
    work, in_a_step = _recorded_work(track)
    busy = union(work)
    total = length(busy)
    inside = lengths_between(busy, track.bounds)
    begin, end = int(track.bounds[0]), int(track.bounds[-1])
    edges = 0
    for outside in (in_a_step & (work.start < begin), work.start >= end):
        spans = union(Intervals(work.start[outside], work.end[outside]))
        edges += min(length(spans), int(inside.max()))
    return min((int(inside.sum()) + edges) / total, 1.0) if total > 0 else 1.0


def _recorded_work(track: DeviceTrack) -> tuple[Intervals, NDArray[np.bool_]]:
    """Return the recorded device work as raw intervals, and for each whether a recorded step launched it.

    Work before the windows whose launch was not captured is left out: it was queued before the recording began. On a
    CPU, the training thread's operators count, and the collectives, which run on separate threads.
    """
    ops, calls = track.ops, track.collectives
    if not track.is_cpu:
        kept = (ops.launch_start != UNKNOWN) | (ops.start >= track.bounds[0])
        return Intervals(ops.start[kept], ops.end[kept]), ops.step[kept] >= 0
    start, end = np.append(ops.start, calls.start), np.append(ops.end, calls.end)
    return Intervals(start, end), np.append(ops.step >= 0, calls.start >= track.steps.start[:1])


def partial_coverage(tracks: Sequence[DeviceTrack]) -> list[Validity]:
    """Warn if the analysed steps represent little of the recorded device work."""
    shares = [covered_share(track) for track in tracks]
    if not shares:
        return []
    if min(shares) >= COVERED_SHARE:
        return _short_window(tracks[0])
    track = tracks[int(np.argmin(shares))]
    busy = union(_recorded_work(track)[0])
    begin, end = int(track.bounds[0]), int(track.bounds[-1])
    first, last = min(int(busy.start[0]), begin), max(int(busy.end[-1]), end)
    before, inside, after = (milliseconds(ns) for ns in lengths_between(busy, np.array([first, begin, end, last])))
    work = "work" if track.is_cpu else "device work"
    unmarked = track.steps.source in _UNMARKED
    remedy = "Mark the steps, or record fewer things at once." if unmarked else "Record more steps and nothing else."
    message = (
        f"the analysed steps hold {inside:.1f} ms of the recorded {work}; {before:.1f} ms are before them and "
        f"{after:.1f} ms after. The findings apply to {100 * min(shares):.0f} % of the recording. {remedy}"
    )
    return [Validity(code="partial-coverage", message=message)]


def _short_window(track: DeviceTrack) -> list[Validity]:
    """Warn if a single unmarked window covers little of the time that the training thread recorded.

    It may hold all device work while most of the recording is loading and setup.
    """
    thread = track.threads.get(track.steps.thread)
    if track.steps.source not in _UNMARKED or len(track.window_steps) != 1 or thread is None or not len(thread.busy):
        return []
    recorded = int(thread.busy.end[-1] - thread.busy.start[0])
    window = int(track.bounds[-1] - track.bounds[0])
    if window >= COVERED_SHARE * recorded:
        return []
    message = (
        f"the analysed window takes {milliseconds(window):.1f} ms of the {milliseconds(recorded):.1f} ms that the main "
        "thread recorded. Mark the steps, or record them alone."
    )
    return [Validity(code="partial-coverage", message=message)]


def thin_recording(traces: Sequence[Trace], tracks: Sequence[DeviceTrack]) -> list[Validity]:
    """Warn if recorded events cover little of a track's windows."""
    shares = {track.rank: _recorded_share(traces[track.trace], track) for track in tracks if len(track.bounds) > 1}
    thin = {rank: share for rank, share in shares.items() if share < THIN_SHARE}
    if not thin:
        return []
    message = (
        f"recorded events cover {100 * min(thin.values()):.1f} % of the steps of {ranks_in_words(thin)}: what else "
        f"happened cannot be known. {_RECORD.get(framework_of(traces), _RECORD['unknown'])}."
    )
    return [Validity(code="thin-recording", message=message)]


def _recorded_share(trace: Trace, track: DeviceTrack) -> float:
    """Return the share of the track's windows inside any event, without marks of steps and modules."""
    events, ends = trace.events, track.bounds[[0, -1]] - track.shift_ns
    begun = slice(0, int(np.searchsorted(events.start_ns, ends[1])))
    kind, role, end = events.kind[begun], events.role[begun], events.end_ns[begun]
    around = any_of(kind, EventKind.DEVICE_ANNOTATION, EventKind.MODULE) | any_of(role, Role.STEP_MARK)
    rows = np.flatnonzero(~around & (end > ends[0]))
    recorded = union(Intervals(events.start_ns[rows], end[rows]))
    return float(lengths_between(recorded, ends)[0] / max(int(ends[1] - ends[0]), 1))
