"""Run a sweep: several training jobs in sequence in one set of processes.

Starting processes, importing the framework and creating CUDA contexts takes at least ten seconds, while most jobs are
measured in two or three seconds. Therefore `gpudiag scale` starts one sweep, with as many processes as the largest job
needs. While a smaller job trains in some of the processes, the other processes sleep. Settings that are environment
variables (peer access, NCCL's algorithm) cannot change between two jobs of a sweep.

Each job has a separate rendezvous directory, so that it finds no values of an earlier job. If a job fails on all its
processes but leaves the device usable (out of memory, conflicting options), the sweep continues. Any other failure ends
the sweep, because such a failure may leave ranks in a collective that never ends, or a broken CUDA context. The
launcher then starts another sweep with the remaining jobs.
"""

from __future__ import annotations

import gc
import os
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from gpudiag.errors import UsageError, WorkerFailedError
from gpudiag.model.benchmarks.sweep import OUTCOME_FILE, EntryOutcome, SweepEntry, SweepPlan
from gpudiag.model.job import Job
from gpudiag.model.run import RankRecord
from gpudiag.model.run_directory import write_json
from gpudiag.training.frameworks.pytorch.runtime import new_job
from gpudiag.training.loop.launched import Launched, set_launched
from gpudiag.training.models.registry import workload_entry
from gpudiag.training.session import record
from gpudiag.training.session.agreement import STORE_VARIABLE, DirectoryStore
from gpudiag.training.session.position import current_position
from gpudiag.training.session.progress import ProgressSender
from gpudiag.training.session.step_counts import TimingTarget

#: Maximum seconds to wait for the other processes after a job, unless a process has failed.
_TOGETHER_S = 900.0
#: Maximum seconds to wait after a process has failed. Then the other processes either fail soon or hang.
_AFTER_FAILURE_S = 8.0


class _Report(msgspec.Struct):
    """The outcome of one job in one process. `usage` is True if the error is a UsageError."""

    error: str | None = None
    out_of_memory: bool = False
    usage: bool = False

    @property
    def usable(self) -> bool:
        """True if the process can train another job."""
        return self.error is None or self.out_of_memory or self.usage


