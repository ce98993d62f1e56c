"""The tables of one analysis as frames."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from gpudiag.model.frames.frame import dtype_of, fields_of, frame_of

if TYPE_CHECKING:
    from pandas import DataFrame

    from gpudiag.model.analysis import Analysis


class Frames(NamedTuple):
    """The tables of one analysis; times in milliseconds (collectives: microseconds), per step unless a row is a step.

    Attributes:
        devices: rank, device, name, step_ms, a column `<bucket>_ms` for each bucket, hidden_communication_ms.
        buckets: rank, device, bucket, ms: of each device, the eight sum to its `step_ms`.
        steps: kind, rank, device, step, ms: the analysed recorded steps of each device, and the timed ones of the
            slowest rank, which has no number here.
        waits: rank, on_rank, ms_per_step, cause.
        modules: rank, device, and the fields of a module there: of each device all, as in `Analysis.modules.times`.
        collectives, kernels, operators, findings: the fields of the analysis.
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


def analysis_frames(analysis: Analysis) -> Frames:
    """All tables of an analysis."""
    fields: dict[str, Any] = {field.name: field.type for field in fields_of(type(analysis))}

    def table(name: str, *, without: Sequence[str] = ()) -> DataFrame:
        kind = fields[name].item_type.cls
        columns = {field.name: dtype_of(field.type) for field in fields_of(kind) if field.name not in without}
        return frame_of(columns, (msgspec.structs.asdict(row) for row in getattr(analysis, name)))

    times: list[dict[str, Any]] = [
        {"kind": "recorded", "rank": one.rank, "device": one.device, "step": step, "ms": ms}
        for one in analysis.devices
        for step, ms in enumerate(one.step_times_ms)
    ]
    times += [{"kind": "timed", "step": step, "ms": ms} for step, ms in enumerate(analysis.steps.unprofiled_times_ms)]
    buckets = [
        {"rank": one.rank, "device": one.device, "bucket": bucket, "ms": ms}
        for one in analysis.devices
        for bucket, ms in one.buckets_ms.items()
    ]
    devices = table("devices", without=("buckets_ms", "step_times_ms"))
    for bucket in dict.fromkeys(name for one in analysis.devices for name in one.buckets_ms):
        devices[f"{bucket}_ms"] = [one.buckets_ms.get(bucket, 0.0) for one in analysis.devices]
    return Frames(
        devices=devices,
        buckets=frame_of({"rank": "int64", "device": "object", "bucket": "object", "ms": "float64"}, buckets),
        steps=frame_of(
            {"kind": "object", "rank": "Int64", "device": "object", "step": "int64", "ms": "float64"}, times
        ),
        waits=table("waits"),
        collectives=table("collectives"),
        kernels=table("kernels"),
        operators=table("operators"),
        modules=_modules(analysis),
        findings=table("findings"),
    )


def _modules(analysis: Analysis) -> DataFrame:
    """One row per module and device."""
    names, each = ("root", "path", "type"), ("forward_ms", "backward_ms", "own_forward_ms", "own_backward_ms")
    kinds = {"rank": "int64", "device": "object", **dict.fromkeys(names, "object")}
    columns = {**kinds, **dict.fromkeys(("calls", *each), "float64")}
    rows = [
        {"rank": one.rank, "device": one.device}
        | {name: getattr(module, name) for name in (*names, "calls")}
        | {name: getattr(module, name)[place] for name in each}
        for place, one in enumerate(analysis.devices)
        for module in (analysis.modules.times if analysis.modules is not None else ())
        if all(place < len(getattr(module, name)) for name in each)
    ]
    return frame_of(columns, rows)
