"""Launch a prepared run."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from gpudiag.app.profile.prepare import Prepared
from gpudiag.model.benchmarks.launch_request import ProgramPlan
from gpudiag.model.run import INFERENCE_FILE, RunRecord
from gpudiag.model.run_directory import FACTS_FILE, write_json
from gpudiag.training.jobs.volume.storage import remove_volumes
from gpudiag.training.launch import launch
from gpudiag.training.models.registry import WORKLOADS
from gpudiag.training.session.progress import Progress


def train(prepared: Prepared, observer: Callable[[Progress], None], program: ProgramPlan | None = None) -> RunRecord:
    """Train and record, and write run.json, facts.json, traces and logs into the run directory.

    Args:
        prepared: the run.
        observer: called with each message of each process.
        program: the program to run instead of the job's workload, if the run was prepared by `prepare_program`.

    Measurements made before an error are kept.
    """
    plan = msgspec.structs.replace(prepared.plan, program=program)
    plan.run_dir.mkdir(parents=True, exist_ok=True)
    if plan.has_rank_0:
        (plan.run_dir / INFERENCE_FILE).unlink(missing_ok=True)  # left by an earlier run
        write_json(plan.run_dir / FACTS_FILE, prepared.facts)
    try:
        return launch(plan, observer, has_gpudiag=prepared.interpreter.has_gpudiag)
    except BaseException:
        entry = WORKLOADS.get(plan.job.workload)
        if program is None and entry is not None and not entry.trains:
            # An incomplete predicted volume has gigabytes and is useless. A killed process could not remove its volume.
            remove_volumes(plan.run_dir)
        raise
