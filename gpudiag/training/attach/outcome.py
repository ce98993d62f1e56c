"""Explain in one sentence why a command failed or could not be measured, from the records of its processes."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpudiag.model.run import RankRecord
from gpudiag.training.attach.attached_session import MIN_ADVISED_STEPS, MIN_ADVISED_WARMUP
from gpudiag.training.attach.boundaries import MIN_OBSERVED_CALLS
from gpudiag.training.attach.command_process import PATIENCE_S, VARIABLE, ProcessReport, Settings
from gpudiag.training.attach.command_watch import Death
from gpudiag.training.launch.failure_cause import name_ranks, signal_name
from gpudiag.training.session.progress import Progress
from gpudiag.training.session.step_counts import (
    ACTIVE_STEPS,
    MIN_UNPROFILED_STEPS,
    MIN_WARMUP_STEPS,
    line_steps,
    recording_steps,
)

#: Errors that a rank reports because another rank has ended.
_CONSEQUENCE = re.compile(
    r"connection (closed|reset|refused)|broken pipe|DistBackendError|DistNetworkError|DistStoreError|ncclRemoteError"
    r"|ncclSystemError|gloo|store.*(timeout|timed out)|SIGTERM|SignalException",
    re.IGNORECASE,
)
#: Signals that a launcher sends to the other ranks after a rank has failed.
_BY_LAUNCHERS = frozenset((signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
#: A shell returns this number plus the number of the signal that ended a process.
_SIGNALS_FROM = 128

_NOT_SEEN = f"python -I or -E, ssh, sudo, a container: pass PYTHONPATH and {VARIABLE} on, as mpirun -x does"
#: Name of a step in messages, by phase.
_PHASES = {
    "warmup": "warm-up step",
    "timed": "unprofiled step",
    "lines": "step that times source lines",
    "profiled": "recorded step",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandOutcome:
    """Records of a command that has ended, and of its processes.

    Attributes:
        settings: the command and its measurement settings.
        code: exit code of the command, or 128 plus the number of the signal that ended it.
        ranks: the records of the ranks.
        python_seen: True if at least one process was a Python interpreter that ran `entry/sitecustomize.py`.
        reports: reports of the processes that imported PyTorch.
        deaths: observed ends of these processes, by process number.
        latest: the last progress message of each rank, by rank.
        forwarded: signals that gpudiag received and forwarded.
    """

    settings: Settings
    code: int
    ranks: Sequence[RankRecord] = ()
    python_seen: bool = False
    reports: Sequence[ProcessReport] = ()
    deaths: Mapping[int, Death]
    latest: Mapping[int, Progress]
    forwarded: Sequence[int] = ()

    @property
    def measured(self) -> bool:
        """True if any rank has been timed or recorded."""
        return any(rank.unprofiled is not None or rank.trace is not None for rank in self.ranks)

    @property
    def programs(self) -> list[ProcessReport]:
        """Reports of processes that may train."""
        return [report for report in self.reports if not report.helper]

    @property
    def trained(self) -> list[ProcessReport]:
        """Reports of processes whose optimizers stepped."""
        return [report for report in self.reports if report.calls]

    @property
    def steps(self) -> int:
        """Largest number of optimizer steps of any process."""
        return max((report.calls for report in self.trained), default=0)


def failure_reason(outcome: CommandOutcome) -> str | None:
    """Return in one sentence why the command failed or was not measured, or which rank's record has an error.

    None if the command succeeded, a rank was measured, and no record has an error.
    """
    culprit = _culprit(outcome) if outcome.code else None
    if culprit is not None:
        return culprit
    if not outcome.measured:
        return _why_unmeasured(outcome)
    if outcome.code:
        return f"your command {_how_it_ended(outcome.code)}"
    return next((f"rank {rank.rank}: {rank.error}" for rank in outcome.ranks if rank.error is not None), None)


def warnings(outcome: CommandOutcome) -> list[str]:
    """Return warnings, if necessary, that ranks were measured separately and that processes were not measured."""
    sentences = []
    ranks = {rank.rank for rank in outcome.ranks if rank.unprofiled is not None or rank.trace is not None}
    trained = [report for report in outcome.trained if not report.helper]
    if len(ranks) > 1 and trained and all(report.world_size == 1 for report in trained):
        sentences.append(f"{name_ranks(sorted(ranks))} have no process group: each was measured separately")
    others = sum(report.stage == "not-first" for report in trained)
    if others:
        were = "process that trained was" if others == 1 else "processes that trained were"
        sentences.append(
            f"{others} more {were} not measured: only the first process of each rank is, and without the variable RANK "
            "every process is rank 0"
        )
    return sentences


def needed_steps(settings: Settings) -> int:
    """Return about how many optimizer steps a command must take to be measured."""
    warmup = MIN_WARMUP_STEPS if settings.warmup is None else settings.warmup
    unprofiled = settings.steps or MIN_UNPROFILED_STEPS
    lines = line_steps(0.0, unprofiled)  # the maximum, because the step time is unknown
    # After the observed calls, one more call begins the first step.
    return MIN_OBSERVED_CALLS + 1 + warmup + unprofiled + lines + recording_steps(ACTIVE_STEPS)


def _why_unmeasured(outcome: CommandOutcome) -> str:
    """Explain why no rank was timed or recorded."""
    if outcome.code:
        how = _how_it_ended(outcome.code)
        missing = _missing_script(outcome.settings.command)
        if missing is not None and not outcome.steps:
            return f"{missing}: no such file; your command {how}"
        if not outcome.steps:
            return f"your command {how} before its first optimizer step"
        after = f"after {outcome.steps} optimizer step{'s' * (outcome.steps != 1)}"
        return f"your command {how} {after}; about {needed_steps(outcome.settings)} are needed"
    failed = next((report for report in outcome.reports if report.stage == "failed"), None)
    if failed is not None:
        return f"rank {failed.rank}: gpudiag failed in your command, which continued: {failed.error}"
    return _why_too_few(outcome) if outcome.trained else _why_untrained(outcome)


def _why_untrained(outcome: CommandOutcome) -> str:
    """Explain why no optimizer stepped although the command succeeded."""
    if not outcome.python_seen and not outcome.reports:
        return f"your command started no Python that gpudiag can see ({_NOT_SEEN})"
    if not outcome.programs:
        return (
            f"your command imports no PyTorch, or not where gpudiag can see it ({_NOT_SEEN}); "
            "TensorFlow is measured with gpudiag.KerasCallback"
        )
    if any(report.own_profiler for report in outcome.programs):
        return "your command uses its own profiler and took no optimizer step: nothing was recorded"
    if any(report.distributed_optimizer for report in outcome.programs):
        return (
            "no step of an optimizer of torch.optim was seen: optimizers of torch.distributed.optim step in other "
            "processes through RPC, where gpudiag cannot see them"
        )
    patience_s = outcome.settings.patience_s or PATIENCE_S
    return (
        "your command imports PyTorch and took no step of an optimizer of torch.optim; a loop without an optimizer "
        f"(inference, updates by hand) is recorded after it has repeated its operators for {patience_s:g} s"
    )


def _why_too_few(outcome: CommandOutcome) -> str:
    """Explain why no step was timed although optimizers stepped and the command succeeded."""
    steps, needed = outcome.steps, needed_steps(outcome.settings)
    if steps >= needed:
        waiting = _why_waiting(outcome)
        if waiting is not None:
            return waiting
    seen = f"{steps} optimizer step{' was' if steps == 1 else 's were'} seen"
    if steps >= needed:
        error = next((rank.error for rank in outcome.ranks if rank.error is not None), None)
        return f"{seen}; {error or 'gpudiag could not tell which of them end a step'}"
    enough = f"about {needed} are needed"
    # If the user has set both options, smaller values are not suggested.
    if outcome.settings.warmup is None or outcome.settings.steps is None:
        least = needed_steps(replace(outcome.settings, warmup=MIN_ADVISED_WARMUP, steps=MIN_ADVISED_STEPS))
        enough += f", {least} with --warmup {MIN_ADVISED_WARMUP} --steps {MIN_ADVISED_STEPS}"
    return f"{seen}; {enough}"


def _why_waiting(outcome: CommandOutcome) -> str | None:
    """Explain why ranks still waited for the first step that all ranks measure; None if no rank waited."""
    trained = outcome.trained
    world_size = max(report.world_size for report in trained)
    if world_size == 1 or all(report.stage != "waiting" for report in trained):
        return None
    missing = sorted(set(range(world_size)) - {report.rank for report in trained})
    if missing:
        took = "took no optimizer step" if set(missing) <= _program_ranks(outcome) else "did not start"
        return f"{name_ranks(missing)} {took}: the measurement waits for all ranks, and the others trained unmeasured"
    return (
        f"{outcome.steps} optimizer steps were seen; the ranks had not yet agreed on the first step to measure, which "
        "takes more steps if steps are short"
    )


def _program_ranks(outcome: CommandOutcome) -> set[int]:
    return {report.rank for report in outcome.programs}


def _how_it_ended(code: int) -> str:
    if code > _SIGNALS_FROM and code - _SIGNALS_FROM in signal.valid_signals():
        return f"was ended by {signal_name(code - _SIGNALS_FROM)}"
    return f"failed with exit code {code}"


def _missing_script(command: Sequence[str]) -> str | None:
    script = next((word for word in command if word.endswith(".py") and not word.startswith("-")), None)
    return script if script is not None and not Path(script).exists() else None


@dataclass(frozen=True, slots=True, order=True)
class _RankEnd:
    """The end of a rank. Ends are sorted by time, but an end that is a consequence of another rank's end comes last."""

    consequence: bool
    ended_s: float
    rank: int
    sentence: str


