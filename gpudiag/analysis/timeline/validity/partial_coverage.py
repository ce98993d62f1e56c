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


def doubts(tracks: Sequence[DeviceTrack]) -> list[Validity]:
    """Return the warning where the analysed steps stand for little of the device work that was recorded."""
    shares = [covered_share(track) for track in tracks]
    if not shares or min(shares) >= COVERED_SHARE:
        return []
    track = tracks[int(np.argmin(shares))]
    busy = union(recorded_work(track)[0])
    begin, end = int(track.bounds[0]), int(track.bounds[-1])
    first, last = min(int(busy.start[0]), begin), max(int(busy.end[-1]), end)
    before, inside, after = (milliseconds(ns) for ns in lengths_between(busy, np.array([first, begin, end, last])))
    what = "work" if track.is_cpu else "device work"
    unmarked = track.steps.source in {"optimizer", "range", "pattern", "none"}
    remedy = "Mark the steps, or record fewer things at once." if unmarked else "Record more steps and nothing else."
    message = (
        f"the analysed steps hold {inside:.1f} ms of the recorded {what}; {before:.1f} ms lie before them and "
        f"{after:.1f} ms after. What is said holds for {100 * min(shares):.0f} % of the recording. {remedy}"
    )
    return [Validity(code="partial-coverage", message=message)]
