"""Compare launches with recorded device work, to detect recordings in which device work is missing or partly lost."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.timeline.calibration import FEWEST_LOST, LOST_SHARE
from gpudiag.analysis.timeline.validity.wording import ranks_in_words
from gpudiag.intervals import among
from gpudiag.model.analysis import Validity
from gpudiag.model.event import DEVICE_WORK, HOST, NO_CORRELATION, EventKind, Role, Trace, any_of, framework_of
from gpudiag.model.sanitize import with_escapes

_DRIVER = (
    "let the driver allow it (NVreg_RestrictProfilingToAdminUsers=0, or CAP_SYS_ADMIN), and end other profilers of the "
    "same GPUs"
)
_RECORD_DEVICES = {
    "pytorch": f"Record with ProfilerActivity.CUDA, {_DRIVER}.",
    "tensorflow": f"Record with ProfilerOptions(device_tracer_level=1), {_DRIVER}.",
    "jax": f"Record with jax.profiler.trace around the steps, {_DRIVER}.",
    "unknown": f"Record device activity too, {_DRIVER}.",
}
_RECORD_ALL = {
    "pytorch": "Record with torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], "
    "schedule=torch.profiler.schedule(wait=1, warmup=2, active=5)), and call prof.step() at the end of each step.",
    "tensorflow": "Record five steps with tf.profiler.experimental.start and stop, each in a Trace with its step_num.",
    "jax": "Record five steps with jax.profiler.trace, each in a StepTraceAnnotation.",
    "unknown": "Record host and devices over five or more marked steps.",
}
_GRAPHS = {
    "pytorch": "Record with ProfilerActivity.CUDA, started before the graphs are captured, or without graphs for the "
    "recording (torch.compile without mode='reduce-overhead'; vLLM and SGLang: enforce_eager, disable_cuda_graph).",
    "jax": "Record with XLA_FLAGS=--xla_gpu_enable_command_buffer= (empty).",
    "tensorflow": "Record with XLA_FLAGS=--xla_gpu_enable_command_buffer= (empty).",
    "unknown": "Record without graphs, or with a profiler that records the kernels of graphs.",
}


class DeviceActivity(msgspec.Struct, frozen=True):
    """Launches of one process, and the amount of their device work that was recorded.

    Attributes:
        launches: calls that put work into a device's queue, of such names as led to device work at least once; those
            at the capture's edges, whose work may have run after its end, are left out.
        lost: launches without a device op.
        missing: the process launched, or reports that it works on a device, and no kernel was recorded.
        unread: names of accelerators whose activity no reader understands, if nothing else computed.
        graphs: launched graphs without recorded kernels.
        absent: what the recording lacks, if nothing in it computes.
    """

    launches: int
    lost: int
    missing: bool
    unread: tuple[str, ...] = ()
    graphs: int = 0
    absent: tuple[str, ...] = ()

    @property
    def lossy(self) -> bool:
        """Return whether device ops were lost, or the ops of graphs were not recorded."""
        return self.loses_launches or (self.graphs > 0 and not self.missing)

    @property
    def loses_launches(self) -> bool:
        """Return whether so many launches have no device op that the profiler lost some."""
        return not self.missing and self.lost >= max(FEWEST_LOST, LOST_SHARE * self.launches)


def device_activities(traces: Sequence[Trace]) -> tuple[DeviceActivity, ...]:
    """Return the device activity of each trace."""
    on_devices = {
        rank
        for trace in traces
        for call in trace.collectives
        if trace.events.device[call.row] != HOST
        for rank in call.group_ranks
    }
    return tuple(_activity(trace, uses_devices=trace.uses_devices or trace.rank in on_devices) for trace in traces)


def _activity(trace: Trace, *, uses_devices: bool) -> DeviceActivity:
    events = trace.events
    work = events.rows_of(*DEVICE_WORK)
    if trace.unread_devices and not len(work):
        return DeviceActivity(0, 0, missing=True, unread=trace.unread_devices)
    graphs = trace.unrecorded_graphs
    calls = events.rows_of(EventKind.RUNTIME)
    calls = calls[any_of(events.role[calls], Role.LAUNCH, Role.COPY) & (events.correlation[calls] != NO_CORRELATION)]
    answered = among(events.correlation[calls], events.correlation[work])
    if not (events.kind[work] == EventKind.KERNEL).any():
        launching = events.role[calls] == Role.LAUNCH
        # Memsets are launches too, so a process that only sets and copies has lost nothing.
        lost = 2 * np.count_nonzero(launching & ~answered) > np.count_nonzero(launching)
        missing = bool(lost or (uses_devices and not len(work)))
        if not missing and not len(work) and not len(events.rows_of(EventKind.OPERATOR)):
            marks = () if trace.step_marks else ("step marks",)
            return DeviceActivity(0, 0, missing=True, absent=("device activity", "host operators", *marks))
        return DeviceActivity(len(calls), int(np.count_nonzero(~answered)), missing=missing, graphs=graphs)
    # Host functions are launched too, but have no device work.
    names = events.name[calls]
    leads_to_work = np.bincount(names[answered], minlength=len(events.names)) > 0
    counted = leads_to_work[names] & _between_edges(answered)
    lost_launches = int(np.count_nonzero(counted & ~answered))
    return DeviceActivity(int(np.count_nonzero(counted)), lost_launches, missing=False, graphs=graphs)


def _between_edges(answered: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Select the launches from the first to the last one that led to recorded work."""
    inside = np.zeros(len(answered), np.bool_)
    rows = np.flatnonzero(answered)
    if len(rows):
        inside[rows[0] : rows[-1] + 1] = True
    return inside


