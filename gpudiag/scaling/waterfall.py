"""The waterfall: from N times one device's throughput down to what N devices reached, each loss with its name.

With the same samples per device, one device takes T1 for a step and N devices take TN. The ideal is N B / T1 samples
per second, N B / TN is reached: a share of T1 / TN. The rest, (TN - T1) / TN, is lost, and TN - T1 is the sum of how
much longer each part of the step has become: compute, launching, waiting for input, exposed transfer, waiting for
peers. Each part's share of TN is its loss in percent of the ideal, so that all of it sums to 100 % without weights.

Worked example. T1 = 30 ms, all compute. T4 = 40 ms: 31 compute, 7 transfer, 2 waiting. Efficiency 75 %; lost: slower
compute 1 / 40 = 2.5 %, exposed transfer 17.5 %, waiting 5 %. 75 + 2.5 + 17.5 + 5 = 100.

T1 and TN are measured without the profiler; the parts come from a profiled run, whose steps are longer. What recording
added is host time: it is taken out of what the host causes (launching, then idle), then of waiting, and what is left of
it out of all parts in proportion. What the parts, so corrected, do not explain is `rest`.

Strong scaling, in which a device's samples shrink as 1 / N, compares with T1 / N: the work that one device has then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpudiag.model.scaling import LOSSES, Loss, Waterfall

if TYPE_CHECKING:
    from gpudiag.model.analysis import Analysis
    from gpudiag.model.scaling import ScalePoint

#: Which loss a bucket of the attribution belongs to.
_LOSS_OF = {
    "compute": "slower_compute",
    "communication_transfer": "exposed_transfer",
    "communication_wait": "waiting",
    "copy": "input",  # of batches; where gradients are staged through the host, see _copies
    "input": "input",
    "sync": "launch",
    "launch": "launch",
    "idle": "rest",
}
#: Strategies whose gradients travel from device to device.
_ON_DEVICE = ("nccl", "fsdp", "independent", "hierarchical-copy", "one-device")
#: Where the profiler's cost shows, in this order: what the host causes, then what peers of a slowed host wait for.
_HOST_FIRST = ("launch", "sync", "idle", "communication_wait")
#: More of the ideal than this that no part explains deserves a word.
_NOTABLE_REST = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """A mean step's parts in milliseconds, by bucket, without what recording added; they sum to `step_ms`."""

    step_ms: float
    buckets_ms: dict[str, float]
    hidden_ms: float
    overhead_ms: float


def parts_of(analysis: Analysis, step_ms: float) -> Parts:
    """The parts of a step that takes `step_ms` without the profiler, averaged over the devices.

    Raises:
        ValueError: the analysis has no device.
    """
    devices = analysis.devices
    if not devices:
        raise ValueError("the analysis has no device whose step could be cut into parts")
    names = devices[0].buckets_ms.keys()
    buckets = {name: sum(device.buckets_ms[name] for device in devices) / len(devices) for name in names}
    profiled_ms = sum(buckets.values())
    surplus = left = max(0.0, profiled_ms - step_ms)
    for name in _HOST_FIRST:
        taken = min(left, buckets.get(name, 0.0))
        if taken:
            buckets[name] -= taken
            left -= taken
    total = sum(buckets.values())
    if left > 0 and total > 0:
        buckets = {name: value * (1 - left / total) for name, value in buckets.items()}
    hidden = sum(device.hidden_communication_ms for device in devices) / len(devices)
    return Parts(step_ms=step_ms, buckets_ms=buckets, hidden_ms=hidden, overhead_ms=surplus)


def waterfall(point: ScalePoint, baseline: ScalePoint, several: Analysis, one: Analysis) -> Waterfall:
    """The losses of `point` against its baseline.

    Args:
        point: N devices, measured.
        baseline: one device, measured, of the same curve.
        several, one: analyses of profiled runs of the two.

    Raises:
        ValueError: a figure is missing.
    """
    if point.step_ms is None or baseline.step_ms is None or baseline.samples_per_s is None:
        raise ValueError(f"{point.id} and its baseline must both have been measured")
    if point.samples_per_s is None:
        raise ValueError(f"{point.id} has no throughput")
    # Throughput over samples gives the pace of the job; where devices run apart that is their mean, not the slowest's.
    step_ms = 1e3 * point.global_batch / point.samples_per_s
    shrunk = point.batch_per_device / baseline.batch_per_device
    ideal_ms = shrunk * 1e3 * baseline.global_batch / baseline.samples_per_s
    mine = parts_of(several, step_ms)
    theirs = parts_of(one, 1e3 * baseline.global_batch / baseline.samples_per_s)
    lost = dict.fromkeys(LOSSES, 0.0)
    for bucket, loss in (_LOSS_OF | {"copy": _copies(point)}).items():
        if loss != "rest":
            lost[loss] += mine.buckets_ms.get(bucket, 0.0) - shrunk * theirs.buckets_ms.get(bucket, 0.0)
    lost["rest"] = (step_ms - ideal_ms) - sum(lost.values())
    ideal = point.devices * 1e3 * point.batch_per_device / ideal_ms
    losses = tuple(
        Loss(name=name, percent=100 * ms / step_ms, samples_per_s=ideal * ms / step_ms, ms_per_step=ms)
        for name, ms in lost.items()
    )
    return Waterfall(
        point=point.id,
        baseline=baseline.id,
        workload=point.workload,
        strategy=point.strategy,
        devices=point.devices,
        ideal_samples_per_s=ideal,
        reached_samples_per_s=point.samples_per_s,
        reached_percent=100 * ideal_ms / step_ms,
        losses=losses,
        hidden_communication_ms=mine.hidden_ms,
        notes=_notes(mine, theirs, 100 * lost["rest"] / step_ms),
    )


def _copies(point: ScalePoint) -> str:
    """What copies between host and device carry: batches, or the gradients of a strategy that does not leave them."""
    return "input" if point.strategy.startswith(_ON_DEVICE) else "exposed_transfer"


def _notes(mine: Parts, theirs: Parts, rest_percent: float) -> tuple[str, ...]:
    notes = []
    for parts, whose in ((mine, "the point"), (theirs, "its baseline")):
        if parts.overhead_ms > 0.05 * parts.step_ms:
            notes.append(
                f"recording made a step of {whose} {parts.overhead_ms:.1f} ms longer than {parts.step_ms:.1f} ms; that "
                "was taken out of what the host causes"
            )
    if abs(rest_percent) > _NOTABLE_REST:
        notes.append(f"{rest_percent:.1f} % of the ideal is explained by no part: idle time, or runs that differ")
    return tuple(notes)
