"""What each cause gains, waste before work, and which would do instead of another.

Gains alone say what to believe, not what to do. A host that spends 30 ms in its loader and 15 ms launching, for a
device that needs 31 ms, is 14 ms faster without the loader and 14 ms faster without launching; but nobody can do
without launching, and once the loader is mended the device hides it. So waste is judged as it is, and launching in a
job without the waste that was found, with the exchange and without: what of it the device would not hide.

Two wastes may each hide the other: where the loader is late and the host also waits for the device, either gone
lets the device set the pace. Both are findings, each with what it gains alone, and each names the other instead.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gpudiag.analysis.diagnosis.calibration import AS_RECORDED, CLEARLY_MORE, WARNING_PERCENT, WORTH_FIRST
from gpudiag.analysis.diagnosis.rules.rule import Proposal, notable
from gpudiag.analysis.diagnosis.significance import Significance
from gpudiag.analysis.diagnosis.simulation.scenario import Scenario
from gpudiag.analysis.diagnosis.simulation.what_if import WhatIf
from gpudiag.model.analysis import Finding, Validity


class Weighed(msgspec.Struct, frozen=True, kw_only=True):
    """A proposal that gains enough to be a finding.

    Attributes:
        proposal: what is taken away.
        finding: what is said of it.
        gain_ms: by how much a step is shorter without it; of launching, in a job without waste.
    """

    proposal: Proposal
    finding: Finding
    gain_ms: float


def gains(what_if: WhatIf, proposals: Sequence[Proposal]) -> list[float]:
    """Of each proposal what it gains, in ms of a step.

    What gains nothing beyond what is another cause's too (an exchange that costs calls of the host only) is launching's
    where that gains clearly more.
    """
    costs, now = what_if.corrected, what_if.now_ms
    edits = [proposal.edit(what_if, costs) for proposal in proposals]
    parts = [costs if one.beyond is None else one.beyond(what_if, costs) for one in proposals]
    by_edit = what_if.savings_ms([*edits, *parts])
    found, shared = list(by_edit[: len(edits)]), by_edit[len(edits) :]
    if not any(proposal.kind == "launching" and gain for proposal, gain in zip(proposals, found, strict=True)):
        return found
    clean = without_waste(what_if, proposals, found)
    alone_in_it = without_others(what_if, proposals, found)
    worlds = [world for world in (clean, alone_in_it) if world is not costs]
    launching = 0.0
    for index, proposal in enumerate(proposals):
        if proposal.kind == "launching":
            left = [what_if.saving_ms(proposal.edit(what_if, world), world) for world in worlds]
            found[index] = launching = min([found[index], *left])
    return [
        0.0 if one.beyond is not None and not notable(gain - part, now) and launching >= CLEARLY_MORE * gain else gain
        for one, gain, part in zip(proposals, found, shared, strict=True)
    ]


def without_others(what_if: WhatIf, proposals: Sequence[Proposal], gained: Sequence[float]) -> Scenario:
    """The costs of a host that does nothing but launch: without waste and without the exchange."""
    costs = without_waste(what_if, proposals, gained)
    for proposal, gain in zip(proposals, gained, strict=True):
        if proposal.kind == "exchange" and notable(gain, what_if.now_ms):
            costs = proposal.edit(what_if, costs)
    return costs


def without_waste(what_if: WhatIf, proposals: Sequence[Proposal], gained: Sequence[float]) -> Scenario:
    """The costs without any waste that gains something."""
    costs = what_if.corrected
    for proposal, gain in zip(proposals, gained, strict=True):
        if proposal.kind == "waste" and notable(gain, what_if.now_ms):
            costs = proposal.edit(what_if, costs)
    return costs


def weigh(
    what_if: WhatIf, proposals: Sequence[Proposal], significance: Significance
) -> tuple[list[Weighed], list[Validity]]:
    """What is found, in the order in which it is said, and what may be chance."""
    found: list[Weighed] = []
    doubts: list[Validity] = []
    # Waste first: what may be chance there is nothing that launching is judged without.
    wastes, doubted = _judged(what_if, [one for one in proposals if one.kind == "waste"], (), significance)
    found.extend(wastes)
    doubts.extend(doubted)
    kept = [one.proposal for one in wastes]
    work, doubted = _judged(what_if, [one for one in proposals if one.kind != "waste"], kept, significance)
    found.extend(work)
    doubts.extend(doubted)
    return _with_alternatives(what_if, in_order(found)), doubts


def _judged(
    what_if: WhatIf, proposals: Sequence[Proposal], wastes: Sequence[Proposal], significance: Significance
) -> tuple[list[Weighed], list[Validity]]:
    """Those of the proposals that gain something in a job with these wastes, and what may be chance."""
    base_ms = what_if.now_ms
    found: list[Weighed] = []
    doubts: list[Validity] = []
    for proposal, gain in zip(proposals, gains(what_if, [*proposals, *wastes]), strict=False):
        if not notable(gain, base_ms):
            continue
        finding = proposal.describe(gain, 100 * gain / base_ms)
        before = [one.edit for one in wastes] if proposal.kind == "launching" else []
        doubt = significance.doubt(finding, gain, before, proposal.edit)
        if doubt is not None:
            doubts.append(Validity(code=f"cannot-tell:{finding.code}", message=doubt))
            continue
        now_ms = base_ms - gain + (finding.recoverable_ms_per_step or gain)
        evidence = {**finding.evidence, "step_ms_now": now_ms, "step_ms_if_fixed": base_ms - gain}
        finding = msgspec.structs.replace(finding, evidence=evidence)
        found.append(Weighed(proposal=proposal, finding=finding, gain_ms=gain))
    return found, doubts


def in_order(found: Sequence[Weighed]) -> list[Weighed]:
    """Largest gain first, waste before work where they are alike; launching after waste that is worth it."""
    ordered = sorted(found, key=lambda one: -one.gain_ms)
    for index in range(1, len(ordered)):
        at = index
        while at and _goes_before(ordered[at], ordered[at - 1]):
            ordered[at - 1], ordered[at] = ordered[at], ordered[at - 1]
            at -= 1
    return ordered


def _goes_before(later: Weighed, sooner: Weighed) -> bool:
    if later.proposal.kind != "waste" or sooner.proposal.kind == "waste":
        return False
    if later.gain_ms >= (1 - AS_RECORDED) * sooner.gain_ms:
        return True
    if sooner.proposal.kind != "launching" or later.finding.cause == "launch":
        return False  # a host that launches more slowly than its peers is launching, too
    worth_it = later.gain_ms >= WORTH_FIRST * sooner.gain_ms
    return worth_it and (later.finding.recoverable_percent or 0.0) >= WARNING_PERCENT


def _with_alternatives(what_if: WhatIf, found: Sequence[Weighed]) -> list[Weighed]:
    """The findings, each with the codes of those of which removing one suffices."""
    candidates = [
        index
        for index, one in enumerate(found)
        if one.proposal.kind != "launching" and (one.finding.recoverable_percent or 0.0) >= WARNING_PERCENT
    ]
    pairs = [(a, b) for a in candidates for b in candidates if a < b]
    costs = what_if.corrected
    both = what_if.savings_ms(
        [found[b].proposal.edit(what_if, found[a].proposal.edit(what_if, costs)) for a, b in pairs]
    )
    instead: dict[int, list[str]] = {}
    for (a, b), together in zip(pairs, both, strict=True):
        if together - min(found[a].gain_ms, found[b].gain_ms) < AS_RECORDED * what_if.now_ms:
            instead.setdefault(a, []).append(found[b].finding.code)
            instead.setdefault(b, []).append(found[a].finding.code)
    return [
        msgspec.structs.replace(one, finding=msgspec.structs.replace(one.finding, instead=tuple(instead[index])))
        if index in instead
        else one
        for index, one in enumerate(found)
    ]
