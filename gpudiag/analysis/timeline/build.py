"""Build one timeline from the traces of all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.timeline.collectives import (
    NO_MESSAGES,
    MatchedMessages,
    Matching,
    TrackCalls,
    match_collectives,
    track_calls,
)
from gpudiag.analysis.timeline.completeness import covered_share, device_activities
from gpudiag.analysis.timeline.lone_communication import without_lone_communication
from gpudiag.analysis.timeline.mixed_runs import without_claims, without_copies
from gpudiag.analysis.timeline.rank_events import RankEvents, events_of_rank, later
from gpudiag.analysis.timeline.steps import Windows, common_steps, device_windows, host_windows
from gpudiag.analysis.timeline.validity import examine
from gpudiag.model.event import HOST, Trace, framework_of
from gpudiag.model.timeline import UNKNOWN, DeviceOps, DeviceTrack, HostSteps, HostThread, Timeline

Times = NDArray[np.int64]
Slot = tuple[int, int]
"""(Index of a trace, device number in that trace)."""


def build_timeline(
    traces: Sequence[Trace],
    world_size: int | None = None,
    *,
    each: Callable[[Callable[[Trace], RankEvents], Iterable[Trace]], Iterable[RankEvents]] = map,
) -> Timeline:
    """Put the traces of one job on one clock and cut them into steps.

    Args:
        traces: one per process. Traces without a rank get unused ranks. Of two traces of one rank, the first is used.
        world_size: number of ranks in the job, if known; by default it is inferred from the traces.
        each: like `map`; may call the function for several traces at once, or have called it before.
    """
    copies = without_copies(traces)
    claims = without_claims(_with_ranks(copies.kept))
    traces = without_lone_communication(claims.kept, world_size)
    views = list(each(events_of_rank, traces))
    activities = device_activities(traces, views)
    unseen = {index for index, activity in enumerate(activities) if activity.missing}
    world = world_size or max([trace.world_size or 0 for trace in traces] + [_rank(trace) + 1 for trace in traces])
    slots = [(index, device) for index, view in enumerate(views) if index not in unseen for device in view.ops]
    ranks = {_rank(trace) for trace in traces}
    calls = _completed(_calls(traces, views, slots), traces)
    matching = match_collectives(calls, ranks, _messages(calls))
    tracks = _tracks(traces, views, slots, matching)
    shares = [covered_share(track) for track in tracks]
    return Timeline(
        framework=framework_of(traces),
        world_size=world,
        ranks_present=tuple(sorted(ranks)),
        tracks=tracks,
        traces=tuple(traces),
        clocks=tuple(matching.clocks),
        validity=(
            *copies.validity,
            *claims.validity,
            *examine(
                traces,
                views,
                tracks,
                matching,
                world_size=world,
                activities=activities,
                shares=shares,
                repeated_ranks=copies.repeated_ranks,
            ),
        ),
        covered=min(shares, default=1.0),
        unseen={_rank(traces[index]): host_windows(views[index].steps).bounds for index in sorted(unseen)},
    )


def _with_ranks(traces: Sequence[Trace]) -> list[Trace]:
    """Give unused ranks to the traces without a rank; return all traces sorted by rank."""
    taken = {trace.rank for trace in traces if trace.rank is not None}
    free = (rank for rank in range(len(traces) + len(taken) + 1) if rank not in taken)
    ranked = []
    for trace in traces:
        if trace.rank is not None:
            ranked.append(trace)
            continue
        rank = next(free)
        note = f"{trace.source}: neither the trace nor its name says its rank; taken as rank {rank}"
        ranked.append(msgspec.structs.replace(trace, rank=rank, notes=(*trace.notes, note)))
    return sorted(ranked, key=_rank)


def _rank(trace: Trace) -> int:
    return trace.rank or 0


def _calls(traces: Sequence[Trace], views: Sequence[RankEvents], slots: Sequence[Slot]) -> list[TrackCalls]:
    """Return the collectives of each slot on the clock of the earliest trace."""
    base = min(trace.origin_ns for trace in traces)
    return [
        track_calls(
            traces[index].collectives,
            views[index].calls[device],
            views[index].call_start,
            views[index].call_end,
            rank=_rank(traces[index]),
            trace=index,
            on_host=device == HOST,
            source=traces[index].source,
            origin_ns=traces[index].origin_ns - base,
            clock_known=traces[index].origin_ns > 0,
        )
        for index, device in slots
    ]


def _completed(calls: list[TrackCalls], traces: Sequence[Trace]) -> list[TrackCalls]:
    """Add to the calls the groups and peers that the traces do not state, if these can be inferred."""
    unstated = any(
        (not call.group_ranks and traces[track.trace].groups)
        or (call.operation in {"send", "recv"} and call.peer is None)
        for track in calls
        for call in track.calls
    )
    if len(calls) < 2 or not unstated:
        return calls
    from gpudiag.analysis.timeline.process_groups import with_groups_and_peers  # noqa: PLC0415  # only gloo needs it

    return with_groups_and_peers(calls, traces)


def _messages(calls: list[TrackCalls]) -> MatchedMessages:
    if not any(call.peer is not None for track in calls for call in track.calls):
        return NO_MESSAGES
    from gpudiag.analysis.timeline.point_to_point import find_messages  # noqa: PLC0415  # few jobs send messages

    return find_messages(calls)


def _tracks(
    traces: Sequence[Trace], views: Sequence[RankEvents], slots: Sequence[Slot], matching: Matching
) -> tuple[DeviceTrack, ...]:
    """Return the track of each slot on the common clock, cut into the steps that all tracks have."""
    base = min(trace.origin_ns for trace in traces)
    shifts = [
        traces[index].origin_ns - base + offset for (index, _), offset in zip(slots, matching.offsets, strict=True)
    ]
    drafts = [_draft(views[index], device, shift) for (index, device), shift in zip(slots, shifts, strict=True)]
    windows = common_steps([draft_windows for _, _, draft_windows in drafts])
    return tuple(
        DeviceTrack(
            rank=_rank(traces[index]),
            device=device,
            device_name=traces[index].device_names.get(device, "") if device != HOST else "",
            trace=index,
            shift_ns=shift,
            ops=ops,
            collectives=matching.collectives[position],
            steps=steps,
            bounds=windows[position].bounds,
            window_steps=windows[position].steps,
            threads={ident: _thread_later(thread, shift) for ident, thread in views[index].threads.items()},
            overhead=later(views[index].overhead, shift),
            communication={thread: later(spans, shift) for thread, spans in views[index].communication.items()},
            communication_calls={
                thread: later(spans, shift) for thread, spans in views[index].communication_calls.items()
            },
        )
        for position, ((index, device), shift, (ops, steps, _)) in enumerate(zip(slots, shifts, drafts, strict=True))
    )


def _thread_later(thread: HostThread, shift: int) -> HostThread:
    """Return the thread with all its spans `shift` ns later."""
    return HostThread(
        thread=thread.thread,
        busy=later(thread.busy, shift),
        input=later(thread.input, shift),
        blocked=later(thread.blocked, shift),
        awaited=later(thread.awaited, shift),
    )


def _draft(view: RankEvents, device: int, shift: int) -> tuple[DeviceOps, HostSteps, Windows]:
    """Return the (work, steps, windows) of a device on the common clock: the trace's times plus `shift` ns."""
    steps = msgspec.structs.replace(view.steps, start=view.steps.start + shift, end=view.steps.end + shift)
    own = view.ops[device]
    ops = msgspec.structs.replace(
        own,
        start=own.start + shift,
        end=own.end + shift,
        launch_start=np.where(own.launch_start != UNKNOWN, own.launch_start + shift, UNKNOWN),
        launch_end=np.where(own.launch_end != UNKNOWN, own.launch_end + shift, UNKNOWN),
    )
    return ops, steps, host_windows(steps) if device == HOST else device_windows(ops, steps)
