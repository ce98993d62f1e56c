"""All-reduces of a model's own buckets, transport beside transport."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from gpudiag.reporting.printable import one_line

if TYPE_CHECKING:
    from rich.console import Console

    from gpudiag.model.like import ModelBuckets


def render_like(found: ModelBuckets, console: Console) -> None:
    """Draw bus bandwidth per size and transport, and what all buckets together take."""
    transports = list(dict.fromkeys(one.strategy for one in found.collectives))
    sizes = sorted({one.bytes for one in found.collectives})
    by_key = {(one.strategy, one.bytes): one for one in found.collectives}
    total = sum(found.bucket_bytes) / 1e6
    count = len(found.bucket_bytes)
    title = (
        f"All-reduce of {one_line(found.workload)}'s {count} buckets, {total:.3g} MB per step: GB/s of bus bandwidth"
    )
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("MB", justify="right")
    for transport in transports:
        table.add_column(one_line(transport), justify="right")
    for size in sizes:
        cells = [f"{size / 1e6:.3g}"]
        for transport in transports:
            one = by_key.get((transport, size))
            cells.append("—" if one is None else f"{one.busbw_gb_per_s:.3g}")
        table.add_row(*map(Text, cells))
    steps = [found.step_ms(transport) for transport in transports]
    table.add_row(*map(Text, ["all, ms", *("—" if step is None else f"{step:.1f}" for step in steps)]), style="bold")
    console.print()
    console.print(Text(title, style="bold"))
    console.print(table)
    for name, why in found.skipped.items():
        console.print(Text(f"not measured: {one_line(name)}: {one_line(why)}"))
