"""Find differences between two runs other than step times, and what they mean for the comparison."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from math import fsum

from gpudiag.analysis.comparison.compared_analysis import ComparedAnalysis
from gpudiag.model.diff import OTHER_KERNELS, RunDifference

#: In two recordings of one model (4 x H200, with various faults and strategies), at least 80 % of the compute of each
#: is in kernels that both have; in recordings of different models, mostly under 50 % for at least one of the two.
SAME_KERNELS = 0.5


def run_differences(before: ComparedAnalysis, after: ComparedAnalysis) -> tuple[RunDifference, ...]:
    """Return everything known of both runs that differs; what only one of them knows is not compared."""
    return tuple(
        difference
        for find in (_framework, _workload, _batch_size, _ranks, _strategy, _devices, _software)
        for difference in find(before, after)
    )


def _framework(before: ComparedAnalysis, after: ComparedAnalysis) -> Iterator[RunDifference]:
    old, new = before.analysis.framework, after.analysis.framework
    if old != new:
        yield RunDifference(
            what="framework",
            before=old,
            after=new,
            message="their kernels and collectives have different names, so only buckets and ranks compare",
        )


def _workload(before: ComparedAnalysis, after: ComparedAnalysis) -> Iterator[RunDifference]:
    old, new = before.analysis.source.workload, after.analysis.source.workload
    if not (old and new):
        yield from _kernels(before, after)
    elif old != new:
        yield RunDifference(
            what="workload",
            before=old,
            after=new,
            message="a step does other work, so its time says nothing of a regression",
            same_work=False,
        )


def _kernels(before: ComparedAnalysis, after: ComparedAnalysis) -> Iterator[RunDifference]:
    """Compare kernels, because traces do not name their model; precision or layout change them too."""
    times = [_compute(side) for side in (before, after)]
    both = times[0].keys() & times[1].keys()
    totals = [fsum(by_name.values()) for by_name in times]
    if before.analysis.framework != after.analysis.framework or not all(totals):
        return
    shares = [fsum(by_name[name] for name in both) / total for by_name, total in zip(times, totals, strict=True)]
    if min(shares) < SAME_KERNELS:
        yield RunDifference(
            what=OTHER_KERNELS,
            before=f"{shares[0]:.0%} of A's",
            after=f"{shares[1]:.0%} of B's",
            message="another model, precision, layout or compiler: if it is another model, its time says nothing of a "
            "regression",
        )


def _compute(side: ComparedAnalysis) -> dict[str, float]:
    """Return name of a kernel, or of an operator on CPUs → milliseconds per step."""
    times: dict[str, float] = defaultdict(float)
    for (bucket, name, _, _), (ms, _) in side.portions.items():
        if bucket == "compute":
            times[name] += ms
    return times


def _batch_size(before: ComparedAnalysis, after: ComparedAnalysis) -> Iterator[RunDifference]:
    old, new = before.analysis.source.batch_size_per_device, after.analysis.source.batch_size_per_device
    if old is not None and new is not None and old != new:
        yield RunDifference(
            what="batch size per device",
            before=str(old),
            after=str(new),
            message="a step does other work: compare samples per second",
            same_work=False,
        )


def _ranks(before: ComparedAnalysis, after: ComparedAnalysis) -> Iterator[RunDifference]:
    message = "buckets are means over each run's own devices; only ranks that both have are compared"
    old, new = before.analysis.world_size, after.analysis.world_size
    if old != new:
        yield RunDifference(what="number of ranks", before=str(old), after=str(new), message=message, same_work=False)
    elif before.live.keys() != after.live.keys():
        old_ranks, new_ranks = (
            ", ".join(map(str, sorted({rank for rank, _ in side.live}))) for side in (before, after)
        )
        yield RunDifference(what="ranks with steps", before=old_ranks, after=new_ranks, message=message)


def _strategy(before: ComparedAnalysis, after: ComparedAnalysis) -> Iterator[RunDifference]:
    old, new = before.analysis.source.strategy, after.analysis.source.strategy
    if old and new and old != new:
        yield RunDifference(
            what="strategy",
            before=old,
            after=new,
            message="gradients are communicated in another way: compare communication as a whole, not one collective",
        )


def _devices(before: ComparedAnalysis, after: ComparedAnalysis) -> Iterator[RunDifference]:
    """Compare the models of devices; `cpu` or `cuda` if there is no name."""
    old, new = (
        ", ".join(sorted({device.name or device.device.partition(":")[0] for _, device in side.live.values()}))
        for side in (before, after)
    )
    if old != new:
        yield RunDifference(
            what="devices",
            before=old,
            after=new,
            message="kernels differ in name and speed with the device, so compute compares only as a whole",
        )


def _software(before: ComparedAnalysis, after: ComparedAnalysis) -> Iterator[RunDifference]:
    old, new = before.analysis.source.software, after.analysis.source.software
    for name in sorted(old.keys() & new.keys()):
        if old[name] != new[name]:
            yield RunDifference(
                what=f"version of {name}",
                before=old[name],
                after=new[name],
                message="this alone may explain the difference",
            )
