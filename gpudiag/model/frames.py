"""Make pandas frames of an analysis and of benchmark results, and a summary in a few lines, for notebooks.

Only `frame_of` imports pandas.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec import inspect

from gpudiag.model.parallelism import Parallelism, PassOfStage
from gpudiag.model.sanitize import one_line

if TYPE_CHECKING:
    from pandas import DataFrame

    from gpudiag.model.analysis import Analysis
    from gpudiag.model.benchmarks.scaling import PointRecord
    from gpudiag.model.benchmarks.tables import Comparable

_MAX_FINDINGS = 5
_MAX_TITLE = 160

#: Columns of `points_frame`. Columns that are not fields of `PointRecord` are computed from its fields.
POINT_COLUMNS = (
    *("workload", "framework", "strategy", "mode", "devices", "device_indices", "batch_per_device", "global_batch"),
    *("precision", "memory_format", "data", "status", "samples_per_s", "ci95_low", "ci95_high"),
    *("iterations_per_minute", "mean_ms", "standard_error_ms", "median_ms", "jitter_ms", "steps"),
    *("warmup_steps", "warmup_seconds", "speedup", "speedup_low", "speedup_high"),
    *("efficiency", "efficiency_low", "efficiency_high", "baseline", "parameters", "gradient_bytes"),
    *("mvox_per_s", "tflops_per_s", "mfu_percent", "error", "id"),
)


class Frames(NamedTuple):
    """The tables of one analysis, listed with their columns. Times are per step and in ms (of collectives: µs).

    Attributes:
        devices: rank, device, name, step_ms, a column `<bucket>_ms` for each bucket, hidden_communication_ms.
        buckets: rank, device, bucket, ms; the eight buckets of a device sum to its `step_ms`.
        steps: kind, rank, device, step, ms: the analysed recorded steps of each device, and the unprofiled (`timed`)
            steps of the slowest rank, without rank and device.
        waits: rank, on_rank, ms_per_step, cause.
        modules: rank, device, and the fields of each module in `Analysis.modules.times`.
        collectives, kernels, compute_classes, operators, findings, lines, tries: the fields of the analysis's items.
        parallel_ranks: rank, compute_ms, relative, and for each role the rank's position in its group.
        parallel_traffic: role, size of its groups, other fields of `RoleTraffic`, and a column `<operation>_per_step`
            for each operation.
        pipeline_passes: the fields of `PassOfStage`.
    """

    devices: DataFrame
    buckets: DataFrame
    steps: DataFrame
    waits: DataFrame
    collectives: DataFrame
    kernels: DataFrame
    operators: DataFrame
    modules: DataFrame
    findings: DataFrame
    lines: DataFrame
    compute_classes: DataFrame
    tries: DataFrame
    parallel_ranks: DataFrame
    parallel_traffic: DataFrame
    pipeline_passes: DataFrame


def analysis_frames(analysis: Analysis) -> Frames:
    """Return all tables of an analysis."""
    fields: dict[str, Any] = {field.name: field.type for field in fields_of(type(analysis))}

    def table(name: str, *, without: Sequence[str] = ()) -> DataFrame:
        """Return the structs of the analysis's field `name`, one per row, without some of their fields."""
        kind = fields[name].item_type.cls
        columns = {field.name: dtype_of(field.type) for field in fields_of(kind) if field.name not in without}
        return frame_of(columns, (msgspec.structs.asdict(row) for row in getattr(analysis, name)))

    steps: list[dict[str, Any]] = [
        {"kind": "recorded", "rank": device.rank, "device": device.device, "step": step, "ms": ms}
        for device in analysis.devices
        for step, ms in enumerate(device.step_times_ms)
    ]
    steps += [{"kind": "timed", "step": step, "ms": ms} for step, ms in enumerate(analysis.steps.unprofiled_times_ms)]
    buckets = [
        {"rank": device.rank, "device": device.device, "bucket": bucket, "ms": ms}
        for device in analysis.devices
        for bucket, ms in device.buckets_ms.items()
    ]
    devices = table("devices", without=("buckets_ms", "step_times_ms"))
    for bucket in dict.fromkeys(name for device in analysis.devices for name in device.buckets_ms):
        devices[f"{bucket}_ms"] = [device.buckets_ms.get(bucket, 0.0) for device in analysis.devices]
    step_columns = {"kind": "object", "rank": "Int64", "device": "object", "step": "int64", "ms": "float64"}
    return Frames(
        devices=devices,
        buckets=frame_of({"rank": "int64", "device": "object", "bucket": "object", "ms": "float64"}, buckets),
        steps=frame_of(step_columns, steps),
        waits=table("waits"),
        collectives=table("collectives"),
        kernels=table("kernels"),
        operators=table("operators"),
        modules=_modules(analysis),
        findings=table("findings"),
        lines=table("lines"),
        compute_classes=table("compute_classes"),
        tries=table("tries"),
        **_parallelism(analysis),
    )


