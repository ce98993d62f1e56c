"""Run a command whose training processes are entered, and bring together what they have left."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from gpudiag.errors import UnreadableInputError, UsageError
from gpudiag.model.job import DEFAULT_FRAMEWORK, OWN_STRATEGY
from gpudiag.model.run import RUN_SCHEMA, RunRecord, RunStatus
from gpudiag.model.run_directory import RUN_FILE, read_json
from gpudiag.training.attach.settings import VARIABLE, Settings
from gpudiag.training.launch.listener import Listener
from gpudiag.training.session import record
from gpudiag.training.session.progress import SOCKET_VARIABLE, Progress

#: Put first on PYTHONPATH; holds nothing but `sitecustomize.py`.
ENTRY = Path(__file__).with_name("entry")

_EVERY_S = 0.1
#: With `stop`, how long the command has to end by itself once all ranks are done.
_AFTER_STOP_S = 30.0

_RANK_FILE = re.compile(r"rank(\d+)\.json")

NO_RANK = (
    "no training process reported: it imports no PyTorch, took no step and computed nothing that repeats, or its "
    "Python was started with -I or -E or in another environment (ssh, a container, sudo): hand PYTHONPATH and "
    f"{VARIABLE} on to it, or put the loop into gpudiag.profile()"
)


def run_command(told: Settings, observer: Callable[[Progress], None]) -> tuple[int, RunRecord]:
    """Run the command to its end.

    Args:
        told: the command and how it is to be measured.
        observer: called with each message of each of its processes.

    Returns:
        The command's exit code, 128 more than the number of the signal that ended it; and the run as it is recorded.

    Raises:
        UsageError: there is no such command.
    """
    run_dir = Path(told.run_dir)
    record.clear_run(run_dir, 0)
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    with tempfile.TemporaryDirectory(prefix="gpudiag-", ignore_cleanup_errors=True) as private:
        socket = Path(private) / "progress"
        with Listener(socket, 0) as listener:
            try:
                process = subprocess.Popen(told.command, env=environment(told, socket, os.environ))
            except OSError as error:
                raise UsageError(f"{told.command[0]} cannot be run: {error.strerror}", "Check the command.") from error
            with _signals_to(process):
                code = _watch(process, listener, observer, stop=told.stop)
    for claimed in (run_dir / record.RANKS_DIR).glob(".rank*"):
        claimed.unlink(missing_ok=True)
    run = _final_record(told, created, code)
    record.write_run(run_dir, run)
    return code, run


def environment(told: Settings, socket: Path, inherited: Mapping[str, str]) -> dict[str, str]:
    """The command's environment: the user's own, with the entry first on PYTHONPATH."""
    values = dict(inherited)
    values["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ENTRY), inherited.get("PYTHONPATH"))))
    values[VARIABLE] = told.encode()
    values[SOCKET_VARIABLE] = str(socket)
    # Else PyTorch's profiler writes of its doings among what the command prints.
    values.setdefault("KINETO_LOG_LEVEL", "99")
    return values


def _watch(
    process: subprocess.Popen[bytes], listener: Listener, observer: Callable[[Progress], None], *, stop: bool
) -> int:
    """Pass messages on until the command has ended; its exit code."""
    done_s: float | None = None
    while process.poll() is None:
        for message in listener.receive(_EVERY_S):
            observer(message)
        if stop and listener.latest and all(told.phase == "done" for told in listener.latest.values()):
            done_s = done_s or time.monotonic()
            if time.monotonic() - done_s > _AFTER_STOP_S:
                process.terminate()
                process.wait()
                return 0
    for message in listener.receive(0.0):
        observer(message)
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def _final_record(told: Settings, created: str, code: int) -> RunRecord:
    """What rank 0 wrote, with all ranks' records as they are now, and how it ended."""
    run_dir = Path(told.run_dir)
    numbers = [
        int(match[1])
        for path in (run_dir / record.RANKS_DIR).glob("rank*.json")
        if (match := _RANK_FILE.fullmatch(path.name))
    ]
    ranks = record.read_ranks(run_dir, max(numbers, default=-1) + 1)
    status: RunStatus = "complete"
    error = next((f"rank {rank.rank}: {rank.error}" for rank in ranks if rank.error is not None), None)
    if not ranks:
        error = NO_RANK
    elif code and error is None:
        error = f"the command ended with exit code {code}"
    if error is not None:
        status = "failed"
    try:
        known = read_json(run_dir / RUN_FILE, RunRecord, RUN_SCHEMA)
    except UnreadableInputError:
        known = RunRecord(
            created=created,
            command=told.command,
            workload=Path(told.command[0]).name,
            framework=DEFAULT_FRAMEWORK,
            strategy=OWN_STRATEGY,
            world_size=max(1, len(ranks)),
            nodes=1,
            batch_size_per_device=None,
            status=status,
        )
    return msgspec.structs.replace(known, ranks=ranks, status=status, error=error)


@contextlib.contextmanager
def _signals_to(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """While the command runs, what would end gpudiag is for the command: Ctrl-C reaches it from the terminal itself."""

    def forward(number: int, _frame: Any) -> None:
        with contextlib.suppress(OSError):
            process.send_signal(number)

    before = {number: signal.signal(number, forward) for number in (signal.SIGTERM, signal.SIGHUP)}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, lambda _number, _frame: None)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
