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

#: Fields of a point that are averaged over its starts.
_MEANS = (
    *("step_ms", "mean_ms", "median_ms", "standard_error_ms", "jitter_ms"),
    *("mvox_per_s", "tflops_per_s", "mfu_percent"),
)
#: A host limits the throughput if it runs ahead of its device by less than this share of a step.
_AHEAD = 0.05


def which_gpus(facts: Facts) -> str:
    """Return a short hash of the usable GPUs' UUIDs in index order; empty if a UUID is unknown."""
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
    """Return the point with its job's measurements, or with the reason of the failure.

    A device's throughput is the number of samples in its unprofiled steps divided by their total time, without warm-up
    and partial steps. If devices communicate gradients, the slowest device determines the job's throughput, because all
    other devices wait for it. If devices are independent, the job's throughput is the sum over all devices.

    Args:
        point: the requested measurement.
        run: the job's record; None if the job left none.
        outcome: the job's outcome in the sweep; None for a job outside a sweep.
        machine: the machine of the job. The result also has the software versions of `run`.
        volume: throughput of predicting a volume in blocks, if the job does so.
    """
    seconds = outcome.seconds if outcome is not None else point.seconds
    times = _complete_times(run)
    if run is None or not times:
        error = (outcome and outcome.error) or (run and run.error) or "the job ended without two unprofiled steps"
        return msgspec.structs.replace(point, status="failed", error=error, seconds=seconds)
    samples = point.global_batch // len(times)  # of one process in one step
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
    """Return each rank's step times if the run is complete and each rank timed at least two steps; else []."""
    if run is None or run.status != "complete":
        return []
    times = [rank.unprofiled for rank in run.ranks if rank.unprofiled is not None]
    return times if len(times) == run.world_size and all(len(timing.step_ms) >= 2 for timing in times) else []


def _model_figures(run: RunRecord, volume: InferenceRecord | None) -> dict[str, Any]:
    """Return the fields of `PointRecord` about the model, its compute rate, and a predicted volume."""
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
    """Return the fields of `PointRecord` about warm-up: the worst values of ranks, or None if no rank recorded it."""
    warmups = [rank.warmup for rank in run.ranks if rank.warmup is not None]
    return {
        "warmup_steps": max((warmup.steps for warmup in warmups), default=None),
        "warmup_seconds": max((warmup.seconds for warmup in warmups), default=None),
        "settled": all(warmup.settled for warmup in warmups) if warmups else None,
    }


def together(first: PointRecord, second: PointRecord) -> PointRecord:
    """Merge two measurements of one point: average the figures, weighted by numbers of starts, and keep every start.

    A figure in `_MEANS` that one measurement lacks becomes None. Steps and seconds are added.
    """
    starts = (*(first.starts or _single_start(first)), *(second.starts or _single_start(second)))
    rates = [
        Estimate(value=start.samples_per_s, low=start.ci95[0], high=start.ci95[1], freedom=start.freedom or math.inf)
        for start in starts
    ]
    rate = sum_of(rates).scaled(1 / len(rates))
    weight = (len(first.starts) or 1) / len(starts)

    def mean(name: str) -> float | None:
        a, b = getattr(first, name), getattr(second, name)
        return None if a is None or b is None else weight * a + (1 - weight) * b

    by_device = zip(first.per_device_samples_per_s, second.per_device_samples_per_s, strict=False)
    return msgspec.structs.replace(
        first,
        samples_per_s=rate.value,
        ci95=(rate.low, rate.high),
        freedom=rate.freedom,
        starts=starts,
        paced_by_host=first.paced_by_host or second.paced_by_host,
        steps=first.steps + second.steps,
        settled=first.settled and second.settled,
        per_device_samples_per_s=tuple(weight * a + (1 - weight) * b for a, b in by_device),
        seconds=first.seconds + second.seconds,
        **{name: mean(name) for name in _MEANS},
    )


def _single_start(point: PointRecord) -> tuple[StartResult, ...]:
    if point.samples_per_s is None or point.ci95 is None:
        return ()
    return (StartResult(samples_per_s=point.samples_per_s, ci95=point.ci95, freedom=point.freedom),)


def _paced_by_host(run: RunRecord) -> bool | None:
    """Return whether the host's median lead over its device is below `_AHEAD` of a step on every rank.

    Return None if no rank's lead is known.
    """
    known = [
        (statistics.median(rank.timed.lead_ms), rank.unprofiled.median_ms)
        for rank in run.ranks
        if rank.timed is not None and rank.timed.lead_ms and rank.unprofiled is not None
    ]
    return all(lead < _AHEAD * step for lead, step in known) if known else None


def _per_device(times: list[StepTimes], point: PointRecord, samples: int) -> tuple[float, ...]:
    """Return each device's samples per second; empty if one process drives several devices."""
    return tuple(1e3 * samples / timing.mean_ms for timing in times) if len(times) == point.devices else ()
