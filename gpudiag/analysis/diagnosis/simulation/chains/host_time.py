"""Where a host thread's time goes: before a step's first op, in single slow calls, or where nothing is recorded."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.diagnosis.calibration import BESIDE, COMPUTES_NS, ELSEWHERE_NS, EVENTS_ELSEWHERE, FEWEST_CALLS
from gpudiag.analysis.diagnosis.simulation.graph import NONE
from gpudiag.intervals import EMPTY, Intervals, intersect, lengths_between, subtract, union
from gpudiag.model.event import EventKind, EventTable, Role, any_of
from gpudiag.model.timeline import PAUSE_NS, DeviceTrack, OpClass

#: Calls nest at most this deep.
_NESTED = 64


class SlowCalls(msgspec.Struct, frozen=True):
    """Stretches of framework or runtime calls in which a thread recorded nothing for long.

    Attributes:
        spans: when, on the common clock, as a set.
        row: int64[k], the row of the innermost call around each.
    """

    spans: Intervals
    row: NDArray[np.int64]


def body_span(track: DeviceTrack) -> tuple[int, int]:
    """From the mark of the first analysed step to the mark after the last, or to its end where it is the last."""
    steps = track.steps
    first = int(np.searchsorted(steps.number, track.window_steps[0]))
    after = int(np.searchsorted(steps.number, track.window_steps[-1])) + 1
    return int(steps.start[first]), int(steps.start[after]) if after < len(steps) else steps.end


def lengths_in_turn(spans: Intervals, begin: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.float64]:
    """Length of the set inside each [begin, end); these must follow one another."""
    if len(spans) == 0:
        return np.zeros(len(begin))
    edges = np.empty(2 * len(begin), np.int64)
    edges[0::2], edges[1::2] = begin, np.maximum(end, begin)
    return lengths_between(spans, np.maximum.accumulate(edges))[0::2].astype(np.float64)


class Silence(msgspec.Struct, frozen=True, kw_only=True):
    """What of the silent time before each host node is what, in ns: float64[n] each.

    Attributes:
        opening: between a step's mark and its first op, where a loader without marks waits.
        elsewhere: other stretches that are long for this host, and collecting garbage wherever that is.
        short: other stretches: Python between calls.
    """

    opening: NDArray[np.float64]
    elsewhere: NDArray[np.float64]
    short: NDArray[np.float64]


def silence(
    track: DeviceTrack,
    events: EventTable,
    threads: list[int],
    silent: NDArray[np.float64],
    between: tuple[NDArray[np.int64], NDArray[np.int64]],
) -> Silence:
    """What the silent time between each pair of times, which follow one another, is."""
    none = np.zeros_like(silent)
    if not silent.any():
        return Silence(opening=none, elsewhere=none, short=none)
    opening = np.minimum(lengths_in_turn(opening_of_steps(track, events), *between), silent)
    stretches = silent_stretches(track, events, threads, int(between[0][0]), int(between[1][-1]))
    elsewhere = np.minimum(
        lengths_in_turn(stretches, *between),
        silent - opening,
    )
    return Silence(opening=opening, elsewhere=elsewhere, short=silent - opening - elsewhere)


def opening_of_steps(track: DeviceTrack, events: EventTable) -> Intervals:
    """Between each step's mark and its first op, without fetching of batches that is marked, and collecting garbage."""
    thread = track.threads.get(track.steps.thread)
    opening = track.before_first_op
    return subtract(opening, union(garbage_collection(track, events), *([thread.input] if thread is not None else [])))


def silent_stretches(track: DeviceTrack, events: EventTable, threads: list[int], begin: int, end: int) -> Intervals:
    """Where none of the threads recorded anything for longer than Python between calls takes; steps' openings left out.

    Looked at is from `begin` to `end`, on the common clock.
    """
    present = [track.threads[thread] for thread in threads if thread in track.threads]
    known = [part for thread in present for part in (thread.busy, thread.input, union(thread.blocked))]
    whole = Intervals(np.array([begin], np.int64), np.array([end], np.int64))
    spans = subtract(whole, union(*known, opening_of_steps(track, events), backward_passes(track, threads)))
    long = spans.end - spans.start >= elsewhere_ns(track, events, threads)
    collecting = intersect(garbage_collection(track, events), spans)
    return union(Intervals(spans.start[long], spans.end[long]), collecting)


