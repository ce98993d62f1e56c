"""The interface of rules: a rule yields proposals, each with a scenario to simulate and a finding to report."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import ClassVar, Literal, Protocol

import msgspec

from gpudiag.analysis.diagnosis.calibration import CRITICAL_PERCENT, NOTABLE_MS, NOTABLE_PERCENT, WARNING_PERCENT
from gpudiag.analysis.diagnosis.case import Case
from gpudiag.analysis.diagnosis.simulation.graph import Scenario
from gpudiag.analysis.diagnosis.simulation.what_if import WhatIf
from gpudiag.model.analysis import Finding, Severity

#: Waste can be removed entirely; communication and launching can only be hidden or shortened. Launching is scored in a
#: job without waste, because there the device may hide launches. Kernels can only be replaced by faster kernels.
Kind = Literal["waste", "communication", "launching", "kernels"]
Edit = Callable[[WhatIf, Scenario], Scenario]


class CannotTell(msgspec.Struct, frozen=True):
    """The answer of a rule that lacks data; `reason` tells the user which data to record."""

    reason: str


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """A cause of lost time, and the finding about it.

    Attributes:
        edit: removes the cause from a scenario.
        describe: returns the finding, given its savings in ms per step and in percent of the step.
        beyond: removes only the costs that launch overhead may explain. If `edit` saves no more than `beyond`, the
            proposal may be dropped.
        kind: whether the cause can be removed, or only hidden or shortened.
    """

    edit: Edit
    describe: Callable[[float, float], Finding]
    beyond: Edit | None = None
    kind: Kind = "waste"


class Rule(Protocol):
    """Examine a case for one kind of problem. A rule's class docstring becomes the page about its finding in
    docs/findings.

    `tests/analysis/diagnosis/rule_examples` has jobs in which each rule proposes something, proposes nothing, or cannot
    tell.
    """

    code: ClassVar[str]
    title: ClassVar[str]

    def examine(self, case: Case, what_if: WhatIf) -> Iterator[Proposal | CannotTell]:
        """Yield proposals, or `CannotTell` if data is lacking; yield nothing if the problem does not occur."""
        ...


def severity_of(percent: float) -> Severity:
    """Return the severity for the share of the step that can be recovered."""
    if percent >= CRITICAL_PERCENT:
        return "critical"
    return "warning" if percent >= WARNING_PERCENT else "info"


def notable(gain_ms: float, step_ms: float) -> bool:
    """Return whether savings are worth mentioning."""
    return step_ms > 0 and gain_ms >= NOTABLE_MS and 100 * gain_ms / step_ms >= NOTABLE_PERCENT


def split_savings(what_if: WhatIf, parts: Mapping[str, Scenario], rest: str, gain_ms: float) -> dict[str, float]:
    """Return component → ms per step that its removal adds to the savings when components are removed in order.

    Args:
        what_if: the job.
        parts: name of a component → the scenario without it and without the previous components.
        rest: name of the remainder.
        gain_ms: the savings of removing all components and the remainder, in ms per step.
    """
    gains = [min(ms, gain_ms) for ms in what_if.savings_ms(parts.values())]
    running = [0.0, *itertools.accumulate(gains, max), gain_ms]  # a removal that lowers the savings adds 0
    added = (after - before for before, after in itertools.pairwise(running))
    return dict(zip([*parts, rest], added, strict=True))


class For(msgspec.Struct, frozen=True):
    """A line of advice for users of one framework, or (`others`) of any framework but PyTorch and TensorFlow.

    Lines of the framework `unknown` are for recordings whose framework is unknown.
    """

    framework: str
    line: str

    def holds_in(self, framework: str) -> bool:
        """Return whether the line applies to users of this framework."""
        return framework not in _NAMED if self.framework == "others" else framework == self.framework


#: Constructors of `For`, one per value of `framework`.
pytorch, tensorflow, jax, unknown, others = (
    partial(For, name) for name in ("pytorch", "tensorflow", "jax", "unknown", "others")
)
_NAMED = ("pytorch", "tensorflow")

#: Lines in the order of the report; a plain string applies to all frameworks.
Advice = tuple[str | For, ...]

TF_DATA = tensorflow(
    "Let tf.data prepare batches ahead: map(…, num_parallel_calls=tf.data.AUTOTUNE), then batch, then "
    "prefetch(tf.data.AUTOTUNE) as the last of the pipeline; cache() what is decoded once.",
)
TF_COMPILE = tensorflow("jit_compile=True (--compile) for the model and its optimizer makes few kernels of many.")
TF_SEVERAL_STEPS = (
    "Several steps in one tf.function, or steps_per_execution of model.compile, keep Python and the ends of functions "
    "out of the step."
)


def advice_for(framework: str, lines: Iterable[str | For], **words: str) -> tuple[str, ...]:
    """Return the lines that apply to this framework, with `words` inserted for their placeholders in braces."""
    texts = (
        line if isinstance(line, str) else line.line
        for line in lines
        if isinstance(line, str) or line.holds_in(framework)
    )
    return tuple(text.format(**words) if words else text for text in texts)
