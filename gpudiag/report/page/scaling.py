"""What the scaling part of the page shows."""

from __future__ import annotations

from typing import Any

from gpudiag.model.benchmarks.scaling import PointRecord, Scaling, Waterfall
from gpudiag.model.sanitize import one_line
from gpudiag.report import figures
from gpudiag.report.page.charts import SERIES, Series, bars, curves, waterfall
from gpudiag.report.scaling import words


def scaling_part(result: Scaling) -> dict[str, Any]:
    """The template's variables."""
    by_id = {point.id: point for point in result.points}
    return {
        "title": words.title(result),
        "machine": words.machine(result.machine),
        "headings": words.HEADINGS,
        "groups": [_group(setting, points) for setting, points in words.groups(result.points)],
        "waterfalls": [
            {"title": words.waterfall_title(fall), "drawing": _waterfall(fall), "notes": _notes(fall)}
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
        "alone": [
            [
                f"{gpu.index} {one_line(gpu.name)}",
                figures.throughput(gpu.samples_per_s),
                f"{100 * gpu.relative:.1f} %",
                "unlike the rest" if gpu.odd else "",
            ]
            for gpu in result.alone
        ],
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
    measured = [point for point in points if point.status == "measured"]
    strategies = list(dict.fromkeys(point.strategy for point in measured))
    several = len({point.devices for point in measured}) > 1
    rates = [_series(measured, name, number, efficiency=False) for number, name in enumerate(strategies)]
    shares = [_series(measured, name, number, efficiency=True) for number, name in enumerate(strategies)]
    shares = [series for series in shares if series.points]
    alone = max((point.samples_per_s or 0.0 for point in measured if point.devices == 1), default=0.0)
    ranked = words.relative_performance(points)
    return {
        "setting": setting,
        "legend": [(name, f"s{number % SERIES}") for number, name in enumerate(strategies)] + [("ideal", "ideal")],
        "throughput": curves(
            f"Samples per second by devices: {setting}",
            rates,
            ideal=(lambda devices: devices * alone) if alone else None,
            y_label="samples/s",
        )
        if several
        else "",
        "efficiency": curves(
            f"Efficiency by devices: {setting}", shares, ideal=lambda _: 1.0, y_label="efficiency", percent=True
        )
        if several and shares
        else "",
        "rows": [words.cells(point) for point in measured],
        "failed": [words.failure(point) for point in points if point.status != "measured"],
        "relative": bars(
            f"Strategies beside the fastest: {setting}",
            [
                (
                    point.strategy,
                    share,
                    f"{100 * share:.1f} % · {figures.throughput(point.samples_per_s)} samples/s",
                    f"s{strategies.index(point.strategy) % SERIES}",
                )
                for point, share in ranked
            ],
        )
        if len(ranked) > 1
        else "",
    }


def _series(points: list[PointRecord], strategy: str, number: int, *, efficiency: bool) -> Series:
    curve = []
    # Strategies that need peers begin at a point of another one: the same training, with nothing to exchange.
    bases = {point.baseline for point in points if point.strategy == strategy}
    for point in points:
        value = point.efficiency if efficiency else point.samples_per_s
        interval = point.efficiency_ci95 if efficiency else point.ci95
        if (point.strategy == strategy or point.id in bases) and value is not None and interval is not None:
            curve.append((float(point.devices), value, *interval))
    return Series(name=one_line(strategy), points=tuple(sorted(curve)), colour=number)


def _waterfall(fall: Waterfall) -> str:
    rows = [
        (name, percent, f"{name}: {percent:z.2f} %, {figures.throughput(abs(rate))} samples/s, {ms:z.2f} ms per step")
        for name, percent, rate, ms in words.waterfall_rows(fall)
    ]
    colours = ["ideal", *("gain" if percent > 0 else "loss" for _, percent, _ in rows[1:-1]), "s0"]
    return waterfall(words.waterfall_title(fall), rows, colours)


def _notes(fall: Waterfall) -> list[str]:
    hidden = fall.hidden_communication_ms
    words_ = [f"Hidden communication, which costs nothing: {hidden:.2f} ms per step."] if hidden > 0.005 else []
    return [*words_, *(one_line(note) for note in fall.notes)]