def _parallelism(analysis: Analysis) -> dict[str, DataFrame]:
    """Return the tables of a job's grid by name; they have no rows if the analysis has no grid."""
    grid = analysis.parallelism or Parallelism(sizes={}, stated=False)
    passes = () if grid.pipeline is None else grid.pipeline.passes
    roles = dict.fromkeys(map(str, grid.sizes), "Int64")
    rank_columns = {"rank": "int64", **roles, "compute_ms": "float64", "relative": "float64"}
    ranks = [
        msgspec.structs.asdict(rank) | {str(role): index for role, index in rank.position.items()}
        for rank in grid.ranks
    ]
    operations = {name: f"{name}_per_step" for role in grid.traffic for name in role.operations}
    traffic = [
        {**msgspec.structs.asdict(role), "size": grid.sizes.get(role.role)}
        | {operations[name]: count for name, count in role.operations.items()}
        for role in grid.traffic
    ]
    times = dict.fromkeys(("transfer_ms", "wait_ms", "hidden_ms"), "float64")
    traffic_columns = {"role": "object", "size": "Int64", **times, "size_bytes": "Int64"}
    pass_columns = {field.name: dtype_of(field.type) for field in fields_of(PassOfStage)}
    return {
        "parallel_ranks": frame_of(rank_columns, ranks),
        "parallel_traffic": frame_of(traffic_columns | dict.fromkeys(operations.values(), "float64"), traffic),
        "pipeline_passes": frame_of(pass_columns, map(msgspec.structs.asdict, passes)),
    }


def _modules(analysis: Analysis) -> DataFrame:
    """Return one row per module and device.

    A module's times are lists in the order of `Analysis.devices`. Lists of an edited file may be shorter; then rows are
    missing.
    """
    names, times = ("root", "path", "type"), ("forward_ms", "backward_ms", "own_forward_ms", "own_backward_ms")
    kinds = {"rank": "int64", "device": "object", **dict.fromkeys(names, "object")}
    columns = {**kinds, **dict.fromkeys(("calls", *times), "float64")}
    rows = [
        {"rank": device.rank, "device": device.device}
        | {name: getattr(module, name) for name in (*names, "calls")}
        | {name: getattr(module, name)[index] for name in times}
        for index, device in enumerate(analysis.devices)
        for module in (analysis.modules.times if analysis.modules is not None else ())
        if all(index < len(getattr(module, name)) for name in times)
    ]
    return frame_of(columns, rows)


def points_frame(points: Iterable[PointRecord]) -> DataFrame:
    """Return one row per point of a scaling benchmark, with `POINT_COLUMNS`; missing figures are NaN or NA."""
    from gpudiag.model.benchmarks.scaling import PointRecord  # noqa: PLC0415  # not needed for an analysis

    known = {field.name: dtype_of(field.type) for field in fields_of(PointRecord)}
    return frame_of({name: known.get(name, "float64") for name in POINT_COLUMNS}, map(_point, points))


def results_frame(groups: Iterable[Comparable]) -> DataFrame:
    """Return one row per result: `source`, `machine`, `rank` (NA if not ranked), and the columns of a point."""
    results = [
        (row, environment.machine) for group in groups for environment in group.environments for row in environment.rows
    ]
    frame = points_frame(row.point for row, _ in results)
    named = frame_of(
        {"source": "object", "machine": "object", "rank": "Int64"},
        ({"source": row.source, "machine": machine, "rank": row.rank} for row, machine in results),
    )
    return named.join(frame)


def _point(point: PointRecord) -> dict[str, Any]:
    """Return the values of one point by column of `POINT_COLUMNS`."""
    values = {name: getattr(point, name) for name in POINT_COLUMNS if hasattr(point, name)}
    values["iterations_per_minute"] = 60e3 / point.step_ms if point.step_ms else None
    intervals = {"ci95": point.ci95, "speedup": point.speedup_ci95, "efficiency": point.efficiency_ci95}
    for name, interval in intervals.items():
        values[f"{name}_low"], values[f"{name}_high"] = interval or (None, None)
    return values


def frame_of(columns: dict[str, str], rows: Iterable[dict[str, Any]]) -> DataFrame:
    """Return a pandas frame with these columns (name → dtype); values that a row lacks are missing."""
    import pandas as pd  # noqa: PLC0415  # takes half a second, only needed for tables

    kept = list(rows)
    return pd.DataFrame(
        {name: pd.Series([row.get(name) for row in kept], dtype=dtype) for name, dtype in columns.items()}
    )


def fields_of(kind: type) -> tuple[inspect.Field, ...]:
    """Return the fields of a struct, with their types."""
    return inspect.type_info(kind).fields  # type: ignore[attr-defined,no-any-return]  # of structs


def dtype_of(kind: inspect.Type) -> str:
    """Return the dtype of a field: `Int64` if integers may be missing, else `int64`, `float64` or `object`."""
    types = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    if any(isinstance(member, inspect.IntType) for member in types):
        return "int64" if len(types) == 1 else "Int64"
    return "float64" if any(isinstance(member, inspect.FloatType) for member in types) else "object"


def summary(analysis: Analysis) -> str:
    """Return ranks, step and findings of an analysis in a few lines, for notebooks and debuggers."""
    steps = analysis.steps
    unit = steps.unit.replace("-", " ")
    step_ms = steps.unprofiled_mean_ms or steps.corrected_mean_ms or steps.mean_ms
    ranks = f"{len(analysis.ranks_present)} of {analysis.world_size} ranks"
    lines = [f"Analysis of {ranks}, {step_ms:.1f} ms per {unit}"]
    lines += [
        f"  {finding.severity}: {one_line(finding.title or finding.code)[:_MAX_TITLE]}"
        for finding in analysis.findings[:_MAX_FINDINGS]
    ]
    more = len(analysis.findings) - _MAX_FINDINGS
    lines += [f"  and {more} more findings"] if more > 0 else []
    lines += [] if analysis.findings else ["  no finding"]
    return "\n".join([*lines, "  fields: .findings, .steps, .devices, .validity; tables: .frames()"])
