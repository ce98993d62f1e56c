"""Train changed jobs in turns with the unchanged job, in each process of `gpudiag profile --try`.

The unchanged job stays in memory. Changed jobs are set up one after the other, so there are at most two models. Blocks
of steps alternate in the order unchanged, changed, changed, unchanged, so that drift affects both jobs equally.
"""

from __future__ import annotations

import statistics
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from operator import attrgetter
from typing import Any

import msgspec

from gpudiag.errors import UsageError, WorkerFailedError
from gpudiag.model.benchmarks.tries import PAIRS, ChangeTurns, MeasuredTries, TriesPlan
from gpudiag.model.job import Job
from gpudiag.model.run import RankRecord
from gpudiag.model.run_directory import TRIES_FILE, write_json
from gpudiag.training.jobs.own_function import call_changed
from gpudiag.training.jobs.sweep import ProcessMessages, free_memory
from gpudiag.training.loop.launched import Launched, set_launched
from gpudiag.training.loop.turns import JobTurns
from gpudiag.training.models.registry import is_own
from gpudiag.training.session import record
from gpudiag.training.session.position import current_position
from gpudiag.training.session.progress import ProgressSender

#: Approximate duration of a block in ms, and its minimum number of steps.
_BLOCK_MS = 400.0
_LEAST_STEPS = 3
#: Number of untimed steps after switching between two jobs. In these steps the host runs ahead again.
_RUN_IN_STEPS = 2
#: Number of first steps, which include compilation, autotuning, allocation and DDP's rebuilding of buckets.
_FIRST_STEPS = 3
#: Warm-up ends when the step times of two consecutive blocks differ by less than `_AGREE`. A warm-up has at least
#: `_LEAST_LOOKS` blocks after the first block, and at most `_MOST_LOOKS` blocks in total.
_AGREE, _LEAST_LOOKS, _MOST_LOOKS = 0.03, 3, 8
#: Settings of PyTorch's arithmetic in `torch.backends`. Older settings come first, because they change newer settings.
_SETTINGS = (
    "cudnn.allow_tf32",
    "cudnn.benchmark",
    "cudnn.deterministic",
    "cuda.matmul.fp32_precision",
    "cudnn.conv.fp32_precision",
    "cudnn.rnn.fp32_precision",
)


def run_tries(plan: TriesPlan, started: Launched) -> None:
    """Measure all changed jobs together with the other processes. Rank 0 writes the results after each change."""
    place = current_position()
    set_launched(msgspec.structs.replace(started, recorded=False))  # steps are only timed
    changes: list[ChangeTurns] = []
    with _one_process_group():
        trials = _ChangeTrials(started.job, ProcessMessages(place.rank, place.world_size))
        for number, job in enumerate(plan.jobs):
            changes.append(trials.measure(job, number, len(plan.jobs)))
            if place.rank == 0:
                write_json(started.run_dir / TRIES_FILE, MeasuredTries(changes=tuple(changes)))
        trials.unchanged.end()
        free_memory()
    # The launcher checks that each of its processes has left a record.
    rank_record = RankRecord(
        rank=place.rank, local_rank=place.local_rank, host=place.host, pid=place.pid, device="", device_name=""
    )
    record.write_rank(started.run_dir, rank_record)
    trials.progress.tell("done")


