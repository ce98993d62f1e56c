"""straggler: one or a few ranks delay all others."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import msgspec

from gpudiag.analysis.diagnosis.calibration import ALSO_LATE, JITTER, MOST
from gpudiag.analysis.diagnosis.case import Case
from gpudiag.analysis.diagnosis.places import before_first_operator, main_place, slow_operators, stalls, time_in
from gpudiag.analysis.diagnosis.rules.host_stall import stall_advice
from gpudiag.analysis.diagnosis.rules.input_bound import (
    AFTER_THE_UPDATE,
    PERHAPS_NO_LOADING,
    ends_with_the_update,
    unmarked_words,
)
from gpudiag.analysis.diagnosis.rules.late_cause import (
    CAUSE_ADVICE,
    CPU_ADVICE,
    JITTER_ADVICE,
    OWN_WORK,
    MoreOperators,
    OwnPauses,
    cause_of,
    more_operators,
    stall_by_own_pauses,
)
from gpudiag.analysis.diagnosis.rules.rule import Advice, CannotTell, Edit, Proposal, advice_for, notable, severity_of
from gpudiag.analysis.diagnosis.simulation.components import COMPONENTS, Component
from gpudiag.analysis.diagnosis.simulation.components import excess as excess_of
from gpudiag.analysis.diagnosis.simulation.counterfactuals import equalize_ranks
from gpudiag.analysis.diagnosis.simulation.what_if import WhatIf
from gpudiag.analysis.diagnosis.unprofiled_steps import alone_waited_for, later_input_ms, unprofiled_longer_ms
from gpudiag.model.analysis import Finding
from gpudiag.model.event import any_of
from gpudiag.model.probed import gpu_of_rank
from gpudiag.units import milliseconds

if TYPE_CHECKING:
    from gpudiag.analysis.diagnosis.rules.more_work import MoreWork

_UNRECORDED = "nothing was recorded on the late rank between the step's mark and its first operator"
#: Maximum number of the user's functions in the evidence.
_MOST_FRAMES = 5

_OF_THE_HOST = frozenset({"launch", "operators", "stall"})
#: Codes of findings about the machine that explain why a GPU computes longer than its peers.
_CLOCKS = frozenset({"clock-mismatch", "throttled"})


class Straggler:
    """One or a few ranks arrive late at collectives, and all others wait for them.

    A synchronous step takes as long as its slowest rank: if the loader delays one of four ranks by 40 ms, the other
    three spend 40 ms in communication. The simulation limits each part of the step (input, stalls, slow calls, extra
    synchronizations, launching, compute, copies) to the median over ranks. The savings are the removed step time, and
    the cause is the part that alone explains the savings. Indirect waits count: rank 0 may wait for rank 2, which waits
    for its loader. The late rank may change from step to step. The report names operators that late ranks call more
    often. If a late rank often pauses between calls that its peers do not make, the cause is a stall, however short
    each pause. If the machine's facts show that late ranks' GPUs have slower clocks or are throttled, the cause is
    `clock`.

    Unprofiled steps show which hosts ran ahead of their devices, so that a host is not reported as slow only because
    recording slowed it. If the other ranks waited only for the late ranks, the time by which unprofiled steps exceed
    simulated steps is added to the savings. If the input makes a rank late, unprofiled steps limit its savings in two
    ways. If most ranks waited for input, the limit is the rank's excess over the usual wait. If the speed of DataLoader
    workers is known, the limit is the step time minus the time in which the usual worker makes a step's batches.
    """

    code: ClassVar[str] = "straggler"
    title: ClassVar[str] = "One or a few ranks delay all others"

    def examine(self, case: Case, what_if: WhatIf) -> Iterator[Proposal | CannotTell]:
        """Propose a step with ranks equalized to their median, and a step with equally long pipeline stages."""
        if case.one_of_many():
            yield CannotTell(
                "one rank's trace cannot show whether a rank comes late: give the traces of all ranks of the same steps"
            )
            return
        if len(what_if.graph.ranks) < 2 or not any(len(track.collectives) for track in case.tracks):
            return
        equal = [equalize_ranks(what_if, what_if.corrected, each_step=each_step) for each_step in (False, True)]
        # Savings in ms per step if ranks are equalized by their means over steps, and in every single step.
        by_rank, by_step = what_if.savings_ms(equal)
        jitter = case.steps > 1 and notable(by_step, what_if.corrected_ms)
        # The late rank changes between steps, or its mean excess may be chance.
        jitter = jitter and (by_step > JITTER * by_rank or not _steady(what_if))
        edit: Edit = partial(equalize_ranks, each_step=jitter)
        if not jitter and case.timeline.divides_work:
            # Work that the job divides among its ranks cannot fall to the median, so the fix is an even division.
            more = _late_ranks(case, what_if, jitter, by_rank).more_work
            edit = edit if more is None or more.even is None else more.even
        yield Proposal(edit=edit, describe=partial(self._describe, case, what_if, jitter))
        if len(what_if.graph.peers) > 1:
            from gpudiag.analysis.diagnosis.rules.uneven_stages import uneven_stages

            yield from uneven_stages(case, what_if)

    def _describe(self, case: Case, what_if: WhatIf, jitter: bool, gain: float, percent: float) -> Finding:
        """Return the finding for savings of `gain` ms, `percent` of the step; `jitter` is that of `_LateRanks`."""
        late = _late_ranks(case, what_if, jitter, gain)
        place, place_advice = _place(case, late.ranks, late.cause, gain, silent=late.silent)
        longer_ms = 0.0 if jitter else _longer_ms(case, what_if, late.ranks)  # adds to the savings and to the step
        step_ms = 100 * gain / percent
        gain, percent = gain + longer_ms, 100 * (gain + longer_ms) / (step_ms + longer_ms)
        advice = JITTER_ADVICE if jitter else place_advice or late.advice
        more = _more_operators(case, late)
        place = place or late.pauses.words()
        if more is not None and more.own_work:
            place, advice = more.words(), (*OWN_WORK, *advice)
        return Finding(
            code=self.code,
            severity=severity_of(percent),
            ranks=late.ranks,
            cause=late.cause,
            recoverable_ms_per_step=gain,
            recoverable_percent=percent,
            confidence="medium" if late.cause == "unknown" or late.silent or jitter else "high",
            title=_title(late, unmarked_words(case) if late.silent else place, gain),
            place=place,
            evidence=_evidence(case, late, longer_ms, more),
            advice=advice_for(
                case.timeline.framework,
                advice,
                ranks=late.words,
                whom="one rank or another" if late.by_turns else late.words,
                names=", ".join(more.own_ms) if more is not None else "",
            ),
        )


class _LateRanks(msgspec.Struct, frozen=True, kw_only=True):
    """The late ranks, and the cause of their lateness.

    Attributes:
        ranks: the late ranks, in ascending order.
        cause: the cause of the finding, which may be more specific than `part` (`clock`), or "unknown".
        part: the part of the step in which late ranks exceed other ranks; the part with the largest excess if the cause
            is unknown.
        excess_ms: rank → excess over the median of all ranks in that part, in ms per step.
        savings_ms: part → savings in ms per step if this part alone is equalized.
        pauses: pauses between calls that other ranks seldom make in succession.
        more_work: the reason why late ranks have more work than their peers; None if no reason is known.
        slow_clocks: late rank → codes of the findings about its GPU's clocks.
        silent: whether the cause is input, but most of the input wait is unmarked time, in which nothing was recorded.
        jitter: whether each late rank is late in some steps only.
        by_turns: whether every rank of the job is late in some steps.
    """

    ranks: tuple[int, ...]
    cause: str
    part: Component
    excess_ms: dict[int, float]
    savings_ms: dict[str, float]
    pauses: OwnPauses
    more_work: MoreWork | None
    slow_clocks: dict[str, list[str]]
    silent: bool
    jitter: bool
    by_turns: bool

    @property
    def words(self) -> str:
        """Name the ranks."""
        *others, last = (str(rank) for rank in self.ranks)
        return f"ranks {', '.join(others)} and {last}" if others else f"rank {last}"

    @property
    def advice(self) -> Advice:
        """Return the advice for the cause, which applies if there is no more specific advice for the location."""
        if self.more_work is not None:
            return self.more_work.advice
        # On a CPU, launching counts as compute, because the training thread is both host and device.
        return CPU_ADVICE if (self.cause, self.part) == ("compute", "launch") else CAUSE_ADVICE[self.cause]


def _late_ranks(case: Case, what_if: WhatIf, jitter: bool, gain: float) -> _LateRanks:
    """Return the late ranks and why they are late, if equalizing them saves `gain` ms per step.

    `jitter` is that of `_LateRanks`. Without jitter, more specific causes replace the cause that `cause_of` found.
    """
    cause, savings_ms = cause_of(case, what_if, gain, jitter)
    part: Component = cause if cause in COMPONENTS else _largest_excess(what_if)
    if case.tracks[0].is_cpu:  # all host work counts as launching, but is the training itself
        savings_ms["compute"] = savings_ms.pop("launch")
        cause = "compute" if cause == "launch" else cause
    excess_ms = {rank: milliseconds(ns) for rank, ns in excess_of(what_if, part).by_rank.items()}
    ranks = _late_in_some_steps(what_if, part) if jitter else _late_on_average(excess_ms)
    pauses, slow_clocks = OwnPauses(ms={}), {}
    if not jitter:
        if cause == "stall" and later_input_ms(case.run, ranks) >= MOST * gain:
            cause = "input"  # the stall is unmarked, but in unprofiled steps these ranks waited for their batches
        # Frequent short pauses lengthen launching, so that they explain no excess in other parts.
        cause, pauses = stall_by_own_pauses(case, ranks, cause, gain if part == "launch" else 0.0)
        slow_clocks = _held_back(case, ranks) if cause == "compute" else {}
    more = None if jitter or slow_clocks else _more_work(case, what_if, ranks, cause)
    return _LateRanks(
        ranks=ranks,
        cause="clock" if slow_clocks else more.cause if more is not None else cause,
        more_work=more,
        part=part,
        excess_ms=excess_ms,
        savings_ms=savings_ms,
        pauses=pauses,
        slow_clocks=slow_clocks,
        silent=cause == part == "input" and _mostly_unmarked(what_if, ranks),
        jitter=jitter,
        by_turns=jitter and len(ranks) == len(excess_ms),
    )


def _more_work(case: Case, what_if: WhatIf, ranks: tuple[int, ...], cause: str) -> MoreWork | None:
    """Return the reason why ranks that compute longer have more work; None for other causes or without a reason."""
    # Without a run record, only a job that divides its work shows how much work each rank has.
    if cause not in {"compute", "operators"} or (case.run is None and not case.timeline.divides_work):
        return None
    from gpudiag.analysis.diagnosis.rules.more_work import more_work

    return more_work(case, what_if, ranks)


def _late_on_average(excess_ms: dict[int, float]) -> tuple[int, ...]:
    most = max(excess_ms.values())
    return tuple(sorted(rank for rank, ms in excess_ms.items() if ms >= ALSO_LATE * most and ms > 0))


def _mostly_unmarked(what_if: WhatIf, ranks: tuple[int, ...]) -> bool:
    """Return whether most of these ranks' input wait has no marks."""
    host = what_if.graph.host
    own = any_of(host.process, *(trace for trace, rank in what_if.graph.ranks.items() if rank in ranks))
    return float(host.before_first_op[own].sum()) > float(host.input[own].sum())


