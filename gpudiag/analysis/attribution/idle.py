"""Why a device did nothing: what was the host doing that launched the next op?

A gap ends with an op. If that op had been launched before the gap began, the host was ahead and is not to blame: the
gap is `idle` (queued kernels follow each other about 1 µs apart; streams wait for each other). Otherwise the device
waited for the host, and what the launching thread (or the training thread, while that one was silent) did until the
launch says why:

    device     op ──────┤           gap             ├── op
    host    cudaStreamSynchronize ──┤ ops ┤ pause ┤ launch
                                    ^ sync, as long as the time lost in the call, then launch

`input` while it waited for data; `sync` while it was blocked on the device, and after that while it catches up, for as
long as it had been blocked: had it not been, its launches would have come earlier by at most that much; `launch` while
it ran framework ops, Python between them, or the launch itself; `idle` when nothing is known, or when it was the
profiler that held the host up.
"""

from __future__ import annotations

import msgspec
import numpy as np

from gpudiag.intervals import EMPTY, Intervals, distinct, intersect, subtract, union
from gpudiag.model.timeline import UNKNOWN, DeviceTrack
from gpudiag.units import NS_PER_MS, NS_PER_US

#: An op that was launched this long before the device could take it shows that the host is ahead again.
_AHEAD_NS = 20 * NS_PER_US
#: No launch takes this long until its op starts; a host that is blocked as long as this waits for something else.
_LONGEST_LAUNCH_NS = 10 * NS_PER_MS
#: Ops that stand in a queue follow each other within this time, unless they wait for something.
QUEUE_GAP_NS = 20 * NS_PER_US


class IdleSplit(msgspec.Struct, frozen=True, kw_only=True):
    """Disjoint parts of the idle time; `unmarked_input` and `queued` lie within `idle`."""

    input: Intervals
    sync: Intervals
    launch: Intervals
    idle: Intervals
    unmarked_input: Intervals
    queued: Intervals

    def without(self, part: Intervals) -> IdleSplit:
        """All of it outside a normal set."""
        return IdleSplit(**{name: subtract(getattr(self, name), part) for name in self.__struct_fields__})


def split_idle(track: DeviceTrack, free: Intervals) -> IdleSplit:
    """Split the idle time of one lane by cause.

    Args:
        lane: the lane.
        free: when its device did nothing, a normal set.
    """
    if len(free) == 0:
        return IdleSplit(input=EMPTY, sync=EMPTY, launch=EMPTY, idle=EMPTY, unmarked_input=EMPTY, queued=EMPTY)
    if track.is_cpu:
        return _split_cpu(track, free)
    gaps = _gaps(track, free)
    input_parts, sync_parts, launch_parts = [], [], []
    for thread in distinct(gaps.thread[gaps.thread != UNKNOWN]):
        mine = gaps.thread == thread
        before = union(Intervals(free.start[mine], gaps.host_until[mine]))
        waiting, blocked, busy = _host_state(track, int(thread))
        fetch = intersect(before, waiting)
        stuck = subtract(intersect(before, blocked), fetch)
        input_parts.append(fetch)
        sync_parts.append(stuck)
        launch_parts.append(subtract(intersect(before, busy), union(fetch, stuck)))
        # From the launch call to the op's start: the cost of launching itself, unless the host waits meanwhile.
        launching = union(Intervals(gaps.host_until[mine], free.end[mine]))
        waits = intersect(launching, _long_waits(blocked))
        sync_parts.append(waits)
        launch_parts.append(subtract(launching, waits))
    found_input, sync = union(*input_parts), union(*sync_parts)
    launch = subtract(union(*launch_parts), track.overhead)
    catching_up = _catching_up(track, launch)
    sync, launch = union(sync, catching_up), subtract(launch, catching_up)
    idle = subtract(free, union(found_input, sync, launch))
    queued = intersect(idle, Intervals(free.start[gaps.queued], free.end[gaps.queued]))
    return IdleSplit(
        input=found_input,
        sync=sync,
        launch=launch,
        idle=idle,
        unmarked_input=subtract(intersect(idle, track.before_first_op), queued),
        queued=queued,
    )


