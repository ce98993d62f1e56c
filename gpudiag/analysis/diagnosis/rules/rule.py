"""What a rule is: data, and one pure method that proposes what to take away and what to say of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar, Literal, Protocol

import msgspec

from gpudiag.analysis.diagnosis.calibration import CRITICAL_PERCENT, NOTABLE_MS, NOTABLE_PERCENT, WARNING_PERCENT
from gpudiag.analysis.diagnosis.case import Case
from gpudiag.analysis.diagnosis.simulation.graph import Costs
from gpudiag.analysis.diagnosis.simulation.what_if import WhatIf
from gpudiag.model.analysis import Finding, Severity

#: What can become of a cause: waste can go away entirely; the exchange and launching are work, which can only be hidden
#: or shortened, and launching is judged by what of it the device would not hide once there is no waste.
Kind = Literal["waste", "communication", "launching"]
Edit = Callable[[WhatIf, Costs], Costs]


class CannotTell(msgspec.Struct, frozen=True):
    """The data cannot carry a verdict; the reason says what to record instead."""

    reason: str


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """A cause to take away.

    Attributes:
        edit: a job's costs without the cause, from given costs.
        describe: the finding, given by how many milliseconds per step the replay without the cause is shorter, and what
            share of the step that is, in percent.
        beyond: the part of the edit that is another cause's too; where the whole gains no more, this one is not there.
        kind: what can become of the cause.
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
        """Proposals, a reason why nothing can be told, or nothing."""
        ...


def severity_of(percent: float) -> Severity:
    """Severity by the share of the step that can be recovered."""
    if percent >= CRITICAL_PERCENT:
        return "critical"
    return "warning" if percent >= WARNING_PERCENT else "info"


def notable(gain_ms: float, step_ms: float) -> bool:
    """Whether a gain is worth mentioning at all."""
    return step_ms > 0 and gain_ms >= NOTABLE_MS and 100 * gain_ms / step_ms >= NOTABLE_PERCENT
