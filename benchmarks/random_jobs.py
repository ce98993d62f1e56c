"""Score the diagnosis of random jobs: `python benchmarks/random_jobs.py --jobs 500 --seed 0`.

Each job is drawn at random, simulated as traces and diagnosed. The true cost of each cause is computed by simulating
the job again without the cause (tests/analysis/diagnosis/random_jobs). A diagnosis is right if its first finding has
the correct code, cause and ranks, its amount is within 15 % or 1 ms, and no false finding promises savings of 5 % of
the step.

    --worst 20          print this number of wrong jobs, one line each
    --jobs-of loader    draw jobs with one kind of fault only
    --only 17           print all details of one job
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.analysis.diagnosis.random_jobs.judge import NOTABLE
from tests.analysis.diagnosis.random_jobs.law import unexplained
from tests.analysis.diagnosis.random_jobs.recipe import ALL_KINDS, Fault, Recipe
from tests.analysis.diagnosis.random_jobs.score import Judged, Share, by_kind, judged
from tests.analysis.diagnosis.random_jobs.truth import Cause, Truth


def main() -> int:
    """Judge jobs and print the scores."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--jobs", type=int, default=500)
    options.add_argument("--seed", type=int, default=0, help="of the first job; the others follow")
    options.add_argument("--worst", type=int, default=20)
    options.add_argument("--jobs-of", choices=ALL_KINDS)
    options.add_argument("--only", type=int, help="print all of the job of this seed")
    given = options.parse_args()
    if given.only is not None:
        _print_job(judged(given.only, given.jobs_of))
        return 0
    began = time.perf_counter()
    jobs = [judged(seed, given.jobs_of) for seed in range(given.seed, given.seed + given.jobs)]
    print(
        f"{len(jobs)} jobs, seeds {given.seed} to {given.seed + given.jobs - 1}, {time.perf_counter() - began:.0f} s\n"
    )
    _print_shares(jobs)
    _print_confusion(jobs)
    _print_confidence(jobs)
    # The law: if other ranks wait for a rank, each large part of its step time needs a finding or a message that
    # explains it. A bucket is a part of the step time, such as `input`.
    unlawful = [job for job in jobs if job.unlawful]
    print(f"Against the law (a bucket without an explanation): {Share(len(unlawful), len(jobs))}")
    for words, count in Counter(_without_figures(job.unlawful[0]) for job in unlawful).most_common(8):
        print(f"  {count:4}  {words}")
    unexplained_buckets = Counter(bucket for job in jobs for bucket in unexplained(job.analysis))
    print(f"Buckets that a line calls unexplained: {dict(unexplained_buckets.most_common())}")
    loaders = [job.recipe.seed for job in jobs if job.verdict.loader_as_launching]
    print(f"Loaders called launch-bound: {len(loaders)} {loaders or ''}\n")
    wrong = [job for job in jobs if not job.verdict.right]
    print(f"Wrong, {min(given.worst, len(wrong))} of {len(wrong)}, those first that cost most of the step:")
    for job in sorted(wrong, key=_cost, reverse=True)[: given.worst]:
        print(f"  {_line(job)}")
    return 0


def _print_shares(jobs: Sequence[Judged]) -> None:
    """Print the shares of right diagnoses by kind of job, and how complete the findings are.

    Findings should name all waste worth 6 % of the step. They should also name work that could be removed instead of
    the most expensive waste.
    """
    right = [job for job in jobs if job.verdict.right]
    print(f"Right: {Share(len(right), len(jobs))}")
    for kind, share in by_kind(jobs).items():
        print(f"  {kind:20} {share}")
    for how, chosen in (("timed too", True), ("traces alone", False)):
        chosen_jobs = [job for job in jobs if job.recipe.timed is chosen]
        print(f"  {how:20} {Share(sum(job.verdict.right for job in chosen_jobs), len(chosen_jobs))}")
    beside = [there for job in jobs for there in job.verdict.beside.values()]
    print(f"Work that would do instead of the waste that comes first, named too: {Share(sum(beside), len(beside))}")
    missed = Counter(name for job in jobs for name in job.verdict.missed)
    print(f"Waste worth 6 % that no finding names: {dict(missed.most_common())}\n")


