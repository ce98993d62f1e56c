"""Why a rank is late: the part of its step that explains what all lose by it."""

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

#: What is most of what a host does: one that is slow throughout is slowest in one of them.
_THROUGHOUT: tuple[Component, ...] = ("launch", "operators")
#: What a host is called that pauses often, for less than it takes to be elsewhere.
_MAYBE_ELSEWHERE = frozenset({"launch", "unknown"})


def cause_of(case: Case, what_if: WhatIf, gain: float, jitter: bool) -> tuple[str, dict[str, float]]:
    """The part that explains the gain, and what each part alone gains.

    A part explains it that alone gains most of it, or else without which most of it is not gained: where a rank
    computes 15 ms too long and another's host is the next to set the pace, computing alone gains less than half. Where
    none does, a host that lacks its core is slow in all that it does: launching, calls and pauses are one cause.

    A part in which ranks hardly differ explains nothing: kernels beside collectives that wait for a late rank take
    longer, which is that rank's doing, and levelling them gains something. One in which alone they differ explains all.
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
    """Whether some rank is above its peers in this part by what is worth mentioning, in each step or in the mean."""
    excess = excess_of(what_if, part)
    by_step = zip(*excess.by_step.values(), strict=True)
    most = statistics.fmean(max(ranks) for ranks in by_step) if each_step else max(excess.by_rank.values())
    return notable(milliseconds(most), what_if.corrected_ms)


def elsewhere(case: Case, late: tuple[int, ...], cause: str, gain: float) -> tuple[str, OwnPauses]:
    """(the cause, the pauses that make it a stall) of a host that launches too slowly; no pauses where it is none.

    Each pause by itself may be short enough for Python between calls, but the peers make no such calls.
    """
    if gain and cause in _MAYBE_ELSEWHERE:
        pauses = own_pauses(case, late)
        if pauses.total_ms >= MOST * gain:
            return "stall", pauses
    return cause, OwnPauses(ms={})
