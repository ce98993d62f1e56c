"""Derive speedups, waterfalls, forecasts, unusual GPUs and warnings from measured points."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from gpudiag.analysis.scaling import devices
from gpudiag.analysis.scaling.forecast import durations, prospect
from gpudiag.analysis.scaling.speedup import curve, doubtful, rate_of, with_scatter, with_speedups, without_conclusions
from gpudiag.analysis.scaling.waterfall import closes, measured_waterfall, waterfall
from gpudiag.model.benchmarks.scale_request import Network, Wanted
from gpudiag.model.benchmarks.scaling import (
    AloneGpu,
    Duration,
    Machine,
    Mode,
    PointRecord,
    Prospect,
    RecordedSteps,
    Remark,
    Scaling,
    Waterfall,
)
from gpudiag.model.facts import Facts
from gpudiag.model.job import INDEPENDENT

#: A remark names the points whose throughput has a 95 % interval with a half-width above this share of it.
_UNSURE = 0.05


def conclude(
    known: Collection[PointRecord],
    recorded: Mapping[str, RecordedSteps],
    facts: Facts | None,
    *,
    remarks: Sequence[Remark],
    mode: Mode,
    command: tuple[str, ...],
    version: str,
    wanted: Wanted,
    need_peers: Collection[tuple[str, str]] = (),
) -> Scaling:
    """Return the result of one set of points.

    Args:
        known: all points, of both modes.
        recorded: id of a profiled point → its recorded steps.
        facts: the machine's facts, if known.
        remarks: earlier remarks, which precede the new remarks.
        mode: weak or strong scaling. Points of the other mode are omitted, with a remark.
        command, version: the command line and the version of gpudiag, for the record.
        wanted: amounts of training whose duration is computed, and the network for forecasts.
        need_peers: (framework, strategy) pairs that cannot run on one device.
    """
    of_mode = [point for point in known if point.mode == mode]
    points = sorted(with_speedups(with_scatter(of_mode), need_peers), key=_order)
    doubts = doubtful(points, need_peers)
    points = [
        msgspec.structs.replace(point, profiled=recorded[point.id].directory if point.id in recorded else None)
        for point in without_conclusions(points, doubts)
    ]
    falls, waterfall_remarks = _waterfalls(points, recorded, doubts)
    alone = _alone(points, doubts)
    # A pair is compared with each of its GPUs measured alone, so that a doubtful GPU makes the comparison useless.
    pairs = () if any(point.alone and point.id in doubts for point in points) else devices.pairs(points, facts)
    times = durations(points, wanted)
    return Scaling(
        workload=",".join(dict.fromkeys(point.workload for point in points)),
        mode=mode,
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        version=version,
        command=command,
        machine=next((point.machine for point in points if point.status == "measured"), Machine()),
        points=tuple(points),
        alone=alone,
        pairs=pairs,
        links=devices.by_link(pairs),
        waterfalls=tuple(falls),
        # Forecasts assume constant samples per device, as in weak scaling.
        prospects=tuple(_prospects(points, falls, wanted.network, doubts)) if mode == "weak" else (),
        durations=times,
        remarks=(
            *remarks,
            *_mixed_scaling(len(known) - len(of_mode)),
            *waterfall_remarks,
            *_untrusted_baselines(points, doubts),
            *_uncertain(points, alone),
            *_no_volume(wanted, times),
        ),
    )


def _alone(points: Sequence[PointRecord], doubts: Collection[str]) -> tuple[AloneGpu, ...]:
    """Return the GPUs measured alone. No GPU is marked as odd if the point of any GPU is doubtful (in `doubts`).

    A doubtful point suggests that the host was busy, which can make any GPU look odd.
    """
    alone = devices.alone(points, points[0].machine.gpus if points else ())
    if any(gpu.point in doubts for gpu in alone):
        return tuple(msgspec.structs.replace(gpu, odd=False) for gpu in alone)
    return alone


def _mixed_scaling(left_out: int) -> list[Remark]:
    """Return a remark if points of the other kind of scaling were left out."""
    if not left_out:
        return []
    message = (
        f"{left_out} points of the other kind of scaling are left out: weak and strong scaling keep different things "
        "constant and are never ranked together"
    )
    return [Remark(code="mixed-scaling", message=message)]


def _no_volume(wanted: Wanted, times: Iterable[Duration]) -> list[Remark]:
    if wanted.voxels is None or any(duration.of == "voxels" for duration in times):
        return []
    message = "no point here wrote a volume: give --voxels-per-sample, or measure unet3d-predict"
    return [Remark(code="no-volume", message=message)]


def _order(point: PointRecord) -> tuple[object, ...]:
    """Return the sort key of a point in the results."""
    return (
        point.workload,
        point.precision,
        point.memory_format,
        point.data,
        point.batch_per_device if point.mode == "weak" else point.global_batch,
        point.devices,
        point.strategy,
        point.device_indices,
    )


def _waterfalls(
    points: list[PointRecord], recorded: Mapping[str, RecordedSteps], doubts: Collection[str]
) -> tuple[list[Waterfall], list[Remark]]:
    """Return the waterfalls of points with several devices, and remarks on recorded points without a waterfall.

    A waterfall is computed from recorded steps. If recorded steps are missing or unusable, points with the most devices
    get a waterfall from unprofiled steps, which needs the same training measured without communication. A point with a
    doubtful baseline (in `doubts`) gets no waterfall.
    """
    falls, remarks = [], []
    by_id = {point.id: point for point in points}
    several_devices = _measured_on_several(points)
    most = max((point.devices for point in several_devices), default=0)
    for point in several_devices:
        base = by_id.get(point.baseline or "")
        if point.baseline in doubts:
            continue
        several, one = recorded.get(point.id), recorded.get(point.baseline or "")
        independent = _independent_points(point, points)
        fall = _recorded_waterfall(point, base, several, one, independent)
        if fall is not None and closes(fall):
            falls.append(fall)
            continue
        if base and independent and point.devices == most and independent[1].id not in doubts:
            falls.append(measured_waterfall(point, base, independent))
        reason = _no_waterfall(fall, several, one, independent)
        if reason:
            remarks.append(Remark(code="no-waterfall", message=f"{point.id}: {reason}"))
    return falls, remarks


def _measured_on_several(points: Iterable[PointRecord]) -> list[PointRecord]:
    return [point for point in points if point.status == "measured" and point.devices > 1]


def _recorded_waterfall(
    point: PointRecord,
    base: PointRecord | None,
    several: RecordedSteps | None,
    one: RecordedSteps | None,
    independent: tuple[PointRecord, PointRecord] | None,
) -> Waterfall | None:
    """Return the waterfall of `point` relative to `base`; None if the steps of either were not recorded and simulated.

    `several` and `one` are the recorded steps of `point` and `base`. `independent` is the result of
    `_independent_points`.
    """
    if base is None or several is None or one is None or several.parts is None or one.parts is None:
        return None
    return waterfall(point, base, several.parts, one.parts, independent)


def _no_waterfall(
    fall: Waterfall | None,
    several: RecordedSteps | None,
    one: RecordedSteps | None,
    independent: tuple[PointRecord, PointRecord] | None,
) -> str:
    """Return the reason why recorded steps gave no waterfall; empty if no remark is needed.

    The arguments are those of `_recorded_waterfall` and its result `fall`.
    """
    if fall is not None:
        return "its recorded steps differ too much from the unprofiled ones to explain them"
    if several is None or independent is not None:  # not recorded, or explained by the job without communication
        return ""
    if one is None:
        return "its one-device baseline was not recorded"
    return "its recorded steps could not be simulated, or an earlier version analysed them"


def _independent_points(point: PointRecord, points: list[PointRecord]) -> tuple[PointRecord, PointRecord] | None:
    """Return (many, alone): the same training without communication, on the point's devices and on one device.

    Return None if either is missing, in strong scaling, and if the point itself is without communication.
    """
    if point.strategy == INDEPENDENT or point.mode == "strong":
        return None
    wanted = curve(msgspec.structs.replace(point, strategy=INDEPENDENT))
    many = next(
        (p for p in points if p.device_indices == point.device_indices and rate_of(p) and curve(p) == wanted), None
    )
    alone = next((p for p in points if many is not None and p.id == many.baseline), None)
    return (many, alone) if many is not None and alone is not None else None


def _untrusted_baselines(points: Iterable[PointRecord], doubts: Mapping[str, str]) -> list[Remark]:
    """Return a remark for each doubtful baseline; `doubts` is id of the point → reason."""
    return [
        Remark(
            code="no-baseline-to-trust",
            message=f"{point.id}: {doubts[point.id]}{_started(point, doubts[point.id])}; no speedup, waterfall or "
            "forecast is computed from it: measure again when the host is quiet",
        )
        for point in points
        if point.id in doubts
    ]


def _started(point: PointRecord, doubt: str) -> str:
    """Return the number of starts in words; empty if the point was started once or the doubt states the number."""
    times = len(point.starts)
    return f" (started {times} times)" if times > 1 and "starts" not in doubt else ""


def _prospects(
    points: list[PointRecord], falls: Iterable[Waterfall], network: Network | None, doubts: Collection[str]
) -> Iterable[Prospect]:
    """Yield the forecast of each curve, unless its baseline is doubtful (in `doubts`).

    Only points on devices 0 to n - 1 are used, so that a curve has one point for each number of devices n.
    """
    hidden = {fall.point: _hidden_share(fall) for fall in falls}
    by_id = {point.id: point for point in points}
    curves: dict[tuple[object, ...], dict[int, PointRecord]] = {}
    for point in points:
        uses_first_devices = point.device_indices == tuple(range(point.devices))
        if point.status == "measured" and point.strategy != INDEPENDENT and uses_first_devices:
            curves.setdefault(curve(point), {})[point.devices] = point
    for sizes in curves.values():
        largest = sizes[max(sizes)]
        base = by_id.get(largest.baseline or "")
        if base is None or base.id in doubts:
            continue
        sizes.setdefault(1, base)
        forecast = prospect([sizes[n] for n in sorted(sizes)], network, hidden.get(largest.id))
        if forecast is not None:
            yield forecast


def _hidden_share(fall: Waterfall) -> float | None:
    """Return the share (0 to 1) of communication that overlaps with compute; None without communication."""
    exposed_ms = sum(max(0.0, loss.ms_per_step) for loss in fall.losses if loss.name == "exposed_transfer")
    communication_ms = exposed_ms + fall.hidden_communication_ms
    return fall.hidden_communication_ms / communication_ms if communication_ms > 0 else None


def _uncertain(points: Sequence[PointRecord], alone: Iterable[AloneGpu]) -> list[Remark]:
    """Return remarks on odd GPUs, failed points, and uncertain points."""
    remarks = [
        Remark(
            code="odd-gpu",
            message=f"GPU {gpu.index} alone reaches {100 * gpu.relative:.0f} % of the median GPU: examine it before "
            "communication",
        )
        for gpu in alone
        if gpu.odd
    ]
    remarks += [
        Remark(code="failed-point", message=f"{point.id}: {point.error}")
        for point in points
        if point.status == "failed"
    ]
    return [*remarks, *_summaries(points)]


def _summaries(points: Sequence[PointRecord]) -> list[Remark]:
    """Return a remark for each defect that a point has: still falling step times, a wide interval, no baseline."""
    measured = [point for point in points if point.status == "measured"]
    lists = (
        ("unsettled", "step times were still falling when timing began", [p for p in measured if p.settled is False]),
        ("unsure", "uncertain by more than 5 %", [p for p in points if _is_unsure(p)]),
        (
            "no-baseline",
            "no speedup, because the one-device point is missing",
            [p for p in measured if p.baseline is None and p.devices > 1],
        ),
    )
    return [
        Remark(code=code, message=f"{message}: {', '.join(point.id for point in concerned)}")
        for code, message, concerned in lists
        if concerned
    ]


def _is_unsure(point: PointRecord) -> bool:
    if not point.ci95 or not point.samples_per_s:
        return False
    return (point.ci95[1] - point.ci95[0]) / 2 > _UNSURE * point.samples_per_s
