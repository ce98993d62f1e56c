"""Find why a rank is late: the part of its step that explains what all ranks lose."""

from __future__ import annotations

import statistics

from gpudiag.analysis.diagnosis.calibration import MOST
from gpudiag.analysis.diagnosis.case import Case
from gpudiag.analysis.diagnosis.places import few_slow_calls
from gpudiag.analysis.diagnosis.rules.more_than_peers import OwnPauses, own_pauses
from gpudiag.analysis.diagnosis.rules.rule import notable
from gpudiag.analysis.diagnosis.simulation.components import COMPONENTS, Component, equalized
from gpudiag.analysis.diagnosis.simulation.components import excess as excess_of
from gpudiag.analysis.diagnosis.simulation.scenario import Scenario
from gpudiag.analysis.diagnosis.simulation.what_if import WhatIf
from gpudiag.units import milliseconds

#: Most of a host's work: a host that is slow throughout is slowest in one of these parts.
_THROUGHOUT: tuple[Component, ...] = ("launch", "operators")
#: Causes of a host that may pause often, each time too briefly to count as stalled.
_MAYBE_ELSEWHERE = frozenset({"launch", "unknown"})


def cause_of(case: Case, what_if: WhatIf, gain: float, jitter: bool) -> tuple[str, dict[str, float]]:
    """Return the part that explains the savings, and what each part alone saves.

    A part explains the savings if it alone saves most of them, or if most of them are lost without it: if a rank
    computes 15 ms too long and another's host is the next to set the pace, compute alone saves less than half. If no
    part explains them, a host without its core is slow in all that it does: launching, calls and pauses are one cause.

    A part in which ranks hardly differ explains nothing: kernels take longer beside collectives that wait for a late
    rank, so that equalizing them saves something. The only part in which they differ explains all.
    """

    def level_in(*parts: Component) -> Scenario:
        return equalized(what_if, what_if.corrected, parts, each_step=jitter)

    alone: dict[Component, float] = dict(
        zip(COMPONENTS, what_if.savings_ms([level_in(part) for part in COMPONENTS]), strict=True)
    )
    differ = [part for part in COMPONENTS if _differ(what_if, part, jitter)] or list(COMPONENTS)
    best = max(differ, key=lambda part: alone[part])
    explains = alone[best] >= MOST * gain or len(differ) == 1
    if not explains:
        others = what_if.saving_ms(level_in(*(part for part in COMPONENTS if part != best)))
        explains = gain - others >= MOST * gain
    if not explains and best in _THROUGHOUT:
        explains = what_if.saving_ms(level_in(*_THROUGHOUT, "stall")) >= MOST * gain
        best = "launch"
    if best == "operators" and not few_slow_calls(case, tuple(what_if.graph.ranks.values())):
        best = "launch"  # a host that loses its core now and then is slow in whatever it does just then
    return (best if explains else "unknown"), {str(part): ms for part, ms in alone.items()}


def _differ(what_if: WhatIf, part: Component, each_step: bool) -> bool:
    """Return whether some rank notably exceeds its peers in this part, in each step or on average."""
    excess = excess_of(what_if, part)
    by_step = zip(*excess.by_step.values(), strict=True)
    most = statistics.fmean(max(ranks) for ranks in by_step) if each_step else max(excess.by_rank.values())
    return notable(milliseconds(most), what_if.corrected_ms)


def stall_by_own_pauses(case: Case, late: tuple[int, ...], cause: str, gain: float) -> tuple[str, OwnPauses]:
    """Return ("stall", its pauses) if a host that launches slowly pauses by itself, else the cause as it is.

    Each pause may be short enough for Python between calls, but the peers make no such calls.
    """
    if gain and cause in _MAYBE_ELSEWHERE:
        pauses = own_pauses(case, late)
        if pauses.total_ms >= MOST * gain:
            return "stall", pauses
    return cause, OwnPauses(ms={})