class ProcessMessages:
    """Exchange messages between all processes of a launch, through files in the launch's private directory."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.directory = Path(os.environ[STORE_VARIABLE])
        self._store = DirectoryStore(self.directory / "sweep")

    def send(self, key: str, value: str) -> None:
        """Post a value for the other processes."""
        self._store.set(key, value)

    def receive(self, key: str, *, failed: bool = False) -> str | None:
        """Wait for the value of a key; return None after a timeout, which is short if a process has `failed`."""
        until = time.monotonic() + (_AFTER_FAILURE_S if failed else _TOGETHER_S)
        pause_s = 0.001
        while not self._store.check([key]):
            if time.monotonic() > until:
                return None
            time.sleep(pause_s)
            pause_s = min(0.02, 1.5 * pause_s)
        return str(self._store.get(key).decode())


def run_sweep(plan: SweepPlan, started: Launched) -> None:
    """Run all jobs of the sweep in which this process takes part."""
    place = current_position()
    sweep = _Sweep(started, ProcessMessages(place.rank, place.world_size), len(plan.entries))
    for number, entry in enumerate(plan.entries):
        sweep.take(number, entry)
    # The launcher checks that each of its processes has left a record.
    rank_record = RankRecord(
        rank=place.rank, local_rank=place.local_rank, host=place.host, pid=place.pid, device="", device_name=""
    )
    record.write_rank(started.run_dir, rank_record)
    sweep.progress.tell("done")


class _Sweep:
    """Run the jobs of a sweep in one process. `entries` is the number of jobs."""

    def __init__(self, started: Launched, messages: ProcessMessages, entries: int) -> None:
        self.started, self.messages = started, messages
        self.progress = ProgressSender(messages.rank)
        self._entries = entries
        self._began_s = time.monotonic()

    def take(self, number: int, entry: SweepEntry) -> None:
        """Train job `number` if this process takes part in it. Return when all processes of the job have ended it.

        The job's first process (`leads`) writes the outcome into the job's directory, before and after the training.
        Raise WorkerFailedError if a process did not answer, or failed and cannot train another job.
        """
        if not self._is_time(number, entry):
            return
        messages = self.messages
        directory = self.started.run_dir.parent / entry.directory
        leads = messages.rank == entry.ranks[0]
        outcome = EntryOutcome(began=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
        began_s = time.monotonic()
        report = _Report()
        if leads:
            self.progress.tell("starting", number, self._entries)
            directory.mkdir(parents=True, exist_ok=True)
            write_json(directory / OUTCOME_FILE, outcome)
        if messages.rank in entry.ranks:
            report = self._train(number, entry, directory)
            messages.send(f"{number}/{messages.rank}", msgspec.json.encode(report).decode())
        reports = self._reports(number, entry, report)
        worst = _worst(reports)
        if leads:
            outcome = msgspec.structs.replace(
                outcome,
                done=worst.error is None,
                seconds=time.monotonic() - began_s,
                error=worst.error,
                out_of_memory=worst.out_of_memory,
                usage=worst.usage,
            )
            write_json(directory / OUTCOME_FILE, outcome)
            messages.send(f"{number}/noted", "1")
        elif messages.size > 1:
            # If this process failed before the leader has written, the launcher could end the leader too early.
            messages.receive(f"{number}/noted")
        if None in reports or not worst.usable:
            raise WorkerFailedError(worst.error or "a process did not answer")

    def _is_time(self, number: int, entry: SweepEntry) -> bool:
        """Return whether the job may begin, at most `entry.not_after_s` seconds after the sweep began (None: any time).

        Rank 0 decides for all ranks. Without its answer, return False.
        """
        if entry.not_after_s is None:
            return True
        if self.messages.rank == 0:
            begin = time.monotonic() - self._began_s <= entry.not_after_s
            self.messages.send(f"{number}/begin", "yes" if begin else "no")
            return begin
        return self.messages.receive(f"{number}/begin") == "yes"

    def _reports(self, number: int, entry: SweepEntry, own_report: _Report) -> list[_Report | None]:
        """Return the report of each process of the job; None in place of a missing report."""
        if self.messages.size == 1:
            return [own_report]
        reports: list[_Report | None] = []
        failed = own_report.error is not None
        for rank in entry.ranks:
            text = self.messages.receive(f"{number}/{rank}", failed=failed)
            report = None if text is None else msgspec.json.decode(text, type=_Report)
            reports.append(report)
            failed = failed or report is None or report.error is not None
        return reports

    def _train(self, number: int, entry: SweepEntry, directory: Path) -> _Report:
        """Train one job as if gpudiag had started the processes for this job only. Return the outcome."""
        try:
            with self._environment(number, entry):
                set_launched(
                    Launched(
                        run_dir=directory,
                        job=entry.job,
                        target=TimingTarget(accuracy=entry.accuracy, seconds=entry.seconds),
                        warmup_s=entry.warmup_s,
                        recorded=entry.recorded,
                    )
                )
                _train_or_predict(entry.job)
        except Exception as error:  # noqa: BLE001  # reported to the other processes
            traceback.print_exc()
            return _Report(
                error=str(error) if isinstance(error, UsageError) else f"{type(error).__name__}: {error}"[:500],
                out_of_memory=_out_of_memory(error),
                usage=isinstance(error, UsageError),
            )
        finally:
            set_launched(self.started)
            free_memory()
        return _Report()

    @contextmanager
    def _environment(self, number: int, entry: SweepEntry) -> Iterator[None]:
        """Set the environment variables for job `number` within the block. A process's rank may differ between jobs."""
        messages = self.messages
        size = str(len(entry.ranks))
        values = {
            "RANK": str(entry.ranks.index(messages.rank)),
            "WORLD_SIZE": size,
            "LOCAL_RANK": str(messages.rank),  # selects the device
            "LOCAL_WORLD_SIZE": size,
            "GROUP_RANK": "0",
            "GROUP_WORLD_SIZE": "1",
            STORE_VARIABLE: str(messages.directory / f"job-{number}"),
        }
        new_job()  # number the sessions from 0, as the job's other ranks do
        before = {name: os.environ.get(name) for name in values}
        os.environ.update(values)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


def _worst(reports: list[_Report | None]) -> _Report:
    """Return the report of a process that cannot train another job, or else of a failed process, or else any report."""
    received = [report for report in reports if report is not None]
    return min(received, key=lambda report: (report.usable, report.error is None), default=_Report())


def _train_or_predict(job: Job) -> None:
    """Train the workload, or predict with it."""
    if workload_entry(job.workload).trains:
        from gpudiag.training.jobs.train import train

        train(job)
    else:
        from gpudiag.training.jobs.volume.unet3d_predict import predict

        predict(job)


def _out_of_memory(error: BaseException) -> bool:
    torch: Any = sys.modules.get("torch")
    kinds = (MemoryError,) if torch is None else (MemoryError, torch.cuda.OutOfMemoryError)
    return isinstance(error, kinds) or "out of memory" in str(error).lower()


def free_memory() -> None:
    """Free the memory of the previous job, and the caches of torch.compile."""
    gc.collect()
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return
    if "torch._dynamo" in sys.modules:  # importing this module takes seconds
        torch.compiler.reset()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
