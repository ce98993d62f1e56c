"""The sweep: several training jobs, one after the other, in one set of processes.

Starting processes, importing the framework and making CUDA contexts takes ten seconds and more, while most jobs need
two or three for their measurement. `gpudiag scale` therefore starts one sweep, through the launcher, in as many
processes as the largest job needs; smaller jobs train in the first of them while the others wait without any work. What
is set in the environment of a process (peer access, NCCL's algorithm) cannot change between two jobs of a sweep.

Each job has a rendezvous of its own, so that nothing of an earlier one is found by a later one. A job that fails on all
its processes with a usable device (out of memory, options that do not go together) ends alone; any other failure may
leave peers in a collective that never ends or a broken context, and so ends the sweep: the launcher starts another one
with what is left.
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
from gpudiag.model.benchmarks.sweep import OUTCOME_FILE, Outcome, SweepEntry, SweepPlan
from gpudiag.model.job import Job
from gpudiag.model.run import RankRecord
from gpudiag.model.run_directory import write_json
from gpudiag.training.frameworks.directory_store import STORE_VARIABLE, DirectoryStore
from gpudiag.training.frameworks.pytorch.store import new_job
from gpudiag.training.models.registry import workload_entry
from gpudiag.training.session import record
from gpudiag.training.session.enough import Enough
from gpudiag.training.session.launched import Launched, set_launched
from gpudiag.training.session.place import this_place
from gpudiag.training.session.progress import ProgressSender

#: How long one process waits for the others once a job is over on it: a peer that failed alone has left it hanging
#: before, and the launcher's patience ends that.
_TOGETHER_S = 900.0
#: Once a process has failed, its peers are hanging or about to fail too.
_AFTER_FAILURE_S = 8.0


class _Report(msgspec.Struct):
    """What one process says of one job."""

    error: str | None = None
    out_of_memory: bool = False
    usage: bool = False

    @property
    def usable(self) -> bool:
        """May this process go on with another job?"""
        return self.error is None or self.out_of_memory or self.usage


class _Roll:
    """All processes of the sweep and a directory of the launch, through which they keep together between jobs."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.directory = Path(os.environ[STORE_VARIABLE])
        self._store = DirectoryStore(self.directory / "sweep")

    def say(self, key: str, value: str) -> None:
        """Leave a value for the others."""
        self._store.set(key, value)

    def hear(self, key: str, *, timeout_s: float) -> str | None:
        """Wait for a value; None when it does not come in time. Does nothing in between but sleep."""
        until = time.monotonic() + timeout_s
        pause_s = 0.001
        while not self._store.check([key]):
            if time.monotonic() > until:
                return None
            time.sleep(pause_s)
            pause_s = min(0.02, 1.5 * pause_s)
        return str(self._store.get(key).decode())


def run_sweep(plan: SweepPlan, started: Launched) -> None:
    """Run this process's share of the sweep."""
    place = this_place()
    sweep = _Sweep(started, _Roll(place.rank, place.world_size), len(plan.entries))
    for number, entry in enumerate(plan.entries):
        sweep.take(number, entry)
    # The launcher wants to see that each of its processes has done something.
    mine = RankRecord(
        rank=place.rank, local_rank=place.local_rank, host=place.host, pid=place.pid, device="", device_name=""
    )
    record.write_rank(started.run_dir, mine)
    sweep.progress.tell("done")


