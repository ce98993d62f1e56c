"""A difference in a terminal: the verdict, the runs, the buckets from A to B, and what changed within them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from gpudiag.reporting import figures
from gpudiag.reporting.diff_bars import waterfall
from gpudiag.reporting.diff_findings import doubt_lines, findings_table
from gpudiag.reporting.diff_ranks import rank_lines, wait_lines
from gpudiag.reporting.diff_tables import parts_table
from gpudiag.reporting.diff_words import header, verdict
from gpudiag.reporting.trimmed import print_trimmed

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from gpudiag.model.diff import Diff

_SEEN_MS = 0.005


def render_diff(diff: Diff, console: Console) -> None:
    """Print the whole difference on `console`."""
    print_trimmed(console, diff_report(diff, console))


def diff_report(diff: Diff, console: Console) -> Group:
    """The difference as one renderable, laid out for this console's width, colours and encoding."""
    step = diff.step("profiled")
    longest = max(step.before_ms, step.after_ms)
    buckets: list[RenderableType] = [waterfall(diff, console)]
    if max(diff.hidden_communication_ms) >= _SEEN_MS:
        old, new = (figures.milliseconds(value) for value in diff.hidden_communication_ms)
        hidden = f"Communication beside compute, which costs no time: {old} → {new} ms"
        buckets.append(Text(hidden, style="dim"))
    sections: list[tuple[str, RenderableType]] = [
        ("From A to B, profiled", Group(*buckets)),
        ("What made the difference", parts_table(diff, console.width)),
    ]
    if diff.ranks:
        sections.append(("Ranks, B - A", rank_lines(diff.ranks, longest)))
    waits = wait_lines(diff.waits, longest)
    if waits:
        sections.append(("Waits", Group(*waits)))
    if diff.findings:
        sections.append(("Findings", findings_table(diff.findings)))
    doubts = doubt_lines(diff)
    if doubts:
        sections.append(("How far to trust this", Group(*doubts)))
    body = [part for heading, section in sections for part in (Text(), Text(heading, style="bold underline"), section)]
    return Group(*verdict(diff), Text(), *header(diff, console.width), *body)
