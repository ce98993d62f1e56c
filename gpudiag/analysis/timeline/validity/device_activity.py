"""Launches and what came of them: a recording in which device work is missing, and one in which some of it was lost."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.timeline.calibration import FEWEST_LOST, LOST_SHARE
from gpudiag.analysis.timeline.validity.wording import ranks_in_words
from gpudiag.intervals import among
from gpudiag.model.analysis import Validity
from gpudiag.model.event import DEVICE_WORK, HOST, NO_CORRELATION, EventKind, Role, Trace, any_of


class DeviceActivity(msgspec.Struct, frozen=True):
    """What one process launched, and what of it was recorded.

    Attributes:
        launches: calls that put work into a device's queue, of such names as led to device work at least once; those
            at the capture's edges, whose work may have run after its end, are left out.
        lost: how many of them no device op belongs to.
        missing: the process launched, or says that it works on a device, and no kernel was recorded.
    """

    launches: int
    lost: int
    missing: bool

    @property
    def lossy(self) -> bool:
        """Whether device ops were lost."""
        return not self.missing and self.lost >= max(FEWEST_LOST, LOST_SHARE * self.launches)


def device_activities(traces: Sequence[Trace]) -> tuple[DeviceActivity, ...]:
    """The device activity of each trace."""
    exchanging = {
        rank
        for trace in traces
        for call in trace.collectives
        if trace.events.device[call.row] != HOST
        for rank in call.group_ranks
    }
    return tuple(_activity(trace, exchanges_on_devices=trace.rank in exchanging) for trace in traces)


def _activity(trace: Trace, *, exchanges_on_devices: bool) -> DeviceActivity:
    events = trace.events
    work = events.rows_of(*DEVICE_WORK)
    calls = events.rows_of(EventKind.RUNTIME)
    calls = calls[any_of(events.role[calls], Role.LAUNCH, Role.COPY) & (events.correlation[calls] != NO_CORRELATION)]
    led = among(events.correlation[calls], events.correlation[work])
    if not (events.kind[work] == EventKind.KERNEL).any():
        launching = events.role[calls] == Role.LAUNCH
        # Memsets are launches too; a process that only sets and copies has lost nothing.
        lost = 2 * np.count_nonzero(launching & ~led) > np.count_nonzero(launching)
        told = not len(work) and (trace.uses_devices or exchanges_on_devices)
        return DeviceActivity(len(calls), int(np.count_nonzero(~led)), missing=bool(lost or told))
    # Host functions are launched too, and never lead to device work.
    names = events.name[calls]
    leading = np.bincount(names[led], minlength=len(events.names)) > 0
    counted = leading[names] & _between_edges(led)
    return DeviceActivity(int(np.count_nonzero(counted)), int(np.count_nonzero(counted & ~led)), missing=False)


def _between_edges(led: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Without the launches after the last and before the first that led to recorded work."""
    inside = np.zeros(len(led), np.bool_)
    found = np.flatnonzero(led)
    if len(found):
        inside[found[0] : found[-1] + 1] = True
    return inside


def doubts(traces: Sequence[Trace], activities: Sequence[DeviceActivity]) -> list[Validity]:
    """What is missing or lost, in words."""
    found = []
    missing = [trace.rank for trace, activity in zip(traces, activities, strict=True) if activity.missing]
    if missing:
        every = len(missing) == len(traces)
        of = "" if every else f" of {ranks_in_words(missing)}"
        waits = "" if every else ", and waiting for them cannot be told from transferring"
        message = (
            f"work was launched on devices, but no kernel{of} was recorded: what those did is not known{waits}. "
            "Record with ProfilerActivity.CUDA, let the driver allow it (NVreg_RestrictProfilingToAdminUsers=0, or "
            "CAP_SYS_ADMIN), and end other profilers of the same GPUs."
        )
        found.append(Validity(code="missing-device-activity", message=message))
    lossy = [(trace.rank, activity) for trace, activity in zip(traces, activities, strict=True) if activity.lossy]
    if lossy:
        lost, launches = sum(activity.lost for _, activity in lossy), sum(activity.launches for _, activity in lossy)
        message = (
            f"{lost} of {launches} launches ({100 * lost / launches:.0f} %) of {ranks_in_words([r for r, _ in lossy])} "
            "have no device op: the profiler lost them, and buckets are lower bounds. Record fewer steps, without "
            "shapes and stacks."
        )
        found.append(Validity(code="lost-kernels", message=message))
    return found
