"""Cut every device window into the eight exclusive buckets; idle time is split by what the host did.

A gap ends with an op. If the op had been launched before the gap began, the host ran ahead and is not the cause. Such a
gap is `idle`: queued kernels follow each other about 1 µs apart, and streams wait for each other. Otherwise the device
waited for the host. The cause is the activity until the launch of the launching thread, or of the training thread while
the launching thread is untraced:

    device     op ──────┤           gap             ├── op
    host    cudaStreamSynchronize ──┤ ops ┤ pause ┤ launch
                                    ^ sync, as long as the time lost in the call, then launch

* `input`: the thread waited for data.
* `sync`: the thread was blocked on the device, or caught up after such a block. Catching up lasts at most as long as
  the block, because without the block the launches would have been earlier by at most that time.
* `launch`: the thread ran framework ops, Python between them, or the launch itself.
* `idle`: the activity is unknown, or the profiler delayed the host.

At each instant the first that holds wins: a compute kernel, a collective whose last participant has arrived, a
collective that still waits for one, communication on the host, a copy; and if the device does nothing, what the host
does that launches next. On rank 1 of

    rank 0   compute |------|  all-reduce |--------|
    rank 1   compute |--|  all-reduce |............|
             0       3      5  6       8          12   ms

rank 1 is in its all-reduce from 5 and rank 0 arrives at 8: [0, 3) compute, [3, 5) idle, [5, 8) communication_wait,
[8, 12) communication_transfer, which sum to 12.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.intervals import (
    EMPTY,
    Intervals,
    among,
    as_set,
    complement,
    distinct,
    intersect,
    lengths_between,
    subtract,
    union,
)
from gpudiag.model.analysis import BUCKETS
from gpudiag.model.timeline import UNKNOWN, Attribution, DeviceTrack, OpClass, Timeline, TrackAttribution
from gpudiag.units import NS_PER_MS, NS_PER_US

#: The host runs ahead again if it launched an op this long before the device could start it.
_AHEAD_NS = 20 * NS_PER_US
#: A host that is blocked this long does not wait for its launch, because no launch takes this long.
_LONGEST_LAUNCH_NS = 10 * NS_PER_MS
#: Queued ops follow each other within this time, unless they wait for something.
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
        """Return the split without the times in a normal set."""
        return IdleSplit(**{name: subtract(getattr(self, name), part) for name in self.__struct_fields__})


def split_idle(track: DeviceTrack, free: Intervals) -> IdleSplit:
    """Split the idle time of one track by cause; `free` is the idle time, as a normal set."""
    if len(free) == 0:
        return IdleSplit(input=EMPTY, sync=EMPTY, launch=EMPTY, idle=EMPTY, unmarked_input=EMPTY, queued=EMPTY)
    if track.is_cpu:
        return _split_cpu(track, free)
    gaps = _gaps(track, free)
    input_parts, sync_parts, launch_parts = [], [], []
    for thread in distinct(gaps.thread[gaps.thread != UNKNOWN]):
        launched = gaps.thread == thread
        before = union(Intervals(free.start[launched], gaps.host_until[launched]))
        waiting, blocked, busy = _host_state(track, int(thread))
        fetch = intersect(before, waiting)
        sync = subtract(intersect(before, blocked), fetch)
        input_parts.append(fetch)
        sync_parts.append(sync)
        launch_parts.append(subtract(intersect(before, busy), union(fetch, sync)))
        # Time from the launch call to the op's start is the cost of the launch, unless the host waits.
        launching = union(Intervals(gaps.host_until[launched], free.end[launched]))
        waits = intersect(launching, _long_waits(blocked))
        sync_parts.append(waits)
        launch_parts.append(subtract(launching, waits))
    fetching, sync = union(*input_parts), union(*sync_parts)
    launch = subtract(union(*launch_parts), track.overhead)
    catching_up = _catching_up(track, launch)
    sync, launch = union(sync, catching_up), subtract(launch, catching_up)
    idle = subtract(free, union(fetching, sync, launch))
    queued = intersect(idle, Intervals(free.start[gaps.queued], free.end[gaps.queued]))
    return IdleSplit(
        input=fetching,
        sync=sync,
        launch=launch,
        idle=idle,
        unmarked_input=subtract(intersect(idle, track.before_first_op), queued),
        queued=queued,
    )


class _Gaps(msgspec.Struct, frozen=True):
    """Columns by gap.

    Attributes:
        thread: thread that launched the op at the end of the gap; `UNKNOWN` if not recorded or if the op was queued.
        host_until: begin of the op's launch, within the gap.
        queued: whether the op had been launched before the gap began.
    """

    thread: NDArray[np.int64]
    host_until: NDArray[np.int64]
    queued: NDArray[np.bool_]


def _gaps(track: DeviceTrack, free: Intervals) -> _Gaps:
    ops = track.ops
    # A gap ends with the first op that starts at or after its end, unless the window ends first.
    index = np.minimum(np.searchsorted(ops.start, free.end), len(ops) - 1)
    known = ops.launch_thread[index] != UNKNOWN
    # While the launch call runs, the op may not have reached the device, so that the gap is the cost of launching.
    queued = known & (ops.launch_end[index] < free.start)
    thread = np.where(known & ~queued, ops.launch_thread[index], UNKNOWN)
    return _Gaps(thread, np.clip(ops.launch_start[index], free.start, free.end), queued)


def _host_state(track: DeviceTrack, thread: int) -> tuple[Intervals, Intervals, Intervals]:
    """Return (waiting for data, blocked on the device, busy) of the launching and the training thread combined."""
    idents = dict.fromkeys((thread, track.steps.thread))
    present = [track.threads[ident] for ident in idents if ident in track.threads]
    return (
        union(*(host.input for host in present)),
        union(*(host.blocked for host in present)),
        union(*(host.busy for host in present)),
    )


def _long_waits(blocked: Intervals) -> Intervals:
    """Return the blocking calls that take longer than any launch, in which the host and its launched ops wait.

    host    launch ┤├ hipMemcpyWithStream ── 463 ms ──┤
    device                                         ├ op    the launch did not take 463 ms
    """
    long = blocked.end - blocked.start >= _LONGEST_LAUNCH_NS
    return union(Intervals(blocked.start[long], blocked.end[long]))


def _catching_up(track: DeviceTrack, launch: Intervals) -> Intervals:
    """Return the launch time that a preceding blocking call caused.

    After a call that blocked for b ns, the first b ns of launch time count, until an op shows that the host runs ahead
    of the device again.
    """
    launchers = distinct(track.ops.launch_thread[track.ops.launch_thread != UNKNOWN])
    launching = {*launchers.tolist(), track.steps.thread}
    blocked = union(*(track.threads[thread].blocked for thread in launching if thread in track.threads))
    if len(blocked) == 0 or len(launch) == 0:
        return EMPTY
    ops = track.ops
    known = ops.launch_end != UNKNOWN
    ready = np.concatenate([[np.iinfo(np.int64).min], np.maximum.accumulate(ops.end)[:-1]])
    ahead = ops.start[known & (ops.launch_end < ready - _AHEAD_NS)]
    never = np.iinfo(np.int64).max
    next_block = np.append(blocked.start[1:], never)
    limits = np.minimum(next_block, np.append(ahead, never)[np.searchsorted(ahead, blocked.end)])
    first = np.searchsorted(launch.end, blocked.end, side="right")
    spans: list[tuple[int, int]] = []
    for (begun, begin), limit, first_stretch in zip(blocked.pairs(), limits.tolist(), first.tolist(), strict=True):
        budget, stretch = begin - begun, first_stretch
        while stretch < len(launch) and budget > 0 and launch.start[stretch] < limit:
            start = max(int(launch.start[stretch]), begin)
            end = min(int(launch.end[stretch]), limit, start + budget)
            if end > start:
                spans.append((start, end))
                budget -= end - start
            stretch += 1
    return as_set(spans)


def _split_cpu(track: DeviceTrack, free: Intervals) -> IdleSplit:
    """Split the idle time of a CPU track, whose training thread is both device and host."""
    thread = track.threads.get(track.steps.thread)
    waiting = thread.input if thread else EMPTY
    busy = thread.busy if thread else EMPTY
    fetching = intersect(free, waiting)
    launch = subtract(intersect(free, busy), union(fetching, track.overhead))
    idle = subtract(free, union(fetching, launch))
    return IdleSplit(
        input=fetching,
        sync=EMPTY,
        launch=launch,
        idle=idle,
        unmarked_input=intersect(idle, track.before_first_op),
        queued=EMPTY,
    )


def attribute(timeline: Timeline) -> Attribution:
    """Attribute all windows of all device tracks."""
    attribution = Attribution(tracks=tuple(attribute_track(track) for track in timeline.tracks))
    attribution.check()
    return attribution


def attribute_track(track: DeviceTrack) -> TrackAttribution:
    """Attribute the windows of one device track."""
    bounds = track.bounds
    begin, end = int(bounds[0]), int(bounds[-1])
    span = Intervals(bounds[:1], bounds[-1:]) if end > begin else EMPTY

    def within(*spans: Intervals) -> Intervals:
        return intersect(union(*spans), span)

    collectives = track.collectives
    known = collectives.last_arrival != UNKNOWN
    joined = np.where(known, collectives.last_arrival, collectives.start)
    compute = within(track.ops.intervals(OpClass.COMPUTE))
    transfer_all = within(Intervals(joined, collectives.end), _other_communication(track))
    waiting = subtract(within(Intervals(collectives.start, collectives.end)), transfer_all)
    transfer = subtract(transfer_all, compute)
    wait = subtract(waiting, compute)
    taken = union(compute, transfer, wait)
    copy = subtract(within(track.ops.intervals(OpClass.COPY)), taken)
    idle = split_idle(track, complement(union(taken, copy), begin, end))
    on_host = within(track.host_communication)
    # A short gap between queued ops belongs to the device, whatever the host does.
    short = idle.queued.end - idle.queued.start <= QUEUE_GAP_NS
    between_queued = Intervals(idle.queued.start[short], idle.queued.end[short])
    by_host = subtract(on_host, union(taken, idle.input, between_queued))
    idle = idle.without(by_host)
    parts = {
        "compute": compute,
        "communication_transfer": union(transfer, by_host),
        "communication_wait": wait,
        "copy": subtract(copy, by_host),
        "input": idle.input,
        "sync": idle.sync,
        "launch": idle.launch,
        "idle": idle.idle,
    }
    unsplit = subtract(within(Intervals(collectives.start[~known], collectives.end[~known])), compute)
    return TrackAttribution(
        rank=track.rank,
        bounds=bounds,
        parts=parts,
        buckets_ns=np.stack([lengths_between(parts[bucket], bounds) for bucket in BUCKETS], axis=1),
        hidden_ns=lengths_between(intersect(union(waiting, transfer_all, on_host), compute), bounds),
        waits_ns=_waits(track, wait),
        unsplit_ns=lengths_between(intersect(unsplit, parts["communication_transfer"]), bounds),
        unmarked_input=idle.unmarked_input,
        queued=idle.queued,
    )


def _other_communication(track: DeviceTrack) -> Intervals:
    """Return raw intervals of communication other than collectives: copies and, on CPU tracks, enqueues."""
    ops = track.ops
    chosen = (ops.op_class == OpClass.COMMUNICATION) & ~among(ops.row, track.collectives.row)
    return Intervals(ops.start[chosen], ops.end[chosen])


def _waits(track: DeviceTrack, wait: Intervals) -> dict[int, NDArray[np.int64]]:
    """Divide the waiting among the ranks waited for; where two waits overlap, the first rank gets it."""
    collectives = track.collectives
    known = collectives.last_arrival > collectives.start
    shares = {}
    left = wait
    for rank in distinct(collectives.last_rank[known]):
        for_rank = known & (collectives.last_rank == rank)
        span = union(Intervals(collectives.start[for_rank], collectives.last_arrival[for_rank]))
        shares[int(rank)] = lengths_between(intersect(left, span), track.bounds)
        left = subtract(left, span)
    return {rank: share for rank, share in shares.items() if share.any()}