class _Sweep:
    """One process's way through the plan."""

    def __init__(self, started: Launched, roll: _Roll, entries: int) -> None:
        self.started = started
        self.roll = roll
        self.progress = ProgressSender(roll.rank)
        self._entries = entries
        self._began_s = time.monotonic()

    def take(self, number: int, entry: SweepEntry) -> None:
        """Do this process's part of one job, and go on when all processes have done theirs.

        Raises:
            WorkerFailedError: a process failed in a way after which this set of processes cannot go on.
        """
        if not self._is_time(number, entry):
            return
        roll = self.roll
        directory = self.started.run_dir.parent / entry.directory
        leads = roll.rank == entry.ranks[0]
        outcome = Outcome(began=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
        began_s = time.monotonic()
        report = _Report()
        if leads:
            self.progress.tell("starting", number, self._entries)
            directory.mkdir(parents=True, exist_ok=True)
            write_json(directory / OUTCOME_FILE, outcome)
        if roll.rank in entry.ranks:
            report = self._train(number, entry, directory)
            roll.say(f"{number}/{roll.rank}", msgspec.json.encode(report).decode())
        reports = self._reports(number, entry, report)
        worst = next((one for one in reports if one is not None and not one.usable), None)
        worst = worst or next((one for one in reports if one is not None and one.error is not None), None)
        if leads:
            seconds = time.monotonic() - began_s
            outcome = (
                msgspec.structs.replace(outcome, done=True, seconds=seconds)
                if worst is None
                else msgspec.structs.replace(
                    outcome,
                    seconds=seconds,
                    error=worst.error,
                    out_of_memory=worst.out_of_memory,
                    usage=worst.usage,
                )
            )
            write_json(directory / OUTCOME_FILE, outcome)
            roll.say(f"{number}/noted", "1")
        elif roll.size > 1:
            roll.hear(f"{number}/noted", timeout_s=_TOGETHER_S)
        if None in reports or any(one is not None and not one.usable for one in reports):
            raise WorkerFailedError(worst.error if worst is not None and worst.error else "a process did not answer")

    def _is_time(self, number: int, entry: SweepEntry) -> bool:
        """Rank 0's clock decides whether the job is still begun."""
        if entry.not_after_s is None:
            return True
        if self.roll.rank == 0:
            begin = time.monotonic() - self._began_s <= entry.not_after_s
            self.roll.say(f"{number}/begin", "yes" if begin else "no")
            return begin
        return self.roll.hear(f"{number}/begin", timeout_s=_TOGETHER_S) == "yes"

    def _reports(self, number: int, entry: SweepEntry, mine: _Report) -> list[_Report | None]:
        """What each process that takes part says; None of one that says nothing while a peer of it has failed."""
        if self.roll.size == 1:
            return [mine]
        reports: list[_Report | None] = []
        failed = mine.error is not None
        for rank in entry.ranks:
            text = self.roll.hear(f"{number}/{rank}", timeout_s=_AFTER_FAILURE_S if failed else _TOGETHER_S)
            reports.append(None if text is None else msgspec.json.decode(text, type=_Report))
            failed = failed or text is None or reports[-1] is None or reports[-1].error is not None
        return reports

    def _train(self, number: int, entry: SweepEntry, directory: Path) -> _Report:
        """Train as if gpudiag had started this job alone."""
        try:
            with self._standing(number, entry):
                set_launched(
                    Launched(
                        run_dir=directory,
                        job=entry.job,
                        enough=Enough(accuracy=entry.accuracy, seconds=entry.seconds),
                        warmup_s=entry.warmup_s,
                        recorded=entry.recorded,
                    )
                )
                _work(entry.job)
        except Exception as error:  # noqa: BLE001  # told to the others, whatever it is, before anyone goes on
            traceback.print_exc()
            return _Report(
                error=str(error) if isinstance(error, UsageError) else f"{type(error).__name__}: {error}"[:500],
                out_of_memory=_out_of_memory(error),
                usage=isinstance(error, UsageError),
            )
        finally:
            set_launched(self.started)
            _forget()
        return _Report()

    @contextmanager
    def _standing(self, number: int, entry: SweepEntry) -> Iterator[None]:
        """Be the process of a job of `len(entry.ranks)` that meets in a directory of its own."""
        roll = self.roll
        index = entry.ranks.index(roll.rank)
        size = str(len(entry.ranks))
        values = {
            "RANK": str(index),
            "WORLD_SIZE": size,
            "LOCAL_RANK": str(roll.rank),  # the device
            "LOCAL_WORLD_SIZE": size,
            "GROUP_RANK": "0",
            "GROUP_WORLD_SIZE": "1",
            STORE_VARIABLE: str(roll.directory / f"job-{number}"),
        }
        new_job()
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


def _work(job: Job) -> None:
    """Train, or predict, as the workload does."""
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


def _forget() -> None:
    """Give back what the last job had, so that the next one finds the device as the first did."""
    gc.collect()
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return
    if "torch._dynamo" in sys.modules:  # which takes seconds to import
        torch.compiler.reset()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
