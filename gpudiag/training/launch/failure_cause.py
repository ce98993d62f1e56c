"""Find the cause of a failed launch in its processes' messages and torchrun's output."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from gpudiag.errors import GpudiagError, HardwareMissingError, UnreadableInputError, UsageError, WorkerFailedError
from gpudiag.training.frameworks.framework import Plan
from gpudiag.training.launch.listener import Listener
from gpudiag.training.session.progress import Phase

#: torchrun's summary of failed workers, which `starter.py` also prints: "rank : 1 (local_rank: 1)", then
#: "exitcode : -9 (pid: 123)".
_FAILURE = re.compile(r"rank\s*:\s*(\d+) \(local_rank: \d+\)\s*\n\s*exitcode\s*:\s*(-?\d+) ")

#: Number of bytes that are read at the end of torchrun's log, which contains the summary.
_TAIL_BYTES = 200_000


_BY_EXIT_CODE: dict[int, type[GpudiagError]] = {
    error.exit_code: error for error in (UsageError, HardwareMissingError, UnreadableInputError)
}


def failure_cause(plan: Plan, listener: Listener, log: Path) -> GpudiagError:
    """Return an error that names the most likely cause.

    A process that a signal ended cannot report its end, and the other ranks then report broken connections. Therefore a
    signal has precedence over the first reported failure. If there is neither a signal nor a reported failure, the
    error quotes the last line of `log`, torchrun's output.
    """
    output = _tail(log)
    return (
        _ended_by_signal(plan, listener, output)
        or _reported_failure(plan, listener)
        or WorkerFailedError(f"the training processes ended without a result: {_last_line(output)}", f"See {log}.")
    )


def _ended_by_signal(plan: Plan, listener: Listener, output: str) -> GpudiagError | None:
    """Return an error for the first rank that a signal ended; None if there is none, or if it reported a failure."""
    killed = [(int(rank), -int(code)) for rank, code in _FAILURE.findall(output) if int(code) < 0]
    # After a process has failed, torchrun ends the other processes with SIGTERM, and lists these processes too.
    culprits = [(rank, number) for rank, number in killed if number != signal.SIGTERM]
    if not culprits and not listener.failures:
        culprits = killed
    if not culprits or any(failure.rank == culprits[0][0] for failure in listener.failures):
        return None
    rank, number = culprits[0]
    hint = f"The end of its output is in {plan.run_dir}/logs/rank{rank}.log."
    if number == signal.SIGKILL:
        hint = f"The kernel does that when memory runs out (see dmesg). {hint}"
    return WorkerFailedError(f"rank {rank} was ended by {signal_name(number)}", hint)


def _reported_failure(plan: Plan, listener: Listener) -> GpudiagError | None:
    """Return the first failure that a process reported, as an error."""
    if not listener.failures:
        return None
    failure = listener.failures[0]
    kind = _BY_EXIT_CODE.get(failure.exit_code, WorkerFailedError)
    message = failure.error or "failed"
    if kind is not UsageError:
        message = f"rank {failure.rank}: {message}"
    return kind(message, failure.hint or f"See {plan.run_dir}/logs/rank{failure.rank}.log.")


def _last_line(output: str) -> str:
    """Return the last line that is neither empty nor a rule (`=====`), at most 300 characters of it."""
    lines = [line.strip() for line in output.splitlines() if line.strip(" =-")]
    return lines[-1][:300] if lines else "no output"


def hang_cause(plan: Plan, listener: Listener) -> WorkerFailedError:
    """Return an error for a launch without progress that names the stopped ranks, or else the ranks that are behind."""
    latest = listener.latest
    waited = f"no progress for {plan.job.timeout_s:g} s"
    if not latest:
        return WorkerFailedError(
            f"{waited}: no training process has started",
            f"If starting really takes that long, raise --timeout; else see {plan.run_dir}/logs/launcher.log.",
        )
    stopped = [rank for rank, message in latest.items() if is_stopped(message.pid)]
    if stopped:
        were = "was" if len(stopped) == 1 else "were"
        return WorkerFailedError(
            f"{waited}: {name_ranks(stopped)} {were} stopped (SIGSTOP, or a debugger)",
            "The other ranks wait. To continue, send SIGCONT (kill -CONT) or detach the debugger.",
        )
    order = get_args(Phase)
    states = {rank: (order.index(message.phase), message.steps) for rank, message in latest.items()}
    behind = [rank for rank, state in states.items() if state == min(states.values())]
    return WorkerFailedError(
        f"{waited}: {name_ranks(behind)} last seen in {latest[behind[0]].phase}, step {latest[behind[0]].steps}",
        "If the steps really take that long, raise --timeout; else see the end of each rank's log, under logs/.",
    )


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped, in state T (by SIGSTOP) or t (by a debugger)."""
    try:
        # The state follows the last ")", because the name in parentheses may contain anything.
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] in {"T", "t"}
    except (OSError, IndexError):
        return False


def name_ranks(ranks: Sequence[int]) -> str:
    """Return "rank 3" or "ranks 1, 3"."""
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, sorted(ranks)))}"


def signal_name(number: int) -> str:
    """Return a signal's name, such as SIGKILL, or "signal N" for a signal without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _tail(path: Path) -> str:
    """Return the last `_TAIL_BYTES` of a file as text; "" if it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