def _title(late: _LateRanks, place: str, gain: float) -> str:
    """Return the title; `place` is where the late ranks lose time, `gain` the savings in ms per step."""
    one = len(late.ranks) == 1
    if late.by_turns:
        return f"ranks take turns being slow, which costs {gain:.1f} ms per step"
    if late.jitter:
        return f"{late.words} {'is' if one else 'are'} slow now and then, which costs {gain:.1f} ms per step"
    what = _what(late.cause, late.words, place, one=one, silent=late.silent)
    if what:
        return f"{what} all ranks by {gain:.1f} ms per step"
    return f"{late.words} delay{'s' if one else ''} all ranks by {gain:.1f} ms per step; the traces do not show why"


def _more_operators(case: Case, late: _LateRanks) -> MoreOperators | None:
    """Return the operators that take longer on late ranks; None unless late ranks launch slowly without pauses."""
    if late.part != "launch" or late.pauses.ms or late.jitter:
        return None
    return more_operators(case, late.ranks)


def _evidence(case: Case, late: _LateRanks, longer_ms: float, more: MoreOperators | None) -> dict[str, object]:
    """Return the evidence of the finding; `longer_ms` is the result of `_longer_ms`, `more` of `_more_operators`."""
    waits = {
        track.rank: milliseconds(sum(float(share.mean()) for share in track.waits_ns.values()))
        for track in case.attribution.tracks
    }
    frames = _frames_ms(case, late.ranks) if late.part in _OF_THE_HOST and not late.jitter else {}
    known = {
        "pauses_ms_more_than_peers": late.pauses.first(),
        "longer_in_timed_steps_ms": longer_ms,
        "clock": late.slow_clocks,
        "host_frames_ms_more_than_peers": frames,
        "assumed_data_loading": _UNRECORDED if late.silent else "",
        "operators_ms_more_than_peers": more.own_ms if more is not None else {},
        "calls_per_step_more_than_peers": more.calls if more is not None and more.own_work else {},
    }
    evidence: dict[str, object] = {
        "lateness_ms_by_rank": late.excess_ms,
        "wait_ms_by_rank": waits,
        "savings_ms_by_part": dict(sorted(late.savings_ms.items(), key=lambda part: -part[1])),
    }
    evidence |= {key: value for key, value in known.items() if value}
    evidence |= late.more_work.evidence if late.more_work is not None else {}
    return evidence | {"times_last_by_rank": _times_last(case)} if late.jitter else evidence


