"""Train changed jobs by turns with the unchanged job, after recording the unchanged job (`gpudiag profile --try`)."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from gpudiag.app.profile.prepare import Prepared
from gpudiag.app.profile.train import train
from gpudiag.errors import UsageError, WorkerFailedError
from gpudiag.model.benchmarks.tries import PAIRS, TRIES_SCHEMA, ChangeTurns, MeasuredTries, TriesPlan
from gpudiag.model.job import Job
from gpudiag.model.run_directory import TRIES_FILE, below, readable_json, write_json
from gpudiag.training.jobs.changes import changed
from gpudiag.training.session.progress import Progress

TRIES_DIR = "tries"
#: Jobs by name of the change.
Jobs = dict[str, Job]


def fitting(job: Job) -> tuple[Jobs, dict[str, str]]:
    """Return the changed job for each change that fits the job, and the reason for each change that does not."""
    jobs: Jobs = {}
    reasons: dict[str, str] = {}
    for change in job.tries:
        try:
            jobs[change] = changed(job, change)
        except UsageError as error:
            reasons[change] = str(error)
    return jobs, reasons


def measure_tries(
    prepared: Prepared, jobs: Jobs, reasons: dict[str, str], say: Callable[[str, int, int | None], None]
) -> None:
    """Train the jobs by turns with the unchanged job, and write the result to the run directory.

    Args:
        prepared: the recorded run.
        jobs, reasons: as `fitting` returns them.
        say: called with (phase, number of the current pair, number of pairs). A pair is a block of steps of the
            unchanged job and a block of steps of a changed job.
    """
    plan = prepared.plan
    directory = below(plan.run_dir, TRIES_DIR)
    (directory / TRIES_FILE).unlink(missing_ok=True)
    failure = "no turn was complete"
    if jobs:
        names = list(jobs)

        def on_message(message: Progress) -> None:
            if message.phase == "warmup":  # `steps` is the number of the job
                say(f"trying {names[message.steps % len(names)]}: warming up", 0, None)
            elif message.phase == "timed":
                number, pair = divmod(message.steps, PAIRS)  # the processes number the pairs of all jobs consecutively
                say(f"trying {names[number % len(names)]} by turns with the unchanged job", pair, PAIRS)

        # The plan of the tries determines the numbers of steps.
        unchanged = msgspec.structs.replace(plan.job, steps=None, warmup=None)
        launch = msgspec.structs.replace(plan, run_dir=directory, job=unchanged)
        try:
            train(msgspec.structs.replace(prepared, plan=launch), on_message, TriesPlan(jobs=tuple(jobs.values())))
        except (WorkerFailedError, UsageError) as error:
            failure = str(error)
    measured = readable_json(directory / TRIES_FILE, MeasuredTries, TRIES_SCHEMA)
    turns = {row.change: row for row in measured.changes} if measured is not None else {}
    for change in plan.job.tries:  # a change without measurement was skipped for a reason, or has failed
        reason = reasons.get(change)
        turns.setdefault(change, ChangeTurns(change=change, skipped=reason, failed=failure if reason is None else None))
    rows = tuple(turns[change] for change in plan.job.tries)
    write_json(plan.run_dir / TRIES_FILE, MeasuredTries(changes=rows))
