"""What differs between two runs before any of their times are looked at, and what it does to the comparison."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import fsum

from gpudiag.analysis.comparison.measured import Measured
from gpudiag.model.diff import OTHER_KERNELS, RunDifference

#: Of recordings of one model (4 x H200, with faults and strategies by turns) 80 % of either's compute and more is in
#: kernels of both; of different models, mostly under 50 % of one's.
SAME_KERNELS = 0.5


def run_differences(before: Measured, after: Measured) -> tuple[RunDifference, ...]:
    """Everything known of both runs that differs; what only one of them tells is not compared."""
    return tuple(_differences(before, after))


def _differences(before: Measured, after: Measured) -> Iterator[RunDifference]:
    old, new = before.analysis, after.analysis
    if old.framework != new.framework:
        yield RunDifference(
            what="framework",
            before=old.framework,
            after=new.framework,
            message="their kernels and collectives go by other names, so that only buckets and ranks compare",
        )
    if old.source.workload and new.source.workload and old.source.workload != new.source.workload:
        yield RunDifference(
            what="workload",
            before=old.source.workload,
            after=new.source.workload,
            message="a step does other work, so that its time says nothing of a regression",
            same_work=False,
        )
    if not (old.source.workload and new.source.workload):
        yield from _of_kernels(before, after)
    batches = old.source.batch_size_per_device, new.source.batch_size_per_device
    if None not in batches and batches[0] != batches[1]:
        yield RunDifference(
            what="batch size per device",
            before=str(batches[0]),
            after=str(batches[1]),
            message="a step does other work: compare samples per second",
            same_work=False,
        )
    yield from _of_ranks(before, after)
    if old.source.strategy and new.source.strategy and old.source.strategy != new.source.strategy:
        yield RunDifference(
            what="strategy",
            before=old.source.strategy,
            after=new.source.strategy,
            message="gradients are exchanged in another way: compare the communication as a whole, not one collective",
        )
    names = [", ".join(_device_names(side)) for side in (before, after)]
    if names[0] != names[1]:
        yield RunDifference(
            what="devices",
            before=names[0],
            after=names[1],
            message="kernels differ in name and speed with the device, so that compute compares only as a whole",
        )
    for name in sorted(old.source.software.keys() & new.source.software.keys()):
        if old.source.software[name] != new.source.software[name]:
            yield RunDifference(
                what=f"version of {name}",
                before=old.source.software[name],
                after=new.source.software[name],
                message="this alone may be what made the difference",
            )


def _of_ranks(before: Measured, after: Measured) -> Iterator[RunDifference]:
    old, new = before.analysis, after.analysis
    if old.world_size != new.world_size:
        yield RunDifference(
            what="number of ranks",
            before=str(old.world_size),
            after=str(new.world_size),
            message="buckets are means over each run's own devices; only ranks that both have are compared",
            same_work=False,
        )
    elif before.live.keys() != after.live.keys():
        yield RunDifference(
            what="ranks with steps",
            before=_ranks(before),
            after=_ranks(after),
            message="buckets are means over each run's own devices; only ranks that both have are compared",
        )


def _of_kernels(before: Measured, after: Measured) -> Iterator[RunDifference]:
    """Traces do not name their model; its kernels do. A change of precision or layout changes them too."""
    times = [_compute(side) for side in (before, after)]
    both = times[0].keys() & times[1].keys()
    totals = [fsum(own.values()) for own in times]
    if before.analysis.framework != after.analysis.framework or not all(totals):
        return
    shares = [fsum(own[name] for name in both) / total for own, total in zip(times, totals, strict=True)]
    if min(shares) < SAME_KERNELS:
        yield RunDifference(
            what=OTHER_KERNELS,
            before=f"{shares[0]:.0%} of A's",
            after=f"{shares[1]:.0%} of B's",
            message="another model, precision, layout or compiler: if it is another model, its time says nothing of a "
            "regression",
        )


def _compute(side: Measured) -> dict[str, float]:
    """Name of a kernel, or of an operator on CPUs → milliseconds per step."""
    times: dict[str, float] = {}
    for (bucket, name, _, _), (ms, _) in side.parts.items():
        if bucket == "compute":
            times[name] = times.get(name, 0.0) + ms
    return times


def _ranks(side: Measured) -> str:
    return ", ".join(str(rank) for rank in sorted({rank for rank, _ in side.live}))


def _device_names(side: Measured) -> list[str]:
    """The distinct models; `cpu` or `cuda` where there is no name."""
    names = Counter(device.name or device.device.partition(":")[0] for _, device in side.live.values())
    return sorted(names)
