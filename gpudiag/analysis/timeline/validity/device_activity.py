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
    """What one process launched, and what of it was recorded.

    Attributes:
        launches: calls that put work into a device's queue, of such names as led to device work at least once; those
            at the capture's edges, whose work may have run after its end, are left out.
        lost: how many of them no device op belongs to.
        missing: the process launched, or says that it works on a device, and no kernel was recorded.
        unread: names of accelerators of which no reader understands the activity, where nothing else computed.
        graphs: how many launched graphs have no recorded kernels.
        absent: what a recording has none of, where nothing in it computes.
    """

    launches: int
    lost: int
    missing: bool
    unread: tuple[str, ...] = ()
    graphs: int = 0
    absent: tuple[str, ...] = ()

    @property
    def lossy(self) -> bool:
        """Return whether device ops were lost, or those of graphs not recorded."""
        return not self.missing and (self.graphs > 0 or self.loses_launches)

    @property
    def loses_launches(self) -> bool:
        """Return whether so many launches have no device op that the profiler lost some."""
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
    return tuple(_activity(trace, communications_on_devices=trace.rank in exchanging) for trace in traces)


def _activity(trace: Trace, *, communications_on_devices: bool) -> DeviceActivity:
    events = trace.events
    work = events.rows_of(*DEVICE_WORK)
    if trace.unread_devices and not len(work):
        return DeviceActivity(0, 0, missing=True, unread=trace.unread_devices)
    graphs = trace.unrecorded_graphs
    calls = events.rows_of(EventKind.RUNTIME)
    calls = calls[any_of(events.role[calls], Role.LAUNCH, Role.COPY) & (events.correlation[calls] != NO_CORRELATION)]
    led = among(events.correlation[calls], events.correlation[work])
    if not (events.kind[work] == EventKind.KERNEL).any():
        launching = events.role[calls] == Role.LAUNCH
        # Memsets are launches too; a process that only sets and copies has lost nothing.
        lost = 2 * np.count_nonzero(launching & ~led) > np.count_nonzero(launching)
        told = not len(work) and (trace.uses_devices or communications_on_devices)
        if not len(work) and not len(events.rows_of(EventKind.OPERATOR)) and not (lost or told):
            marks = () if trace.step_marks else ("step marks",)
            return DeviceActivity(0, 0, missing=True, absent=("device activity", "host operators", *marks))
        return DeviceActivity(len(calls), int(np.count_nonzero(~led)), missing=bool(lost or told), graphs=graphs)
    # Host functions are launched too, and never lead to device work.
    names = events.name[calls]
    leading = np.bincount(names[led], minlength=len(events.names)) > 0
    counted = leading[names] & _between_edges(led)
    unanswered = int(np.count_nonzero(counted & ~led))
    return DeviceActivity(int(np.count_nonzero(counted)), unanswered, missing=False, graphs=graphs)


def _between_edges(led: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Without the launches after the last and before the first that led to recorded work."""
    inside = np.zeros(len(led), np.bool_)
    found = np.flatnonzero(led)
    if len(found):
        inside[found[0] : found[-1] + 1] = True
    return inside


def doubts(traces: Sequence[Trace], activities: Sequence[DeviceActivity]) -> list[Validity]:
    """Describe what is missing, not read or lost."""
    framework = framework_of(traces)
    of_ranks = [(trace.rank, activity) for trace, activity in zip(traces, activities, strict=True)]
    found = [*_unread(of_ranks), *_empty(of_ranks, framework), *_missing(of_ranks, framework)]
    graphs = sum(activity.graphs for _, activity in of_ranks if not activity.missing)
    if graphs:
        ranks = ranks_in_words([rank for rank, activity in of_ranks if activity.graphs and not activity.missing])
        message = (
            f"the kernels of {graphs} launches of CUDA graphs of {ranks} were not recorded: the device did more than "
            f"is shown, and its idle time is unknown. {_GRAPHS.get(framework, _GRAPHS['unknown'])}"
        )
        found.append(Validity(code="lost-kernels", message=message))
    lossy = [(rank, activity) for rank, activity in of_ranks if activity.loses_launches]
    if lossy:
        lost, launches = sum(activity.lost for _, activity in lossy), sum(activity.launches for _, activity in lossy)
        message = (
            f"{lost} of {launches} launches ({100 * lost / launches:.0f} %) of {ranks_in_words([r for r, _ in lossy])} "
            "have no device op: the profiler lost them, and buckets are lower bounds. Record fewer steps, without "
            "shapes and stacks."
        )
        found.append(Validity(code="lost-kernels", message=message))
    return found


def _unread(of_ranks: Sequence[tuple[int | None, DeviceActivity]]) -> list[Validity]:
    unread = [(rank, activity) for rank, activity in of_ranks if activity.unread]
    if not unread:
        return []
    devices = ", ".join(sorted({device for _, activity in unread for device in activity.unread}))
    of = "" if len(unread) == len(of_ranks) else f" of {ranks_in_words([rank for rank, _ in unread])}"
    message = (
        f"the work{of} ran on an accelerator whose activity gpudiag does not read ({with_escapes(devices)}): what it "
        "did is not known, and the CPU is not judged in its place. Use the profiler "
        "of the accelerator's vendor."
    )
    return [Validity(code="missing-device-activity", message=message)]


def _empty(of_ranks: Sequence[tuple[int | None, DeviceActivity]], framework: str) -> list[Validity]:
    empty = [(rank, activity) for rank, activity in of_ranks if activity.absent]
    if not empty:
        return []
    absent = list(dict.fromkeys(part for _, activity in empty for part in activity.absent))
    of = "" if len(empty) == len(of_ranks) else f" of {ranks_in_words([rank for rank, _ in empty])}"
    message = (
        f"the recording{of} has no {', no '.join(absent)}: nothing in it says what computed. "
        f"{_RECORD_ALL.get(framework, _RECORD_ALL['unknown'])}"
    )
    return [Validity(code="missing-device-activity", message=message)]


def _missing(of_ranks: Sequence[tuple[int | None, DeviceActivity]], framework: str) -> list[Validity]:
    missing = [rank for rank, activity in of_ranks if activity.missing and not activity.unread and not activity.absent]
    if not missing:
        return []
    every = len(missing) == len(of_ranks)
    of = "" if every else f" of {ranks_in_words(missing)}"
    waits = "" if every else ", and waiting for them cannot be told from transferring"
    record = _RECORD_DEVICES.get(framework, _RECORD_DEVICES["unknown"])
    if all(activity.graphs for rank, activity in of_ranks if rank in missing):
        record = _GRAPHS.get(framework, _GRAPHS["unknown"])
    message = (
        f"work was launched on devices, but no kernel{of} was recorded: what those did is not known{waits}. {record}"
    )
    return [Validity(code="missing-device-activity", message=message)]