def _culprit(outcome: CommandOutcome) -> str | None:
    """Describe the end of the rank that failed first; None if no rank ended by an error or a signal."""
    several = len(_program_ranks(outcome)) > 1
    ends = [end for report in outcome.programs if (end := _rank_end(outcome, report, several=several)) is not None]
    if not ends:
        return None
    sent = [signal_name(number) for number in outcome.forwarded if number in _BY_LAUNCHERS]
    return min(ends).sentence + (f"; gpudiag received {sent[0]} and forwarded it" if sent else "")


def _rank_end(outcome: CommandOutcome, report: ProcessReport, *, several: bool) -> _RankEnd | None:
    """Describe the end of a rank; None if the end is normal or unknown, or if gpudiag failed in the process.

    In a job of several ranks (`several`), an end may be a consequence of another rank's end.
    """
    if report.stage == "failed":
        return None
    where = _where(outcome, report)
    if report.error is not None:
        consequence = bool(_CONSEQUENCE.search(report.error))
        # An end without a time counts as the first.
        return _RankEnd(consequence, report.ended_s or 0.0, report.rank, f"rank {report.rank}: {report.error}{where}")
    death = outcome.deaths.get(report.pid)
    if death is None:
        return None
    consequence = False
    if death.signal is not None:
        how = f"ended by {signal_name(death.signal)}{where}"
        if death.signal == signal.SIGKILL:
            how += "; the kernel does that when memory runs out (see dmesg)"
        consequence = several and death.signal in _BY_LAUNCHERS
    elif death.exit_code and several:  # a single process's exit code is that of the command, which is reported anyway
        how = f"exit code {death.exit_code}{where}"
    elif death.status is None and report.ended_s is None and several:
        # The parent reaped the process, so its status is lost. After an exit or exception `ended_s` would be set.
        how, consequence = f"ended without a report, as a signal ends a process{where}", True
    else:
        return None
    return _RankEnd(consequence, death.ended_s, report.rank, f"rank {report.rank}: {how}")


def _where(outcome: CommandOutcome, report: ProcessReport) -> str:
    """Return the step that the rank had reached, as words that follow a sentence (", at recorded step 3 of 8")."""
    latest = outcome.latest.get(report.rank)
    if report.ended_s is None and latest is not None and latest.pid == report.pid and latest.phase in _PHASES:
        total = f" of {latest.of}" if latest.of else ""
        return f", at {_PHASES[latest.phase]} {latest.steps}{total}"
    if not report.calls:
        return ", before its first optimizer step"
    # Without a report at its end, a process may have taken more steps since its last report.
    return f", {'after' if report.ended_s is not None else 'some time after'} optimizer step {report.calls}"
