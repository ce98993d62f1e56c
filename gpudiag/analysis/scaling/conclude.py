"""All that follows from measured points: speedups, odd GPUs, waterfalls, forecasts, and what to be wary of."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from gpudiag.analysis.scaling import devices
from gpudiag.analysis.scaling.forecast import durations, prospect
from gpudiag.analysis.scaling.speedup import curve, rate_of, with_speedups
from gpudiag.analysis.scaling.trust import doubtful, with_scatter, without_conclusions
from gpudiag.analysis.scaling.waterfall import closes, measured_waterfall, waterfall
from gpudiag.model.benchmarks.scale_request import Network, Wanted
from gpudiag.model.benchmarks.scaling import (
    AloneGpu,
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

#: An interval wider than this share of its figure is worth a warning.
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
    """The result for one set of points.

    Args:
        known: all points.
        recorded: recorded steps of points, by id.
        facts: of the machine.
        remarks: what is known already.
        mode: points of the other mode are left out, and that is said.
        command, version: the command line and the version of gpudiag, for the record.
        wanted: what else to compute.
        need_peers: frameworks and strategies that cannot run on one device.
    """
    said = list(remarks)
    points = [point for point in known if point.mode == mode]
    if len(points) < len(known):
        said.append(
            Remark(
                code="mixed-scaling",
                message=f"{len(known) - len(points)} points of the other kind of scaling are left out: weak and strong "
                "scaling keep different things constant and are never ranked together",
            )
        )
    points = sorted(with_speedups(with_scatter(points), need_peers), key=_order)
    doubts = doubtful(points, need_peers)
    points = without_conclusions(points, doubts)
    points = [
        msgspec.structs.replace(point, profiled=recorded[point.id].directory if point.id in recorded else None)
        for point in points
    ]
    falls = _waterfalls(points, recorded, said, doubts)
    together = () if any(point.alone and point.id in doubts for point in points) else devices.pairs(points, facts)
    lone = devices.alone(points, points[0].machine.gpus if points else ())
    if any(gpu.point in doubts for gpu in lone):  # which GPU is odd, on a host that is, nobody can tell
        lone = tuple(msgspec.structs.replace(gpu, odd=False) for gpu in lone)
    said += _on_baselines(points, doubts)
    measured = [point for point in points if point.status == "measured"]
    said += _doubts(points, lone)
    times = durations(points, wanted)
    if wanted.voxels is not None and not any(time.of == "voxels" for time in times):
        why = "no point here wrote a volume: give --voxels-per-sample, or measure unet3d-predict"
        said.append(Remark(code="no-volume", message=why))
    return Scaling(
        workload=",".join(dict.fromkeys(point.workload for point in points)),
        mode=mode,
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        version=version,
        command=command,
        machine=measured[0].machine if measured else Machine(),
        points=tuple(points),
        alone=lone,
        pairs=together,
        links=devices.by_link(together),
        waterfalls=tuple(falls),
        prospects=tuple(_prospects(points, falls, wanted.network, doubts)) if mode == "weak" else (),
        durations=times,
        remarks=tuple(said),
    )


def _order(point: PointRecord) -> tuple[object, ...]:
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
    points: list[PointRecord], recorded: Mapping[str, RecordedSteps], said: list[Remark], doubts: Collection[str]
) -> list[Waterfall]:
    """Of the recorded points, and from timed steps alone of the others on most devices.

    None where the baseline decides nothing, or the recorded steps were others than the timed ones.
    """
    falls = []
    by_id = {point.id: point for point in points}
    most = max((point.devices for point in points if point.status == "measured"), default=0)
    for point in points:
        if point.devices == 1 or point.status != "measured" or point.baseline in doubts:
            continue
        base = by_id.get(point.baseline or "")
        several, one = recorded.get(point.id), recorded.get(point.baseline or "")
        apart = _apart(point, points)
        drawn = None
        if base is not None and several and one and several.parts and one.parts:
            drawn = waterfall(point, base, several.parts, one.parts, apart)
        if drawn is not None and closes(drawn):
            falls.append(drawn)
            continue
        if base is not None and apart is not None and point.devices == most and apart[1].id not in doubts:
            falls.append(measured_waterfall(point, base, apart))
        if drawn is not None:
            why = "its recorded steps were not like the timed ones, so that their parts explain nothing of these"
            said.append(Remark(code="no-waterfall", message=f"{point.id}: {why}"))
        elif several is not None and apart is None:
            why = "its one-device baseline was not recorded"
            if one is not None:
                why = "its recorded steps could not be replayed, or an earlier version concluded from them"
            said.append(Remark(code="no-waterfall", message=f"{point.id}: {why}"))
    return falls


def _apart(point: PointRecord, points: list[PointRecord]) -> tuple[PointRecord, PointRecord] | None:
    """The same job without exchange, on as many devices and on one."""
    if point.strategy == INDEPENDENT or point.mode == "strong":
        return None
    wanted = curve(msgspec.structs.replace(point, strategy=INDEPENDENT))
    many = next(
        (p for p in points if p.device_indices == point.device_indices and rate_of(p) and curve(p) == wanted), None
    )
    alone = next((p for p in points if many is not None and p.id == many.baseline), None)
    return (many, alone) if many is not None and alone is not None else None


def _on_baselines(points: Iterable[PointRecord], doubts: Mapping[str, str]) -> list[Remark]:
    """What is said of baselines that decide nothing."""
    return [
        Remark(
            code="no-baseline-to-trust",
            message=f"{point.id}: {doubts[point.id]}{_started(point, doubts[point.id])}; no speedup, waterfall or "
            "forecast follows from it: measure again when the host is quiet",
        )
        for point in points
        if point.id in doubts
    ]


def _started(point: PointRecord, why: str) -> str:
    times = len(point.starts)
    return f" (started {times} times)" if times > 1 and "starts" not in why else ""


def _prospects(
    points: list[PointRecord], falls: Iterable[Waterfall], network: Network | None, doubts: Collection[str]
) -> Iterable[Prospect]:
    hidden = {fall.point: _hidden_share(fall) for fall in falls}
    by_id = {point.id: point for point in points}
    curves: dict[tuple[object, ...], dict[int, PointRecord]] = {}
    for point in points:
        first = point.device_indices == tuple(range(point.devices))
        if point.status == "measured" and point.strategy != INDEPENDENT and first:
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
    exposed = sum(max(0.0, loss.ms_per_step) for loss in fall.losses if loss.name == "exposed_transfer")
    whole = exposed + fall.hidden_communication_ms
    return fall.hidden_communication_ms / whole if whole > 0 else None


def _doubts(points: Sequence[PointRecord], lone: Iterable[AloneGpu]) -> list[Remark]:
    """What makes figures less certain than they look."""
    said = [
        Remark(
            code="odd-gpu",
            message=f"GPU {gpu.index} alone reaches {100 * gpu.relative:.0f} % of the median GPU: look there before "
            "blaming the exchange",
        )
        for gpu in lone
        if gpu.odd
    ]
    failed = [point for point in points if point.status == "failed"]
    said += [Remark(code="failed-point", message=f"{point.id}: {point.error}") for point in failed]
    unsettled = [point.id for point in points if point.settled is False and point.status == "measured"]
    if unsettled:
        said.append(
            Remark(code="unsettled", message=f"step times were still falling when timing began: {', '.join(unsettled)}")
        )
    unsure = [
        point.id
        for point in points
        if point.ci95 and point.samples_per_s and (point.ci95[1] - point.ci95[0]) / 2 > _UNSURE * point.samples_per_s
    ]
    if unsure:
        said.append(Remark(code="unsure", message=f"uncertain by more than 5 %: {', '.join(unsure)}"))
    lonely = [p.id for p in points if p.status == "measured" and p.baseline is None and p.devices > 1]
    if lonely:
        said.append(
            Remark(code="no-baseline", message=f"no speedup, for want of a one-device point: {', '.join(lonely)}")
        )
    return said
