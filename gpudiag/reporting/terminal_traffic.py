"""Who waited for whom, what the collectives carried, and which kernels take the time."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from gpudiag.reporting import figures
from gpudiag.reporting.kernel_names import kernel_label, shorten_middle
from gpudiag.reporting.printable import one_line
from gpudiag.reporting.rank_rows import duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpudiag.model.analysis import CollectiveSummary, KernelSummary, Wait

MOST_LINES = 5
#: Waits below this share of the step are the ordinary jitter of arrival.
WAIT_SHARE = 0.01
#: Room that a collective's probe figure and group need beside the other columns.
_ROOM_FOR_PROBE = 84
_ROOM_FOR_GROUP = 104
_ROOM_FOR_WAIT = 56
_NAME_WIDTH = 24


def wait_lines(waits: Sequence[Wait], step_ms: float) -> list[Text]:
    """One line for each late rank and cause, the most waited-for first."""
    groups: dict[tuple[int, str], list[Wait]] = defaultdict(list)
    for wait in waits:
        if duration(wait.ms_per_step) >= WAIT_SHARE * duration(step_ms) and wait.ms_per_step > 0:
            groups[wait.on_rank, one_line(wait.cause or "")[:40]].append(wait)
    ordered = sorted(groups.items(), key=lambda item: -sum(wait.ms_per_step for wait in item[1]))
    lines = [_wait_line(on_rank, cause, group) for (on_rank, cause), group in ordered[:MOST_LINES]]
    if len(ordered) > MOST_LINES:
        lines.append(Text(f"and for {len(ordered) - MOST_LINES} more", style="dim"))
    return lines


def _wait_line(on_rank: int, cause: str, waits: Sequence[Wait]) -> Text:
    longest = max(wait.ms_per_step for wait in waits)
    low = figures.milliseconds(min(wait.ms_per_step for wait in waits), beside=longest)
    high = figures.milliseconds(longest)
    line = Text(f"{figures.ranks((w.rank for w in waits), capital=True)} waited ")
    line.append(low if low == high else f"{low}{figures.EN_DASH}{high}", style="bold").append(" ms per step for ")
    line.append(f"rank {on_rank}", style="bold")
    return line.append(f" (late because of: {cause})" if cause else "")


def collectives_table(collectives: Sequence[CollectiveSummary], width: int) -> Table:
    """The collectives that take the most time; narrow terminals lose the group first, then the probe, then the wait."""
    table = _table()
    table.add_column("collective", no_wrap=True)
    columns = ["size", "per step", "transfer µs"]
    columns += ["wait µs"] if width >= _ROOM_FOR_WAIT else []
    columns += ["busbw GB/s"] if width >= _ROOM_FOR_WAIT else ["GB/s"]
    columns += ["alone GB/s"] if width >= _ROOM_FOR_PROBE else []
    columns += ["group"] if width >= _ROOM_FOR_GROUP else []
    if width < _ROOM_FOR_WAIT:
        columns = ["size", "µs", "GB/s"]
    for column in columns:
        table.add_column(column, justify="left" if column == "group" else "right", no_wrap=True)
    largest = sorted(collectives, key=lambda c: -duration(c.per_step) * (duration(c.transfer_us) + duration(c.wait_us)))
    for one in largest[:MOST_LINES]:
        cells = {
            "size": figures.size(one.size_bytes),
            "per step": _count(one.per_step),
            "transfer µs": figures.thousands(duration(one.transfer_us)),
            "µs": figures.thousands(duration(one.transfer_us)),
            "wait µs": figures.thousands(duration(one.wait_us)),
            "busbw GB/s": figures.rate(one.busbw_gb_per_s),
            "GB/s": figures.rate(one.busbw_gb_per_s),
            "alone GB/s": figures.rate(one.probe_busbw_gb_per_s),
            "group": f"{shorten_middle(one_line(one.group), _NAME_WIDTH)} ({one.ranks} ranks)",
        }
        name = shorten_middle(one_line(one.operation), _NAME_WIDTH if width >= _ROOM_FOR_WAIT else 14)
        table.add_row(Text(name), *(Text(cells[column]) for column in columns))
    return table


def kernels_table(kernels: Sequence[KernelSummary], heading: str, width: int) -> Table:
    """The kernels (on CPU runs the operators) that take the most time."""
    table = _table()
    table.add_column("ms per step" if width >= _ROOM_FOR_WAIT else "ms", justify="right", no_wrap=True)
    table.add_column("calls", justify="right", no_wrap=True)
    table.add_column(heading.removesuffix("s").lower(), no_wrap=True)
    room = max(width - 22 if width >= _ROOM_FOR_WAIT else width - 16, 16)
    for kernel in sorted(kernels, key=lambda k: -duration(k.ms_per_step))[:MOST_LINES]:
        table.add_row(
            Text(figures.milliseconds(duration(kernel.ms_per_step))),
            Text(_count(kernel.per_step)),
            Text(kernel_label(kernel.name, room)),
        )
    return table


def _count(per_step: float) -> str:
    """Calls per step: whole where they are, else with one decimal."""
    return figures.thousands(duration(per_step), 1).removesuffix(".0")


def _table() -> Table:
    return Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