class _Gaps(msgspec.Struct, frozen=True):
    """Per gap: the thread that launched the op at its end, until when that thread had not launched it, and whether the
    op had been launched before the gap began."""

    thread: np.ndarray[tuple[int], np.dtype[np.int64]]
    host_until: np.ndarray[tuple[int], np.dtype[np.int64]]
    queued: np.ndarray[tuple[int], np.dtype[np.bool_]]


def _gaps(track: DeviceTrack, free: Intervals) -> _Gaps:
    ops = track.ops
    # The first op to start at or after the end of a gap is the one that ended it (or the window ended first).
    index = np.minimum(np.searchsorted(ops.start, free.end), len(ops) - 1)
    thread = ops.launch_thread[index]
    launched = ops.launch_start[index]
    known = thread != UNKNOWN
    # While its call still runs, the op may not have reached the device: that gap is the cost of launching.
    queued = known & (ops.launch_end[index] < free.start)
    thread = np.where(known & ~queued, thread, UNKNOWN)
    return _Gaps(thread, np.clip(launched, free.start, free.end), queued)


def _host_state(track: DeviceTrack, thread: int) -> tuple[Intervals, Intervals, Intervals]:
    """(waiting for data, blocked on the device, busy) of the launching thread and the training thread together."""
    present = [track.threads[i] for i in dict.fromkeys((thread, track.steps.thread)) if i in track.threads]
    return (
        union(*(t.input for t in present)),
        union(*(t.blocked for t in present)),
        union(*(t.busy for t in present)),
    )


def _long_waits(blocked: Intervals) -> Intervals:
    """Return the blocking calls that take longer than any launch: the host waits, and what it launched waits too.

    host    launch ┤├ hipMemcpyWithStream ── 463 ms ──┤
    device                                         ├ op    the launch did not take 463 ms
    """
    long = blocked.end - blocked.start >= _LONGEST_LAUNCH_NS
    return union(Intervals(blocked.start[long], blocked.end[long]))


def _catching_up(track: DeviceTrack, launch: Intervals) -> Intervals:
    """What of the launch-bound time follows a blocking call and would not be there without it.

    After a call that blocked for b ns, the first b ns of launch-bound time count, until an op shows that the host is
    ahead of the device again.
    """
    launching = {int(t) for t in distinct(track.ops.launch_thread) if t != UNKNOWN} | {track.steps.thread}
    blocked = union(*(track.threads[t].blocked for t in launching if t in track.threads))
    if len(blocked) == 0 or len(launch) == 0:
        return EMPTY
    ops = track.ops
    known = ops.launch_end != UNKNOWN
    ready = np.concatenate([[np.iinfo(np.int64).min], np.maximum.accumulate(ops.end)[:-1]])
    ahead = ops.start[known & (ops.launch_end < ready - _AHEAD_NS)]
    starts, ends = [], []
    next_block = np.append(blocked.start[1:], np.iinfo(np.int64).max)
    caught_up = np.searchsorted(ahead, blocked.end)
    for i in range(len(blocked)):
        begin, budget = int(blocked.end[i]), int(blocked.end[i] - blocked.start[i])
        limit = int(next_block[i])
        if caught_up[i] < len(ahead):
            limit = min(limit, int(ahead[caught_up[i]]))
        j = int(np.searchsorted(launch.end, begin, side="right"))
        while j < len(launch) and budget > 0 and launch.start[j] < limit:
            a = max(int(launch.start[j]), begin)
            b = min(int(launch.end[j]), limit, a + budget)
            if b > a:
                starts.append(a)
                ends.append(b)
                budget -= b - a
            j += 1
    return union(Intervals(np.array(starts, np.int64), np.array(ends, np.int64)))


def _split_cpu(track: DeviceTrack, free: Intervals) -> IdleSplit:
    """On a CPU lane the training thread is device and host at once: it waits for data, pauses, or is silent."""
    thread = track.threads.get(track.steps.thread)
    waiting = thread.input if thread else EMPTY
    busy = thread.busy if thread else EMPTY
    found_input = intersect(free, waiting)
    launch = subtract(intersect(free, busy), union(found_input, track.overhead))
    idle = subtract(free, union(found_input, launch))
    return IdleSplit(
        input=found_input,
        sync=EMPTY,
        launch=launch,
        idle=idle,
        unmarked_input=intersect(idle, track.before_first_op),
        queued=EMPTY,
    )
