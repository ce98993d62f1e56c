"""A difference in a terminal: the verdict, the runs, the buckets from A to B, and what changed within them."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.text import Text

from gpudiag.model.diff import Diff
from gpudiag.report import figures
from gpudiag.report.diff.bars import waterfall
from gpudiag.report.diff.findings import doubt_lines, findings_table
from gpudiag.report.diff.ranks import rank_lines, wait_lines
from gpudiag.report.diff.tables import parts_table
from gpudiag.report.diff.words import header, verdict
from gpudiag.report.layout import print_trimmed, under_headings

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
        hidden = f"Communication overlapped with compute: {old} → {new} ms"
        buckets.append(Text(hidden, style="dim"))
    sections: list[tuple[str, RenderableType]] = [
        ("From A to B, while profiling", Group(*buckets)),
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
    return Group(*verdict(diff), Text(), *header(diff, console.width), *under_headings(sections))