def _what(cause: str, words: str, place: str, *, one: bool, silent: bool) -> str | None:
    """Return the title up to "delays"; None if the cause is unknown.

    `words` names the late ranks. `place` locates the cause, or describes the wait for input that is `silent`.
    """
    where, s = f" {place}" if place else "", "s" if one else ""
    if cause == "input" and silent:  # several ranks are named before the parenthesis of `unmarked_words`
        return f"{words}'s {place} delays" if one else f"{place.replace(' (', f' of {words} (', 1)} delays"
    return {
        "input": f"{words}'s data loading delays" if one else f"data loading of {words} delays",
        "compute": f"{words} compute{s} longer{where}, which delays",
        "sequence": f"{words} compute{s} longer sequences, which delays",
        "experts": f"experts on {words} get more tokens than the others, which delays",
        "clock": f"{words} compute{s} longer on slower GPU clocks, which delays",
        "stall": f"{words} stall{s}{where}, which delays",
        "sync": f"{words} wait{s} for the GPU more often, which delays",
        "operators": f"{words} spend{s} longer{where}, which delays",
        "launch": f"{words} launch{'es' if one else ''} kernels more slowly, which delays",
        "copy": f"{words} cop{'ies' if one else 'y'} longer, which delays",
    }.get(cause)


def _longer_ms(case: Case, what_if: WhatIf, late_ranks: tuple[int, ...]) -> float:
    """Return the excess of unprofiled over simulated steps, in ms; 0 unless other ranks waited only for late ranks."""
    alone = alone_waited_for(case.run, what_if.graph.ranks.values(), late_ranks)
    return unprofiled_longer_ms(what_if.unprofiled_ms, what_if.corrected_ms) if alone else 0.0


