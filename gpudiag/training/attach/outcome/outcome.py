"""Why a command could not be measured, or who ended it: one sentence, from what its processes left."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpudiag.model.run import RankRecord
from gpudiag.training.attach.outcome.enough_steps import fewest_steps, needed_steps
from gpudiag.training.attach.outcome.process_report import ProcessReport
from gpudiag.training.attach.settings import PATIENCE_S, VARIABLE, Settings
from gpudiag.training.attach.watch.deaths import Death
from gpudiag.training.launch.failure_cause import name_ranks, signal_name
from gpudiag.training.session.progress import Progress

#: What a rank says whose peer has gone: the peer is the cause.
_CONSEQUENCE = re.compile(
    r"connection (closed|reset|refused)|broken pipe|DistBackendError|DistNetworkError|DistStoreError|ncclRemoteError"
    r"|ncclSystemError|gloo|store.*(timeout|timed out)|SIGTERM|SignalException",
    re.IGNORECASE,
)
#: Signals that a launcher sends to the other ranks once one has failed.
_BY_LAUNCHERS = frozenset((signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
_SIGNALS_FROM = 128

_NOT_SEEN = f"python -I or -E, ssh, sudo, a container: hand PYTHONPATH and {VARIABLE} on, as mpirun -x does"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What is known when the command has ended.

    Attributes:
        told: the command and how it was to be measured.
        code: its exit code; 128 more than the number of the signal that ended it.
        ranks: the records of the ranks.
        python_seen: some process of it was a Python with gpudiag's entry.
        reports: of processes that imported PyTorch.
        deaths: of these processes, by number, where they were seen to end.
        latest: the last message of each rank.
        forwarded: signals that gpudiag was sent and handed on.
    """

    told: Settings
    code: int
    ranks: Sequence[RankRecord] = ()
    python_seen: bool = False
    reports: Sequence[ProcessReport] = ()
    deaths: Mapping[int, Death]
    latest: Mapping[int, Progress]
    forwarded: Sequence[int] = ()

    @property
    def measured(self) -> bool:
        """Whether any rank has been timed or recorded."""
        return any(rank.unprofiled is not None or rank.trace is not None for rank in self.ranks)


def what_went_wrong(outcome: Outcome) -> str | None:
    """Return the reason in one sentence; None where all went well."""
    culprit = _culprit(outcome) if outcome.code else None
    if culprit is not None:
        return culprit
    if not outcome.measured:
        return _why_unmeasured(outcome)
    if outcome.code:
        return f"your command {_how_it_ended(outcome.code)}"
    return next((f"rank {rank.rank}: {rank.error}" for rank in outcome.ranks if rank.error is not None), None)


def remarks(outcome: Outcome) -> list[str]:
    """Return what the user should know beside the result: who was measured for itself, and who was not measured."""
    lines = []
    ranks = {rank.rank for rank in outcome.ranks if rank.unprofiled is not None or rank.trace is not None}
    trained = [report for report in outcome.reports if report.calls and not report.helper]
    if len(ranks) > 1 and all(report.world_size == 1 for report in trained):
        lines.append(f"{name_ranks(sorted(ranks))} have no process group: each was measured for itself")
    others = [report for report in trained if report.stage == "not-first"]
    if others:
        were = "process that trained was" if len(others) == 1 else "processes that trained were"
        lines.append(
            f"{len(others)} more {were} not measured: of each rank the first is, and without RANK all are rank 0"
        )
    return lines


def _why_unmeasured(outcome: Outcome) -> str:
    trained = [report for report in outcome.reports if report.calls]
    steps = max((report.calls for report in trained), default=0)
    if outcome.code:
        how = _how_it_ended(outcome.code)
        missing = _missing_script(outcome.told.command)
        if missing is not None and not steps:
            return f"{missing}: no such file; your command {how}"
        return f"your command {how} {_after(steps, outcome.told)}"
    failed = [report for report in outcome.reports if report.stage == "failed"]
    if failed:
        return f"rank {failed[0].rank}: gpudiag failed in your command, which went on: {failed[0].error}"
    if trained:
        return _why_too_few(outcome, trained, steps)
    return _why_untrained(outcome)


def _why_untrained(outcome: Outcome) -> str:
    """No optimizer stepped, and the command ended well."""
    programs = [report for report in outcome.reports if not report.helper]
    if not programs and not outcome.python_seen and not outcome.reports:
        return f"your command started no Python that gpudiag can see ({_NOT_SEEN})"
    if not programs:
        return (
            f"your command imports no PyTorch, or not where gpudiag can see it ({_NOT_SEEN}); "
            "TensorFlow is measured with gpudiag.KerasCallback"
        )
    if any(report.own_profiler for report in programs):
        return "your command has a profiler of its own and took no optimizer step: nothing was recorded"
    if any(report.distributed_optimizer for report in programs):
        return (
            "no step of an optimizer of torch.optim was seen: optimizers of torch.distributed.optim step in other "
            "processes through RPC, where gpudiag cannot see them"
        )
    patience_s = outcome.told.patience_s or PATIENCE_S
    return (
        "your command imports PyTorch and took no step of an optimizer of torch.optim; a loop without one (inference, "
        f"updates by hand) is recorded once it has computed the same for {patience_s:g} s"
    )


