"""`degraded-link`: a link that carries less than it is made for."""

from __future__ import annotations

from collections import defaultdict
from statistics import median
from typing import ClassVar

from gpudiag.analysis.diagnosis.calibration import (
    LINK_OF_CEILING,
    LINK_OF_SIBLINGS,
    LINK_SEVERE,
    NARROW_GB_PER_S,
    PROVES_FULL_WIDTH,
)
from gpudiag.analysis.diagnosis.hardware.measured import host_rates
from gpudiag.analysis.diagnosis.hardware.nvlink_health import nvlink_findings
from gpudiag.analysis.diagnosis.hardware.pcie import raw_gb_per_s
from gpudiag.analysis.diagnosis.hardware.rule import NO_TRACE
from gpudiag.analysis.diagnosis.hardware.words import gpu_list_with_models, gradient_cost
from gpudiag.model.analysis import Finding
from gpudiag.model.facts import Bandwidth, Facts, Gpu, PcieLink


class DegradedLink:
    """A GPU's link carries far less than it should.

    Four signs, any of which is enough: the link runs **below its own maximum under load** (an idle link trains down to
    save power, so its generation counts only while data crosses it); a pinned copy reaches **less than 60 % of the
    link's ceiling**; it is **below 75 % of the other GPUs of the same model**; or it carries **less than 2 GB/s**,
    which is one or two lanes: a riser, a wrong slot, or a bad contact. NVLink is judged likewise: lanes that are down
    while siblings have theirs up, or a pair below the others of its kind.

    A link of eight lanes that runs at eight lanes is as designed, and a virtual machine that tells no maximum is judged
    by its figures alone.

    What it costs: everything that crosses the link, that is input, gradients and checkpoints, takes longer by the same
    factor, and in a synchronous step all other GPUs wait for the one behind the slow link.

    What to do: reseat the card, swap slots to see whether the fault moves with the card or stays with the slot, replace
    risers and cables, and look into the board's manual for slots that share lanes.
    """

    code: ClassVar[str] = "degraded-link"

    def examine(self, facts: Facts) -> tuple[Finding, ...]:
        """GPUs with the same signs share a finding; then NVLink."""
        rates = host_rates(facts)
        groups: dict[tuple[str, ...], list[int]] = defaultdict(list)
        for one in facts.gpus:
            signs = _signs(one, facts, rates)
            if signs:
                groups[signs].append(one.index)
        findings = [_finding(signs, indices, facts, rates) for signs, indices in groups.items()]
        findings.sort(key=lambda finding: finding.evidence["gb_per_s"] or float("inf"))
        return (*findings, *nvlink_findings(facts, of_ceiling=LINK_OF_CEILING, of_siblings=LINK_OF_SIBLINGS))


def _best(records: dict[str, Bandwidth]) -> float | None:
    return max((record.gb_per_s for record in records.values()), default=None)


def _signs(one: Gpu, facts: Facts, rates: dict[int, dict[str, Bandwidth]]) -> tuple[str, ...]:
    """What is wrong with the host link of one GPU: some of `own-maximum`, `ceiling`, `siblings`, `narrow`."""
    mine = rates.get(one.index, {})
    best, link = _best(mine), one.pcie
    signs = []
    if link.under_load and _below_own_maximum(link):
        full = raw_gb_per_s(link.maximum_generation, link.maximum_width)
        if best is None or full is None or best < PROVES_FULL_WIDTH * full:
            signs.append("own-maximum")
    if any(r.ceiling_gb_per_s and r.gb_per_s < LINK_OF_CEILING * r.ceiling_gb_per_s for r in mine.values()):
        signs.append("ceiling")
    for path, record in mine.items():
        others = [
            rates[other.index][path].gb_per_s
            for other in facts.gpus
            if other.name == one.name and other.index != one.index and path in rates.get(other.index, {})
        ]
        if others and record.gb_per_s < LINK_OF_SIBLINGS * median(others):
            signs.append("siblings")
            break
    if best is not None and best < NARROW_GB_PER_S:
        signs.append("narrow")
    return tuple(signs)