def _place(case: Case, late_ranks: tuple[int, ...], cause: str, gain: float, *, silent: bool) -> tuple[str, Advice]:
    """Return (location, advice) for unmarked input, a stall or slow operators; ("", ()) for other causes.

    `gain` is the savings in ms per step. `silent` is that of `_LateRanks`. Without advice for the location, the advice
    for the cause applies.
    """
    if silent:
        first = AFTER_THE_UPDATE if ends_with_the_update(case) else PERHAPS_NO_LOADING
        return before_first_operator(case, late_ranks), (first, *CAUSE_ADVICE["input"])
    if cause == "stall":
        longest = main_place(stalls(case, late_ranks), gain)
        words = "" if longest is None else longest.words + (", collecting garbage" if longest.collecting else "")
        return words, stall_advice(case, longest)
    if cause == "operators":
        return next((f"in {name}" for name in slow_operators(case, late_ranks)), ""), ()
    return "", ()


def _frames_ms(case: Case, late_ranks: tuple[int, ...]) -> dict[str, float]:
    """Return user's function → notable excess of the slowest late rank over the slowest other rank, ms per step.

    The largest come first; the result is empty without stacks or without other ranks.
    """
    spent: dict[bool, list[dict[str, float]]] = {True: [], False: []}
    for track in case.tracks:
        events, steps = case.timeline.traces[track.trace].events, len(track.window_steps)
        begin, end = (int(edge) - track.shift_ns for edge in (track.bounds[0], track.bounds[-1]))
        times = time_in(events, track.steps.thread, begin, end)
        spent[track.rank in late_ranks].append({name: milliseconds(ns / steps) for name, ns in times.items()})
    if not all(spent.values()):
        return {}
    excess: dict[str, float] = {}
    for name in {name for rank in spent[True] for name in rank}:
        more = max(rank.get(name, 0.0) for rank in spent[True]) - max(peer.get(name, 0.0) for peer in spent[False])
        if notable(more, case.step_ms):
            excess[name] = more
    return dict(sorted(excess.items(), key=lambda item: -item[1])[:_MOST_FRAMES])


