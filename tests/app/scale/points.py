"""Make synthetic measured points with exact step times."""

from __future__ import annotations

from typing import Any

import msgspec

from gpudiag.app.scale.points import point_id
from gpudiag.model.benchmarks.scaling import STEP_PARTS, Machine, PointRecord, StepParts

HERE = Machine(host="here", cpu="a CPU", gpus=("H200",) * 4, software={"torch": "2.11"})


def measured(devices: int, step_ms: float, **given: Any) -> PointRecord:
    """Make a point whose mean step time is known to 1 %; `given` replaces other fields of the point."""
    batch = given.pop("batch_per_device", 64)
    total = given.pop("global_batch", batch * devices)
    rate = 1e3 * total / step_ms
    values: dict[str, Any] = {
        "id": "",
        "workload": "resnet50",
        "strategy": "nccl",
        "devices": devices,
        "device_indices": tuple(range(devices)),
        "batch_per_device": batch,
        "global_batch": total,
        "precision": "bf16",
        "memory_format": "nhwc",
        "data": "device",
        "status": "measured",
        "samples_per_s": rate,
        "ci95": (0.99 * rate, 1.01 * rate),
        "step_ms": step_ms,
        "mean_ms": step_ms,
        "median_ms": step_ms,
        "standard_error_ms": 0.005 * step_ms,
        "jitter_ms": 0.1,
        "steps": 50,
        "gradient_bytes": 100_000_000,
        "machine": HERE,
        **given,
    }
    point = PointRecord(**values)
    return msgspec.structs.replace(point, id=point_id(point))


def parts(timed_ms: float | None = None, **parts_ms: float) -> StepParts:
    """Make the parts of a step; a part that is not given takes 0 ms. The default of `timed_ms` is the sum of parts."""
    whole = sum(parts_ms.values())
    return StepParts(
        timed_ms=whole if timed_ms is None else timed_ms,
        replayed_ms=whole,
        recorded_ms=whole,
        profiler_us_per_event=1.3,
        parts_ms={name: parts_ms.get(name, 0.0) for name in STEP_PARTS},
    )
