"""Record a process for some seconds if it computes without a PyTorch optimizer.

The steps of such a process are not timed. The analysis finds the steps in the trace, because steps repeat. In a loop,
two samples of half a second contain mostly the same operators, unlike in one-time work such as loading.
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
from typing import TYPE_CHECKING, Any

from gpudiag.model.run import OWN_STRATEGY, RankRecord, RunRecord, StepsFound
from gpudiag.training.attach.attached_session import OWN_PROFILER, BackgroundWindow
from gpudiag.training.attach.attachment import claim
from gpudiag.training.attach.main_thread import in_main_thread, raise_in_main_thread
from gpudiag.training.frameworks.pytorch.profiler import profiler_runs
from gpudiag.training.frameworks.pytorch.runtime import RUNTIME
from gpudiag.training.session import record
from gpudiag.training.session.position import ClusterPosition, independent_position, script_name
from gpudiag.training.session.progress import ProgressSender, send_note

if TYPE_CHECKING:
    from gpudiag.training.attach.entered import EnteredProcess

#: Duration of a sample, in seconds.
_LOOK_S = 0.5
#: Duration of the recording, in seconds.
_RECORD_S = 3.0
#: Longest waits for the main thread to start and to stop the profiler, in seconds.
_WAIT_BEFORE_S, _WAIT_AFTER_S = 5.0, 60.0
#: Minimum share of operator names that two samples must have in common to count as a loop.
_SAME_OPERATORS = 0.8
#: Factor on `Settings.patience_s` if the program has an optimizer: it may still compile or load before its first step.
_OPTIMIZER_PATIENCE = 10
#: Time from the agreement of all ranks to the recording, in seconds.
_AHEAD_S = 1.0


def record_for_a_while(entered: EnteredProcess) -> None:
    """Record this process if it computes in a loop without optimizer steps. All ranks of a job record at the same time.

    The watch thread (`entered._watching`) calls this function repeatedly until the process is recorded or an optimizer
    steps. In this module, `entered` is the state of this process, which the hooks of `entered.py` share.
    """
    settings = entered.settings
    if _has_optimizer() and time.monotonic() - entered.last_step_s < _OPTIMIZER_PATIENCE * settings.patience_s:
        return
    entered.ours.making = True  # profilers that this thread creates are gpudiag's own, as in `_call_in_main`
    if not _loops(entered) or _has_stepped(entered):
        return
    position = independent_position()
    run_dir = Path(settings.run_dir)
    if entered.own_profiler:
        send_note(position.rank, OWN_PROFILER)
    if entered.own_profiler or not claim(run_dir, position.rank):
        entered.handler = None  # this ends the watch thread
        return
    run_id = _await_others(position, entered)
    if not _has_stepped(entered) and entered.handler is not None:
        entered.handler = None
        _record(entered, position, run_dir, run_id)
        if settings.stop:
            raise_in_main_thread(SystemExit)


def _has_stepped(entered: EnteredProcess) -> bool:
    """Return `stepped`. Type checkers would assume that it does not change between two direct reads."""
    return entered.stepped


def _record(entered: EnteredProcess, position: ClusterPosition, run_dir: Path, run_id: str) -> None:
    """Record for `_RECORD_S` seconds. Write the rank's record, and on rank 0 also the run's record."""
    (device,) = RUNTIME.devices(None, None)  # by default a process has one device
    trace = record.trace_name(position.rank)
    window = BackgroundWindow(run_dir / trace, active=None, cuda=RUNTIME.on_gpu(device))  # None: record until `stop`
    record.clear_rank(run_dir, position.rank)
    progress = ProgressSender(position.rank)
    progress.tell("profiled")
    with _running(entered, window.start, window.stop) as begun:
        time.sleep(_RECORD_S if begun else 0)
    if begun:
        window.join()
        error = None if window.saved else "the recording could not be saved"
    else:
        error = "the main thread could not be reached: nothing was recorded"
    rank = RankRecord(
        rank=position.rank,
        local_rank=position.local_rank,
        host=position.host,
        pid=position.pid,
        device=RUNTIME.label(device),
        device_name=RUNTIME.device_name(device),
        trace=trace if window.saved else None,
        unmarked=window.unmarked,  # why the trace has no marks of modules
        error=error,
        run_id=run_id,
    )
    record.write_rank(run_dir, rank)
    if position.rank == 0:
        run = RunRecord(
            created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            command=entered.settings.command,
            workload=script_name(),
            framework=RUNTIME.framework,
            strategy=OWN_STRATEGY,
            world_size=position.world_size,
            nodes=position.nodes,
            batch_size_per_device=None,
            software=RUNTIME.software(),
            ranks=record.read_ranks(run_dir, position.world_size, run_id),
            steps_found=StepsFound(by="time"),
            status="complete" if error is None else "failed",
            error=error,
            run_id=run_id,
        )
        record.write_run(run_dir, run)
    progress.tell("done")


def _await_others(position: ClusterPosition, entered: EnteredProcess) -> str:
    """Wait until every rank is present, and then until the start time that rank 0 posts; return the run's id.

    If there are no other ranks, return the settings' run id (random if empty). Also return this id, without waiting any
    longer, if the process's optimizer steps are being measured, or have been.
    """
    run_id = entered.settings.run_id or secrets.token_hex(8)
    store = RUNTIME.store(position)
    if store is None:
        return run_id
    store.set(f"silent/{position.rank}", "1")
    keys = [f"silent/{rank}" for rank in range(position.world_size)] if position.rank == 0 else ["begin"]
    while not store.check(keys):
        if entered.measuring or entered.handler is None:
            return run_id
        time.sleep(0.1)
    if position.rank == 0:
        store.set("begin", json.dumps([time.time() + _AHEAD_S, run_id]))
    begin_s, run_id = json.loads(store.get("begin"))
    time.sleep(max(0.0, begin_s - time.time()))
    return str(run_id)


def _loops(entered: EnteredProcess) -> bool:
    """Return whether the main thread runs mostly the same operators in two samples, and so probably runs a loop."""
    first = _look(entered)
    if not first:
        return False
    time.sleep(_LOOK_S)
    second = _look(entered)
    return len(first & second) >= _SAME_OPERATORS * len(first | second)


def _look(entered: EnteredProcess) -> set[str]:
    """Return the names of operators that the main thread runs in half a second; empty if no profiler can be started."""
    from torch.profiler import ProfilerActivity, profile

    profilers: list[Any] = []

    def start() -> None:
        if not entered.measuring and not entered.own_profiler and not profiler_runs():
            profiler = profile(activities=[ProfilerActivity.CPU])
            profiler.start()
            profilers.append(profiler)
            entered.stop_looking = stop

    def stop() -> None:
        if entered.stop_looking is not None:
            entered.stop_looking = None
            profilers[0].stop()

    with _running(entered, start, stop):
        time.sleep(_LOOK_S if profilers else 0)
    if not profilers:
        return set()
    results = getattr(profilers[0].profiler, "kineto_results", None)
    return {str(event.name()) for event in results.events()} if results is not None else set()


@contextlib.contextmanager
def _running(entered: EnteredProcess, start: Callable[[], object], stop: Callable[[], object]) -> Iterator[bool]:
    """Call `start` and `stop` of a profiler in the main thread; yield whether `start` was called without an exception.

    A process that ends while its profiler runs would crash. Therefore the main thread also stops the profiler at exit,
    when other threads may no longer run.
    """

    def begin() -> None:
        atexit.register(stop)
        start()

    begun = _call_in_main(entered, begin)
    try:
        yield begun
        if begun:
            _call_in_main(entered, stop, wait_s=_WAIT_AFTER_S)
    finally:
        atexit.unregister(stop)


def _call_in_main(entered: EnteredProcess, function: Callable[[], object], *, wait_s: float = _WAIT_BEFORE_S) -> bool:
    """Call a function in the main thread and wait. Return False if the function raises, or does not start in `wait_s`.

    A main thread that does not start the function in `wait_s` seconds waits for other processes, as a launcher does.
    After such a wait the process may exit. Therefore the function is not called after `wait_s`.
    """
    # `lock` is acquired by the call, or else when `wait_s` is over.
    lock, done = threading.Lock(), threading.Event()
    ended: list[bool] = []

    def call() -> None:
        if not lock.acquire(blocking=False) or not threading.main_thread().is_alive():
            return  # `wait_s` is over, or the interpreter is about to end
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
        done.wait()  # the call has started within `wait_s`
    return bool(ended)


def _has_optimizer() -> bool:
    """Return whether this program has created a PyTorch optimizer. PyTorch then sets `step.hooked` of the class."""
    from torch.optim import Optimizer

    kinds: list[Any] = [Optimizer]
    while kinds:
        kind = kinds.pop()
        if getattr(kind.__dict__.get("step"), "hooked", False):
            return True
        kinds += kind.__subclasses__()
    return False