RankActivities = Sequence[tuple[int | None, DeviceActivity]]


def incomplete_activity(traces: Sequence[Trace], activities: Sequence[DeviceActivity]) -> list[Validity]:
    """Warn about device work that is missing, not understood, or lost."""
    framework = framework_of(traces)
    by_rank = [(trace.rank, activity) for trace, activity in zip(traces, activities, strict=True)]
    return [
        *_unread(by_rank),
        *_empty(by_rank, framework),
        *_missing(by_rank, framework),
        *_lost_graphs(by_rank, framework),
        *_lost_launches(by_rank),
    ]


def _unread(by_rank: RankActivities) -> list[Validity]:
    unread = {rank: activity.unread for rank, activity in by_rank if activity.unread}
    if not unread:
        return []
    devices = ", ".join(sorted({device for names in unread.values() for device in names}))
    message = (
        f"the work{_of_ranks(unread, by_rank)} ran on an accelerator whose activity gpudiag does not read "
        f"({with_escapes(devices)}): what it did is not known, and the CPU is not judged in its place. Use the "
        "profiler of the accelerator's vendor."
    )
    return [Validity(code="missing-device-activity", message=message)]


def _empty(by_rank: RankActivities, framework: str) -> list[Validity]:
    empty = {rank: activity.absent for rank, activity in by_rank if activity.absent}
    if not empty:
        return []
    absent = dict.fromkeys(name for names in empty.values() for name in names)
    message = (
        f"the recording{_of_ranks(empty, by_rank)} has no {', no '.join(absent)}: nothing in it shows what computed. "
        f"{_RECORD_ALL.get(framework, _RECORD_ALL['unknown'])}"
    )
    return [Validity(code="missing-device-activity", message=message)]


def _missing(by_rank: RankActivities, framework: str) -> list[Validity]:
    missing = {rank: a for rank, a in by_rank if a.missing and not a.unread and not a.absent}
    if not missing:
        return []
    waits = "" if len(missing) == len(by_rank) else ", and waiting for them cannot be distinguished from transferring"
    remedies = _GRAPHS if all(activity.graphs for activity in missing.values()) else _RECORD_DEVICES
    message = (
        f"work was launched on devices, but no kernel{_of_ranks(missing, by_rank)} was recorded: what those did is not "
        f"known{waits}. {remedies.get(framework, remedies['unknown'])}"
    )
    return [Validity(code="missing-device-activity", message=message)]


def _of_ranks(ranks: Collection[int | None], by_rank: RankActivities) -> str:
    return "" if len(ranks) == len(by_rank) else f" of {ranks_in_words(ranks)}"


def _lost_graphs(by_rank: RankActivities, framework: str) -> list[Validity]:
    graphs = {rank: activity.graphs for rank, activity in by_rank if activity.graphs and not activity.missing}
    if not graphs:
        return []
    message = (
        f"the kernels of {sum(graphs.values())} launches of CUDA graphs of {ranks_in_words(graphs)} were not recorded: "
        "the device did more than is shown, and its idle time is unknown. "
        f"{_GRAPHS.get(framework, _GRAPHS['unknown'])}"
    )
    return [Validity(code="lost-kernels", message=message)]


def _lost_launches(by_rank: RankActivities) -> list[Validity]:
    lossy = {rank: activity for rank, activity in by_rank if activity.loses_launches}
    if not lossy:
        return []
    lost = sum(activity.lost for activity in lossy.values())
    launches = sum(activity.launches for activity in lossy.values())
    message = (
        f"{lost} of {launches} launches ({100 * lost / launches:.0f} %) of {ranks_in_words(lossy)} have no device op: "
        "the profiler lost them, and buckets are lower bounds. Record fewer steps, without shapes and stacks."
    )
    return [Validity(code="lost-kernels", message=message)]
