"""Cut every device window into the eight exclusive buckets.

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

import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.attribution.idle import QUEUE_GAP_NS, split_idle
from gpudiag.intervals import EMPTY, Intervals, among, complement, distinct, intersect, lengths_between, subtract, union
from gpudiag.model.analysis import BUCKETS
from gpudiag.model.attribution import Attribution, TrackAttribution
from gpudiag.model.timeline import UNKNOWN, DeviceTrack, OpClass, Timeline


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
