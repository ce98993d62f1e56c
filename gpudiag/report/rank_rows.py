"""Which ranks a report draws: all of a few, of many the typical one and those that are unlike it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from statistics import median

import msgspec

from gpudiag.model.analysis import BUCKETS, CollectiveSummary, Device, KernelSummary
from gpudiag.model.diff import RankChange
from gpudiag.model.sanitize import one_line
from gpudiag.report import figures
from gpudiag.report.palette import LABELS

#: As many as a person takes in at a glance; one machine's.
MOST_ROWS = 8
#: A rank is unlike the others when this share of its step goes elsewhere than on the median rank.
UNLIKE_SHARE = 0.05
#: Step times further apart than this are worth showing; ranks that train together end their steps together.
SPREAD_SHARE = 0.02


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the report: a device, or the median over all of them."""

    label: str
    step_ms: float
    buckets_ms: dict[str, float]
    hidden_ms: float


def rows_of(devices: Sequence[Device], *, all_ranks: bool = False) -> tuple[list[Row], str]:
    """The rows to draw, and a line that says which they are ("" when they are all)."""
    rows = _all_rows(devices)
    if all_ranks or len(rows) <= MOST_ROWS:
        return rows, ""
    typical = _median_row(rows)
    distances = [_distance(row, typical) for row in rows]
    unlike = [i for i in range(len(rows)) if distances[i] > UNLIKE_SHARE * typical.step_ms]
    slowest = max(range(len(rows)), key=lambda i: rows[i].step_ms)
    fastest = min(range(len(rows)), key=lambda i: rows[i].step_ms)
    spread = rows[slowest].step_ms - rows[fastest].step_ms
    ends = [slowest, fastest] if spread > SPREAD_SHARE * typical.step_ms else []
    chosen = dict.fromkeys([*ends, *sorted(unlike, key=lambda i: -distances[i])])
    drawn = sorted(list(chosen)[: MOST_ROWS - 1])
    left_out = len([i for i in unlike if i not in drawn])
    return [typical, *(rows[i] for i in drawn)], _note(len(rows), len(drawn), left_out)


def _note(total: int, drawn: int, left_out: int) -> str:
    what = f"the median of {total} ranks and those unlike it" if drawn else f"the median of {total} ranks, all alike"
    more = f"; {left_out} more are unlike it" if left_out else ""
    return f"Drawn: {what}{more}. --all-ranks draws every one."


def _all_rows(devices: Sequence[Device]) -> list[Row]:
    return [
        Row(
            label=label,
            step_ms=duration(device.step_ms),
            buckets_ms={bucket: duration(device.buckets_ms.get(bucket, 0.0)) for bucket in BUCKETS},
            hidden_ms=duration(device.hidden_communication_ms),
        )
        for device, label in zip(devices, labels(devices), strict=True)
    ]


def labels(devices: Sequence[Device | RankChange]) -> list[str]:
    """What each device is called in a table: by its rank, and by its own name where a rank has several."""
    per_rank = Counter(device.rank for device in devices)
    return [f"rank {d.rank}" + (f" {one_line(d.device)[:12]}" if per_rank[d.rank] > 1 else "") for d in devices]


def largest_collectives(collectives: Sequence[CollectiveSummary], most: int) -> list[CollectiveSummary]:
    """Those that take the most time per step, most first."""

    def time(call: CollectiveSummary) -> float:
        return duration(call.per_step) * (duration(call.transfer_us) + duration(call.wait_us))

    return sorted(collectives, key=time, reverse=True)[:most]


def largest_kernels(kernels: Sequence[KernelSummary], most: int) -> list[KernelSummary]:
    """Those that take the most time per step, most first."""
    return sorted(kernels, key=lambda kernel: -duration(kernel.ms_per_step))[:most]


def cells(row: Row, buckets: Sequence[str]) -> list[str]:
    """A row in figures, as Markdown and the page show it: label, step, the buckets, overlapped communication."""
    figures_ms = [row.buckets_ms[bucket] for bucket in buckets]
    beside = [figures.milliseconds(ms, beside=row.step_ms) for ms in (*figures_ms, row.hidden_ms)]
    return [row.label, figures.milliseconds(row.step_ms), *beside]


def headings(buckets: Sequence[str]) -> list[str]:
    """What stands above `cells`."""
    return ["", "step ms", *(LABELS[bucket] for bucket in buckets), "overlapped"]


def duration(value: float) -> float:
    """A file's figure, fit to draw: what is no duration counts as none."""
    return value if math.isfinite(value) and value > 0 else 0.0


def _median_row(rows: Sequence[Row]) -> Row:
    return Row(
        label="median",
        step_ms=median(row.step_ms for row in rows),
        buckets_ms={bucket: median(row.buckets_ms[bucket] for row in rows) for bucket in BUCKETS},
        hidden_ms=median(row.hidden_ms for row in rows),
    )


def _distance(row: Row, other: Row) -> float:
    """Milliseconds that are in other buckets here than there: half of the sum of all differences."""
    return sum(abs(row.buckets_ms[bucket] - other.buckets_ms[bucket]) for bucket in BUCKETS) / 2
