"""What every hardware rule is: a code, and one pure method from facts to findings."""

from __future__ import annotations

from typing import ClassVar, Protocol

from gpudiag.model.analysis import Finding
from gpudiag.model.facts import Facts

#: Why no hardware finding carries milliseconds of its own.
NO_TRACE = "facts alone do not say how much of a step this costs; profile a job on this machine to learn that"


class FactsRule(Protocol):
    """A rule about the machine. Its class docstring is its page in docs/findings.

    Machines on which it fires and is silent are in tests/analysis/diagnosis/rule_examples.
    """

    code: ClassVar[str]

    def examine(self, facts: Facts) -> tuple[Finding, ...]:
        """What the facts prove, worst first; empty when they prove nothing."""
        ...
