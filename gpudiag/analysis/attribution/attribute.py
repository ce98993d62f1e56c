"""Divide every device window into the eight exclusive buckets, and the device's idle time by its cause.

At each instant, the first bucket of this list that applies gets the time:

1. `compute`: a compute kernel runs.
2. `communication_transfer`: a collective runs whose last participant has arrived.
3. `communication_wait`: a collective runs that waits for a participant.
4. `communication_transfer`: the host communicates, and does not wait for data.
5. `copy`: a copy runs.
6. The device is idle. The bucket is the cause: `input`, `sync`, `launch` or `idle`.

An idle stretch before an op is called a gap. If the op had been launched before the gap began, the host is not the
cause, and the gap is `idle`. Such gaps are normal: queued kernels start about 1 µs apart, and streams wait for each
other. If the op was launched in the gap, the cause is what the launching thread, or else the training thread, did
before the launch:

    device     op ──────┤           gap             ├── op
    host    cudaStreamSynchronize ──┤ ops ┤ pause ┤ launch
                                    ^ sync, as long as the time lost in the call, then launch

* `input`: the thread waited for data.
* `sync`: the thread was blocked on the device, or launched late after such a block. A block delays later launches by at
  most its own length, so that at most this much launch time counts as `sync`.
* `launch`: the thread ran framework ops, Python between them, or the launch itself.
* `idle`: the activity is unknown, or the profiler delayed the host.

Worked example. Rank 1 begins an all-reduce at 5 ms, and rank 0 arrives in it at 8 ms:

    rank 0   compute |------|  all-reduce |--------|
    rank 1   compute |--|  all-reduce |............|
             0       3      5  6       8          12   ms

The buckets of rank 1 are compute in [0, 3), idle in [3, 5), communication_wait in [5, 8) and communication_transfer in
[8, 12). These buckets add up to 12 ms.
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
from gpudiag.model.large_jobs.each import Each
from gpudiag.model.timeline import UNKNOWN, Attribution, DeviceTrack, OpClass, Timeline, TrackAttribution
from gpudiag.units import NS_PER_MS, NS_PER_US

#: The host runs ahead again once it has launched an op this long before the device finished all earlier ops.
_AHEAD_NS = 20 * NS_PER_US
#: A call that blocks for at least this time waits for the device, because launching never takes so long.
_LONGEST_LAUNCH_NS = 10 * NS_PER_MS
#: A queued op starts within this time after the previous op, unless the op waits for another stream.
QUEUE_GAP_NS = 20 * NS_PER_US


class IdleSplit(msgspec.Struct, frozen=True, kw_only=True):
    """Idle time by cause: the disjoint sets `input`, `sync`, `launch` and `idle`.

    `idle` has two subsets: `queued` has the gaps before an op that was already launched, and `unmarked_input` the times
    between a step's start and its first op in which the host recorded nothing.
    """

    input: Intervals
    sync: Intervals
    launch: Intervals
    idle: Intervals
    unmarked_input: Intervals
    queued: Intervals

    def without(self, part: Intervals) -> IdleSplit:
        """Return the split without the times in `part`, which are sorted and disjoint."""
        return IdleSplit(**{name: subtract(getattr(self, name), part) for name in self.__struct_fields__})


def split_idle(track: DeviceTrack, free: Intervals) -> IdleSplit:
    """Split the idle time of one track by cause. `free` has the gaps between ops, sorted and disjoint."""
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
        # The time from the launch call to the op's start is the cost of the launch, unless the call blocked the host.
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
    """Columns with one element per gap. The op of a gap is the op that starts at the gap's end.

    Attributes:
        thread: thread that launched the op; `UNKNOWN` if it was not recorded or if the op was queued.
        host_until: time at which the op's launch began, clipped to the gap.
        queued: whether the op had been launched before the gap began.
    """

    thread: NDArray[np.int64]
    host_until: NDArray[np.int64]
    queued: NDArray[np.bool_]


def _gaps(track: DeviceTrack, free: Intervals) -> _Gaps:
    """Return the launch of the op after each gap of `free`."""
    ops = track.ops
    # The op after a gap is the first op that starts at or after the gap's end. A gap after all ops gets the last op.
    index = np.minimum(np.searchsorted(ops.start, free.end), len(ops) - 1)
    known = ops.launch_thread[index] != UNKNOWN
    # A gap that begins during the launch call is the cost of launching: the op may not have reached the device yet.
    queued = known & (ops.launch_end[index] < free.start)
    thread = np.where(known & ~queued, ops.launch_thread[index], UNKNOWN)
    return _Gaps(thread, np.clip(ops.launch_start[index], free.start, free.end), queued)


def _host_state(track: DeviceTrack, thread: int) -> tuple[Intervals, Intervals, Intervals]:
    """Return the times in which the launching thread or the training thread (waits for data, is blocked, is busy)."""
    idents = dict.fromkeys((thread, track.steps.thread))
    present = [track.threads[ident] for ident in idents if ident in track.threads]
    return (
        union(*(host.input for host in present)),
        union(*(host.blocked for host in present)),
        union(*(host.busy for host in present)),
    )


def _long_waits(blocked: Intervals) -> Intervals:
    """Return the blocking calls that are longer than any launch.

    If an op starts only after such a call, the op and the call waited for the same work. The op's launch was not slow:

    host    launch ┤├ hipMemcpyWithStream ── 463 ms ──┤
    device                                         ├ op    the launch did not take 463 ms
    """
    long = blocked.end - blocked.start >= _LONGEST_LAUNCH_NS
    return union(Intervals(blocked.start[long], blocked.end[long]))


def _catching_up(track: DeviceTrack, launch: Intervals) -> Intervals:
    """Return the launch time that earlier blocking calls caused.

    After a call that blocked for b ns, the first b ns of launch time count, but only until the next blocking call, and
    only until an op shows that the host runs ahead of the device again.
    """
    launchers = distinct(track.ops.launch_thread[track.ops.launch_thread != UNKNOWN])
    launching = {*launchers.tolist(), track.steps.thread}
    blocked = union(*(track.threads[thread].blocked for thread in launching if thread in track.threads))
    if len(blocked) == 0 or len(launch) == 0:
        return EMPTY
    ops = track.ops
    known = ops.launch_end != UNKNOWN
    # For each op, the time at which the device has completed all earlier ops. `ahead` has the starts of the ops that
    # were launched more than `_AHEAD_NS` before that time.
    free_from = np.concatenate([[np.iinfo(np.int64).min], np.maximum.accumulate(ops.end)[:-1]])
    ahead = ops.start[known & (ops.launch_end < free_from - _AHEAD_NS)]
    never = np.iinfo(np.int64).max
    next_block = np.append(blocked.start[1:], never)
    limits = np.minimum(next_block, np.append(ahead, never)[np.searchsorted(ahead, blocked.end)])
    first = np.searchsorted(launch.end, blocked.end, side="right")
    caused: list[tuple[int, int]] = []
    for (block_start, block_end), limit, first_part in zip(
        blocked.pairs(), limits.tolist(), first.tolist(), strict=True
    ):
        budget, index = block_end - block_start, first_part
        while index < len(launch) and budget > 0 and launch.start[index] < limit:
            start = max(int(launch.start[index]), block_end)
            end = min(int(launch.end[index]), limit, start + budget)
            if end > start:
                caused.append((start, end))
                budget -= end - start
            index += 1
    return as_set(caused)


def _split_cpu(track: DeviceTrack, free: Intervals) -> IdleSplit:
    """Split the idle time of a CPU track. Its training thread is both device and host, so that `sync` is empty."""
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


def attribute(timeline: Timeline, *, each: Each = map) -> Attribution:
    """Attribute all windows of all device tracks, and check that the buckets add up to the windows.

    `each` is like `map`, and may call the function for several tracks at once.
    """
    attribution = Attribution(tracks=tuple(each(attribute_track, timeline.tracks)))
    attribution.check()
    return attribution


def attribute_track(track: DeviceTrack) -> TrackAttribution:
    """Attribute the windows of one device track.

    A collective whose last arrival is unknown counts as transfer from its start; `unsplit_ns` has this time.
    """
    bounds = track.bounds
    begin, end = int(bounds[0]), int(bounds[-1])
    span = Intervals(bounds[:1], bounds[-1:]) if end > begin else EMPTY

    def within(*spans: Intervals) -> Intervals:
        return intersect(union(*spans), span)

    collectives = track.collectives
    known = collectives.last_arrival != UNKNOWN
    transfer_start = np.where(known, collectives.last_arrival, collectives.start)
    compute = within(track.ops.intervals(OpClass.COMPUTE))
    # `all_transfer` and `all_wait` include the time that is hidden behind compute.
    all_transfer = within(Intervals(transfer_start, collectives.end), _other_communication(track))
    all_wait = subtract(within(Intervals(collectives.start, collectives.end)), all_transfer)
    transfer = subtract(all_transfer, compute)
    wait = subtract(all_wait, compute)
    compute_or_communication = union(compute, transfer, wait)
    copy = subtract(within(track.ops.intervals(OpClass.COPY)), compute_or_communication)
    idle = split_idle(track, complement(union(compute_or_communication, copy), begin, end))
    # Host communication replaces copies and idle time, except waits for data.
    on_host = within(track.host_communication)
    # The device causes short gaps between queued ops, regardless of the host's activity in them.
    short = idle.queued.end - idle.queued.start <= QUEUE_GAP_NS
    between_queued = Intervals(idle.queued.start[short], idle.queued.end[short])
    host_transfer = subtract(on_host, union(compute_or_communication, idle.input, between_queued))
    idle = idle.without(host_transfer)
    parts = {
        "compute": compute,
        "communication_transfer": union(transfer, host_transfer),
        "communication_wait": wait,
        "copy": subtract(copy, host_transfer),
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
        hidden_ns=lengths_between(intersect(union(all_wait, all_transfer, on_host), compute), bounds),
        waits_ns=_waits(track, wait),
        unsplit_ns=lengths_between(intersect(unsplit, parts["communication_transfer"]), bounds),
        unmarked_input=idle.unmarked_input,
        queued=idle.queued,
    )


def _other_communication(track: DeviceTrack) -> Intervals:
    """Return communication other than collectives, unsorted: copies and, on CPU tracks, calls that enqueue."""
    ops = track.ops
    other = (ops.op_class == OpClass.COMMUNICATION) & ~among(ops.row, track.collectives.row)
    return Intervals(ops.start[other], ops.end[other])


def _waits(track: DeviceTrack, wait: Intervals) -> dict[int, NDArray[np.int64]]:
    """Return awaited rank → int64[windows], ns of waits for this rank; overlapping waits count for the lowest rank."""
    collectives = track.collectives
    waited = collectives.last_arrival > collectives.start
    waits = {}
    uncounted = wait
    for rank in distinct(collectives.last_rank[waited]):
        for_rank = waited & (collectives.last_rank == rank)
        spans = union(Intervals(collectives.start[for_rank], collectives.last_arrival[for_rank]))
        waits[int(rank)] = lengths_between(intersect(uncounted, spans), track.bounds)
        uncounted = subtract(uncounted, spans)
    return {rank: wait_ns for rank, wait_ns in waits.items() if wait_ns.any()}
