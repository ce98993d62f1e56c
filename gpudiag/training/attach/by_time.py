"""A process that computes and whose steps no optimizer of torch's ends: some seconds are recorded, not some steps.

Nothing is known of its steps before, so none is timed; the trace shows where they repeat. What a program does once,
while it loads, is told from a loop by looking twice, for half a second each: a loop does the same again.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gpudiag.model.job import OWN_STRATEGY
from gpudiag.model.run import RankRecord, RunRecord, StepsFound
from gpudiag.training.attach.attached_place import attached_place
from gpudiag.training.attach.attached_session import OWN_PROFILER, WrittenAside
from gpudiag.training.attach.attachment import claim
from gpudiag.training.attach.entered_process import Entered
from gpudiag.training.attach.main_thread import in_main_thread, raise_in_main_thread
from gpudiag.training.frameworks.pytorch.kineto import profiler_runs
from gpudiag.training.frameworks.pytorch.runtime import RUNTIME
from gpudiag.training.session import record
from gpudiag.training.session.place import Place, script_name
from gpudiag.training.session.progress import ProgressSender

#: How long is looked, how long is recorded, and how long the main thread may be elsewhere before and
#: after, in seconds.
_LOOK_S, _RECORD_S, _AT_ONCE_S, _ELSEWHERE_S = 0.5, 3.0, 5.0, 60.0
#: Two looks have this share of the operators' names in common where they are of one loop.
_ALIKE = 0.8
#: A program that has made an optimizer is given this many times as long to use it: it may compile, or load.
_LONGER = 10
#: From the agreement of all ranks to the recording, in seconds.
_AHEAD_S = 1.0


def record_for_a_while(entered: Entered) -> None:
    """Record this process, if it computes in a loop and no optimizer steps; all ranks of its job at the same time.

    Called in a thread of its own, and again after a while where it was not the time.
    """
    if _made_an_optimizer() and time.monotonic() - entered.last_step_s < _LONGER * entered.told.patience_s:
        return
    entered.ours.making = True  # in this thread; in the main thread it is set around each call
    if not _loops(entered) or _has_stepped(entered):
        return
    place = attached_place()
    run_dir = Path(entered.told.run_dir)
    if entered.own_profiler or not claim(run_dir, place.rank):
        if entered.own_profiler:
            _tell(place, OWN_PROFILER)
        entered.handler = None
        return
    run_id = _await_others(place, entered)
    if not _has_stepped(entered) and entered.handler is not None:
        entered.handler = None
        _record(entered, place, run_dir, run_id)
        if entered.told.stop:
            raise_in_main_thread(SystemExit)


def _has_stepped(entered: Entered) -> bool:
    """Since the watch last looked: it is the watch that waits here."""
    return entered.stepped


def _record(entered: Entered, place: Place, run_dir: Path, run_id: str) -> None:
    (device,) = RUNTIME.devices(None, None)
    trace = record.trace_name(place.rank)
    window = WrittenAside(run_dir / trace, active=None, cuda=RUNTIME.on_gpu(device))
    record.clear_rank(run_dir, place.rank)
    progress = ProgressSender(place.rank)
    progress.tell("profiled")
    error = None
    with _running(entered, window.start, window.stop) as begun:
        time.sleep(_RECORD_S if begun else 0)
    if not begun:
        error = "the main thread could not be reached: nothing was recorded"
    else:
        window.join()
        error = None if window.saved else "the recording could not be saved"
    mine = RankRecord(
        rank=place.rank,
        local_rank=place.local_rank,
        host=place.host,
        pid=place.pid,
        device=RUNTIME.label(device),
        device_name=RUNTIME.device_name(device),
        trace=trace if window.saved else None,
        unmarked=window.unmarked,
        error=error,
        run_id=run_id,
    )
    record.write_rank(run_dir, mine)
    if place.rank == 0:
        run = RunRecord(
            created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            command=entered.told.command,
            workload=script_name(),
            framework=RUNTIME.framework,
            strategy=OWN_STRATEGY,
            world_size=place.world_size,
            nodes=place.nodes,
            batch_size_per_device=None,
            software=RUNTIME.software(),
            ranks=record.read_ranks(run_dir, place.world_size, run_id),
            steps_found=StepsFound(by="time"),
            status="complete" if error is None else "failed",
            error=error,
            run_id=run_id,
        )
        record.write_run(run_dir, run)
    progress.tell("done")


def _await_others(place: Place, entered: Entered) -> str:
    """Wait until every rank is here, and then until the moment that rank 0 names; the run's id, which it names too.

    Raises where there is no store.
    """
    run_id = entered.told.run_id or secrets.token_hex(8)
    store = RUNTIME.store(place)
    if store is None:
        return run_id
    store.set(f"silent/{place.rank}", "1")
    keys = [f"silent/{rank}" for rank in range(place.world_size)] if place.rank == 0 else ["begin"]
    while not store.check(keys):
        if entered.measuring or entered.handler is None:
            return run_id
        time.sleep(0.1)
    if place.rank == 0:
        store.set("begin", json.dumps([time.time() + _AHEAD_S, run_id]))
    begin_s, named = json.loads(store.get("begin"))
    time.sleep(max(0.0, begin_s - time.time()))
    return str(named)


def _loops(entered: Entered) -> bool:
    first = _look(entered)
    if not first:
        return False
    time.sleep(_LOOK_S)
    second = _look(entered)
    return len(first & second) >= _ALIKE * len(first | second)


def _look(entered: Entered) -> set[str]:
    """Names of the operators that the main thread runs in half a second; none where another profiler runs."""
    from torch.profiler import ProfilerActivity, profile

    made: list[Any] = []

    def start() -> None:
        if not entered.measuring and not entered.own_profiler and not profiler_runs():
            looking = profile(activities=[ProfilerActivity.CPU])
            looking.start()
            made.append(looking)
            entered.looking = stop

    def stop() -> None:
        if entered.looking is not None:
            entered.looking = None
            made[0].stop()

    with _running(entered, start, stop):
        time.sleep(_LOOK_S if made else 0)
    if not made:
        return set()
    results = getattr(made[0].profiler, "kineto_results", None)
    return {str(event.name()) for event in results.events()} if results is not None else set()


@contextlib.contextmanager
def _running(entered: Entered, start: Callable[[], object], stop: Callable[[], object]) -> Iterator[bool]:
    """A profiler that is started and stopped in the main thread; whether it could be.

    A process that ends while its profiler runs would crash: its main thread ends that first, and sees to it itself, as
    it may be at its end before another thread has its turn.
    """

    def begin() -> None:
        atexit.register(stop)
        start()

    begun = _in_main(entered, begin)
    try:
        yield begun
        if begun:
            _in_main(entered, stop, wait_s=_ELSEWHERE_S)
    finally:
        atexit.unregister(stop)


def _in_main(entered: Entered, function: Callable[[], object], *, wait_s: float = _AT_ONCE_S) -> bool:
    """Call it in the main thread and wait for it; False where that thread does not come to it in time, or it fails.

    A thread that is elsewhere for so long waits for others, as a launcher's does: when it comes back it may be to end.
    """
    lock, done = threading.Lock(), threading.Event()
    ended: list[bool] = []

    def call() -> None:
        if not lock.acquire(blocking=False) or not threading.main_thread().is_alive():
            return  # too late, or the interpreter is about to end
        entered.ours.making = True
        try:
            function()
            ended.append(True)
        finally:
            entered.ours.making = False
            done.set()

    if not in_main_thread(call):
        return False
    if not done.wait(wait_s) and not lock.acquire(blocking=False):
        done.wait()  # it has begun
    return bool(ended)


def _made_an_optimizer() -> bool:
    """Has this program made an optimizer of torch's? Each class's `step` is wrapped when the first of it is made."""
    from torch.optim import Optimizer

    kinds: list[Any] = [Optimizer]
    while kinds:
        kind = kinds.pop()
        if getattr(kind.__dict__.get("step"), "hooked", False):
            return True
        kinds += kind.__subclasses__()
    return False


def _tell(place: Place, words: str) -> None:
    progress = ProgressSender(place.rank)
    progress.note(f"rank {place.rank}: {words}")
    progress.tell("starting")
