"""A recording of which little is there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpudiag.analysis.timeline.calibration import THIN_SHARE
from gpudiag.analysis.timeline.validity.wording import ranks_in_words
from gpudiag.intervals import Intervals, lengths_between, union
from gpudiag.model.analysis import Validity
from gpudiag.model.event import EventKind, Role, Trace, any_of, framework_of
from gpudiag.model.timeline import DeviceTrack

_RECORD = {
    "pytorch": 'Record both CPU and CUDA activities, and mark where data is waited for with gpudiag.range("input")',
    "tensorflow": 'Record host and devices, and mark where data is waited for with gpudiag.range("input")',
    "jax": "Record while steps run, with host_tracer_level=2 (jax.profiler.ProfileOptions)",
    "unknown": "Record host and devices while steps run",
}


def doubts(traces: Sequence[Trace], tracks: Sequence[DeviceTrack]) -> list[Validity]:
    """The lanes whose windows are nearly empty."""
    shares = {track.rank: _covered(traces[track.trace], track) for track in tracks if len(track.bounds) > 1}
    thin = {rank: share for rank, share in shares.items() if share < THIN_SHARE}
    if not thin:
        return []
    framework = framework_of(traces)
    message = (
        f"recorded events cover {100 * min(thin.values()):.1f} % of the steps of {ranks_in_words(thin)}: what else "
        f"happened cannot be known. {_RECORD.get(framework, _RECORD['unknown'])}."
    )
    return [Validity(code="thin-recording", message=message)]


def _covered(trace: Trace, track: DeviceTrack) -> float:
    """The share of the lane's windows inside any event; marks of steps and modules, which enclose all, do not count."""
    events, ends = trace.events, track.bounds[[0, -1]] - track.shift_ns
    begun = slice(0, int(np.searchsorted(events.start_ns, ends[1])))
    kind, role, end = events.kind[begun], events.role[begun], events.end_ns[begun]
    around = any_of(kind, EventKind.DEVICE_ANNOTATION, EventKind.MODULE) | any_of(role, Role.STEP_MARK)
    rows = np.flatnonzero(~around & (end > ends[0]))
    recorded = union(Intervals(events.start_ns[rows], end[rows]))
    return float(lengths_between(recorded, ends)[0] / max(int(ends[1] - ends[0]), 1))
