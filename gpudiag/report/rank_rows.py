"""Select the rows of a table of ranks: all rows for a few ranks, or else the median and the outliers.

A bucket is a part of the step time, such as compute or copy.
"""

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

#: Maximum number of rows: the usual number of GPUs of one machine.
MOST_ROWS = 8
#: A rank is an outlier if its `bucket_distance` to the median exceeds this share of the median step time.
UNLIKE_SHARE = 0.05
#: If step times differ by more than this share, the slowest and the fastest rank are shown. Usually step times
#: differ less, because ranks that train together end their steps together.
SPREAD_SHARE = 0.02
#: A bucket gets a column if its time is at least this many ms. Smaller times would be shown as zeros.
_SEEN_MS = 0.005
#: Heading and explanation of the column for communication during compute, which is not a bucket.
OVERLAPPED = "overlapped"
OVERLAPPED_WORDS = "communication during compute (costs no step time by itself)"


class RankRow(msgspec.Struct, frozen=True, kw_only=True):
    """Step time, buckets and overlapped communication of one device, or their medians over all devices.

    `rank` is None in a row of medians.
    """

    label: str
    step_ms: float
    buckets_ms: dict[str, float]
    hidden_ms: float
    rank: int | None = None


def rows_of(devices: Sequence[Device], *, all_ranks: bool = False) -> tuple[list[RankRow], str]:
    """Return the rows to show, and a note about the selection. The note is "" if all ranks are shown."""
    rows = [
        RankRow(
            label=label,
            step_ms=duration(device.step_ms),
            buckets_ms={bucket: duration(device.buckets_ms.get(bucket, 0.0)) for bucket in BUCKETS},
            hidden_ms=duration(device.hidden_communication_ms),
            rank=device.rank,
        )
        for device, label in zip(devices, labels(devices), strict=True)
    ]
    if all_ranks or len(rows) <= MOST_ROWS:
        return rows, ""
    middle = _median_row(rows)
    distances = [bucket_distance(row.buckets_ms, middle.buckets_ms) for row in rows]
    outliers = [i for i in range(len(rows)) if distances[i] > UNLIKE_SHARE * middle.step_ms]
    slowest = max(range(len(rows)), key=lambda i: rows[i].step_ms)
    fastest = min(range(len(rows)), key=lambda i: rows[i].step_ms)
    spread = rows[slowest].step_ms - rows[fastest].step_ms
    extremes = [slowest, fastest] if spread > SPREAD_SHARE * middle.step_ms else []
    by_importance = dict.fromkeys([*extremes, *sorted(outliers, key=lambda i: -distances[i])])
    shown = sorted(list(by_importance)[: MOST_ROWS - 1])  # one row is for the median
    omitted = len(set(outliers) - set(shown))
    return [middle, *(rows[i] for i in shown)], _note(len(rows), len(shown), omitted)


def _note(total: int, shown: int, omitted: int) -> str:
    others = " and the ranks that differ from it" if shown else "; all ranks are alike"
    more = f"; {omitted} more differ" if omitted else ""
    return f"Shown: the median of {total} ranks{others}{more}. --all-ranks shows every rank."


def _median_row(rows: Sequence[RankRow]) -> RankRow:
    return RankRow(
        label="median",
        step_ms=median(row.step_ms for row in rows),
        buckets_ms={bucket: median(row.buckets_ms[bucket] for row in rows) for bucket in BUCKETS},
        hidden_ms=median(row.hidden_ms for row in rows),
    )


def bucket_distance(buckets_ms: dict[str, float], other_ms: dict[str, float]) -> float:
    """Return the time in ms that is in different buckets: half of the sum of |difference| over all buckets."""
    return sum(abs(buckets_ms[bucket] - other_ms[bucket]) for bucket in BUCKETS) / 2


def labels(devices: Sequence[Device | RankChange]) -> list[str]:
    """Return `rank 3` for each device, or `rank 3 cuda:1` if the rank has several devices."""
    per_rank = Counter(device.rank for device in devices)
    return [f"rank {d.rank}" + (f" {one_line(d.device)[:12]}" if per_rank[d.rank] > 1 else "") for d in devices]


def buckets_seen(rows: Sequence[RankRow]) -> list[str]:
    """Return the buckets with visible time in some row: 0.005 ms, or 0.5 % of the step if the step is below 1 ms."""
    seen = min([_SEEN_MS, *(_SEEN_MS * row.step_ms for row in rows if row.step_ms > 0)])
    return [bucket for bucket in BUCKETS if any(row.buckets_ms[bucket] >= seen for row in rows)]


def overlaps(rows: Sequence[RankRow]) -> bool:
    """Return whether some row has communication during compute."""
    return any(row.hidden_ms >= _SEEN_MS for row in rows)


def overlapped_note(rows: Sequence[RankRow]) -> str:
    """Return the explanation of the column `overlapped`; "" if there is no such column."""
    return f"{OVERLAPPED}: {OVERLAPPED_WORDS}" if overlaps(rows) else ""


def largest_collectives(collectives: Sequence[CollectiveSummary], most: int) -> list[CollectiveSummary]:
    """Return the collectives that take the most time per step, longest first."""

    def time(call: CollectiveSummary) -> float:
        return duration(call.per_step) * (duration(call.transfer_us) + duration(call.wait_us))

    return sorted(collectives, key=time, reverse=True)[:most]


def largest_kernels(kernels: Sequence[KernelSummary], most: int) -> list[KernelSummary]:
    """Return the kernels that take the most time per step, longest first."""
    return sorted(kernels, key=lambda kernel: -duration(kernel.ms_per_step))[:most]


def cells(row: RankRow, buckets: Sequence[str]) -> list[str]:
    """Return the cells of a row in Markdown and on the page: label, step, buckets and overlapped communication."""
    times = [figures.milliseconds(ms, beside=row.step_ms) for ms in (*map(row.buckets_ms.get, buckets), row.hidden_ms)]
    return [row.label, figures.milliseconds(row.step_ms), *times]


def headings(buckets: Sequence[str]) -> list[str]:
    """Return the headings of `cells`."""
    return ["", "step ms", *(LABELS[bucket] for bucket in buckets), OVERLAPPED]


def duration(value: float) -> float:
    """Return a duration or count that was read from a file; 0 if it is not positive and finite."""
    return value if math.isfinite(value) and value > 0 else 0.0