def _why_too_few(outcome: Outcome, trained: Sequence[ProcessReport], steps: int) -> str:
    """Optimizers stepped and nothing was timed, though the command ended well."""
    several = max(report.world_size for report in trained)
    waiting = [report.rank for report in trained if report.stage == "waiting"]
    missing = sorted(set(range(several)) - {report.rank for report in trained})
    needed = needed_steps(outcome.told)
    if several > 1 and waiting and missing and steps >= needed:
        took = "took no optimizer step" if all(rank in _ranks_of(outcome) for rank in missing) else "never came"
        return f"{name_ranks(missing)} {took}: the others waited to be measured with it, and trained on"
    if waiting and several > 1 and steps >= needed:
        return (
            f"{steps} optimizer steps were seen; the ranks had not yet agreed at which to begin, which takes the more "
            "steps the shorter they are"
        )
    seen = f"{steps} optimizer step{' was' if steps == 1 else 's were'} seen"
    enough = f"about {needed} are needed"
    if outcome.told.warmup is None or outcome.told.steps is None:
        enough += f", {fewest_steps()} with --warmup 1 --steps 2"
    error = next((rank.error for rank in outcome.ranks if rank.error is not None), None)
    if steps >= needed:
        return f"{seen}; {error or 'which of them end a step could not be told'}"
    return f"{seen}; {enough}"


def _ranks_of(outcome: Outcome) -> set[int]:
    return {report.rank for report in outcome.reports if not report.helper}


def _after(steps: int, told: Settings) -> str:
    if not steps:
        return "before its first optimizer step"
    return f"after {steps} optimizer step{'s' * (steps != 1)}; about {needed_steps(told)} are needed"


def _how_it_ended(code: int) -> str:
    if code > _SIGNALS_FROM and code - _SIGNALS_FROM in signal.valid_signals():
        return f"was ended by {signal_name(code - _SIGNALS_FROM)}"
    return f"failed with exit code {code}"


def _missing_script(command: Sequence[str]) -> str | None:
    script = next((word for word in command if word.endswith(".py") and not word.startswith("-")), None)
    return script if script is not None and not Path(script).exists() else None


@dataclass(frozen=True, slots=True, order=True)
class _End:
    """How a rank ended; of several the least is the cause: no consequence of another's end, then the first in time."""

    consequence: bool
    ended_s: float
    rank: int
    words: str


def _culprit(outcome: Outcome) -> str | None:
    """The rank that ended the job; None where none ended by an error or a signal."""
    several = len(_ranks_of(outcome)) > 1
    ends = [end for report in outcome.reports if (end := _end(outcome, report, several=several)) is not None]
    if not ends:
        return None
    first = min(ends)
    sent = [signal_name(number) for number in outcome.forwarded if number in _BY_LAUNCHERS]
    return first.words + (f"; gpudiag was sent {sent[0]} and handed it on" if sent else "")


def _end(outcome: Outcome, report: ProcessReport, *, several: bool) -> _End | None:
    death = outcome.deaths.get(report.pid)
    if report.helper or report.stage == "failed":
        return None
    where = _where(outcome, report)
    if report.error is not None:
        words, consequence = f"{report.error}{where}", bool(_CONSEQUENCE.search(report.error))
        ended_s = report.ended_s or 0.0
    elif death is not None and death.signal is not None:
        name = signal_name(death.signal)
        words = f"ended by {name}{where}"
        if death.signal == signal.SIGKILL:
            words += "; the kernel does that when memory runs out (see dmesg)"
        consequence, ended_s = several and death.signal in _BY_LAUNCHERS, death.ended_s
    elif death is not None and death.exit_code and several:
        words, consequence, ended_s = f"exit code {death.exit_code}{where}", False, death.ended_s
    elif death is not None and death.status is None and report.ended_s is None and several:
        # Its parent was faster: a process that ends by itself, or by an exception, would have said so.
        words, consequence, ended_s = f"ended without a word, as a signal ends a process{where}", True, death.ended_s
    else:
        return None
    return _End(consequence, ended_s, report.rank, f"rank {report.rank}: {words}")


def _where(outcome: Outcome, report: ProcessReport) -> str:
    """How far the rank had come."""
    told = outcome.latest.get(report.rank)
    if report.ended_s is None and told is not None and told.pid == report.pid and told.phase in _PHASES:
        of = f" of {told.of}" if told.of else ""
        return f", at {_PHASES[told.phase]} {told.steps}{of}"
    if not report.calls:
        return ", before its first optimizer step"
    return f", {'after' if report.ended_s is not None else 'some time after'} optimizer step {report.calls}"


_PHASES = {"warmup": "warm-up step", "timed": "timed step", "profiled": "recorded step"}
