"""The waterfall: from N times one device's throughput down to what N devices reached, each loss with its name.

With the same samples per device, one device takes T1 for a step and N devices take TN. The ideal is N B / T1 samples
per second, N B / TN is reached: a share of T1 / TN. The rest, (TN - T1) / TN, is lost, and TN - T1 is the sum of how
much longer each part of the step has become: compute, launching, waiting for input, exposed transfer, waiting for
peers. Each part's share of TN is its loss in percent of the ideal, so that all of it sums to 100 % without weights.

Worked example. T1 = 30 ms, all compute. T4 = 40 ms: 31 compute, 7 transfer, 2 waiting. Efficiency 75 %; lost: slower
compute 1 / 40 = 2.5 %, exposed transfer 17.5 %, waiting 5 %. 75 + 2.5 + 17.5 + 5 = 100.

T1 and TN are measured without the profiler; the parts are of replays that take as long (`parts`). By how much those
miss T1 and TN is `rest`. Where parts had to be scaled because the recorded steps were not like the timed ones, a note
names the factor.

Strong scaling, in which a device's samples shrink as 1 / N, compares with T1 / N: the work that one device has then.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpudiag.model.benchmarks.scaling import LOSSES, Loss, PointRecord, StepParts, Waterfall

#: Which loss a part of the step belongs to.
_LOSS_OF = {
    "waiting": "waiting",
    "exposed_transfer": "exposed_transfer",
    "disturbed": "slower_compute",
    "input": "input",
    "launch": "launch",
    "compute": "slower_compute",
}
#: More of the ideal than this that no part explains deserves a word.
_NOTABLE_REST = 1.0
#: More of the ideal than this that no part explains, or parts of which less than half is left when they are fitted to
#: the timed step: the recorded steps were others than the timed ones.
_MOST_REST, _LEAST_SCALE = 5.0, 0.5
#: And a host that recording has made this many times as slow as it is.
_NOTABLE_RECORDING = 1.25


def waterfall(
    point: PointRecord,
    baseline: PointRecord,
    several: StepParts,
    one: StepParts,
    apart: tuple[PointRecord, PointRecord] | None = None,
) -> Waterfall:
    """The losses of `point` against its baseline.

    Args:
        point: N devices, measured.
        baseline: one device, measured, of the same curve.
        several, one: the parts of a step of the two.
        apart: N devices and one of the same job without any exchange, where those were measured.

    Raises:
        ValueError: a figure is missing.
    """
    step_ms = pace_ms(point)
    shrunk = point.batch_per_device / baseline.batch_per_device
    ideal_ms = shrunk * pace_ms(baseline)
    lost = dict.fromkeys(LOSSES, 0.0)
    for part, loss in _LOSS_OF.items():
        lost[loss] += several.parts_ms.get(part, 0.0) - shrunk * one.parts_ms.get(part, 0.0)
    lost["rest"] = (step_ms - ideal_ms) - sum(lost.values())
    return _made(
        point,
        baseline,
        ideal_ms,
        lost,
        parts=(several, one),
        notes=tuple(_notes(point, several, one, 100 * lost["rest"] / step_ms, apart)),
    )


def closes(fall: Waterfall) -> bool:
    """Whether the parts explain what was timed."""
    rest = next((loss.percent for loss in fall.losses if loss.name == "rest"), 0.0)
    parts = [part for part in (fall.parts, fall.baseline_parts) if part is not None and not part.on_cpu]
    return abs(rest) <= _MOST_REST and all(part.scaled_by >= _LEAST_SCALE for part in parts)


def measured_waterfall(point: PointRecord, baseline: PointRecord, apart: tuple[PointRecord, PointRecord]) -> Waterfall:
    """The losses of `point` from timed steps alone: what N devices lose without any exchange, and what that costs.

    Worked example. T1 = 30 ms, T4 = 40 ms; without exchange 29 ms on one device and 31 on four. Running together costs
    2 of the 40 ms, 5 %, and the exchange the other 8, 20 %.

    Args:
        point, baseline: as of `waterfall`.
        apart: N devices and one of the same job without any exchange.

    Raises:
        ValueError: a figure is missing.
    """
    shrunk = point.batch_per_device / baseline.batch_per_device
    ideal_ms = shrunk * pace_ms(baseline)
    many, alone = apart
    together = pace_ms(many) - shrunk * pace_ms(alone)
    lost = {"together": together, "exchange": pace_ms(point) - ideal_ms - together}
    note = "from timed steps alone: what the exchange costs is told from points without it, and not cut into parts"
    return _made(point, baseline, ideal_ms, lost, parts=None, notes=(note,))


def _made(
    point: PointRecord,
    baseline: PointRecord,
    ideal_ms: float,
    lost: Mapping[str, float],
    *,
    parts: tuple[StepParts, StepParts] | None,
    notes: tuple[str, ...],
) -> Waterfall:
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
            for name, ms in lost.items()
        ),
        hidden_communication_ms=parts[0].hidden_communication_ms if parts else 0.0,
        parts=parts[0] if parts else None,
        baseline_parts=parts[1] if parts else None,
        notes=notes,
    )


def pace_ms(point: PointRecord) -> float:
    """The time in which the job does a step of all its samples.

    Throughput over samples gives the pace of the job; where devices run apart that is their mean, not the slowest's.

    Raises:
        ValueError: it was not measured.
    """
    if point.samples_per_s is None:
        raise ValueError(f"{point.id} has no throughput")
    return 1e3 * point.global_batch / point.samples_per_s


def _notes(
    point: PointRecord,
    several: StepParts,
    one: StepParts,
    rest_percent: float,
    apart: tuple[PointRecord, PointRecord] | None,
) -> list[str]:
    notes = []
    if apart is not None:
        many, alone = (pace_ms(of) for of in apart)
        notes.append(
            f"measured without any exchange, {point.devices} devices reach {100 * alone / many:.1f} % "
            f"({many:.2f} ms on {point.devices}, {alone:.2f} ms on one)"
        )
    for parts, whose in ((several, f"{point.devices} devices"), (one, "one device")):
        simulated = (
            f"recorded steps of {whose} took {parts.recorded_ms:.1f} ms and timed ones {parts.timed_ms:.1f} ms; "
            f"replayed without the profiler's cost, {parts.profiler_us_per_event:.1f} µs per event, they take "
            f"{parts.replayed_ms:.1f} ms"
        )
        if parts.scaled_by != 1.0:
            which = "" if parts.on_cpu else " except for the kernels'"
            notes.append(f"{simulated}: the parts{which} are estimates, multiplied by {parts.scaled_by:.2f}")
        elif parts.recorded_ms > _NOTABLE_RECORDING * parts.timed_ms:
            notes.append(simulated)
    if abs(rest_percent) > _NOTABLE_REST:
        notes.append(f"the replays miss the timed steps by {rest_percent:.1f} % of the ideal, which is the rest")
    return notes
