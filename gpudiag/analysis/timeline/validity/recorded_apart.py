"""Find recordings that were made one after another, as those of two runs are, and not at the same time.

run A   ├ rank 0 ┤
        ├ rank 1 ┤
run B                        ├ rank 2 ┤        ranks that exist at different times are not of one job
                             ├ rank 3 ┤
"""

from __future__ import annotations

from collections.abc import Sequence

from gpudiag.analysis.timeline.calibration import LEAST_UNIX_NS, RUNS_APART_NS
from gpudiag.intervals import distinct
from gpudiag.model.event import Trace
from gpudiag.model.timeline import UNKNOWN, DeviceTrack
from gpudiag.units import NS_PER_S


def recorded_apart(traces: Sequence[Trace], tracks: Sequence[DeviceTrack]) -> list[str]:
    """Describe the longest pause between two recordings, if they cannot be of one run.

    Recordings whose collectives match are of one run, whatever their clocks say.
    """
    timed = [index for index, trace in enumerate(traces) if trace.origin_ns >= LEAST_UNIX_NS and len(trace.events)]
    timed.sort(key=lambda index: traces[index].origin_ns)
    longest = max(range(1, len(timed)), key=lambda place: _pause_ns(traces, timed, place), default=None)
    if longest is None or (pause := _pause_ns(traces, timed, longest)) < RUNS_APART_NS:
        return []
    if _instances(tracks, timed[:longest]) & _instances(tracks, timed[longest:]):
        return []
    first, second = traces[timed[longest - 1]].source, traces[timed[longest]].source
    return [f"{second} begins {pause / NS_PER_S:.0f} s after {first} has ended"]


def _pause_ns(traces: Sequence[Trace], timed: Sequence[int], place: int) -> int:
    """Return the time from the end of the recordings before a place to the start of the one there."""
    ended = max(traces[index].origin_ns + int(traces[index].events.end_ns.max()) for index in timed[:place])
    return traces[timed[place]].origin_ns - ended


def _instances(tracks: Sequence[DeviceTrack], chosen: Sequence[int]) -> set[int]:
    """Return the collectives of these traces that match others."""
    found: set[int] = set()
    for track in tracks:
        if track.trace in chosen:
            instance = track.collectives.instance
            found.update(distinct(instance[instance != UNKNOWN]).tolist())
    return found
