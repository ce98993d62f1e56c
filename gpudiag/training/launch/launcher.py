"""Start one launch, watch it to its end, and leave a run record whatever the end was."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from gpudiag.errors import GpudiagError, UnreadableInputError
from gpudiag.model.benchmarks.launch_request import LaunchRequest
from gpudiag.model.run import RUN_SCHEMA, RunRecord, RunStatus
from gpudiag.model.run_directory import KERNEL_ONLY_TRACES, RUN_FILE, TRACES_DIR, below, read_json
from gpudiag.training.frameworks.plan import Plan
from gpudiag.training.frameworks.registry import framework_named
from gpudiag.training.launch.environment import environment
from gpudiag.training.launch.failure_cause import who_hangs, why_it_failed
from gpudiag.training.launch.listener import Listener
from gpudiag.training.session import record
from gpudiag.training.session.progress import Progress

_GUARD = Path(__file__).with_name("guard.py")

_EVERY_S = 0.05

#: How long torchrun has to end a run once one of its processes has failed; its own patience is 30 s.
_AFTER_FAILURE_S = 10.0

#: How long the guard has to end everything once told to.
_STOP_S = 10.0


def launch(plan: Plan, observer: Callable[[Progress], None], *, has_gpudiag: bool = True) -> RunRecord:
    """Run the plan to its end.

    `run.json` is written on the node that has rank 0, with status `complete`, `failed` or `interrupted`; what the ranks
    had measured is in it in any case.

    Args:
        plan: what to start.
        observer: called in this thread with each message of each process.
        has_gpudiag: the plan's interpreter finds gpudiag by itself.

    Raises:
        WorkerFailedError: a process died, failed, or showed no progress for the job's `timeout_s`.
        UsageError, HardwareMissingError: a process found the job to ask for what there is not.
        KeyboardInterrupt: SIGINT, SIGTERM or SIGHUP came. No process is left when it is raised.
    """
    for name in (record.LOGS_DIR, record.RANKS_DIR, f"{TRACES_DIR}/{KERNEL_ONLY_TRACES}"):
        below(plan.run_dir, name)
    below(plan.run_dir, record.LOGS_DIR).mkdir(parents=True, exist_ok=True)
    if plan.leads:  # and nobody else: nodes may share the directory, and another may be there first
        record.clear_run(plan.run_dir, 0)
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    log = plan.run_dir / record.LOGS_DIR / "launcher.log"
    log.unlink(missing_ok=True)  # it may be a link
    heard: Listener | None = None
    status: RunStatus = "failed"
    error: str | None = "the run did not finish"
    try:
        with _signals_as_interrupts(), private_directory() as private:
            progress = private / "progress"
            with Listener(progress, plan.processes) as listener, log.open("wb") as output:
                heard = listener
                values = environment(plan, private, progress, has_gpudiag=has_gpudiag, inherited=os.environ)
                processes = framework_named(plan.job.framework).command_line(plan, _write_request(plan, private))
                guard = subprocess.Popen(
                    [sys.executable, "-I", str(_GUARD), str(private), *processes],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=values,
                    start_new_session=True,
                )
                try:
                    _watch(plan, guard, listener, observer, log)
                finally:
                    _stop(guard)
        status, error = "complete", None
    except KeyboardInterrupt:
        status, error = "interrupted", "interrupted"
        raise
    except GpudiagError as failure:
        error = str(failure)
        raise
    finally:
        run = _final_record(plan, created, status, error)
        # Where the disk is full, why the run failed is worth more than that its end could not be written.
        with contextlib.suppress(OSError) if status != "complete" else contextlib.nullcontext():
            if plan.leads or (heard is not None and 0 in heard.latest):
                record.write_run(plan.run_dir, run)
    return run


def _write_request(plan: Plan, private: Path) -> Path:
    """Write what the training processes read, in a file because a sweep's plan may exceed the limit of an argument."""
    request = LaunchRequest(job=plan.job, program=plan.program)
    path = private / "request.json"
    path.write_bytes(msgspec.json.encode(request))
    return path


def _watch(
    plan: Plan,
    guard: subprocess.Popen[bytes],
    listener: Listener,
    observer: Callable[[Progress], None],
    log: Path,
) -> None:
    """Pass messages on until the guard has ended; raise why, unless it ended well."""
    failed_s: float | None = None
    while True:
        ended = guard.poll() is not None
        for message in listener.receive(0.0 if ended else _EVERY_S):
            observer(message)
        if ended:
            break
        if listener.failures:
            failed_s = failed_s or time.monotonic()
            if time.monotonic() - failed_s > _AFTER_FAILURE_S:
                raise why_it_failed(plan, listener, log)
        elif listener.silent_s() > plan.job.timeout_s:
            raise who_hangs(plan, listener)
    if guard.returncode != 0 or listener.failures:
        raise why_it_failed(plan, listener, log)


def _stop(guard: subprocess.Popen[bytes]) -> None:
    """End everything that still runs. Interrupts are put off until that is done, which takes seconds at most."""
    if guard.poll() is not None:
        return
    with _signals_put_off():
        guard.terminate()
        try:
            guard.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            guard.kill()
            guard.wait()


def _final_record(plan: Plan, created: str, status: RunStatus, error: str | None) -> RunRecord:
    """What rank 0 wrote, with the ranks' records as they are now and how the run really ended."""
    ranks = record.read_ranks(plan.run_dir, plan.ranks)
    try:
        known = read_json(plan.run_dir / RUN_FILE, RunRecord, RUN_SCHEMA)
    except UnreadableInputError:
        known = RunRecord(
            created=created,
            command=plan.job.command,
            workload=plan.job.workload,
            framework=plan.job.framework,
            strategy=plan.job.strategy,
            world_size=plan.ranks,
            nodes=plan.job.nodes,
            batch_size_per_device=plan.job.batch_size,
            status=status,
        )
    return msgspec.structs.replace(
        known, ranks=ranks, status=status, error=error, world_size=plan.ranks, nodes=plan.job.nodes
    )


@contextlib.contextmanager
def private_directory() -> Iterator[Path]:
    """A directory for this user only, removed at the end (also by the guard, should this process be killed)."""
    # A socket's address has room for 108 bytes.
    base = tempfile.gettempdir()
    with tempfile.TemporaryDirectory(
        prefix="gpudiag-",
        dir=base if len(base) < 60 else "/tmp",  # noqa: S108  # the directory itself gets an unguessable name
        ignore_cleanup_errors=True,
    ) as name:
        yield Path(name)


_INTERRUPTS = (signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def _signals_as_interrupts() -> Iterator[None]:
    """While a run is on, SIGTERM and SIGHUP are what Ctrl-C is: reasons to clean up first."""

    def interrupt(_number: int, _frame: Any) -> None:
        raise KeyboardInterrupt

    with _handling(_INTERRUPTS, interrupt):
        yield


@contextlib.contextmanager
def _signals_put_off() -> Iterator[None]:
    came: list[int] = []
    with _handling((signal.SIGINT, *_INTERRUPTS), lambda number, _frame: came.append(number)):
        yield
    if came:
        raise KeyboardInterrupt


@contextlib.contextmanager
def _handling(numbers: tuple[signal.Signals, ...], handler: Callable[[int, Any], object]) -> Iterator[None]:
    """Handle these signals this way for a while; only the main thread can."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, signal.SIG_DFL if old is None else old)
