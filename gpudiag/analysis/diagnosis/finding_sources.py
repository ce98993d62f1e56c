"""Add the line of the user's source to each finding that the host causes."""

from __future__ import annotations

from collections.abc import Sequence, Set

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.diagnosis.case import Case
from gpudiag.analysis.diagnosis.rules.host_stall import GARBAGE_COLLECTION, HostStall
from gpudiag.analysis.diagnosis.scoring import ScoredFinding
from gpudiag.analysis.diagnosis.simulation.graph import HostBlock, Scenario
from gpudiag.analysis.diagnosis.simulation.what_if import WhatIf
from gpudiag.model.analysis import Finding
from gpudiag.model.source_lines import SourceLocation

#: Findings whose cause is time of the training thread.
_ON_THE_HOST = frozenset({"host-stall", "host-sync", "slow-copy", "launch-bound", "memory-allocation", "recompilation"})


def with_sources(case: Case, what_if: WhatIf, findings: Sequence[ScoredFinding]) -> list[ScoredFinding]:
    """Add the line of the user's source to each finding about the host."""
    if case.lines is None:
        return list(findings)
    known = {scored.finding.source for scored in findings if scored.finding.source is not None}
    return [
        msgspec.structs.replace(scored, finding=_with_line(case, scored.finding, _line(case, what_if, scored, known)))
        for scored in findings
    ]


def with_input_lines(case: Case, findings: Sequence[Finding]) -> list[Finding]:
    """Add the line that makes the batches to each `input-bound` finding."""
    if case.lines is None:
        return list(findings)
    return [
        _with_line(case, finding, case.lines.of_input(set(finding.ranks)) or finding.source)
        if finding.code == "input-bound"
        else finding
        for finding in findings
    ]


def _line(case: Case, what_if: WhatIf, scored: ScoredFinding, known: Set[SourceLocation]) -> SourceLocation | None:
    """Return the line of a finding, or None; lines that other findings have (`known`) are not assigned to a stall."""
    assert case.lines is not None  # noqa: S101  # the callers check
    finding = scored.finding
    if finding.source is not None:
        return finding.source
    if finding.code == "straggler" and len(finding.ranks) == 1:
        return case.lines.of_straggler(finding.ranks[0])
    if finding.code not in _ON_THE_HOST:
        return None
    gone = scored.proposal.edit(what_if, what_if.corrected)
    untraced = np.maximum(what_if.corrected.waiting - gone.waiting, 0.0)
    others = known if finding.code == HostStall.code else frozenset()
    traced = _traced_ns(what_if, gone)
    return case.lines.of_nodes(what_if.graph.host, untraced, traced, set(finding.ranks), others)


def _traced_ns(what_if: WhatIf, gone: Scenario) -> NDArray[np.float64]:
    """Return float64[n]: ns of operators, calls and device waits that scenario `gone` removes before each host node."""
    host, now = what_if.graph.host, what_if.corrected
    # Waits in collectives do not count, because they depend on other ranks.
    unblocked = now.blocking & ~gone.blocking & (host.block != HostBlock.COLLECTIVE)
    first = np.append(True, host.process[1:] != host.process[:-1])  # no node of the process comes before
    between = np.where(first, 0.0, np.diff(host.time, prepend=host.time[:1]))
    waited = between - host.busy - host.input - host.before_first_op - host.untraced
    return np.maximum(now.busy - gone.busy, 0.0) + np.where(unblocked, np.maximum(waited, 0.0), 0.0)


def _with_line(case: Case, finding: Finding, source: SourceLocation | None) -> Finding:
    if source is None or (source == finding.source and finding.title.startswith(source.words)):
        return finding
    return msgspec.structs.replace(finding, source=source, title=_title(case, finding, source))


def _title(case: Case, finding: Finding, source: SourceLocation) -> str:
    saved, percent = finding.recoverable_ms_per_step, finding.recoverable_percent
    if finding.code != "host-stall" or finding.cause == GARBAGE_COLLECTION or saved is None or percent is None:
        return f"{source.words}: {finding.title}"
    effect = "takes" if all(track.is_cpu for track in case.tracks) else "keeps the GPU idle for"
    return f"{source.words} {effect} {saved:.1f} ms of each step ({percent:.0f} %)"
