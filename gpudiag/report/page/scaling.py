"""Make the scaling section of the page."""

from __future__ import annotations

from typing import Any

from gpudiag.model.benchmarks.scaling import PointRecord, Scaling, Waterfall
from gpudiag.model.sanitize import one_line
from gpudiag.report import figures
from gpudiag.report.page.charts import SERIES_COLORS, PlottedCurve, bars, curves, waterfall
from gpudiag.report.scaling import words


def scaling_part(result: Scaling) -> dict[str, Any]:
    """Return the template's variables about a scaling benchmark."""
    by_id = {point.id: point for point in result.points}
    return {
        "title": words.title(result),
        "machine": words.machine(result.machine),
        "headings": words.HEADINGS,
        "groups": [_group(setting, points) for setting, points in words.groups(result.points)],
        "waterfalls": [
            {"title": words.waterfall_title(fall), "drawing": _waterfall(fall), "notes": words.waterfall_notes(fall)}
            for fall in result.waterfalls
        ],
        "prospects": [
            {
                "title": words.prospect_title(prospect),
                "rows": [words.forecast_cells(forecast) for forecast in prospect.forecasts],
                "assumptions": prospect.assumptions,
            }
            for prospect in result.prospects
        ],
        "durations": [words.duration_words(t, by_id[t.point]) for t in result.durations if t.point in by_id],
        "alone": [(f"{gpu.index} {one_line(gpu.name)}", *words.alone_cells(gpu)) for gpu in result.alone],
        "pairs": [
            [
                " and ".join(map(str, pair.indices)),
                pair.link,
                pair.strategy,
                figures.throughput(pair.samples_per_s),
                words.share(pair.efficiency, pair.efficiency_ci95),
            ]
            for pair in result.pairs
        ],
        "remarks": [f"{remark.code}: {remark.message}" for remark in result.remarks],
    }


def _group(setting: str, points: list[PointRecord]) -> dict[str, Any]:
    """Return the template's variables about points with the same settings."""
    measured = [point for point in points if point.status == "measured"]
    strategies = list(dict.fromkeys(point.strategy for point in measured))
    colors = {strategy: number % SERIES_COLORS for number, strategy in enumerate(strategies)}
    return {
        "setting": setting,
        "legend": [*((name, f"s{color}") for name, color in colors.items()), ("ideal", "ideal")],
        **_curves(setting, measured, colors),
        "rows": [words.cells(point) for point in measured],
        "failed": [words.failure(point) for point in points if point.status != "measured"],
        "relative": _relative(setting, points, colors),
    }


def _curves(setting: str, measured: list[PointRecord], colors: dict[str, int]) -> dict[str, str]:
    """Return charts of `throughput` and `efficiency` by number of devices; "" if all points have one number."""
    if len({point.devices for point in measured}) < 2:
        return {"throughput": "", "efficiency": ""}
    rates = [_curve(measured, strategy, color, efficiency=False) for strategy, color in colors.items()]
    shares = [_curve(measured, strategy, color, efficiency=True) for strategy, color in colors.items()]
    shares = [curve for curve in shares if curve.points]
    one_device_rate = max((point.samples_per_s or 0.0 for point in measured if point.devices == 1), default=0.0)
    throughput = curves(
        f"Samples per second by devices: {setting}",
        rates,
        ideal=(lambda devices: devices * one_device_rate) if one_device_rate else None,
        y_label="samples/s",
    )
    title = f"Efficiency by devices: {setting}"
    efficiency = curves(title, shares, ideal=lambda _: 1.0, y_label="efficiency", percent=True) if shares else ""
    return {"throughput": throughput, "efficiency": efficiency}


def _curve(points: list[PointRecord], strategy: str, color: int, *, efficiency: bool) -> PlottedCurve:
    """Return the curve of one strategy over the number of devices: its throughput, or its efficiency."""
    curve = []
    # If a strategy needs several devices, its curve begins with the point of another strategy on one device.
    baselines = {point.baseline for point in points if point.strategy == strategy}
    for point in points:
        value, interval = (point.efficiency, point.efficiency_ci95) if efficiency else (point.samples_per_s, point.ci95)
        if (point.strategy == strategy or point.id in baselines) and value is not None and interval is not None:
            curve.append((float(point.devices), value, *interval))
    return PlottedCurve(name=one_line(strategy), points=tuple(sorted(curve)), color=color)


def _relative(setting: str, points: list[PointRecord], colors: dict[str, int]) -> str:
    """Return the chart of strategies relative to the fastest; "" for fewer than two strategies."""
    ranked = words.relative_performance(points)
    if len(ranked) < 2:
        return ""
    rows = [
        (
            point.strategy,
            share,
            f"{100 * share:.1f} % · {figures.throughput(point.samples_per_s)} samples/s",
            f"s{colors[point.strategy]}",
        )
        for point, share in ranked
    ]
    return bars(f"Strategies relative to the fastest: {setting}", rows)


def _waterfall(fall: Waterfall) -> str:
    rows = [
        (name, percent, f"{name}: {percent:z.2f} %, {figures.throughput(abs(rate))} samples/s, {ms:z.2f} ms per step")
        for name, percent, rate, ms in words.waterfall_rows(fall)
    ]
    colors = ["ideal", *("gain" if percent > 0 else "loss" for _, percent, _ in rows[1:-1]), "s0"]
    return waterfall(words.waterfall_title(fall), rows, colors)
