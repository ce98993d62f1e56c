"""Which findings appeared, disappeared or remained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpudiag.model.analysis import Finding
from gpudiag.model.diff import FindingChange

#: Two findings are the same one when these agree; closer agreement is looked for first, since a run may have several
#: findings of one code (links, ranks).
_SAME: tuple[Callable[[Finding], Any], ...] = (
    lambda finding: (finding.code, finding.cause, finding.ranks),
    lambda finding: (finding.code, finding.cause),
    lambda finding: finding.code,
)


def finding_changes(before: Sequence[Finding], after: Sequence[Finding]) -> tuple[FindingChange, ...]:
    """Those that appeared, those that disappeared, those that remained; each in the order of its analysis."""
    old, new = list(before), list(after)
    remained = []
    for same in _SAME:
        for finding in list(old):
            counterpart = next((one for one in new if same(one) == same(finding)), None)
            if counterpart is not None:
                # By identity: equal findings may stand in one analysis twice.
                old = [one for one in old if one is not finding]
                new = [one for one in new if one is not counterpart]
                remained.append(FindingChange(status="remained", before=finding, after=counterpart))
    return (
        *(FindingChange(status="appeared", before=None, after=finding) for finding in new),
        *(FindingChange(status="disappeared", before=finding, after=None) for finding in old),
        *remained,
    )
