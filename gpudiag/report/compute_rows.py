"""Describe the times and rates of kernel classes, as table rows and as one line, for all reports."""

from __future__ import annotations

from gpudiag.model.analysis import Analysis
from gpudiag.model.compute_rates import ComputeClass
from gpudiag.model.sanitize import one_line
from gpudiag.report import figures
from gpudiag.report.rank_rows import duration

_COLUMNS = ("class", "ms per step", "share", "kernels", "bound")
#: `compute_rows` has the rate of a class if shapes are known for at least this percentage of the class's time.
_LEAST_KNOWN = 50
#: Maximum number of rows. An analysis has fewer classes, but a hostile file may have more.
_MOST_CLASSES = 16
#: Maximum number of classes in `compute_line`.
_MOST_IN_LINE = 4


def compute_columns(analysis: Analysis) -> tuple[str, ...]:
    """Return the headings of `compute_rows`; `reached` is one of them only if some rate is known."""
    return (*_COLUMNS, "reached") if any(map(_reached_rate, analysis.compute_classes[:_MOST_CLASSES])) else _COLUMNS


def compute_rows(analysis: Analysis) -> list[tuple[str, ...]]:
    """Return a row of cells for each kernel class, in the order of the analysis; see `compute_columns`."""
    total, columns = _total_ms(analysis), compute_columns(analysis)  # times have as many decimals as the total
    return [
        (
            one_line(row.kernel_class)[:20],
            figures.milliseconds(duration(row.ms_per_step), beside=total),
            figures.percent(duration(row.ms_per_step), total),
            figures.count(duration(row.kernels)),
            row.bound or "",
            _reached_rate(row),
        )[: len(columns)]
        for row in analysis.compute_classes[:_MOST_CLASSES]
    ]


def compute_line(analysis: Analysis) -> str:
    """Return a line with the largest classes; "" if compute takes less than half of the step, and so matters less."""
    total = _total_ms(analysis)
    if 2 * total < duration(analysis.steps.mean_ms) or not total:
        return ""
    words = [_class_words(row, total) for row in analysis.compute_classes[:_MOST_IN_LINE]]
    return f"compute: {', '.join(words)}"


def _reached_rate(row: ComputeClass) -> str:
    """Return a class's rate and its share of the peak, if known; "" if most shapes or the rate are unknown."""
    if row.known_percent is None or row.known_percent < _LEAST_KNOWN:
        return ""
    if row.tflops_per_s is not None:
        rate = f"{figures.flops(row.tflops_per_s * 1e12)}/s"
    elif row.gb_per_s is not None:
        rate = f"{figures.size(row.gb_per_s * 1e9)}/s"
    else:
        return ""
    return rate if row.peak_percent is None else f"{rate}, {figures.percent(row.peak_percent, 100)} of peak"


def _class_words(row: ComputeClass, total: float) -> str:
    bound = f" ({row.bound})" if row.bound else ""
    return f"{one_line(row.kernel_class)[:20]} {figures.percent(duration(row.ms_per_step), total)}{bound}"


def _total_ms(analysis: Analysis) -> float:
    return sum(duration(row.ms_per_step) for row in analysis.compute_classes[:_MOST_CLASSES])
