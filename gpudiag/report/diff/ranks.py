"""What changed on which rank, and who waits longer for whom."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median

from rich.console import Group, RenderableType
from rich.text import Text

from gpudiag.model.analysis import BUCKETS
from gpudiag.model.diff import RankChange, WaitChange
from gpudiag.report.diff.words import signed
from gpudiag.report.layout import and_more, plain_grid
from gpudiag.report.palette import LABELS
from gpudiag.report.rank_rows import labels
from gpudiag.report.terminal.traffic import wait_line

MOST_RANKS = 8
MOST_WAITS = 5
#: A rank is unlike the others when this share of its step changed in other buckets than on the median rank.
_UNLIKE_SHARE = 0.05
#: What changed by less than this share of the step is no news: the jitter of arrival, the rounding of a bucket.
_NEWS_SHARE = 0.01


def rank_lines(ranks: Sequence[RankChange], step_ms: float) -> RenderableType:
    """A line per rank with the buckets that changed there; of many ranks the median and those unlike it."""
    table = plain_grid({"no_wrap": True}, {"no_wrap": True, "justify": "right"}, {})
    names = labels(ranks)
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
        table.add_row(Text(names[place]), difference, _buckets(rank.buckets_ms, step_ms))
    if len(chosen) == len(ranks):
        return table
    return Group(table, Text("Drawn: the median, and the ranks most unlike it. --json has every one.", style="dim"))


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
    lines = [
        wait_line(on_rank, [(wait.rank, abs(wait.difference_ms)) for wait in group], " longer" if longer else " less")
        for (on_rank, longer), group in ordered[:MOST_WAITS]
    ]
    return and_more(lines, len(ordered) - MOST_WAITS, of="for ")
