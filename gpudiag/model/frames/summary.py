"""An analysis in a few lines, as a notebook or a debugger prints it: its fields would fill pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpudiag.model.sanitize import one_line

if TYPE_CHECKING:
    from gpudiag.model.analysis import Analysis

_MOST_FINDINGS = 5
_LONGEST_TITLE = 160


def summary(analysis: Analysis) -> str:
    """Return ranks, step and findings of an analysis, and where the rest of it is."""
    steps = analysis.steps
    unit = steps.unit.replace("-", " ")
    real_ms = steps.unprofiled_mean_ms or steps.corrected_mean_ms or steps.mean_ms
    ranks = f"{len(analysis.ranks_present)} of {analysis.world_size} ranks"
    lines = [f"Analysis of {ranks}, {real_ms:.1f} ms per {unit}"]
    lines += [
        f"  {finding.severity}: {one_line(finding.title or finding.code)[:_LONGEST_TITLE]}"
        for finding in analysis.findings[:_MOST_FINDINGS]
    ]
    more = len(analysis.findings) - _MOST_FINDINGS
    lines += [f"  and {more} more findings"] if more > 0 else []
    lines += [] if analysis.findings else ["  no finding"]
    return "\n".join([*lines, "  fields: .findings, .steps, .devices, .validity; tables: .frames()"])
