"""Compute the waterfall: the losses between N times one device's throughput and the throughput of N devices.

With B samples per device, a step takes T1 on one device and TN on N devices. The ideal throughput is N B / T1 samples
per second. The measured throughput N B / TN is the share T1 / TN of the ideal, so that the share (TN - T1) / TN is
lost. The parts of a step are compute, launching, waiting for input, exposed transfer and waiting for peers. The
increases of all parts sum to TN - T1. The increase of a part divided by TN is its loss as a share of the ideal. The
share T1 / TN and all losses sum to 100 %.

Worked example. T1 = 30 ms, all compute. T4 = 40 ms: 31 ms compute, 7 ms transfer, 2 ms waiting. The efficiency is 75 %.
Slower compute costs 1 / 40 = 2.5 %, exposed transfer 17.5 %, waiting 5 %. The sum is 100 %.

T1 and TN are measured without the profiler. The parts come from simulations that are fitted to T1 and TN (`parts`).
`rest` is the unexplained residual between T1 and TN. A note states the factor if parts were scaled to unprofiled steps.

In strong scaling, each device has 1 / N of the samples, so that T1 is replaced by T1 / N.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpudiag.model.benchmarks.scaling import LOSSES, Loss, PointRecord, StepParts, Waterfall

#: Part of the step → the loss that includes it.
_LOSS_OF = {
    "waiting": "waiting",
    "exposed_transfer": "exposed_transfer",
    "disturbed": "slower_compute",
    "input": "input",
    "launch": "launch",
    "compute": "slower_compute",
}
#: A note reports a residual above this percentage of the ideal.
_NOTABLE_REST = 1.0
#: If the residual exceeds this percentage of the ideal, the parts do not explain the unprofiled steps (`closes`).
_MOST_REST = 5.0
#: If a GPU's parts are scaled by less than this factor, they do not explain the unprofiled steps (`closes`).
_LEAST_SCALE = 0.5
#: A note mentions the profiler's cost if recorded steps are longer than unprofiled steps by more than this factor.
_NOTABLE_RECORDING = 1.25


def waterfall(
    point: PointRecord,
    baseline: PointRecord,
    several: StepParts,
    one: StepParts,
    independent: tuple[PointRecord, PointRecord] | None = None,
) -> Waterfall:
    """Return the losses of `point` relative to its baseline.

    Args:
        point: N devices, measured.
        baseline: one device, measured, of the same curve.
        several, one: the parts of a step of `point` and of `baseline`.
        independent: N devices and one device without communication, if measured; only for a note.

    Raises:
        ValueError: a figure is missing.
    """
    step_ms = pace_ms(point)
    batch_ratio = point.batch_per_device / baseline.batch_per_device  # 1 in weak scaling, 1 / N in strong scaling
    ideal_ms = batch_ratio * pace_ms(baseline)
    lost_ms = dict.fromkeys(LOSSES, 0.0)
    for part, loss in _LOSS_OF.items():
        lost_ms[loss] += several.parts_ms.get(part, 0.0) - batch_ratio * one.parts_ms.get(part, 0.0)
    lost_ms["rest"] = (step_ms - ideal_ms) - sum(lost_ms.values())
    return _waterfall(
        point,
        baseline,
        ideal_ms,
        lost_ms,
        parts=(several, one),
        notes=tuple(_notes(point, several, one, 100 * lost_ms["rest"] / step_ms, independent)),
    )


def closes(fall: Waterfall) -> bool:
    """Return whether the parts explain the unprofiled steps."""
    rest = next((loss.percent for loss in fall.losses if loss.name == "rest"), 0.0)
    parts = [part for part in (fall.parts, fall.baseline_parts) if part is not None and not part.on_cpu]
    return abs(rest) <= _MOST_REST and all(part.scaled_by >= _LEAST_SCALE for part in parts)


def measured_waterfall(
    point: PointRecord, baseline: PointRecord, independent: tuple[PointRecord, PointRecord]
) -> Waterfall:
    """Compute two losses of `point` from unprofiled steps: by running devices concurrently, and by communication.

    Worked example. T1 = 30 ms and T4 = 40 ms; without communication a step takes 29 ms on one device and 31 ms on four.
    Running concurrently costs 2 of the 40 ms, 5 %, and communication costs the other 8 ms, 20 %.

    Args:
        point, baseline: N devices and one device, of the same curve.
        independent: N devices and one device without communication.

    Raises:
        ValueError: a figure is missing.
    """
    batch_ratio = point.batch_per_device / baseline.batch_per_device
    ideal_ms = batch_ratio * pace_ms(baseline)
    many, alone = independent
    together_ms = pace_ms(many) - batch_ratio * pace_ms(alone)
    lost_ms = {"together": together_ms, "exchange": pace_ms(point) - ideal_ms - together_ms}
    note = "from unprofiled steps alone: the cost of communication is the difference to points without it"
    return _waterfall(point, baseline, ideal_ms, lost_ms, parts=None, notes=(note,))


def _waterfall(
    point: PointRecord,
    baseline: PointRecord,
    ideal_ms: float,
    lost_ms: Mapping[str, float],
    *,
    parts: tuple[StepParts, StepParts] | None,
    notes: tuple[str, ...],
) -> Waterfall:
    """Return the waterfall for losses in ms per step (`lost_ms`) beyond an ideal step of `ideal_ms`.

    `parts` has the parts of a step of `point` and of `baseline`; it is None if the losses are from unprofiled steps.
    """
    step_ms = pace_ms(point)
    ideal = point.devices * 1e3 * point.batch_per_device / ideal_ms
    return Waterfall(
        point=point.id,
        baseline=baseline.id,
        workload=point.workload,
        strategy=point.strategy,
        devices=point.devices,
        ideal_samples_per_s=ideal,
        reached_samples_per_s=1e3 * point.global_batch / step_ms,
        reached_percent=100 * ideal_ms / step_ms,
        losses=tuple(
            Loss(name=name, percent=100 * ms / step_ms, samples_per_s=ideal * ms / step_ms, ms_per_step=ms)
            for name, ms in lost_ms.items()
        ),
        hidden_communication_ms=parts[0].hidden_communication_ms if parts else 0.0,
        parts=parts[0] if parts else None,
        baseline_parts=parts[1] if parts else None,
        notes=notes,
    )


def pace_ms(point: PointRecord) -> float:
    """Return the time, in ms, in which the job processes one global batch.

    The time follows from the throughput, which for independent devices is the sum of their throughputs.

    Raises:
        ValueError: the throughput was not measured.
    """
    if point.samples_per_s is None:
        raise ValueError(f"{point.id} has no throughput")
    return 1e3 * point.global_batch / point.samples_per_s


def _notes(
    point: PointRecord,
    several: StepParts,
    one: StepParts,
    rest_percent: float,
    independent: tuple[PointRecord, PointRecord] | None,
) -> list[str]:
    """Return the notes of a waterfall; `rest_percent` is the residual in percent of the ideal throughput."""
    notes = []
    if independent is not None:
        many, alone = map(pace_ms, independent)
        notes.append(
            f"measured without communication, {point.devices} devices reach {100 * alone / many:.1f} % "
            f"({many:.2f} ms on {point.devices}, {alone:.2f} ms on one)"
        )
    for parts, subject in ((several, f"{point.devices} devices"), (one, "one device")):
        simulated = (
            f"recorded steps of {subject} took {parts.recorded_ms:.1f} ms and unprofiled ones {parts.timed_ms:.1f} ms; "
            f"simulated without the profiler's cost, {parts.profiler_us_per_event:.1f} µs per event, they take "
            f"{parts.replayed_ms:.1f} ms"
        )
        if parts.scaled_by != 1.0:
            scaled_parts = "all parts" if parts.on_cpu else "all parts except the kernels"
            notes.append(f"{simulated}; {scaled_parts} are estimates, multiplied by {parts.scaled_by:.2f}")
        elif parts.recorded_ms > _NOTABLE_RECORDING * parts.timed_ms:
            notes.append(simulated)
    if abs(rest_percent) > _NOTABLE_REST:
        notes.append(f"the simulations miss the unprofiled steps by {rest_percent:.1f} % of the ideal: the rest")
    return notes