def _below_own_maximum(link: PcieLink) -> bool:
    pairs = ((link.generation, link.maximum_generation), (link.width, link.maximum_width))
    return any(now is not None and most is not None and now < most for now, most in pairs)


def _finding(
    signs: tuple[str, ...], indices: list[int], facts: Facts, rates: dict[int, dict[str, Bandwidth]]
) -> Finding:
    gpus = [one for one in facts.gpus if one.index in indices]
    figures = {i: {path: record.gb_per_s for path, record in rates[i].items()} for i in indices if rates.get(i)}
    best = {i: max(values.values()) for i, values in figures.items()}
    slowest = min(best.values(), default=None)
    parts = []
    if slowest is not None:
        parts.append(
            f"{slowest:.2f} GB/s to or from the host" if slowest < 10 else f"{slowest:.1f} GB/s to or from the host"
        )
    if "narrow" in signs:
        parts.append("what one or two PCIe lanes carry, as on a riser")
    if "own-maximum" in signs:
        link = gpus[0].pcie
        parts.append(
            f"PCIe {link.generation} x{link.width} under load where PCIe {link.maximum_generation} "
            f"x{link.maximum_width} is possible"
        )
    shares = [
        (record.gb_per_s / record.ceiling_gb_per_s, record.ceiling_gb_per_s, _short(record.ceiling_source))
        for index in indices
        for record in rates.get(index, {}).values()
        if record.ceiling_gb_per_s
    ]
    share, ceiling, source = min(shares, default=(1.0, 0.0, ""))
    if "ceiling" in signs:
        parts.append(f"{100 * share:.0f} % of the {ceiling:.1f} GB/s that {source} allows")
    siblings = _sibling_rates(gpus, facts, rates)
    if "siblings" in signs and siblings:
        parts.append(f"the others of its model reach {median(siblings):.2f}")
    severe = "narrow" in signs or ("ceiling" in signs and share < LINK_SEVERE)
    subject = gpu_list_with_models(indices, facts.gpus)
    cost = f"; {gradient_cost(slowest)}" if slowest else ""
    return Finding(
        code=DegradedLink.code,
        severity="critical" if severe else "warning",
        cause=signs[0],
        confidence="medium" if signs == ("ceiling",) else "high",
        title=f"{subject}: a slow link to the host, {', '.join(parts)}{cost}",
        evidence={
            "gpus": indices,
            "signs": list(signs),
            "gb_per_s": slowest,
            "measured_gb_per_s": {str(i): values for i, values in figures.items()},
            "siblings_gb_per_s": round(median(siblings), 3) if siblings else None,
            "reason": NO_TRACE,
        },
        advice=_advice(signs, indices),
    )


def _short(source: str | None) -> str:
    """What the ceiling is of, without how it was worked out: `PCIe 5 x16 (read under load)`."""
    return (source or "").partition(":")[0] or "the link"


def _sibling_rates(gpus: list[Gpu], facts: Facts, rates: dict[int, dict[str, Bandwidth]]) -> list[float]:
    names, mine = {one.name for one in gpus}, {one.index for one in gpus}
    others = [_best(rates.get(o.index, {})) for o in facts.gpus if o.name in names and o.index not in mine]
    return [rate for rate in others if rate is not None]


def _advice(signs: tuple[str, ...], indices: list[int]) -> tuple[str, ...]:
    which = ",".join(map(str, indices))
    look = f"Compare with the slot: `nvidia-smi -q -i {which} | grep -A6 'GPU Link Info'` while a copy runs."
    if "narrow" in signs and "siblings" not in signs:
        return (
            look,
            "Move these GPUs from x1 risers to slots of eight or sixteen lanes.",
            "If they must stay: accumulate gradients over many batches, or use each GPU for a job of its own.",
        )
    return (
        look,
        "Reseat the card, then swap it with a fast one: a fault that stays put is the slot's, riser's or cable's.",
        "See `dmesg | grep -i -e aer -e pcie` for corrected errors, and the firmware for the slot's lanes.",
    )
