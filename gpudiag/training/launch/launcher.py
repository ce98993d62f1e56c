"""Start the training processes of one launch, watch them to their end, and write a run record in any case."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

import gpudiag
from gpudiag.errors import GpudiagError
from gpudiag.model.benchmarks.launch_request import LaunchRequest
from gpudiag.model.run import RunRecord, RunStatus
from gpudiag.model.run_directory import KERNEL_ONLY_TRACES, TRACES_DIR, below
from gpudiag.training.frameworks.framework import Plan
from gpudiag.training.frameworks.registry import framework_named
from gpudiag.training.launch.failure_cause import failure_cause, hang_cause
from gpudiag.training.launch.listener import Listener
from gpudiag.training.session import record
from gpudiag.training.session.progress import SOCKET_VARIABLE, Progress

_GUARD = Path(__file__).with_name("guard.py")

#: Longest wait for messages in seconds. After each wait the launcher checks whether the guard has ended.
_RECEIVE_S = 0.05
#: Seconds in which torchrun or `starter.py` may end a run after a process has failed; torchrun would take up to 30 s.
_AFTER_FAILURE_S = 10.0
#: Seconds in which the guard may end all processes.
_STOP_S = 10.0

_INTERRUPTS = (signal.SIGTERM, signal.SIGHUP)


def launch(plan: Plan, observer: Callable[[Progress], None], *, has_gpudiag: bool = True) -> RunRecord:
    """Run the plan to its end, and return the run's record.

    The node that has rank 0 writes `run.json`, with status `complete`, `failed` or `interrupted`. The file always
    contains the measurements that the ranks have made.

    Args:
        plan: description of the launch.
        observer: called in this thread with each progress message of each process.
        has_gpudiag: True if gpudiag is installed for the plan's interpreter.

    Raises:
        WorkerFailedError: a process died or failed, or no process made progress for the job's `timeout_s`.
        UsageError, HardwareMissingError: a process reported that the job needs something that is missing.
        KeyboardInterrupt: SIGINT, SIGTERM or SIGHUP was received; all processes have ended.
    """
    for name in (record.LOGS_DIR, record.RANKS_DIR, f"{TRACES_DIR}/{KERNEL_ONLY_TRACES}"):
        below(plan.run_dir, name)  # raises UnreadableInputError if a link would redirect the output
    below(plan.run_dir, record.LOGS_DIR).mkdir(parents=True, exist_ok=True)
    if plan.has_rank_0:  # nodes may share the run directory, so only the node of rank 0 clears the directory
        record.clear_run(plan.run_dir, 0)  # the files of all ranks, from 0 on
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    log = plan.run_dir / record.LOGS_DIR / "launcher.log"
    log.unlink(missing_ok=True)  # the old log may be a link to another file
    has_rank_0 = plan.has_rank_0
    status: RunStatus = "failed"
    error: str | None = "the run did not finish"
    try:
        with _signals_as_interrupts(), private_directory() as private:
            socket = private / "progress"
            with Listener(socket) as listener, log.open("wb") as output:
                values = environment(plan, private, socket, has_gpudiag=has_gpudiag, inherited=os.environ)
                command = framework_named(plan.job.framework).command_line(plan, _write_request(plan, private))
                guard = subprocess.Popen(
                    [sys.executable, "-I", str(_GUARD), str(private), *command],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=values,
                    start_new_session=True,
                )
                try:
                    _watch(plan, guard, listener, observer, log)
                finally:
                    has_rank_0 = has_rank_0 or 0 in listener.latest  # rank 0 has reported to this node
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
        # After a failure, ignore an error in writing the record, because the cause of the failure is more important.
        with contextlib.suppress(OSError) if status != "complete" else contextlib.nullcontext():
            if has_rank_0:
                record.write_run(plan.run_dir, run)
    return run


def environment(
    plan: Plan, private: Path, progress: Path, *, has_gpudiag: bool, inherited: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of the training processes.

    The environment has the variables in `inherited`, defaults for variables that are not set there, and the variables
    that the launch needs. If gpudiag is not installed for the interpreter, a directory that contains only gpudiag is
    added to PYTHONPATH. The directory `private` is removed after the launch; `progress` is the path of the socket.
    """
    defaults = {"OMP_NUM_THREADS": str(plan.threads), "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
    values = {**defaults, **inherited, SOCKET_VARIABLE: str(progress), "TMPDIR": str(private)}
    if not plan.job.p2p:
        values["NCCL_P2P_DISABLE"] = "1"
    if plan.job.exchange.nccl_algo is not None:
        values["NCCL_ALGO"] = plan.job.exchange.nccl_algo.capitalize()
    if not has_gpudiag:
        folder = private / "import"
        folder.mkdir()
        (folder / "gpudiag").symlink_to(Path(gpudiag.__file__).parent)
        values["PYTHONPATH"] = os.pathsep.join(filter(None, (str(folder), inherited.get("PYTHONPATH"))))
    framework_named(plan.job.framework).set_environment(values, plan, private)
    return values


def _write_request(plan: Plan, private: Path) -> Path:
    """Write the request for the training processes to a file, because a request can be too long for an argument."""
    path = private / "request.json"
    path.write_bytes(msgspec.json.encode(LaunchRequest(job=plan.job, program=plan.program)))
    return path


def _watch(
    plan: Plan, guard: subprocess.Popen[bytes], listener: Listener, observer: Callable[[Progress], None], log: Path
) -> None:
    """Pass messages to the observer until the guard ends. If the run fails or makes no progress, raise the cause.

    `log` contains the output of the guard's command, which names ranks that ended without a message.
    """
    failed_s: float | None = None
    while True:
        ended = guard.poll() is not None
        for message in listener.receive(0.0 if ended else _RECEIVE_S):
            observer(message)
        if ended:
            break
        if listener.failures:
            failed_s = failed_s or time.monotonic()
            if time.monotonic() - failed_s > _AFTER_FAILURE_S:
                raise failure_cause(plan, listener, log)
        elif listener.silent_s() > plan.job.timeout_s:
            raise hang_cause(plan, listener)
    if guard.returncode != 0 or listener.failures:
        raise failure_cause(plan, listener, log)


def _stop(guard: subprocess.Popen[bytes]) -> None:
    """End all processes of the run. Delay interrupts meanwhile, for a few seconds at most."""
    if guard.poll() is not None:
        return
    with _signals_delayed():
        guard.terminate()
        try:
            guard.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            guard.kill()
            guard.wait()


def _final_record(plan: Plan, created: str, status: RunStatus, error: str | None) -> RunRecord:
    """Return rank 0's record, or else one of the plan, with the ranks' current records and the launch's outcome."""
    default = RunRecord(
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
    ranks = record.read_ranks(plan.run_dir, plan.ranks)
    return record.final_run(
        plan.run_dir, default, ranks=ranks, status=status, error=error, world_size=plan.ranks, nodes=plan.job.nodes
    )


@contextlib.contextmanager
def private_directory() -> Iterator[Path]:
    """Make a temporary directory that only this user can read. If this process is killed, the guard removes it."""
    # The path is short (60 bytes and a name), because the address of a Unix socket has at most 108 bytes.
    base = tempfile.gettempdir()
    with tempfile.TemporaryDirectory(
        prefix="gpudiag-",
        dir=base if len(base) < 60 else "/tmp",  # noqa: S108 # the directory gets an unguessable name
        ignore_cleanup_errors=True,
    ) as name:
        yield Path(name)


@contextlib.contextmanager
def _signals_as_interrupts() -> Iterator[None]:
    """Treat SIGTERM and SIGHUP as Ctrl-C during a run, so that the run cleans up."""

    def interrupt(_number: int, _frame: Any) -> None:
        raise KeyboardInterrupt

    with _handling(_INTERRUPTS, interrupt):
        yield


@contextlib.contextmanager
def _signals_delayed() -> Iterator[None]:
    """Delay SIGINT, SIGTERM and SIGHUP until the end of the block."""
    received: list[int] = []
    with _handling((signal.SIGINT, *_INTERRUPTS), lambda number, _frame: received.append(number)):
        yield
    if received:
        raise KeyboardInterrupt


@contextlib.contextmanager
def _handling(numbers: tuple[signal.Signals, ...], handler: Callable[[int, Any], object]) -> Iterator[None]:
    """Handle signals with `handler` within the block. Do nothing outside the main thread, where Python forbids this."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, signal.SIG_DFL if old is None else old)
