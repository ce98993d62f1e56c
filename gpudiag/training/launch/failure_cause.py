"""Why a launch failed, from what its processes told and what torchrun wrote, as one error."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from pathlib import Path

from gpudiag.errors import GpudiagError, HardwareMissingError, UnreadableInputError, UsageError, WorkerFailedError
from gpudiag.training.frameworks.framework import Plan
from gpudiag.training.launch.listener import Listener

#: torchrun's summary of failed workers: "rank : 1 (local_rank: 1)", then "exitcode : -9 (pid: 123)".
_FAILURE = re.compile(r"rank\s*:\s*(\d+) \(local_rank: \d+\)\s*\n\s*exitcode\s*:\s*(-?\d+) ")

#: The end of the log is enough for the summary, and bounds what is read.
_TAIL_BYTES = 200_000

_BY_EXIT_CODE: dict[int, type[GpudiagError]] = {
    error.exit_code: error for error in (UsageError, HardwareMissingError, UnreadableInputError)
}


def why_it_failed(plan: Plan, listener: Listener, log: Path) -> GpudiagError:
    """The cause, as far as it can be known.

    A process that a signal ended could not say so itself, while its peers report broken connections; so that is looked
    for first, then the first failure told, then the last line of torchrun's own output.
    """
    text = _tail(log)
    killed = [(int(rank), -int(code)) for rank, code in _FAILURE.findall(text) if int(code) < 0]
    # torchrun ends the others with SIGTERM once one has failed, and lists them too.
    by_others = [(rank, number) for rank, number in killed if number != signal.SIGTERM]
    culprits = by_others or ([] if listener.failures else killed)
    if culprits and not any(told.rank == culprits[0][0] for told in listener.failures):
        rank, number = culprits[0]
        hint = f"The end of its output is in {plan.run_dir}/logs/rank{rank}.log."
        if number == signal.SIGKILL:
            hint = f"The kernel does that when memory runs out (see dmesg). {hint}"
        return WorkerFailedError(f"rank {rank} was ended by {signal_name(number)}", hint)
    if listener.failures:
        told = listener.failures[0]
        kind = _BY_EXIT_CODE.get(told.exit_code, WorkerFailedError)
        where = f"See {plan.run_dir}/logs/rank{told.rank}.log."
        message = told.error or "failed"
        return kind(
            message if kind is UsageError else f"rank {told.rank}: {message}",
            told.hint or where,
        )
    lines = [line.strip() for line in text.splitlines() if line.strip(" =-")]
    last = lines[-1] if lines else "no output"
    return WorkerFailedError(f"the training processes ended without a result: {last[:300]}", f"See {log}.")


def who_hangs(plan: Plan, listener: Listener) -> WorkerFailedError:
    """Nothing was heard for too long: name the ranks that are stopped, or else those that are furthest behind."""
    order = ("starting", "warmup", "timed", "profiled", "saving", "done", "failed")
    states = {rank: (order.index(told.phase), told.steps) for rank, told in listener.latest.items()}
    waited = f"no progress for {plan.job.timeout_s:g} s"
    hint = "If the steps really take that long, raise --timeout; else see the end of each rank's log, under logs/."
    if not states:
        return WorkerFailedError(
            f"{waited}: no training process has started",
            f"If starting really takes that long, raise --timeout; else see {plan.run_dir}/logs/launcher.log.",
        )
    stopped = [rank for rank, told in listener.latest.items() if is_stopped(told.pid)]
    if stopped:
        were = "was" if len(stopped) == 1 else "were"
        return WorkerFailedError(
            f"{waited}: {name_ranks(stopped)} {were} stopped (SIGSTOP, or a debugger)",
            "The others wait for it. Whoever stopped it can let it go on: kill -CONT, or detach the debugger.",
        )
    behind = min(states.values())
    ranks = [rank for rank, state in states.items() if state == behind]
    told = listener.latest[ranks[0]]
    return WorkerFailedError(f"{waited}: {name_ranks(ranks)} last seen in {told.phase}, step {told.steps}", hint)


def is_stopped(pid: int) -> bool:
    """The kernel's word for a process that does nothing until it is let go on: state T, or t under a debugger."""
    try:
        # The name in parentheses may hold anything.
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] in {"T", "t"}
    except (OSError, IndexError):
        return False


def name_ranks(ranks: Sequence[int]) -> str:
    """Return "rank 3" or "ranks 1, 3"."""
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, sorted(ranks)))}"


def signal_name(number: int) -> str:
    """Return a signal's name, such as SIGKILL; its number where it has none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
