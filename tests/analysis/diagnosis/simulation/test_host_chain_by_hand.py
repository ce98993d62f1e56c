"""Test which host calls wait, with values just below and above each limit. Times in µs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gpudiag.analysis.diagnosis.simulation.graph import NONE, HostBlock
from gpudiag.analysis.diagnosis.simulation.host_chain import (
    _attach_launches,
    _block_kinds,
    _block_targets,
    _chain_threads,
    _pending_until,
    _queue_length,
    _thinned,
    _time_before_nodes,
    _with_copies,
    step_index,
)
from gpudiag.analysis.diagnosis.simulation.streams import AwaitedOps
from gpudiag.intervals import EMPTY, as_set
from gpudiag.model.event import Role
from gpudiag.model.timeline import UNKNOWN, HostSteps, HostThread
from tests.timeline_builder import TraceBuilder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gpudiag.intervals import Intervals

NOT, SYNC, PAGEABLE, QUEUE, COLLECTIVE, RELEASE = HostBlock


def ns(*times: float) -> NDArray[np.int64]:
    return np.rint(np.array(times, np.float64) * 1000).astype(np.int64)


def kinds_of(
    *took: float,
    names: str = "",
    roles: Sequence[Role] = (),
    queued: Sequence[int] | int = 500,
    held: Sequence[float] | float = 0,
) -> list[HostBlock]:
    """Return the kind of blocking of each call. Calls begin 1 ms apart.

    Calls take `took` µs. `names` has a letter per call (by default `a`); upper-case letters block. Unless `roles` are
    given, `C` is a copy and other letters are launches. `queued` is the number of ops in the launch queue at each
    call's end, and `held` the profiler overhead in µs that delayed each call.
    """
    count = len(took)
    names = names or "a" * count
    events: Any = SimpleNamespace(
        name=np.array([ord(name) for name in names]),
        role=np.array(roles or [Role.COPY if name == "C" else Role.LAUNCH for name in names]),
        thread=np.ones(count, np.int64),
        correlation=np.arange(count),
        direction=np.zeros(count, np.uint8),
        rows_of=lambda *_: np.empty(0, np.intp),
    )
    start = ns(*(1000 * at for at in range(count)))
    kinds = _block_kinds(
        events,
        np.arange(count),
        (start, start + ns(*took)),
        np.array([name.isupper() for name in names]),
        np.broadcast_to(np.array(held, np.float64) * 1000, count),
        np.broadcast_to(np.array(queued), count),
    )
    return [HostBlock(kind) for kind in kinds.tolist()]


def test_launch_is_delayed_if_slow_and_the_queue_is_full() -> None:
    assert kinds_of(4, 4, 12, 12.001, 4) == [NOT, NOT, NOT, QUEUE, NOT]
    assert kinds_of(4, 4, 13, 13, 4, queued=[500, 500, 499, 500, 500]) == [NOT, NOT, NOT, QUEUE, NOT]
    # A call of up to 8 µs does not count as a wait for the queue, even if such calls usually take less.
    assert kinds_of(1, 1, 8, 8.001, 1) == [NOT, NOT, NOT, QUEUE, NOT]
    # The usual time is the median over calls of the same name, without blocking calls.
    assert kinds_of(20, 20, 20, 2, 2, 20, names="aaabbb") == [NOT, NOT, NOT, NOT, NOT, QUEUE]
    assert kinds_of(4, 4, 13, 100, 100, names="aaaBB") == [NOT, NOT, QUEUE, SYNC, SYNC]


def test_blocking_calls_have_kinds() -> None:
    roles = [Role.COPY, Role.SYNCHRONIZATION, Role.COMMUNICATION, Role.COMMUNICATION, Role.RELEASE]
    assert kinds_of(5, 5, 5, 5, 5, names="CBBeF", roles=roles) == [PAGEABLE, SYNC, COLLECTIVE, NOT, RELEASE]


def test_call_with_overhead_is_delayed_if_the_queue_is_full() -> None:
    assert kinds_of(4, 4, 4, held=[0, 8, 8.001]) == [NOT, NOT, QUEUE]
    assert kinds_of(4, 4, held=9, queued=[499, 500]) == [NOT, QUEUE]
    assert kinds_of(4, 4, names="Ba", held=9) == [SYNC, QUEUE]


def test_delayed_calls_are_kept_every_two_milliseconds() -> None:
    block = np.array([QUEUE, QUEUE, SYNC, QUEUE, QUEUE, QUEUE], np.uint8)
    thinned = _thinned(block, ns(0, 1999.999, 1999.999, 2000, 3999, 4000))
    assert thinned.tolist() == [QUEUE, NOT, SYNC, QUEUE, NOT, QUEUE]
    assert block[1] == QUEUE


TO, FROM = "Memcpy HtoD (Pageable -> Device)", "Memcpy DtoH (Device -> Pageable)"


@pytest.mark.parametrize(
    ("name", "thread", "apart", "kinds"),
    [
        (TO, 1, 20, [PAGEABLE, PAGEABLE]),
        (TO, 1, 21, [PAGEABLE, SYNC]),
        (TO, 2, 20, [PAGEABLE, SYNC]),
        (FROM, 1, 20, [SYNC, SYNC]),
    ],
)
def test_synchronization_directly_after_a_copy_belongs_to_it(
    name: str, thread: int, apart: int, kinds: list[HostBlock]
) -> None:
    trace = TraceBuilder().copy(5, 40, name, launch=(0, 45)).by(thread).sync(45 + apart, 90 + apart)
    events = trace.build().events
    rows = np.flatnonzero(events.device == -1)
    found = _with_copies(events, rows, np.array([PAGEABLE, SYNC], np.uint8), events.start_ns[rows], events.end_ns[rows])
    assert found.tolist() == kinds
    # Calls that do not block are unchanged, even the call that launches a copy.
    found = _with_copies(events, rows, np.array([NOT, NOT], np.uint8), events.start_ns[rows], events.end_ns[rows])
    assert found.tolist() == [NOT, NOT]


def test_queue_length_counts_unfinished_ops_of_all_devices() -> None:
    tracks: Any = [
        SimpleNamespace(ops=SimpleNamespace(launch_start=np.array(launched), end=np.array(ended)))
        for launched, ended in (((0, 10, UNKNOWN), (30, 50, 60)), ((15, 5), (25, 20)))
    ]
    assert _queue_length(tracks, np.array([0, 1, 6, 11, 16, 21, 31, 100])).tolist() == [0, 1, 2, 3, 4, 3, 1, 0]


def given_of(*ops: tuple[float, float], first: int = 0) -> Any:
    """Return the history of a stream with ops (launch, end) in µs; the first op has the index `first`."""
    launched, end = np.array(ops, np.float64).reshape(-1, 2).T
    return SimpleNamespace(launch_time=ns(*launched), end=end * 1000, op=first + np.arange(len(ops)))


def target_of(
    kind: HostBlock, begun: float, returned: float, *streams: Any, waited_from: float | None = None, awaited: Any = None
) -> tuple[int, float | None]:
    """Return (index, end in µs) of the op that a call waited for; (NONE, None) if there is none.

    The call lasts from `begun` to `returned` and waits from `waited_from` (by default its begin), in µs. `streams` are
    the histories of the device's streams. `awaited` are ops before recorded CUDA events; by default none are known.
    """
    none = np.empty(0, np.int64)
    part, op, end = _block_targets(
        [SimpleNamespace(histories=streams)],  # type: ignore[list-item]  # only histories are read
        ns(begun),
        ns(returned),
        ns(begun if waited_from is None else waited_from),
        np.array([kind], np.uint8),
        np.array([5]),
        [AwaitedOps(none, none, none, none) if awaited is None else awaited],
    )
    assert part.tolist() == [0 if op[0] != NONE else NONE]
    return int(op[0]), float(end[0]) / 1000 if op[0] != NONE else None


def test_call_waits_for_last_op_ended_before_its_return() -> None:
    stream = given_of((0, 50), (10, 70), (20, 90))
    assert target_of(SYNC, 30, 95, stream) == (2, 90)
    assert target_of(SYNC, 30, 90, stream) == (2, 90)
    assert target_of(SYNC, 30, 89.999, stream) == (1, 70)
    assert target_of(SYNC, 20, 95, stream) == (1, 70)
    assert target_of(SYNC, 30, 49, stream) == (NONE, None)
    assert target_of(NOT, 30, 95, stream) == (NONE, None)
    # Of all streams, the op that ended last counts.
    assert target_of(SYNC, 30, 95, stream, given_of((5, 92), first=3)) == (3, 92)
    assert target_of(SYNC, 30, 95, given_of((5, 92), first=3), stream) == (3, 92)


def test_only_synchronizations_wait_for_ops_ended_before() -> None:
    stream = given_of((0, 50))
    assert target_of(SYNC, 60, 95, stream) == target_of(COLLECTIVE, 60, 95, stream) == (0, 50)
    assert target_of(PAGEABLE, 60, 95, stream) == target_of(QUEUE, 60, 95, stream) == (NONE, None)
    assert target_of(QUEUE, 60, 95, stream, waited_from=49) == (0, 50)
    assert target_of(QUEUE, 60, 95, stream, waited_from=50) == (NONE, None)


def test_call_with_traced_event_waits_for_op_before_its_record() -> None:
    stream = given_of((0, 50), (10, 70), (20, 90))
    awaited = AwaitedOps(np.array([0, 1]), np.array([3, 5]), np.array([0, 0]), np.array([2, 0]))
    assert target_of(SYNC, 30, 95, stream, awaited=awaited) == (0, 50)
    # The op's end may be recorded up to a microsecond after the call's return.
    assert target_of(SYNC, 30, 49, stream, awaited=awaited) == (0, 50)
    assert target_of(SYNC, 30, 48.999, stream, awaited=awaited) == (NONE, None)
    # A stream synchronization does not wait for other streams.
    assert target_of(SYNC, 30, 95, stream, given_of((5, 92), first=3), awaited=awaited) == (0, 50)
    another = AwaitedOps(np.array([0]), np.array([4]), np.array([0]), np.array([2]))
    assert target_of(SYNC, 30, 95, stream, awaited=another) == (2, 90)


def test_pending_ops_are_launched_before_the_call_on_any_stream() -> None:
    parts: Any = [
        SimpleNamespace(histories=[given_of((0, 50), (10, 70))]),
        SimpleNamespace(histories=[given_of((5, 60))]),
    ]
    until = _pending_until(parts, ns(0, 1, 6, 10, 11)) / 1000
    assert until.tolist() == [-np.inf, 50, 60, 60, 70]


def test_op_belongs_to_its_launch_or_to_the_node_before_a_blocking_call() -> None:
    part: Any = SimpleNamespace(launch_time=np.array([30, 10, 20, UNKNOWN, 15, 99]), launch=None)
    _attach_launches([part], np.array([10, 30, 20]), np.array([True, False, True]))
    assert part.launch.tolist() == [1, 0, 1, NONE, NONE, NONE]


def thread(ident: int, busy: Intervals, waiting: Intervals = EMPTY) -> HostThread:
    return HostThread(thread=ident, busy=busy, input=waiting, blocked=EMPTY)


def test_time_before_a_node_is_busy_fetching_or_untraced() -> None:
    threads = {1: thread(1, as_set([(10, 30)]), as_set([(25, 40)])), 2: thread(2, as_set([(50, 55)]))}
    no_events: Any = SimpleNamespace(role=np.empty(0, np.uint8), start_ns=np.empty(0), end_ns=np.empty(0))
    steps = SimpleNamespace(thread=1)
    ops = SimpleNamespace(op_class=np.empty(0, np.int8), launch_thread=np.empty(0, np.int64))
    track: Any = SimpleNamespace(
        threads=threads, steps=steps, before_first_op=as_set([(0, 10)]), is_cpu=True, shift_ns=0, ops=ops
    )
    before, stop = np.array([0, 30, 60]), np.array([30, 60, 60])
    busy, fetching, untraced = _time_before_nodes(track, no_events, [1, 2, 3], before, stop)
    assert busy.tolist() == [15, 20, 0]  # pauses shorter than the limit are Python code between calls
    assert fetching.tolist() == [5, 10, 0]
    assert untraced.before_first_op.tolist() == [10, 0, 0]
    assert untraced.long.tolist() == [0, 0, 0]


def test_threads_that_alternate_with_the_training_thread_join_its_chain() -> None:
    def chain(busy: dict[int, Intervals], launching: Sequence[int], *, anyone: bool = False) -> list[int]:
        track: Any = SimpleNamespace(
            steps=SimpleNamespace(thread=1),
            threads={ident: thread(ident, spans) for ident, spans in busy.items()},
            ops=SimpleNamespace(launch_thread=np.array(launching)),
        )
        return _chain_threads(track, all_launchers=anyone)

    training = as_set([(0, 100)])
    assert chain({1: training, 2: as_set([(80, 180)])}, [1, 2, UNKNOWN, 2]) == [1, 2]
    # Thread 2 joins the chain if it works for more than a fifth of the training thread's wait.
    assert chain({1: training, 2: as_set([(79, 179)])}, [2, 1]) == [1]
    assert chain({1: training, 2: as_set([(0, 100)])}, [2, 7], anyone=True) == [1, 2, 7]
    assert chain({1: training, 2: EMPTY}, [2, 7]) == [1, 2]  # thread 7 has no recorded events
    assert chain({2: training}, [2, UNKNOWN]) == [2]


def test_step_index_is_limited_to_analysed_steps() -> None:
    track: Any = SimpleNamespace(
        steps=HostSteps(start=np.arange(0, 500, 100), number=np.arange(5), end=500, source="ProfilerStep", thread=1),
        window_steps=np.array([1, 2, 3]),
    )
    assert step_index(track, np.array([50, 100, 199, 200, 399, 450])).tolist() == [0, 0, 0, 1, 2, 2]
