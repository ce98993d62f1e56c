"""Merge findings at one location of the step into one finding.

A place is the host time between two consecutive ranges of the training thread. For example, saving a checkpoint copies
tensors to the host, waits for the copies, and runs Python in between. Each such cost is a finding, but no cost can be
fixed alone. Findings are merged if they include a stall and all disappear from a step that is simulated without the
place. The `parts_ms` of the merged finding lists its components.

    training thread   │forward│ backward │Optimizer.step│ copy, wait, Python, copy, wait, Python │next(loader)│
                                                         └────────────── one place ─────────────┘
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.diagnosis.calibration import SAME_AMOUNT
from gpudiag.analysis.diagnosis.case import Case
from gpudiag.analysis.diagnosis.rules.host_stall import ELSEWHERE, HostStall
from gpudiag.analysis.diagnosis.rules.rule import (
    Advice,
    Proposal,
    advice_for,
    notable,
    pytorch,
    severity_of,
    split_savings,
)
from gpudiag.analysis.diagnosis.scoring import ScoredFinding, in_order, scored_finding
from gpudiag.analysis.diagnosis.simulation.graph import NONE, HostBlock, Scenario
from gpudiag.analysis.diagnosis.simulation.what_if import WhatIf
from gpudiag.intervals import outermost
from gpudiag.model.analysis import Finding
from gpudiag.model.event import EventKind, Role, any_of
from gpudiag.model.timeline import DeviceTrack, OpClass

_STALL = HostStall.code
#: Codes of findings that may be merged, because the host can cause all of them at one location of the step.
MERGED_CODES = frozenset({_STALL, "host-sync", "slow-copy", "launch-bound", "memory-allocation"})
_FORWARD = "the model's forward pass"
SAVING = pytorch(
    "Tensors are copied to the CPU there: save checkpoints every N steps or in the background "
    "(torch.distributed.checkpoint.async_save), and keep sums on the GPU that are read once per epoch."
)


def in_one_place(case: Case, what_if: WhatIf, findings: Sequence[ScoredFinding]) -> list[ScoredFinding]:
    """Merge a stall with the findings that disappear together with the stall when its place is removed.

    If source lines are known, nothing is merged here, because `one_line` merges by line.
    """
    if case.lines is not None and case.lines.placed:
        return list(findings)
    candidates = [scored for scored in findings if scored.finding.code in MERGED_CODES]
    if len(candidates) < 2 or not any(scored.finding.code == _STALL for scored in candidates):
        return list(findings)
    place = _main_place(what_if, _places(case, what_if))
    if place is None:
        return list(findings)
    words, nodes = place
    edit = partial(_without_place, nodes)
    gone = edit(what_if, what_if.corrected)
    saved = what_if.saving_ms(gone)
    absorbed = absorbed_by(what_if, candidates, gone)
    if not absorbed or not _is_one_cause(absorbed, saved) or not notable(saved, what_if.now_ms):
        return list(findings)
    proposal = Proposal(edit=edit, describe=partial(_describe, case, what_if, words, nodes, absorbed))
    merged = scored_finding(what_if, proposal, saved)
    others = [rescored(scored, gone, what_if) for scored in findings if scored not in absorbed]
    return in_order([merged, *(scored for scored in others if notable(scored.savings_ms, what_if.now_ms))])


def absorbed_by(what_if: WhatIf, findings: Sequence[ScoredFinding], gone: Scenario) -> list[ScoredFinding]:
    """Return the findings that save hardly anything in the scenario `gone`, which lacks a place or a line."""
    left = [what_if.saving_ms(scored.proposal.edit(what_if, gone), gone) for scored in findings]
    return [
        scored for scored, rest in zip(findings, left, strict=True) if rest <= max(SAME_AMOUNT * scored.savings_ms, 0.0)
    ]


def _is_one_cause(absorbed: Sequence[ScoredFinding], saved: float) -> bool:
    """Return whether the place absorbs several findings, and place and stall each save nearly as much as the best one.

    `saved` is the savings of removing the place, in ms per step. Waits or copies that cost clearly more than the stall
    stay separate findings.
    """
    largest = max(scored.savings_ms for scored in absorbed)
    stalled = max((scored.savings_ms for scored in absorbed if scored.finding.code == _STALL), default=0.0)
    return len(absorbed) > 1 and largest > 0 and min(stalled, saved) >= (1 - SAME_AMOUNT) * largest


def rescored(scored: ScoredFinding, gone: Scenario, what_if: WhatIf) -> ScoredFinding:
    """Score launch overhead again, without the removed place; return any other finding unchanged."""
    if scored.proposal.kind != "launching":
        return scored
    rest_ms = what_if.saving_ms(scored.proposal.edit(what_if, gone), gone)
    return scored_finding(what_if, scored.proposal, min(rest_ms, scored.savings_ms))


def _main_place(what_if: WhatIf, places: dict[str, NDArray[np.bool_]]) -> tuple[str, NDArray[np.bool_]] | None:
    """Return (description, bool[n] nodes) of the place with the most untraced host time; None if no place has any.

    Places that launch much of the model's compute are ignored, because they are the training itself.
    """
    device = what_if.graph.device
    computes = (device.op_class == OpClass.COMPUTE) & (device.launch != NONE)
    duration, launch = (device.end - device.start)[computes], device.launch[computes]
    stalled = {
        words: float(what_if.untraced[nodes].sum())
        for words, nodes in places.items()
        if duration[nodes[launch]].sum() <= SAME_AMOUNT * duration.sum()
    }
    words = max(stalled, key=stalled.__getitem__, default=None)
    return (words, places[words]) if words is not None and stalled[words] > 0 else None


def _places(case: Case, what_if: WhatIf) -> dict[str, NDArray[np.bool_]]:
    """Return description → bool[n], the host nodes of training threads between two consecutive ranges."""
    host = what_if.graph.host
    places: dict[str, NDArray[np.bool_]] = defaultdict(lambda: np.zeros(len(host.time), np.bool_))
    tracks = {track.trace: track for track in reversed(case.tracks)}  # the first track of each process
    for process in what_if.graph.ranks:
        track = tracks[process]
        events = case.timeline.traces[process].events
        nodes = np.flatnonzero((host.process == process) & (host.row != NONE))
        nodes = nodes[events.thread[host.row[nodes]] == track.steps.thread]
        start, end, names = _ranges(case, track)
        # A node is the end of a call, and includes the host time before the call. `before` is the last range that ended
        # before the call, `after` the first that begins after it. They are not consecutive if the call is in a range.
        called = events.start_ns[host.row[nodes]] + track.shift_ns
        before = np.searchsorted(end, called, side="right") - 1
        after = np.searchsorted(start, called, side="right")
        between = (before >= 0) & (after < len(start)) & (after == before + 1)
        for index in np.unique(before[between]).tolist():
            if names[index] == names[index + 1]:
                continue  # two calls of the same range are a whole step apart
            words = f"after {names[index]} and before {names[index + 1]}"
            places[words][nodes[between & (before == index)]] = True
    return dict(places)


def _ranges(case: Case, track: DeviceTrack) -> tuple[NDArray[np.int64], NDArray[np.int64], list[str]]:
    """Return (start, end, name) of the training thread's outermost ranges, in ns on the common clock, by start."""
    events = case.timeline.traces[track.trace].events
    wanted = any_of(events.kind, EventKind.ANNOTATION, EventKind.MODULE) & (events.role != Role.STEP_MARK)
    rows = np.flatnonzero(wanted & (events.thread == track.steps.thread))
    rows = rows[outermost(events.start_ns[rows], events.end_ns[rows])]
    modules = events.kind[rows] == EventKind.MODULE
    names = [
        _FORWARD if is_module else events.name_of(row)
        for is_module, row in zip(modules.tolist(), rows.tolist(), strict=True)
    ]
    return events.start_ns[rows] + track.shift_ns, events.end_ns[rows] + track.shift_ns, names


