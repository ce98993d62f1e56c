"""Judge how much of a recording was analysed, and whether device work in it is missing or lost."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.timeline.calibration import COVERED_SHARE, FEWEST_LOST, LOST_SHARE, THIN_SHARE
from gpudiag.intervals import Intervals, among, length, lengths_between, union
from gpudiag.model.analysis import Validity
from gpudiag.model.event import DEVICE_WORK, NO_CORRELATION, EventKind, EventTable, Role, Trace, any_of, framework_of
from gpudiag.model.sanitize import with_escapes
from gpudiag.model.timeline import UNKNOWN, DeviceTrack
from gpudiag.units import milliseconds

if TYPE_CHECKING:
    from gpudiag.analysis.timeline.rank_events import RankEvents

_MOST_SHOWN = 8
_RECORD = {
    "pytorch": 'Record both CPU and CUDA activities, and mark where data is waited for with gpudiag.range("input")',
    "tensorflow": 'Record host and devices, and mark where data is waited for with gpudiag.range("input")',
    "jax": "Record while steps run, with host_tracer_level=2 (jax.profiler.ProfileOptions)",
    "unknown": "Record host and devices while steps run",
}

#: Sources of steps that the program did not mark.
_UNMARKED = frozenset({"optimizer", "range", "pattern", "none"})
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


def ranks_in_words(ranks: Iterable[int | None]) -> str:
    """List ranks in order, at most eight of them.

    >>> ranks_in_words([2]), ranks_in_words([3, 0])
    ('rank 2', 'ranks 0, 3')
    """
    ordered = sorted({rank or 0 for rank in ranks})
    shown = ", ".join(map(str, ordered[:_MOST_SHOWN])) + (", …" if len(ordered) > _MOST_SHOWN else "")
    return f"rank {shown}" if len(ordered) == 1 else f"ranks {shown}"


def covered_share(track: DeviceTrack) -> float:
    """Return the share (0 to 1) of the recorded busy time of the device that the track's steps represent.

    The steps represent the busy time of the analysed windows, and of the steps before and after them. The bounds of the
    steps outside the windows are unknown, so that each counts at most the largest busy time of a window. All work after
    the last window counts as work of the last step. On a CPU, training-thread operators and collectives replace device
    work.

        recording   ··██··│ #1  │ #2  │ #3  │ #4 │████████      first and last step left out: #2 and #3 analysed
        busy ms       4      20    21    20   9    60           20 (#1) + 21 (#2) + 20 (#3) + 21 (#4) of 130 ms: 63 %

    #4 has 9 + 60 ms, and counts 21 as the largest window. The 4 ms before #1 do not count, because their launches
    precede the recording.
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
    """Return (unsorted intervals of recorded device work, bool[n]: whether a recorded step launched each interval).

    Work before the windows is left out if its launch was not recorded, because it was queued before the recording. On a
    CPU, the work is the training thread's operators and the collectives, which run on separate threads.
    """
    ops, calls = track.ops, track.collectives
    if not track.is_cpu:
        kept = (ops.launch_start != UNKNOWN) | (ops.start >= track.bounds[0])
        return Intervals(ops.start[kept], ops.end[kept]), ops.step[kept] >= 0
    start, end = np.append(ops.start, calls.start), np.append(ops.end, calls.end)
    return Intervals(start, end), np.append(ops.step >= 0, calls.start >= track.steps.start[:1])


def partial_coverage(tracks: Sequence[DeviceTrack], shares: Sequence[float]) -> list[Validity]:
    """Warn if the steps represent little of the recorded device work; `shares` has the `covered_share` of each track.

    If the steps represent enough of it on all tracks, check the first track for a short window instead.
    """
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

    Such a window may contain all device work although most of the recording is loading and setup.
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


def thin_recording(
    traces: Sequence[Trace], views: Sequence[RankEvents], tracks: Sequence[DeviceTrack]
) -> list[Validity]:
    """Warn if recorded events cover little of a track's windows."""
    shares = {track.rank: _recorded_share(views[track.trace], track) for track in tracks if len(track.bounds) > 1}
    thin = {rank: share for rank, share in shares.items() if share < THIN_SHARE}
    if not thin:
        return []
    message = (
        f"recorded events cover {100 * min(thin.values()):.1f} % of the steps of {ranks_in_words(thin)}: what else "
        f"happened cannot be known. {_RECORD.get(framework_of(traces), _RECORD['unknown'])}."
    )
    return [Validity(code="thin-recording", message=message)]


def _recorded_share(view: RankEvents, track: DeviceTrack) -> float:
    """Return the share (0 to 1) of the track's windows covered by events other than marks of steps and modules."""
    ends = track.bounds[[0, -1]] - track.shift_ns
    return float(lengths_between(view.recorded, ends)[0] / max(int(ends[1] - ends[0]), 1))


def recorded_spans(events: EventTable) -> Intervals:
    """Return the merged times of all events except marks of steps and modules, which also span unrecorded time."""
    around = any_of(events.kind, EventKind.DEVICE_ANNOTATION, EventKind.MODULE) | any_of(events.role, Role.STEP_MARK)
    return union(Intervals(events.start_ns[~around], events.end_ns[~around]))


class DeviceActivity(msgspec.Struct, frozen=True):
    """Numbers of launches of one process with and without recorded device work.

    Attributes:
        launches: number of calls whose name led to recorded device work at least once. Calls at the recording's edges
            are left out, because their work may lie outside of it. Without recorded kernels, all launches and copies
            count.
        lost: number of launches without a device op.
        missing: whether the process launched work, or states that it uses a device, although no kernel was recorded.
        unread: names of accelerators whose activity no reader supports, if no other device computed.
        graphs: number of launched graphs without recorded kernels.
        absent: kinds of events that the recording lacks, if it has neither device work nor host operators.
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
        """Return whether many launches have no device op, which shows that the profiler lost ops."""
        return not self.missing and self.lost >= max(FEWEST_LOST, LOST_SHARE * self.launches)


def device_activities(traces: Sequence[Trace], views: Sequence[RankEvents]) -> tuple[DeviceActivity, ...]:
    """Return the device activity of each trace.

    A process also uses a device if another rank's device communicates in a group with this process.
    """
    stated = [
        trace.collectives[index].group_ranks for trace, view in zip(traces, views, strict=True) for index in view.groups
    ]
    groups = {id(ranks): ranks for ranks in stated}
    on_devices = {rank for ranks in groups.values() for rank in ranks}
    return tuple(
        view.activity_with_device if trace.rank in on_devices else view.activity
        for trace, view in zip(traces, views, strict=True)
    )


def device_activity(trace: Trace, *, uses_devices: bool) -> DeviceActivity:
    """Return the device activity of one trace; `uses_devices` says whether its process uses a device."""
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
        # If no kernel was recorded, launches that led to device work are memsets. A process may only set and copy
        # memory, so that kernels are missing only if most launches have no work.
        mostly_lost = 2 * np.count_nonzero(launching & ~answered) > np.count_nonzero(launching)
        missing = bool(mostly_lost or (uses_devices and not len(work)))
        if not missing and not len(work) and not len(events.rows_of(EventKind.OPERATOR)):
            marks = () if trace.step_marks else ("step marks",)
            return DeviceActivity(0, 0, missing=True, absent=("device activity", "host operators", *marks))
        return DeviceActivity(len(calls), int(np.count_nonzero(~answered)), missing=missing, graphs=graphs)
    # Launches of host functions have no device work, so only names that led to device work count.
    names = events.name[calls]
    leads_to_work = np.bincount(names[answered], minlength=len(events.names)) > 0
    counted = leads_to_work[names] & _between_edges(answered)
    lost_launches = int(np.count_nonzero(counted & ~answered))
    return DeviceActivity(int(np.count_nonzero(counted)), lost_launches, missing=False, graphs=graphs)


def _between_edges(answered: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Select the launches from the first to the last launch that led to recorded work."""
    inside = np.zeros(len(answered), np.bool_)
    rows = np.flatnonzero(answered)
    if len(rows):
        inside[rows[0] : rows[-1] + 1] = True
    return inside


_VENDORS_PROFILER = "Use the profiler of the accelerator's vendor"
RankActivities = Sequence[tuple[int | None, DeviceActivity]]


def incomplete_activity(traces: Sequence[Trace], activities: Sequence[DeviceActivity]) -> list[Validity]:
    """Return warnings about device work that is missing, not readable, or lost."""
    framework = framework_of(traces)
    by_rank = [(trace.rank, activity) for trace, activity in zip(traces, activities, strict=True)]
    return [
        *_unread(by_rank, sorted({trace.source for trace in traces})),
        *_empty(by_rank, framework),
        *_missing(by_rank, framework),
        *_lost_graphs(by_rank, framework),
        *_lost_launches(by_rank),
    ]


def _unread(by_rank: RankActivities, sources: Sequence[str]) -> list[Validity]:
    """Warn about ranks whose accelerators no reader supports."""
    unread = {rank: activity.unread for rank, activity in by_rank if activity.unread}
    if not unread:
        return []
    devices = ", ".join(sorted({device for names in unread.values() for device in names}))
    work = f" of {sources[0]}" if len(sources) == 1 else _of_ranks(unread, by_rank)
    tool = "Use xprof, which reads the planes of TPUs" if devices == "TPU" else _VENDORS_PROFILER
    message = (
        f"the work{work} ran on an accelerator whose activity gpudiag does not read ({with_escapes(devices)}): what it "
        f"did is not known, and the CPU is not judged in its place. {tool}."
    )
    return [Validity(code="missing-device-activity", message=message)]


def _empty(by_rank: RankActivities, framework: str) -> list[Validity]:
    """Warn about recordings with neither device work nor host operators."""
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
    """Warn about ranks that use devices without any recorded kernel."""
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
    """Warn about launched CUDA graphs whose kernels were not recorded."""
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
    """Warn about ranks that have many launches without a device op."""
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
