"""The interface of rules: data, and one pure method that proposes causes to remove."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar, Literal, Protocol

import msgspec

from gpudiag.analysis.diagnosis.calibration import CRITICAL_PERCENT, NOTABLE_MS, NOTABLE_PERCENT, WARNING_PERCENT
from gpudiag.analysis.diagnosis.case import Case
from gpudiag.analysis.diagnosis.simulation.scenario import Scenario
from gpudiag.analysis.diagnosis.simulation.what_if import WhatIf
from gpudiag.model.analysis import Finding, Severity

#: Waste can be removed entirely. Communication and launching are work that can only be hidden or shortened. Launching
#: is scored by the part that the device would not hide after all waste is removed.
Kind = Literal["waste", "communication", "launching"]
Edit = Callable[[WhatIf, Scenario], Scenario]


class CannotTell(msgspec.Struct, frozen=True):
    """The data is not sufficient for a verdict; the reason says what to record instead."""

    reason: str


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """A cause to remove from the step.

    Attributes:
        edit: returns given costs without the cause.
        describe: returns the finding for savings in ms per step and in percent of the step.
        beyond: the part of `edit` that also belongs to another cause; a proposal that saves no more is dropped.
        kind: whether the cause can be removed, or only hidden or shortened.
    """

    edit: Edit
    describe: Callable[[float, float], Finding]
    beyond: Edit | None = None
    kind: Kind = "waste"


class Rule(Protocol):
    """A rule names its code and examines a case. Users read its class docstring, on the page of its code.

    Jobs in which it fires, is silent, or abstains are in `tests/analysis/diagnosis/rule_examples`.
    """

    code: ClassVar[str]
    title: ClassVar[str]

    def examine(self, case: Case) -> Iterator[Proposal | CannotTell]:
        """Yield proposals, or the reason why no conclusion is possible, or nothing."""
        ...


def severity_of(percent: float) -> Severity:
    """Return the severity for the share of the step that can be recovered."""
    if percent >= CRITICAL_PERCENT:
        return "critical"
    return "warning" if percent >= WARNING_PERCENT else "info"


def notable(gain_ms: float, step_ms: float) -> bool:
    """Return whether savings are worth mentioning."""
    return step_ms > 0 and gain_ms >= NOTABLE_MS and 100 * gain_ms / step_ms >= NOTABLE_PERCENT
