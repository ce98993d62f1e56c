"""What every hardware rule is: a code, and one pure method from facts to findings."""

from __future__ import annotations

from typing import ClassVar, Protocol

from gpudiag.model.analysis import Finding
from gpudiag.model.facts import Facts

#: Why no hardware finding carries milliseconds of its own.
NO_TRACE = "facts alone do not say how much of a step this costs; profile a job on this machine to learn that"


class FactsRule(Protocol):
    """A rule about the machine.

    The class's docstring is what users read of it. `FIRES` and `SILENT` are machines that it must and must not speak
    about; the tests and the pages in docs/findings are made from them.
    """

    code: ClassVar[str]
    FIRES: ClassVar[tuple[tuple[str, Facts], ...]]
    SILENT: ClassVar[tuple[tuple[str, Facts], ...]]

    def examine(self, facts: Facts) -> tuple[Finding, ...]:
        """What the facts prove, worst first; empty when they prove nothing."""
        ...
