"""One finding for several causes that lie in one place of the step.

Saving a checkpoint in each step copies tensors to the host, waits for them, and computes in Python between. Each of
these is a cause by itself, and none goes away alone. Where removing one place of the step removes a stall together
with other findings, they become one finding, whose parts say what it is made of.

    training thread   │forward│ backward │Optimizer.step│ copy, wait, Python, copy, wait, Python │next(loader)│
                                                         └────────────── one place ─────────────┘
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.diagnosis.calibration import SAME_AMOUNT
from gpudiag.analysis.diagnosis.case import Case
from gpudiag.analysis.diagnosis.rules.advice import Advice, advice_for, pytorch
from gpudiag.analysis.diagnosis.rules.host_stall import ELSEWHERE, HostStall
from gpudiag.analysis.diagnosis.rules.rule import Proposal, notable, severity_of
from gpudiag.analysis.diagnosis.simulation.graph import NONE, HostBlock
from gpudiag.analysis.diagnosis.simulation.scenario import Scenario
from gpudiag.analysis.diagnosis.simulation.what_if import WhatIf
from gpudiag.analysis.diagnosis.weigh import Weighed, in_order
from gpudiag.model.analysis import Finding
from gpudiag.model.event import EventKind, Role, any_of
from gpudiag.model.timeline import DeviceTrack, OpClass

_STALL = HostStall.code
#: What may be part of a place: causes that are a host's own doing at some instant of the step.
_PARTS = frozenset({_STALL, "host-sync", "slow-copy", "launch-bound", "memory-allocation"})
_FORWARD = "the model's forward pass"
_SAVING = pytorch(
    "Tensors are copied to the CPU there: save checkpoints every N steps or in the background "
    "(torch.distributed.checkpoint.async_save), and keep sums on the GPU that are read once per epoch."
)


def in_one_place(case: Case, what_if: WhatIf, found: Sequence[Weighed]) -> list[Weighed]:
    """Return the findings, those that go together with a stall when its place goes as one finding."""
    candidates = [one for one in found if one.finding.code in _PARTS]
    if len(candidates) < 2 or not any(one.finding.code == _STALL for one in candidates):
        return list(found)
    place = _main_place(what_if, _places(case, what_if))
    if place is None:
        return list(found)
    words, nodes = place
    edit = partial(_without_place, nodes)
    gone = edit(what_if, what_if.corrected)
    gain = what_if.saving_ms(gone)
    left = [what_if.saving_ms(one.proposal.edit(what_if, gone), gone) for one in candidates]
    absorbed = [one for one, rest in zip(candidates, left, strict=True) if rest <= max(SAME_AMOUNT * one.gain_ms, 0.0)]
    largest = max((one.gain_ms for one in absorbed), default=0.0)
    stalled = max((one.gain_ms for one in absorbed if one.finding.code == _STALL), default=0.0)
    # A wait or copies that cost clearly more than the stall beside them are what is to be told.
    if len(absorbed) < 2 or stalled < (1 - SAME_AMOUNT) * largest or largest <= 0:
        return list(found)
    if gain < (1 - SAME_AMOUNT) * largest or not notable(gain, what_if.now_ms):
        return list(found)
    proposal = Proposal(edit=edit, describe=partial(_describe, case, what_if, words, nodes, absorbed))
    finding = proposal.describe(gain, 100 * gain / what_if.now_ms)
    evidence = {**finding.evidence, "step_ms_now": what_if.now_ms, "step_ms_if_fixed": what_if.now_ms - gain}
    merged = Weighed(proposal=proposal, finding=msgspec.structs.replace(finding, evidence=evidence), gain_ms=gain)
    others = [_without(one, gone, what_if) for one in found if one not in absorbed]
    return in_order([merged, *(one for one in others if notable(one.gain_ms, what_if.now_ms))])


def _without(one: Weighed, gone: Scenario, what_if: WhatIf) -> Weighed:
    """The finding; launching with what it gains once the place is gone, as it is judged in a job without waste."""
    if one.proposal.kind != "launching":
        return one
    rest_ms = min(what_if.saving_ms(one.proposal.edit(what_if, gone), gone), one.gain_ms)
    finding = one.proposal.describe(rest_ms, 100 * rest_ms / what_if.now_ms)
    evidence = {**finding.evidence, "step_ms_now": what_if.now_ms, "step_ms_if_fixed": what_if.now_ms - rest_ms}
    return Weighed(proposal=one.proposal, finding=msgspec.structs.replace(finding, evidence=evidence), gain_ms=rest_ms)


def _outside(nodes: NDArray[np.bool_], what_if: WhatIf, proposal: Proposal) -> Scenario:
    """The costs without a cause wherever it is but in this place."""
    costs = what_if.corrected
    edited = proposal.edit(what_if, costs)
    copies = _copies(nodes, what_if)
    return replace(
        edited,
        busy=np.where(nodes, costs.busy, edited.busy),
        waiting=np.where(nodes, costs.waiting, edited.waiting),
        blocking=np.where(nodes, costs.blocking, edited.blocking),
        duration=np.where(copies, costs.duration, edited.duration),
        gap=np.where(copies, costs.gap, edited.gap),
    )


def _main_place(what_if: WhatIf, places: dict[str, NDArray[np.bool_]]) -> tuple[str, NDArray[np.bool_]] | None:
    """Return the place whose nodes stall longest, with its words; None where no thread stalls.

    Where much of the model's compute is launched is no place beside the model.
    """
    device = what_if.graph.device
    computes = (device.op_class == OpClass.COMPUTE) & (device.launch != NONE)
    duration, launch = (device.end - device.start)[computes], device.launch[computes]
    stalled = {
        words: float(what_if.untraced[nodes].sum())
        for words, nodes in places.items()
        if duration[nodes[launch]].sum() <= SAME_AMOUNT * duration.sum()
    }
    words = max(stalled, key=lambda one: stalled[one], default=None)
    return (words, places[words]) if words is not None and stalled[words] > 0 else None


def _places(case: Case, what_if: WhatIf) -> dict[str, NDArray[np.bool_]]:
    """Return the host nodes of training threads between two ranges of the program, by these ranges' names."""
    host = what_if.graph.host
    places: dict[str, NDArray[np.bool_]] = defaultdict(lambda: np.zeros(len(host.time), np.bool_))
    tracks = {track.trace: track for track in reversed(case.tracks)}
    for process in what_if.graph.ranks:
        track = tracks[process]
        events = case.timeline.traces[process].events
        mine = np.flatnonzero((host.process == process) & (host.row != NONE))
        mine = mine[events.thread[host.row[mine]] == track.steps.thread]
        start, end, names = _ranges(case, track)
        # Nodes are ends of calls; what lies before a call counts to it.
        called = events.start_ns[host.row[mine]] + track.shift_ns
        before = np.searchsorted(end, called, side="right") - 1
        after = np.searchsorted(start, called, side="right")
        between = (before >= 0) & (after < len(start)) & (after == before + 1)
        for index in np.unique(before[between]).tolist():
            if names[index] == names[index + 1]:
                continue  # from one step's range to the next step's: that is all of the step
            words = f"after {names[index]} and before {names[index + 1]}"
            places[words][mine[between & (before == index)]] = True
    return dict(places)