def _held_back(case: Case, late_ranks: tuple[int, ...]) -> dict[str, list[str]]:
    """Return late rank → codes of findings about its GPU's clocks; empty unless all late ranks have such findings."""
    if case.facts is None:
        return {}
    from gpudiag.analysis.diagnosis.hardware import examine_facts

    codes_by_gpu: dict[int, list[str]] = {}
    for finding in examine_facts(case.facts):
        if finding.code in _CLOCKS:
            for gpu in finding.evidence.get("gpus", ()):
                codes_by_gpu.setdefault(gpu, []).append(finding.code)
    gpus = {rank: gpu_of_rank(case.facts, case.run, rank) for rank in late_ranks}
    codes = {str(rank): codes_by_gpu[gpu] for rank, gpu in gpus.items() if gpu is not None and gpu in codes_by_gpu}
    return codes if len(codes) == len(late_ranks) else {}


def _late_in_some_steps(what_if: WhatIf, part: Component) -> tuple[int, ...]:
    """Return the ranks with a large sum of the excesses of single steps; steps without an excess count as 0."""
    lateness = {rank: sum(max(ns, 0.0) for ns in steps) for rank, steps in excess_of(what_if, part).by_step.items()}
    return tuple(sorted(rank for rank, ns in lateness.items() if ns >= ALSO_LATE * max(lateness.values())))


def _steady(what_if: WhatIf) -> bool:
    """Return whether the rank with the largest mean excess is late steadily rather than by chance."""
    excess = excess_of(what_if, _largest_excess(what_if))
    return excess.steady(max(excess.by_rank, key=lambda rank: excess.by_rank[rank]))


def _largest_excess(what_if: WhatIf) -> Component:
    return max(COMPONENTS, key=lambda part: max(excess_of(what_if, part).by_rank.values()))


def _times_last(case: Case) -> dict[int, int]:
    """Return rank → number of collectives at which the rank arrived last."""
    times: dict[int, int] = {}
    seen: set[int] = set()
    for track in case.tracks:
        table = track.collectives
        for instance, rank in zip(table.instance.tolist(), table.last_rank.tolist(), strict=True):
            # Each participant lists a collective; unmatched collectives have no instance.
            if instance >= 0 and instance not in seen:
                seen.add(instance)
                times[rank] = times.get(rank, 0) + 1
    return times
