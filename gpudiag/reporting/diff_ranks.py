"""What changed on which rank, and who waits longer for whom."""

from __future__ import annotations

from collections import Counter, defaultdict
from statistics import median
from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from gpudiag.model.analysis import BUCKETS
from gpudiag.reporting import figures
from gpudiag.reporting.diff_words import signed
from gpudiag.reporting.palette import LABELS
from gpudiag.reporting.printable import one_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import RenderableType

    from gpudiag.model.diff import RankChange, WaitChange

MOST_RANKS = 8
MOST_WAITS = 5
#: A rank is unlike the others when this share of its step changed in other buckets than on the median rank.
_UNLIKE_SHARE = 0.05
#: What changed by less than this share of the step is no news: the jitter of arrival, the rounding of a bucket.
_NEWS_SHARE = 0.01


def rank_lines(ranks: Sequence[RankChange], step_ms: float) -> RenderableType:
    """A line per rank with the buckets that changed there; of many ranks the median and those unlike it."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, justify="right")
    table.add_column()
    labels = _labels(ranks)
    typical = {bucket: median(rank.buckets_ms[bucket] for rank in ranks) for bucket in BUCKETS}
    largest = max(abs(rank.difference_ms) for rank in ranks)
    chosen = list(range(len(ranks)))
    if len(ranks) > MOST_RANKS:
        distances = [sum(abs(rank.buckets_ms[b] - typical[b]) for b in BUCKETS) / 2 for rank in ranks]
        unlike = [place for place in chosen if distances[place] > _UNLIKE_SHARE * step_ms]
        chosen = sorted(sorted(unlike, key=lambda place: -distances[place])[: MOST_RANKS - 1])
        middle = signed(median(rank.difference_ms for rank in ranks), beside=largest)
        table.add_row(Text(f"median of {len(ranks)}"), Text(middle, style="bold"), _buckets(typical, step_ms))
    for place in chosen:
        rank = ranks[place]
        difference = Text(signed(rank.difference_ms, beside=largest), style="bold")
        table.add_row(Text(labels[place]), difference, _buckets(rank.buckets_ms, step_ms))
    if len(chosen) == len(ranks):
        return table
    return Group(table, Text("Drawn: the median, and the ranks most unlike it. --json has every one.", style="dim"))


def _labels(ranks: Sequence[RankChange]) -> list[str]:
    devices = Counter(rank.rank for rank in ranks)
    return [
        f"rank {rank.rank}" + (f" {one_line(rank.device)[:12]}" if devices[rank.rank] > 1 else "") for rank in ranks
    ]


def _buckets(buckets_ms: Mapping[str, float], step_ms: float) -> Text:
    """`wait +33.2, compute +3.0`: what changed, most first."""
    changed = sorted(
        (b for b in BUCKETS if abs(buckets_ms[b]) >= _NEWS_SHARE * step_ms), key=lambda b: -abs(buckets_ms[b])
    )
    if not changed:
        return Text("no bucket by 1 % of the step", style="dim")
    most = abs(buckets_ms[changed[0]])
    return Text(", ".join(f"{LABELS[bucket]} {signed(buckets_ms[bucket], beside=most)}" for bucket in changed))


def wait_lines(waits: Sequence[WaitChange], step_ms: float) -> list[Text]:
    """One line for each rank that others wait for longer, or less long; most first."""
    groups: dict[tuple[int, bool], list[WaitChange]] = defaultdict(list)
    for wait in waits:
        if abs(wait.difference_ms) >= _NEWS_SHARE * step_ms:
            groups[wait.on_rank, wait.difference_ms > 0].append(wait)
    ordered = sorted(groups.items(), key=lambda item: -sum(abs(wait.difference_ms) for wait in item[1]))
    lines = [_wait_line(on_rank, group, longer=longer) for (on_rank, longer), group in ordered[:MOST_WAITS]]
    if len(ordered) > MOST_WAITS:
        lines.append(Text(f"and for {len(ordered) - MOST_WAITS} more", style="dim"))
    return lines


def _wait_line(on_rank: int, waits: Sequence[WaitChange], *, longer: bool) -> Text:
    changes = [abs(wait.difference_ms) for wait in waits]
    low, high = figures.milliseconds(min(changes), beside=max(changes)), figures.milliseconds(max(changes))
    line = Text(f"{figures.ranks((wait.rank for wait in waits), capital=True)} waited ")
    line.append(low if low == high else f"{low}{figures.EN_DASH}{high}", style="bold")
    line.append(f" ms per step {'longer' if longer else 'less'} for ")
    return line.append(f"rank {on_rank}", style="bold")
