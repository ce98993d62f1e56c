"""Define the interface of hardware rules."""

from __future__ import annotations

from typing import ClassVar, Protocol

from gpudiag.model.analysis import Finding
from gpudiag.model.facts import Facts

#: The reason why hardware findings carry no milliseconds.
NO_TRACE = "facts alone do not say how much of a step this costs; profile a job on this machine to learn that"


class FactsRule(Protocol):
    """Judge the facts of a machine. The class docstring is the finding's page in docs/findings.

    Machines on which it fires and is silent are in tests/analysis/diagnosis/rule_examples.
    """

    code: ClassVar[str]

    def examine(self, facts: Facts) -> tuple[Finding, ...]:
        """Return the findings that the facts prove, worst first."""
        ...
