"""A recording of which the analysed steps are a small part."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpudiag.analysis.timeline.calibration import COVERED_SHARE
from gpudiag.analysis.timeline.coverage import covered_share, recorded_work
from gpudiag.intervals import lengths_between, union
from gpudiag.model.analysis import Validity
from gpudiag.model.timeline import DeviceTrack
from gpudiag.units import milliseconds

#: Sources of steps that the program did not mark.
_GUESSED = frozenset({"optimizer", "range", "pattern", "none"})


def doubts(tracks: Sequence[DeviceTrack]) -> list[Validity]:
    """Return the warning where the analysed steps stand for little of the device work that was recorded."""
    shares = [covered_share(track) for track in tracks]
    if not shares:
        return []
    if min(shares) >= COVERED_SHARE:
        return _little_of_the_time(tracks[0])
    track = tracks[int(np.argmin(shares))]
    busy = union(recorded_work(track)[0])
    begin, end = int(track.bounds[0]), int(track.bounds[-1])
    first, last = min(int(busy.start[0]), begin), max(int(busy.end[-1]), end)
    before, inside, after = (milliseconds(ns) for ns in lengths_between(busy, np.array([first, begin, end, last])))
    what = "work" if track.is_cpu else "device work"
    unmarked = track.steps.source in _GUESSED
    remedy = "Mark the steps, or record fewer things at once." if unmarked else "Record more steps and nothing else."
    message = (
        f"the analysed steps hold {inside:.1f} ms of the recorded {what}; {before:.1f} ms lie before them and "
        f"{after:.1f} ms after. What is said holds for {100 * min(shares):.0f} % of the recording. {remedy}"
    )
    return [Validity(code="partial-coverage", message=message)]


def _little_of_the_time(track: DeviceTrack) -> list[Validity]:
    """Return the warning if a single unmarked window lasts for little of what the training thread recorded.

    The work beside it may be all of the device's, and loading and setting up before it most of the recording.
    """
    thread = track.threads.get(track.steps.thread)
    if track.steps.source not in _GUESSED or len(track.window_steps) != 1 or thread is None or not len(thread.busy):
        return []
    recorded = int(thread.busy.end[-1] - thread.busy.start[0])
    window = int(track.bounds[-1] - track.bounds[0])
    if window >= COVERED_SHARE * recorded:
        return []
    message = (
        f"what was analysed lasts {milliseconds(window):.1f} ms of the {milliseconds(recorded):.1f} ms that the main "
        "thread recorded. Mark the steps, or record them alone."
    )
    return [Validity(code="partial-coverage", message=message)]
