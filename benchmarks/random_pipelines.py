"""Score the analysis of random pipeline-parallel jobs: `python benchmarks/random_pipelines.py --jobs 200 --seed 0`.

Each job is drawn at random (1F1B, GPipe or interleaved; 2 to 8 stages). A simulator of workers executes the job, and
its table of operations is analysed. The true cost of a fault comes from executing the job again without the fault. An
analysis must name each fault that costs at least 7 % of the step. The named ranks must be right, and the cost must be
within 15 % or 2 % of the step. The first finding must be about the costliest fault or a fault that costs almost as
much. No false straggler finding may promise savings of 5 % of the step. The simulated steps must differ from the
recorded steps by less than 1 % (tests/analysis/pipeline/judge.py).

With `--traces` the simulator of traces executes the jobs (1F1B and GPipe), and their traces are analysed
(tests/analysis/diagnosis/traced_pipelines.py).
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.analysis.diagnosis import traced_pipelines
from tests.analysis.pipeline.judge import JudgedPipeline, judged
from tests.analysis.pipeline.random_pipelines import FAULTS, SCHEDULES, draw


def main() -> int:
    """Judge jobs and print the scores."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--jobs", type=int, default=200)
    options.add_argument("--seed", type=int, default=0, help="of the first job; the others follow")
    options.add_argument("--traces", action="store_true", help="analyse traces instead of tables of operations")
    given = options.parse_args()
    began = time.perf_counter()
    if given.traces:
        return _judge_traces(given.seed, given.jobs)
    jobs = {seed: judged(draw(seed)) for seed in range(given.seed, given.seed + given.jobs)}
    print(
        f"{len(jobs)} jobs, seeds {given.seed} to {given.seed + given.jobs - 1}, {time.perf_counter() - began:.0f} s\n"
    )
    _print_table(list(jobs.values()))
    for seed, job in jobs.items():
        if job.wrong:
            print(f"{seed}: {_described(job)} | {'; '.join(job.wrong)}")
    return 0


def _judge_traces(seed: int, count: int) -> int:
    """Judge pipelines by their traces.

    Print the share of right jobs by fault, schedule and number of stages, and each wrong job.
    """
    jobs = {number: traced_pipelines.judged(traced_pipelines.draw(number)) for number in range(seed, seed + count)}
    rows: list[tuple[str, Callable[[traced_pipelines.Judged], bool]]] = [("all", lambda _: True)]
    rows += [(fault, lambda of, fault=fault: of.job.fault == fault) for fault in traced_pipelines.FAULTS]  # type: ignore[misc]
    schedules = traced_pipelines.SCHEDULES
    rows += [(name, lambda of, name=name: of.job.settings["schedule"] == name) for name in schedules]  # type: ignore[misc]
    rows.append(("2 to 4 stages", lambda of: of.job.settings["stages"] <= 4))
    rows.append(("5 to 8 stages", lambda of: of.job.settings["stages"] > 4))
    print("| jobs | right |\n| --- | --- |")
    for name, chosen in rows:
        of_row = [job for job in jobs.values() if chosen(job)]
        print(f"| {name} | {_share(sum(not job.wrong for job in of_row), len(of_row))} |")
    for number, job in jobs.items():
        if job.wrong:
            print(f"{number}: {job.job.fault}, {job.job.settings} | {'; '.join(job.wrong)}")
    return 0


def _print_table(jobs: Sequence[JudgedPipeline]) -> None:
    """Print the share of right jobs by fault, schedule and number of stages, and the simulation's error."""
    rows: list[tuple[str, Callable[[JudgedPipeline], bool]]] = [("all", lambda _: True)]
    rows.append(("no fault", lambda job: not job.pipeline.faults))
    rows += [(fault, lambda job, fault=fault: job.pipeline.faults == (fault,)) for fault in FAULTS]  # type: ignore[misc]
    rows.append(("two faults", lambda job: len(job.pipeline.faults) == 2))
    rows += [(name, lambda job, name=name: job.pipeline.schedule == name) for name in SCHEDULES]  # type: ignore[misc]
    rows.append(("2 to 4 stages", lambda job: job.pipeline.stages <= 4))
    rows.append(("5 to 8 stages", lambda job: job.pipeline.stages > 4))
    print("| jobs | right |\n| --- | --- |")
    for name, chosen in rows:
        of_row = [job for job in jobs if chosen(job)]
        print(f"| {name} | {_share(sum(not job.wrong for job in of_row), len(of_row))} |")
    replay = [job.analysis.replay_error_percent for job in jobs]
    print(f"\nReplay error: {sum(replay) / len(replay):.3f} % mean, {max(replay):.3f} % at most\n")


def _share(right: int, of: int) -> str:
    """Return `right of n (95 % interval)`, by Wilson's method."""
    if not of:
        return "0 of 0"
    share, z = right / of, 1.96
    middle = (share + z * z / (2 * of)) / (1 + z * z / of)
    half = z * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of)) / (1 + z * z / of)
    return f"{right} of {of} ({100 * (middle - half):.0f} to {100 * (middle + half):.0f} %)"


def _described(job: JudgedPipeline) -> str:
    pipeline = job.pipeline
    costs = ", ".join(f"{fault} {100 * cost / job.step_ms:.0f} %" for fault, cost in job.costs.items())
    grid = f"{pipeline.schedule}, pp {pipeline.stages}, dp {pipeline.data_ranks}, {pipeline.microbatches} microbatches"
    found = ", ".join(finding.cause or finding.code for finding in job.analysis.findings)
    return f"{grid} | truth: {costs or 'none'} | found: {found or 'none'}"


if __name__ == "__main__":
    sys.exit(main())