def backward_passes(track: DeviceTrack, threads: list[int]) -> Intervals:
    """Return the spans in which the training thread waits for another thread that launches for it, as a set.

    In PyTorch `loss.backward()` blocks until autograd's thread has launched the backward pass. From that thread's first
    call within the wait to its last the time is its work, and not a pause of the training thread:

        training thread   forward ├──┤ backward() ·························· ├──┤ update
        autograd                          ├─┤  ├─┤          ├──┤ ├─┤
        backward pass                     ├──────────────────────┤

    Threads that launch no compute (prefetching copies) do not count, nor does an executor, for which the training
    thread launches nothing. Waiting for a collective in the backward pass is no work.
    """
    computes = track.ops.op_class == OpClass.COMPUTE
    launchers, counts = np.unique(track.ops.launch_thread[computes], return_counts=True)
    sharing = set(launchers[counts > BESIDE * counts.sum()].tolist()) & set(threads) & track.threads.keys()
    training = track.steps.thread
    if training not in sharing or len(sharing) == 1:
        return EMPTY
    main = track.threads[training]
    works = union(*(track.threads[thread].busy for thread in sharing if thread != training))
    works = subtract(works, union(main.busy, main.input, union(main.blocked)))
    # Calls within the same wait of the training thread are of one pass.
    wait = main.busy.start.searchsorted(works.start, side="right")
    opens = np.flatnonzero(np.diff(wait, prepend=-1))
    closes = np.flatnonzero(np.diff(wait, append=-1))
    return subtract(Intervals(works.start[opens], works.end[closes]), track.host_communication)


def elsewhere_ns(track: DeviceTrack, events: EventTable, threads: list[int]) -> float:
    """For how long these threads must record nothing to be elsewhere, in ns: by how fast they record otherwise."""
    if track.is_cpu:  # there most of an event is computing
        return PAUSE_NS
    begin, end = body_span(track)
    body = slice(*events.start_ns.searchsorted([begin - track.shift_ns, end - track.shift_ns]))
    recorded = any_of(events.kind[body], EventKind.OPERATOR, EventKind.RUNTIME, EventKind.ANNOTATION)
    recorded &= any_of(events.thread[body], *threads)
    apart = np.diff(events.start_ns[body][np.flatnonzero(recorded)])
    apart = apart[apart < PAUSE_NS]
    usual = float(apart.mean()) if len(apart) else 0.0
    return min(max(PAUSE_NS, EVENTS_ELSEWHERE * usual), ELSEWHERE_NS)


def garbage_collection(track: DeviceTrack, events: EventTable) -> Intervals:
    """When the process collected garbage, as far as that is marked."""
    rows = np.flatnonzero(any_of(events.role, Role.GARBAGE_COLLECTION))
    return union(Intervals(events.start_ns[rows] + track.shift_ns, events.end_ns[rows] + track.shift_ns))


def slow_calls(track: DeviceTrack, events: EventTable, threads: list[int], begin: int, end: int) -> SlowCalls:
    """Single calls that took longer by themselves than Python between calls.

    A call of a millisecond in which nothing else is called is not launching: it plans, compiles, or has lost its core.
    Beside a device an operator that calls no runtime computes on the CPU, where it takes long or is called often.
    Looked at is from `begin` to `end`, on the common clock.
    """
    rows = events.rows_on(threads, EventKind.OPERATOR, EventKind.RUNTIME)
    start, stop = events.start_ns[rows] + track.shift_ns, events.end_ns[rows] + track.shift_ns
    inside = np.flatnonzero((stop > begin) & (start < end))
    rows, start, stop = rows[inside], start[inside], stop[inside]
    edges = np.sort(np.concatenate([start, stop]), kind="stable")
    least = elsewhere_ns(track, events, threads)
    long = np.flatnonzero(np.diff(edges) >= (least if track.is_cpu else min(least, COMPUTES_NS)))
    present = [track.threads[thread] for thread in threads if thread in track.threads]
    blocked = union(*(thread.blocked for thread in present))
    quiet = subtract(Intervals(np.maximum(edges[long], begin), np.minimum(edges[long + 1], end)), blocked)
    first_after = start.searchsorted(quiet.start, side="right")
    around = np.full(len(quiet), NONE, np.int64)
    for piece, upto in enumerate(first_after.tolist()):
        near = slice(max(0, upto - _NESTED), upto)
        longer = rows[near][stop[near] >= quiet.end[piece]]
        around[piece] = longer[-1] if len(longer) else NONE
    # A launch that takes long was held up by a full queue; calls for memory are a cause of their own.
    around[any_of(events.role[around], Role.LAUNCH, Role.COPY, Role.ALLOCATION, Role.RELEASE)] = NONE
    other = lengths_in_turn(
        union(track.host_communication, *(thread.input for thread in present)), quiet.start, quiet.end
    )
    computing = (other == 0) & _computing(track, events, quiet, around)
    kept = (around != NONE) & (computing | (quiet.end - quiet.start >= least))
    return SlowCalls(Intervals(quiet.start[kept], quiet.end[kept]), around[kept])


def _computing(
    track: DeviceTrack, events: EventTable, quiet: Intervals, around: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Which stretches are of operators that compute on the CPU: they call no runtime, for long or often in a step."""
    runtime = np.concatenate([[0], np.cumsum(events.kind == EventKind.RUNTIME)])
    called = runtime[events.start_ns.searchsorted(events.end_ns[around])] - runtime[around]
    here: NDArray[np.bool_] = (around != NONE) & (events.kind[around] == EventKind.OPERATOR) & (called == 0)
    name = events.name[around]
    often = np.bincount(name[here], minlength=len(events.names)) >= FEWEST_CALLS * len(track.window_steps)
    return here & (often[name] | (quiet.end - quiet.start >= PAUSE_NS))
