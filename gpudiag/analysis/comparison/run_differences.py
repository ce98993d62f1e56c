"""Find differences between two runs other than times, and state how each affects the comparison of times."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import fsum

from gpudiag.analysis.comparison.changes import ComparedAnalysis
from gpudiag.model.diff import OTHER_KERNELS, RunDifference

#: Two runs train different models if their common kernels take less than this share of the compute of one of the runs.
#: Common kernels took at least 80 % in recordings of one model (4 x H200, with various faults and strategies), and
#: mostly less than 50 % in recordings of different models.
SAME_KERNELS = 0.5
#: `RunDifference.what` → how the difference affects the comparison.
_MESSAGES = {
    "framework": "their kernels and collectives have different names, so only buckets and ranks compare",
    "workload": "a step does other work, so its time says nothing of a regression",
    "batch size per device": "a step does other work: compare samples per second",
    "strategy": "gradients are communicated in another way: compare communication as a whole, not one collective",
    "parallelism": "the work is divided in another way: compare samples per second, not ranks with the same number",
    "devices": "kernels differ in name and speed with the device, so compute compares only as a whole",
}


def run_differences(before: ComparedAnalysis, after: ComparedAnalysis) -> tuple[RunDifference, ...]:
    """Return the properties in which the runs differ. A property that is unknown for one run is not compared."""
    old, new = before.analysis.source, after.analysis.source
    work = (
        ("framework", before.analysis.framework, after.analysis.framework),
        ("workload", old.workload, new.workload),
        ("batch size per device", old.batch_size_per_device, new.batch_size_per_device),
    )
    machine = (
        ("strategy", old.strategy, new.strategy),
        ("parallelism", _grid(before), _grid(after)),
        ("devices", _devices(before), _devices(after)),
        *((f"version of {name}", old.software[name], new.software.get(name)) for name in sorted(old.software)),
    )
    kernels = () if old.workload and new.workload else _kernels(before, after)  # known workloads are compared by name
    return (*kernels, *_differing(work), *_ranks(before, after), *_differing(machine))


def _differing(rows: Sequence[tuple[str, str | int | None, str | int | None]]) -> Iterator[RunDifference]:
    """Yield a difference for each row (property, before, after) whose values are known and differ."""
    for what, old, new in rows:
        if old != new and not {old, new} & {None, ""}:
            yield RunDifference(
                what=what,
                before=str(old),
                after=str(new),
                message=_MESSAGES.get(what, "this alone may explain the difference"),
                same_work=what not in {"workload", "batch size per device"},
            )


def _grid(side: ComparedAnalysis) -> str | None:
    parallelism = side.analysis.parallelism
    return None if parallelism is None else parallelism.words


def _devices(side: ComparedAnalysis) -> str:
    """Return the model names of the devices. A device without a model name is named by its kind, `cpu` or `cuda`."""
    return ", ".join(sorted({device.name or device.device.partition(":")[0] for _, device in side.live.values()}))


def _kernels(before: ComparedAnalysis, after: ComparedAnalysis) -> Iterator[RunDifference]:
    """Yield a difference if the runs have mostly different kernels.

    Kernels are compared because traces do not name the model. Precision and layout change the kernels too. Kernels of
    different frameworks have different names and are not compared.
    """
    times = [_compute(side) for side in (before, after)]
    common = times[0].keys() & times[1].keys()
    totals = [fsum(by_name.values()) for by_name in times]
    if before.analysis.framework != after.analysis.framework or not all(totals):
        return
    shares = [fsum(by_name[name] for name in common) / total for by_name, total in zip(times, totals, strict=True)]
    if min(shares) < SAME_KERNELS:
        yield RunDifference(
            what=OTHER_KERNELS,
            before=f"{shares[0]:.0%} of A's",
            after=f"{shares[1]:.0%} of B's",
            message="another model, precision, layout or compiler: if it is another model, its time says nothing of a "
            "regression",
        )


def _compute(side: ComparedAnalysis) -> dict[str, float]:
    """Return kernel (on CPUs: operator) → compute time in ms per step."""
    times: dict[str, float] = defaultdict(float)
    for (bucket, name, _, _), (ms, _) in side.portions.items():
        if bucket == "compute":
            times[name] += ms
    return times


def _ranks(before: ComparedAnalysis, after: ComparedAnalysis) -> Iterator[RunDifference]:
    """Yield a difference if the runs have different numbers of ranks, or steps on different ranks."""
    message = "buckets are means over each run's own devices; only ranks that both have are compared"
    old, new = before.analysis.world_size, after.analysis.world_size
    if old != new:
        yield RunDifference(what="number of ranks", before=str(old), after=str(new), message=message, same_work=False)
    elif before.live.keys() != after.live.keys():
        old_ranks, new_ranks = (
            ", ".join(map(str, sorted({rank for rank, _ in side.live}))) for side in (before, after)
        )
        yield RunDifference(what="ranks with steps", before=old_ranks, after=new_ranks, message=message)