def _ranges(case: Case, track: DeviceTrack) -> tuple[NDArray[np.int64], NDArray[np.int64], list[str]]:
    """Return start, end and name of the outermost ranges of the training thread, on the common clock, in order."""
    events = case.timeline.traces[track.trace].events
    wanted = any_of(events.kind, EventKind.ANNOTATION, EventKind.MODULE) & (events.role != Role.STEP_MARK)
    rows = np.flatnonzero(wanted & (events.thread == track.steps.thread))
    reach = np.maximum.accumulate(np.append(np.iinfo(np.int64).min, events.end_ns[rows]))[:-1]
    rows = rows[events.start_ns[rows] >= reach]
    modules = events.kind[rows] == EventKind.MODULE
    names = [_FORWARD if of else events.name_of(row) for of, row in zip(modules.tolist(), rows.tolist(), strict=True)]
    return events.start_ns[rows] + track.shift_ns, events.end_ns[rows] + track.shift_ns, names


def _without_place(nodes: NDArray[np.bool_], what_if: WhatIf, costs: Scenario) -> Scenario:
    """The costs without anything that the host does at these nodes: work, pauses, waiting, and their copies."""
    copies = _copies(nodes, what_if)
    part = what_if.model.communication
    return replace(
        costs,
        busy=np.where(nodes, np.fmin(costs.busy, part.busy + part.calls), costs.busy),
        waiting=np.where(nodes, np.fmin(costs.waiting, part.waiting), costs.waiting),
        blocking=costs.blocking & ~(nodes & ~part.blocks),
        duration=np.where(copies, 0.0, costs.duration),
        gap=np.where(copies, np.fmin(costs.gap, 0.0), costs.gap),
    )


def _copies(nodes: NDArray[np.bool_], what_if: WhatIf) -> NDArray[np.bool_]:
    """bool[m]: copies between host and device that these host nodes launch or wait for."""
    host, device = what_if.graph.host, what_if.graph.device
    copies = np.zeros(len(device.start), np.bool_)
    copies[host.block_on[nodes & (host.block_on != NONE)]] = True
    launched = device.launch != NONE
    copies[launched] |= nodes[device.launch[launched]]
    return copies & device.host_copy


def _describe(  # noqa: PLR0917  # what a proposal is described by comes last
    case: Case,
    what_if: WhatIf,
    words: str,
    nodes: NDArray[np.bool_],
    absorbed: Sequence[Weighed],
    gain: float,
    percent: float,
) -> Finding:
    waits = nodes & (what_if.graph.host.block == HostBlock.SYNC)
    copied = bool(waits.any())
    advice: Advice = (_SAVING, *ELSEWHERE) if copied else ELSEWHERE
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
        parts_ms=_parts(what_if, nodes, gain),
        evidence={"ms_by_finding_alone": {one.finding.code: one.gain_ms for one in absorbed}},
        advice=advice_for(case.timeline.framework, advice),
    )


def _parts(what_if: WhatIf, nodes: NDArray[np.bool_], gain: float) -> dict[str, float]:
    """Return what the gain is made of, in ms of a step: each part is what removing it too adds to those before it."""
    costs, whole = what_if.corrected, _without_place(nodes, what_if, what_if.corrected)
    unstalled = replace(costs, waiting=whole.waiting)
    unblocked = replace(unstalled, blocking=whole.blocking)
    uncopied = replace(unblocked, duration=whole.duration, gap=whole.gap)
    gains = [min(ms, gain) for ms in what_if.savings_ms([unstalled, unblocked, uncopied])]
    running = [*itertools.accumulate(gains, max), gain]
    names = ("pauses", "synchronizations", "copies", "calls")
    return {name: after - before for name, before, after in zip(names, [0.0, *running], running, strict=False)}
