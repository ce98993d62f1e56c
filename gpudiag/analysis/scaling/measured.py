"""Fill in a measured point from the record of its job."""

from __future__ import annotations

import hashlib
import math
import statistics
from typing import Any

import msgspec

from gpudiag.analysis.attribution.compute_rate import compute_rate
from gpudiag.model.benchmarks.scaling import Machine, PointRecord, StartResult
from gpudiag.model.benchmarks.sweep import EntryOutcome
from gpudiag.model.facts import Facts
from gpudiag.model.job import INDEPENDENT
from gpudiag.model.run import InferenceRecord, RunRecord, StepTimes
from gpudiag.statistics import Estimate, mean_of, sum_of

#: Fields of a point that are means over its starts.
_MEANS = (
    *("step_ms", "mean_ms", "median_ms", "standard_error_ms", "jitter_ms"),
    *("mvox_per_s", "tflops_per_s", "mfu_percent"),
)
#: A host that runs ahead of its device by less than this share of a step sets the pace.
_AHEAD = 0.05


def which_gpus(facts: Facts) -> str:
    """Return a digest of the usable GPUs' UUIDs in their order; empty if not all are known."""
    uuids = [gpu.uuid for gpu in facts.gpus if gpu.visible]
    if not uuids or None in uuids:
        return ""
    return hashlib.sha256(" ".join(str(uuid) for uuid in uuids).encode()).hexdigest()[:8]


def with_figures(
    point: PointRecord,
    run: RunRecord | None,
    outcome: EntryOutcome | None,
    machine: Machine,
    volume: InferenceRecord | None = None,
) -> PointRecord:
    """Return the point with what its job measured, or with the reason why it failed.

    Throughput is samples over time: all timed steps of a device over all the time that they took, without partial steps
    and warm-up. Devices that communicate gradients keep one pace, so the slowest device's is the job's; independent
    devices have their own, so the job's throughput is the sum.

    Args:
        point: what was to be measured.
        run: the job's record.
        outcome: of the job in the sweep; None for a job that was started by itself.
        machine: where it ran; the record's software is added.
        volume: how fast it wrote one, if it predicts.
    """
    seconds = outcome.seconds if outcome is not None else point.seconds
    times = _complete_times(run)
    if run is None or not times:
        error = (outcome and outcome.error) or (run and run.error) or "the job ended without two timed steps"
        return msgspec.structs.replace(point, status="failed", error=error, seconds=seconds)
    samples = point.global_batch // len(times)
    steps = [mean_of(timing.step_ms) for timing in times]
    slowest = max(range(len(times)), key=lambda rank: times[rank].mean_ms)
    if point.strategy == INDEPENDENT:
        rate = sum_of([step.inverse().scaled(1e3 * samples) for step in steps])
    else:
        rate = steps[slowest].inverse().scaled(1e3 * point.global_batch)
    return msgspec.structs.replace(
        point,
        status="measured",
        error=None,
        samples_per_s=rate.value,
        ci95=(rate.low, rate.high),
        freedom=rate.freedom,
        starts=(StartResult(samples_per_s=rate.value, ci95=(rate.low, rate.high), freedom=rate.freedom),),
        paced_by_host=_paced_by_host(run),
        step_ms=times[slowest].mean_ms,
        mean_ms=times[slowest].mean_ms,
        median_ms=times[slowest].median_ms,
        standard_error_ms=times[slowest].standard_error_ms,
        jitter_ms=times[slowest].jitter_ms,
        steps=len(times[slowest].step_ms),
        per_device_samples_per_s=_per_device(times, point, samples),
        created=run.created,
        seconds=seconds,
        machine=msgspec.structs.replace(machine, software={**machine.software, **run.software}),
        **_warmup(run),
        **_model_figures(run, volume),
    )


def _complete_times(run: RunRecord | None) -> list[StepTimes]:
    """Return each rank's timed steps; empty unless the run is complete and every rank timed two or more."""
    if run is None or run.status != "complete":
        return []
    times = [rank.unprofiled for rank in run.ranks if rank.unprofiled is not None]
    return times if len(times) == run.world_size and all(len(timing.step_ms) >= 2 for timing in times) else []


def _model_figures(run: RunRecord, volume: InferenceRecord | None) -> dict[str, Any]:
    model, compute = run.model, compute_rate(run)
    return {
        "parameters": None if model is None else model.parameters,
        "gradient_bytes": None if model is None else model.gradient_bytes,
        "voxels_per_sample": None if volume is None or not volume.blocks else volume.voxels / volume.blocks,
        "mvox_per_s": None if volume is None else volume.mvox_per_s,
        "tflops_per_s": None if compute is None else compute.tflops_per_s,
        "mfu_percent": None if compute is None else compute.mfu_percent,
    }


def _warmup(run: RunRecord) -> dict[str, Any]:
    warmups = [rank.warmup for rank in run.ranks if rank.warmup is not None]
    return {
        "warmup_steps": max((warmup.steps for warmup in warmups), default=None),
        "warmup_seconds": max((warmup.seconds for warmup in warmups), default=None),
        "settled": all(warmup.settled for warmup in warmups) if warmups else None,
    }


def together(first: PointRecord, second: PointRecord) -> PointRecord:
    """Merge two measurements of a point: the means of both, and every start."""
    starts = (*(first.starts or _single_start(first)), *(second.starts or _single_start(second)))
    rates = [
        Estimate(value=s.samples_per_s, low=s.ci95[0], high=s.ci95[1], freedom=s.freedom or math.inf) for s in starts
    ]
    rate = sum_of(rates).scaled(1 / len(rates))
    weight = (len(first.starts) or 1) / len(starts)

    def mean(name: str) -> float | None:
        a, b = getattr(first, name), getattr(second, name)
        return None if a is None or b is None else weight * a + (1 - weight) * b

    alone = zip(first.per_device_samples_per_s, second.per_device_samples_per_s, strict=False)
    return msgspec.structs.replace(
        first,
        samples_per_s=rate.value,
        ci95=(rate.low, rate.high),
        freedom=rate.freedom,
        starts=starts,
        paced_by_host=first.paced_by_host or second.paced_by_host,
        steps=first.steps + second.steps,
        settled=first.settled and second.settled,
        per_device_samples_per_s=tuple(weight * a + (1 - weight) * b for a, b in alone),
        seconds=first.seconds + second.seconds,
        **{name: mean(name) for name in _MEANS},
    )


def _single_start(point: PointRecord) -> tuple[StartResult, ...]:
    if point.samples_per_s is None or point.ci95 is None:
        return ()
    return (StartResult(samples_per_s=point.samples_per_s, ci95=point.ci95, freedom=point.freedom),)


def _paced_by_host(run: RunRecord) -> bool | None:
    """Return whether the host hardly ever runs ahead of any device."""
    known = [
        (statistics.median(rank.timed.lead_ms), rank.unprofiled.median_ms)
        for rank in run.ranks
        if rank.timed is not None and rank.timed.lead_ms and rank.unprofiled is not None
    ]
    return all(lead < _AHEAD * step for lead, step in known) if known else None


def _per_device(times: list[StepTimes], point: PointRecord, samples: int) -> tuple[float, ...]:
    """Return each device's rate; empty if one process drives several."""
    return tuple(1e3 * samples / timing.mean_ms for timing in times) if len(times) == point.devices else ()