def _print_confusion(jobs: Sequence[Judged]) -> None:
    """Print the most frequent pairs of expected and reported causes of wrong diagnoses."""
    print("Expected -> got, of those that are wrong:")
    pairs = Counter(
        (job.verdict.expected[0], job.verdict.got, "; ".join(_without_figures(reason) for reason in job.verdict.why))
        for job in jobs
        if not job.verdict.right
    )
    for (expected, got, why), count in pairs.most_common(20):
        print(f"  {count:4}  {expected} -> {got}: {why}")
    print()


def _print_confidence(jobs: Sequence[Judged]) -> None:
    print("Right by the confidence of the first finding:")
    for confidence in ("high", "medium", "low"):
        chosen_jobs = [job for job in jobs if _confidence(job) == confidence]
        print(f"  {confidence:20} {Share(sum(job.verdict.right for job in chosen_jobs), len(chosen_jobs))}")
    print()


def _confidence(job: Judged) -> str | None:
    return job.analysis.findings[0].confidence if job.analysis.findings else None


def _cost(job: Judged) -> float:
    return max((job.truth.share(cause) for cause in job.truth.causes), default=0.0)


def _line(job: Judged) -> str:
    worth = [_cause(cause, job.truth) for cause in job.truth.causes if job.truth.share(cause) >= NOTABLE]
    return (
        f"{job.recipe.seed}: {_described(job.recipe)}, step {job.truth.step_ms:.1f} ms"
        f" | truth: {', '.join(worth) or 'none'} | found: {', '.join(_findings(job)) or 'none'}"
        f" | {'; '.join(job.verdict.why)}"
    )


def _described(recipe: Recipe) -> str:
    faults = ", ".join(_fault(fault, recipe) for fault in recipe.faults)
    return f"{recipe.kind} ({faults}), {recipe.ranks} ranks, {'timed' if recipe.timed else 'traces'}"


def _fault(fault: Fault, recipe: Recipe) -> str:
    """Describe a fault: its kind, size (ms per step unless stated) and rank."""
    if fault.times > 1:
        size = f"{fault.times:.1f} times"
    elif fault.kind == "launch-one":
        size = f"{fault.ms:.0f} us a launch"
    else:
        # The size of a fault that occurs in some steps only is its mean over all steps.
        size = f"{sum(ms for *_, ms in fault.sometimes) / recipe.steps or fault.ms:.1f}"
    return f"{fault.kind} {size}" + (f" on rank {fault.rank}" if fault.rank is not None else "")


def _cause(cause: Cause, truth: Truth) -> str:
    """Describe a cause: its name, its savings in ms, and in parentheses its savings once all waste is removed."""
    after = "" if abs(cause.after_waste_ms - cause.gain_ms) < 0.01 * truth.step_ms else f" ({cause.after_waste_ms:.1f})"
    return f"{cause.name} {cause.gain_ms:.1f}{after}"


def _findings(job: Judged) -> list[str]:
    return [
        f"{finding.code}/{finding.cause}/{','.join(map(str, finding.ranks))}"
        f" {finding.recoverable_ms_per_step or 0.0:.1f}"
        f" {finding.confidence}{' or ' + '/'.join(finding.instead) if finding.instead else ''}"
        for finding in job.analysis.findings
    ]


def _print_job(job: Judged) -> None:
    """Print all details of one job: its layers, buckets, true costs, findings and verdict."""
    print(_line(job))
    print(f"\nlayers: {job.recipe.layers}\n{job.recipe}\n")
    for device in job.analysis.devices:
        buckets = {name: round(ms, 2) for name, ms in device.buckets_ms.items() if ms >= 0.01}
        print(f"rank {device.rank}: {device.step_ms:.2f} ms {buckets}")
    print(f"\nsteps: {job.analysis.steps}")
    for cause in job.truth.causes:
        print(f"truth: {cause.name} {cause.gain_ms:.2f} ms, after waste {cause.after_waste_ms:.2f} ms, {cause.ranks}")
    for finding in job.analysis.findings:
        print(f"found: {finding}")
    for validity in job.analysis.validity:
        print(f"told: {validity}")
    print(f"against the law: {job.unlawful}\n{job.verdict}")


def _without_figures(words: str) -> str:
    return " ".join("…" if any(letter.isdigit() for letter in word) else word for word in words.split())


if __name__ == "__main__":
    raise SystemExit(main())