def _without_place(nodes: NDArray[np.bool_], what_if: WhatIf, costs: Scenario) -> Scenario:
    """Remove the work, untraced time, waits and copies of these host nodes, except for communication."""
    copies = copies_of(nodes, what_if)
    communication = what_if.model.communication
    return replace(
        costs,
        busy=np.where(nodes, np.fmin(costs.busy, communication.busy + communication.calls), costs.busy),
        waiting=np.where(nodes, np.fmin(costs.waiting, communication.waiting), costs.waiting),
        blocking=costs.blocking & ~(nodes & ~communication.blocks),
        duration=np.where(copies, 0.0, costs.duration),
        gap=np.where(copies, np.fmin(costs.gap, 0.0), costs.gap),  # negative gaps (overlap) remain
    )


def copies_of(nodes: NDArray[np.bool_], what_if: WhatIf) -> NDArray[np.bool_]:
    """Return bool[m]: the copies between host and device that these host nodes launch or wait for."""
    host, device = what_if.graph.host, what_if.graph.device
    copies = np.zeros(len(device.start), np.bool_)
    copies[host.block_on[nodes & (host.block_on != NONE)]] = True
    launched = device.launch != NONE
    copies[launched] |= nodes[device.launch[launched]]
    return copies & device.host_copy


def _describe(  # noqa: PLR0917  # `partial` binds all but the last two
    case: Case,
    what_if: WhatIf,
    words: str,
    nodes: NDArray[np.bool_],
    absorbed: Sequence[ScoredFinding],
    gain: float,
    percent: float,
) -> Finding:
    """Return the finding about a place for savings of `gain` ms per step, which are `percent` of the step.

    `words` describe the place, `nodes`, bool[n], are its host nodes, and `absorbed` the findings that are merged.
    """
    # Copies to the CPU that block the host count as synchronizations.
    copied = bool((nodes & (what_if.graph.host.block == HostBlock.SYNC)).any())
    advice: Advice = (SAVING, *ELSEWHERE) if copied else ELSEWHERE
    return Finding(
        code=_STALL,
        severity=severity_of(percent),
        ranks=tuple(sorted(what_if.graph.ranks.values())),
        cause="other work within the step",
        recoverable_ms_per_step=gain,
        recoverable_percent=percent,
        confidence="high",
        title=f"the training thread does other work {words}, which costs {gain:.1f} ms per step",
        place=words,
        parts_ms=parts_of(what_if, _without_place(nodes, what_if, what_if.corrected), gain),
        evidence={"ms_by_finding_alone": {scored.finding.code: scored.savings_ms for scored in absorbed}},
        advice=advice_for(case.timeline.framework, advice),
    )


def parts_of(what_if: WhatIf, whole: Scenario, gain: float) -> dict[str, float]:
    """Split `gain`, the savings of the scenario `whole` in ms per step, into component → ms."""
    costs = what_if.corrected
    unstalled = replace(costs, waiting=whole.waiting)
    unblocked = replace(unstalled, blocking=whole.blocking)
    uncopied = replace(unblocked, duration=whole.duration, gap=whole.gap)
    removed = {"pauses": unstalled, "synchronizations": unblocked, "copies": uncopied}
    return split_savings(what_if, removed, "calls", gain)
