"""A point's figures, from the record that its job left."""

from __future__ import annotations

import hashlib

import msgspec

from gpudiag.model.benchmarks.scaling import Machine, PointRecord
from gpudiag.model.benchmarks.sweep import Outcome
from gpudiag.model.facts import Facts
from gpudiag.model.job import INDEPENDENT
from gpudiag.model.run import RunRecord, StepTimes
from gpudiag.statistics import mean_of, sum_of


def which_gpus(facts: Facts) -> str:
    """A digest of the usable GPUs' UUIDs in their order; empty where not all are known."""
    uuids = [gpu.uuid for gpu in facts.gpus if gpu.visible]
    if not uuids or None in uuids:
        return ""
    return hashlib.sha256(" ".join(str(uuid) for uuid in uuids).encode()).hexdigest()[:8]


def with_figures(point: PointRecord, run: RunRecord | None, outcome: Outcome | None, machine: Machine) -> PointRecord:
    """The point with what its job measured, or with why there is nothing.

    Throughput is samples over time: all timed steps of a device over all the time that they took, partial steps and
    warm-up left out. Where devices exchange gradients they keep one pace, and the slowest device's is the job's; where
    they do not, each has its own, and the job's throughput is the sum.

    Args:
        point: what was to be measured.
        run: the job's record.
        outcome: what the sweep says became of the job; None for a job that was started by itself.
        machine: where it ran; the record's software is added.
    """
    seconds = outcome.seconds if outcome is not None else point.seconds
    times = [rank.unprofiled for rank in run.ranks if rank.unprofiled is not None] if run is not None else []
    whole = run is not None and len(times) == run.world_size and run.status == "complete"
    if run is None or not whole or min(len(timing.step_ms) for timing in times) < 2:
        error = outcome.error if outcome is not None else None
        error = error or (run.error if run is not None else None) or "the job ended without two timed steps"
        return msgspec.structs.replace(point, status="failed", error=error, seconds=seconds)
    samples = point.global_batch // len(times)
    steps = [mean_of(timing.step_ms) for timing in times]
    slowest = max(range(len(times)), key=lambda rank: times[rank].mean_ms)
    if point.strategy == INDEPENDENT:
        rate = sum_of([step.inverse().scaled(1e3 * samples) for step in steps])
    else:
        rate = steps[slowest].inverse().scaled(1e3 * point.global_batch)
    warmups = [rank.warmup for rank in run.ranks if rank.warmup is not None]
    return msgspec.structs.replace(
        point,
        status="measured",
        error=None,
        samples_per_s=rate.value,
        ci95=(rate.low, rate.high),
        freedom=rate.freedom,
        step_ms=times[slowest].mean_ms,
        mean_ms=times[slowest].mean_ms,
        median_ms=times[slowest].median_ms,
        standard_error_ms=times[slowest].standard_error_ms,
        jitter_ms=times[slowest].jitter_ms,
        steps=len(times[slowest].step_ms),
        per_device_samples_per_s=_per_device(times, point, samples),
        warmup_steps=max((warmup.steps for warmup in warmups), default=None),
        warmup_seconds=max((warmup.seconds for warmup in warmups), default=None),
        settled=all(warmup.settled for warmup in warmups) if warmups else None,
        parameters=run.model.parameters if run.model is not None else None,
        gradient_bytes=run.model.gradient_bytes if run.model is not None else None,
        created=run.created,
        seconds=seconds,
        machine=msgspec.structs.replace(machine, software={**machine.software, **run.software}),
    )


def _per_device(times: list[StepTimes], point: PointRecord, samples: int) -> tuple[float, ...]:
    """Of each device by itself; unknown where one process drives several."""
    return tuple(1e3 * samples / timing.mean_ms for timing in times) if len(times) == point.devices else ()
