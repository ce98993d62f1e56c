"""A scaling benchmark in the forms in which earlier ones gave their results, and what of each was not measured."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from gpudiag.report.scaling import words
from gpudiag.report.scaling.text import escaped, table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpudiag.model.benchmarks.scaling import PointRecord, Scaling

#: Iterations that the 3D U-Net's systems were timed for, and those to which they were extrapolated.
TIMED = 1001
ITERATIONS = 100_000
#: Voxels of the volume that they predicted, of Platynereis, and that one block writes.
VOLUME = 1.9e9
PLATYNEREIS = 8.1e12
BLOCK = 55 * 575 * 575

NOT_MEASURED = "Not measured in this run: "


def seed_tables(result: Scaling, head: str) -> list[str]:
    """Lines of the page."""
    points = [point for point in result.points if point.status == "measured" and point.samples_per_s is not None]
    whole = [point for point in points if point.device_indices == tuple(range(point.devices))]
    return [
        "# In the forms of earlier benchmarks",
        "",
        escaped(words.machine(result.machine)) + ".",
        "",
        head.strip(),
        "",
        *_training(whole),
        *_prediction(points),
        *_images_per_second(whole),
        *_parameter_servers(whole),
        *_models(whole),
        *_each_gpu(result),
        *_pairs(result),
        *_relative(whole),
    ]


def _training(points: list[PointRecord]) -> list[str]:
    """GPU benchmarks of a 3D U-Net: seconds for 1001 iterations, iterations per minute, days to 100k."""
    rows = []
    for point in sorted(points, key=lambda point: (point.workload != "unet3d", point.workload, point.devices)):
        if point.strategy != _exchanging(points) or point.step_ms is None or point.samples_per_s is None:
            continue
        samples = ITERATIONS * point.batch_per_device
        rows.append(
            (
                f"{point.workload} (x{point.devices})",
                str(point.global_batch),
                f"{TIMED * point.step_ms / 1e3:.1f}",
                f"{60e3 / point.step_ms:,.1f}",
                _days(ITERATIONS * point.step_ms / 1e3),
                _days(samples / point.samples_per_s),
            )
        )
    headings = (
        "system",
        "samples per iteration",
        f"{TIMED} iterations [s]",
        "iterations per minute",
        "100k iterations [d]",
        "their samples [d]",
    )
    note = (
        "An iteration on N devices is N times the samples of one on a single device, so that the time to a number of "
        "iterations says little by itself; the last column is the time to the samples of 100k one-device iterations."
    )
    lines = ["## Training: seconds, iterations per minute, days to 100k", ""]
    if not any(point.workload == "unet3d" for point in points):
        lines += [f"{NOT_MEASURED}the 3D U-Net, which the original timed. The other models in the same form:", ""]
    return [*lines, *table(headings, rows, left=1), "", note, ""]


def _prediction(points: Iterable[PointRecord]) -> list[str]:
    """Written voxels per second, and hours for the volumes."""
    rows = []
    for point in points:
        if point.workload == "unet3d-predict" and point.samples_per_s is not None:
            rate = point.samples_per_s * BLOCK
            rows.append(
                (f"x{point.devices}", f"{VOLUME / rate:.1f}", f"{rate / 1e6:.1f}", f"{PLATYNEREIS / rate / 3600:.1f}")
            )
    lines = ["## Prediction: voxels that were written, and hours for 8.1 teravoxels", ""]
    if not rows:
        return [*lines, f"{NOT_MEASURED}prediction of a volume on GPUs.", ""]
    return [*lines, *table(("system", "1.9 Gvox [s]", "Mvox/s", "8.1 Tvox [h]"), rows, left=1), ""]


def _images_per_second(points: list[PointRecord]) -> list[str]:
    """GPUs down, strategies across, a table per model."""
    lines = ["## Samples per second: GPUs down, strategies across", ""]
    for setting, members in words.groups(points):
        strategies = list(dict.fromkeys(point.strategy for point in members))
        rows = []
        for devices in sorted({point.devices for point in members}):
            by_name = {point.strategy: point.samples_per_s for point in members if point.devices == devices}
            rows.append([str(devices), *(_figure(by_name.get(name)) for name in strategies)])
        lines += [f"{escaped(setting)}:", "", *table(["#GPU", *strategies], rows, left=0), ""]
    return lines


def _parameter_servers(points: list[PointRecord]) -> list[str]:
    """GPUs and where gradients are reduced, with samples per second, speedup and efficiency."""
    rows = [
        (
            point.workload,
            str(point.devices),
            point.strategy,
            _figure(point.samples_per_s),
            f"{point.speedup:.2f}x",
            f"{100 * (point.efficiency or 0):.2f} %",
        )
        for point in points
        if point.speedup is not None
    ]
    headings = ("model", "GPUs", "strategy", "samples/s", "speedup", "efficiency")
    return ["## Speedup and efficiency by strategy", "", *table(headings, rows, left=1), ""]


def _models(points: list[PointRecord]) -> list[str]:
    """Models down: parameters, speedup, efficiency on the most devices; then the median over them."""
    exchanging = [point for point in points if point.strategy == _exchanging(points) and point.speedup is not None]
    most = max((point.devices for point in exchanging), default=0)
    rows = [
        (
            point.workload,
            f"{point.parameters or 0:,}",
            f"{point.speedup or 0:.2f}x",
            f"{100 * (point.efficiency or 0):.2f} %",
        )
        for point in exchanging
        if point.devices == most
    ]
    medians = []
    for devices in sorted({point.devices for point in exchanging if point.devices > 1}):
        of_models = [point for point in exchanging if point.devices == devices]
        middle = statistics.median(point.speedup or 0.0 for point in of_models)
        medians.append((str(devices), str(len(of_models)), f"{middle:.2f}x", f"{100 * middle / devices:.2f} %"))
    return [
        f"## Models on {most} GPUs, {_exchanging(points)}",
        "",
        *table(("model", "number of params", "speedup", "efficiency"), rows, left=1),
        "",
        *table(("GPUs", "models", "median speedup", "median efficiency"), medians, left=0),
        "",
    ]


def _each_gpu(result: Scaling) -> list[str]:
    """Each GPU by itself, relative to the first."""
    lines = ["## Each GPU alone", ""]
    if not result.alone:
        return [*lines, f"{NOT_MEASURED}each GPU alone.", ""]
    first = result.alone[0].samples_per_s
    rows = [
        (str(gpu.index), f"{gpu.samples_per_s:,.1f}", f"{100 * gpu.samples_per_s / first:.2f} %")
        for gpu in result.alone
    ]
    return [*lines, *table(("GPU", "total samples/s", "%"), rows, left=0), ""]


def _pairs(result: Scaling) -> list[str]:
    """Pairs of GPUs by the link between them."""
    lines = ["## Pairs by link", ""]
    if not result.pairs:
        return [*lines, f"{NOT_MEASURED}pairs of GPUs (`--subsets pairs`).", ""]
    rows = [
        (pair.link, ",".join(map(str, pair.indices)), pair.strategy, f"{pair.samples_per_s:,.1f}")
        for pair in result.pairs
    ]
    return [*lines, *table(("link", "GPUs", "strategy", "samples/s"), rows, left=3), ""]


def _relative(points: list[PointRecord]) -> list[str]:
    """Strategies on the most GPUs, relative to reducing on the CPU."""
    lines = ["## Strategies beside reducing on the CPU", ""]
    rows = []
    most = max((point.devices for point in points), default=0)
    for _, members in words.groups([point for point in points if point.devices == most]):
        by_name = {point.strategy: point.samples_per_s for point in members}
        beside = by_name.get("cpu-reduce")
        if beside:
            rows += [
                (members[0].workload, name, _figure(rate), f"{100 * (rate or 0) / beside:.1f} %")
                for name, rate in by_name.items()
            ]
    if not rows:
        return [*lines, f"{NOT_MEASURED}cpu-reduce on {most} devices.", ""]
    return [*lines, *table(("model", "strategy", "samples/s", "of cpu-reduce"), rows, left=2), ""]


def _exchanging(points: Sequence[PointRecord]) -> str:
    """The strategy in which most was measured, of those that exchange gradients."""
    names = [point.strategy for point in points if point.strategy != "independent"]
    return max(dict.fromkeys(names), key=names.count) if names else "independent"


def _days(seconds: float) -> str:
    return f"{seconds / 86400:.3f}"


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