class _ChangeTrials:
    """Measure all changed jobs in one process."""

    def __init__(self, job: Job, messages: ProcessMessages) -> None:
        self.unchanged = _turns_of(job)
        self.progress = ProgressSender(messages.rank)
        self._messages = messages
        self._gathered = 0
        self._warm = False

    def measure(self, job: Job, number: int, jobs: int) -> ChangeTurns:
        """Train changed job `number` (from 0) of `jobs` in turns with the unchanged job. Return their step times.

        If the change does not fit the job or failed, return the reason instead (`skipped` or `failed`).
        Raise WorkerFailedError if the unchanged job failed, or the changed job failed on some ranks only.
        """
        if job.change is None:
            raise ValueError("a job without a change")
        self.progress.tell("warmup", number, jobs)
        if not self._warm:
            _, problem = self._together(partial(self._warm_up, self.unchanged))
            if problem is not None:
                raise WorkerFailedError(f"the unchanged job failed: {problem}")
            self._warm = True
        turns = _turns_of(job)
        try:
            step_ms, problem = self._together(partial(self._warm_up, turns))
            if step_ms is None:
                unfit = problem is not None and problem.startswith(_UNFIT)
                reason = (problem or "").removeprefix(_UNFIT)
                return ChangeTurns(
                    change=job.change, skipped=reason if unfit else None, failed=None if unfit else reason
                )
            blocks, problem = self._together(partial(self._alternate, turns, step_ms, number * PAIRS, jobs * PAIRS))
            return ChangeTurns(
                change=job.change, base_ms=(blocks or ((), ()))[0], changed_ms=(blocks or ((), ()))[1], failed=problem
            )
        finally:
            turns.end()
            del turns  # so that `free_memory` frees the model
            free_memory()

    def _warm_up(self, turns: JobTurns) -> float:
        """Train until the step times of two blocks agree, at most `_MOST_LOOKS` blocks.

        Return the step time of the slowest rank in the last block, in ms.
        """
        before = self._slowest(turns.block(_FIRST_STEPS, run_in=0))
        for look in range(1, _MOST_LOOKS):
            now = self._slowest(turns.block(_steps(before), run_in=0))
            if look >= _LEAST_LOOKS and abs(now / before - 1) < _AGREE:
                return now
            before = now
        return before

    def _alternate(
        self, turns: JobTurns, step_ms: float, first_pair: int, pairs: int
    ) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Time blocks of both jobs in turns. `step_ms` is the changed job's step time, which sets the steps of a block.

        Progress counts the pairs of blocks of all changed jobs: from number `first_pair` on, of `pairs`.
        Return two tuples (unchanged job, changed job) with the mean step time of each block on the slowest rank, in ms.
        """
        base: list[float] = []
        changed: list[float] = []
        steps = _steps(step_ms)
        for pair in range(PAIRS):
            self.progress.tell("timed", first_pair + pair, pairs)
            order = -1 if pair % 2 else 1  # every other pair begins with the changed job
            for job, means in ((self.unchanged, base), (turns, changed))[::order]:
                means.append(self._slowest(job.block(steps, run_in=_RUN_IN_STEPS)))
        return tuple(base), tuple(changed)

    def _slowest(self, times: list[float]) -> float:
        return max(map(float, self._gather(str(statistics.fmean(times)))))

    def _together(self, trial: Callable[[], Any]) -> tuple[Any, str | None]:
        """Return (result, None), or (None, problem) if the trial failed on all ranks; raise if it failed on some."""
        try:
            return trial(), None
        except WorkerFailedError:
            raise
        except Exception as error:  # the next change may work
            traceback.print_exc()
            problem = f"{_UNFIT}{error}" if isinstance(error, UsageError) else f"{type(error).__name__}: {error}"
            problems = self._gather(_FAILED + problem.strip().splitlines()[0][:300])
            if not all(text.startswith(_FAILED) for text in problems):
                raise WorkerFailedError(f"rank {self._messages.rank}: {problem}") from error
            return None, problems[0].removeprefix(_FAILED)

    def _gather(self, text: str) -> list[str]:
        """Return the texts of all ranks. A text that begins with `_FAILED` reports a failure.

        Raise WorkerFailedError if a rank did not answer, or if another rank reports a failure and this rank does not.
        """
        self._gathered += 1
        messages, failed = self._messages, text.startswith(_FAILED)
        messages.send(f"{self._gathered}/{messages.rank}", text)
        texts = []
        for rank in range(messages.size):
            other = messages.receive(f"{self._gathered}/{rank}", failed=failed)
            if other is None:
                raise WorkerFailedError(text.removeprefix(_FAILED) if failed else f"rank {rank} did not answer")
            if other.startswith(_FAILED) and not failed:
                raise WorkerFailedError(f"rank {rank}: {other.removeprefix(_FAILED)}")
            texts.append(other)
        return texts


#: Prefixes of messages between ranks: the trial failed; the change does not fit the job.
_FAILED, _UNFIT = "failed: ", "unfit: "


def _steps(step_ms: float) -> int:
    return max(_LEAST_STEPS, round(_BLOCK_MS / max(step_ms, 1e-3)))


def _turns_of(job: Job) -> JobTurns:
    return JobTurns(partial(_train, job), _saved_settings)


def _train(job: Job) -> None:
    if is_own(job.workload):
        call_changed(job)
    else:
        from gpudiag.training.jobs.train import train

        train(job)


def _saved_settings() -> Callable[[], None]:
    """Return a function that restores the current values of PyTorch's settings."""
    import torch

    backends: Any = torch.backends
    before: list[tuple[Callable[[Any], object], Any]] = []
    for path in _SETTINGS:
        folder, _, name = path.rpartition(".")
        # PyTorch before 2.9 lacks the newer settings. Older settings cannot be read if the job uses newer settings.
        with suppress(RuntimeError, AttributeError):
            owner = attrgetter(folder)(backends)
            before.append((partial(setattr, owner, name), getattr(owner, name)))
    with suppress(RuntimeError):
        # This oldest setting changes the others, so it is restored first.
        before.insert(0, (torch.set_float32_matmul_precision, torch.get_float32_matmul_precision()))

    def restore() -> None:
        for assign, value in before:
            assign(value)

    return restore


@contextmanager
def _one_process_group() -> Iterator[None]:
    """Let all jobs share one default process group. The first job joins the group, and no job leaves the group."""
    from torch import distributed

    dist: Any = distributed
    if not dist.is_available():
        yield
        return
    join, leave = dist.init_process_group, dist.destroy_process_group

    def init_process_group(*arguments: Any, **options: Any) -> None:
        if not dist.is_initialized():
            join(*arguments, **options)

    def destroy_process_group(group: Any = None) -> None:
        if group is not None and group is not dist.group.WORLD:
            leave(group)

    dist.init_process_group, dist.destroy_process_group = init_process_group, destroy_process_group
    try:
        yield
    finally:
        dist.init_process_group, dist.destroy_process_group = join, leave
        if dist.is_initialized():
            leave()
