"""Results of many as a frame: points of scaling benchmarks and single runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from gpudiag.model.benchmarks.results_table import Comparable
from gpudiag.model.benchmarks.scaling import PointRecord
from gpudiag.model.frames.frame import dtype_of, fields_of, frame_of

if TYPE_CHECKING:
    from pandas import DataFrame

#: Of a point; those that are no fields of it are made of its fields.
POINT_COLUMNS = (
    *("workload", "framework", "strategy", "mode", "devices", "device_indices", "batch_per_device", "global_batch"),
    *("precision", "memory_format", "data", "status", "samples_per_s", "ci95_low", "ci95_high"),
    *("iterations_per_minute", "mean_ms", "standard_error_ms", "median_ms", "jitter_ms", "steps"),
    *("warmup_steps", "warmup_seconds", "speedup", "speedup_low", "speedup_high"),
    *(
        "efficiency",
        "efficiency_low",
        "efficiency_high",
        "baseline",
        "parameters",
        "gradient_bytes",
        "mvox_per_s",
        "tflops_per_s",
        "mfu_percent",
        "error",
        "id",
    ),
)


def points_frame(points: Iterable[PointRecord]) -> DataFrame:
    """One row per point of a scaling benchmark, with `POINT_COLUMNS`; missing figures are NaN or NA."""
    known = {field.name: dtype_of(field.type) for field in fields_of(PointRecord)}
    return frame_of({name: known.get(name, "float64") for name in POINT_COLUMNS}, map(_point, points))


def results_frame(groups: Iterable[Comparable]) -> DataFrame:
    """One row per result: `source`, `machine`, `rank` (NA where it is not ranked), and the columns of a point."""
    found = [
        (row, environment.machine) for one in groups for environment in one.environments for row in environment.rows
    ]
    frame = points_frame(row.point for row, _ in found)
    named = frame_of(
        {"source": "object", "machine": "object", "rank": "Int64"},
        ({"source": row.source, "machine": machine, "rank": row.rank} for row, machine in found),
    )
    return named.join(frame)


def _point(point: PointRecord) -> dict[str, Any]:
    values = {name: getattr(point, name) for name in POINT_COLUMNS if hasattr(point, name)}
    values["iterations_per_minute"] = 60e3 / point.step_ms if point.step_ms else None
    for name, interval in (
        ("ci95", point.ci95),
        ("speedup", point.speedup_ci95),
        ("efficiency", point.efficiency_ci95),
    ):
        values[f"{name}_low"], values[f"{name}_high"] = interval or (None, None)
    return values
