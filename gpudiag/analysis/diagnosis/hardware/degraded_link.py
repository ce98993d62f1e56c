"""`degraded-link`: a PCIe or NVLink link carries less than its design allows."""

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
from gpudiag.analysis.diagnosis.hardware.rule import (
    Pair,
    gpu_list,
    gpu_list_with_models,
    gradient_cost,
    host_rates,
    pair_list,
    peer_rates,
    raw_gb_per_s,
)
from gpudiag.model.analysis import Finding
from gpudiag.model.facts import Bandwidth, Facts, Gpu, PcieLink

#: GPU → path → fastest pinned copy, as `host_rates` returns.
HostRates = dict[int, dict[str, Bandwidth]]


class DegradedLink:
    """A GPU's link has far less bandwidth than it should.

    Any of four signs is enough for this finding. The link runs **below its own maximum under load** (an idle link
    lowers its generation to save power, so only the generation under load counts). A pinned copy reaches **less than 60
    % of the link's ceiling**, or **less than 75 % of the rate of other GPUs of the same model**. The link carries
    **less than 2 GB/s**, the rate of one or two lanes: a riser, a wrong slot, or a bad contact. NVLink has two signs:
    lanes are down that are up on other GPUs of the model, or a pair of GPUs carries less than other pairs of its kind.

    A link of eight lanes that runs at eight lanes is not degraded. If a virtual machine reports no maximum for a link,
    only the measured bandwidths count.

    What it costs: everything that crosses the link (input, gradients, checkpoints) takes longer by the same factor, and
    in a synchronous step all other GPUs wait for the GPU with the slow link.

    What to do: reseat the card, swap slots to see whether the fault moves with the card or stays with the slot, replace
    risers and cables, and look into the board's manual for slots that share lanes.
    """

    code: ClassVar[str] = "degraded-link"

    def examine(self, facts: Facts) -> tuple[Finding, ...]:
        """Return one finding per combination of signs, then the findings about NVLink."""
        rates = host_rates(facts)
        groups: dict[tuple[str, ...], list[Gpu]] = defaultdict(list)
        for gpu in facts.gpus:
            signs = _signs(gpu, facts, rates)
            if signs:
                groups[signs].append(gpu)
        findings = [_finding(signs, gpus, facts, rates) for signs, gpus in groups.items()]
        findings.sort(key=lambda finding: finding.evidence["gb_per_s"] or float("inf"))  # the slowest first
        return (*findings, *nvlink_findings(facts))


def _signs(gpu: Gpu, facts: Facts, rates: HostRates) -> tuple[str, ...]:
    """Return the signs of a degraded link (see the class): any of `own-maximum`, `ceiling`, `siblings`, `narrow`."""
    measured = rates.get(gpu.index, {})
    best = _best(measured)
    signs = {
        "own-maximum": _below_own_maximum(gpu.pcie, best),
        "ceiling": any(
            record.ceiling_gb_per_s and record.gb_per_s < LINK_OF_CEILING * record.ceiling_gb_per_s
            for record in measured.values()
        ),
        "siblings": any(_below_siblings(gpu, path, record, facts, rates) for path, record in measured.items()),
        "narrow": best is not None and best < NARROW_GB_PER_S,
    }
    return tuple(sign for sign, present in signs.items() if present)


def _best(records: dict[str, Bandwidth]) -> float | None:
    return max((record.gb_per_s for record in records.values()), default=None)


def _below_own_maximum(link: PcieLink, best: float | None) -> bool:
    """Return whether a loaded link's registers show less than its maximum generation or width.

    The registers may be wrong. Return False if the fastest copy, at `best` GB/s, needs nearly the maximum.
    """
    pairs = ((link.generation, link.maximum_generation), (link.width, link.maximum_width))
    if not link.under_load or not any(now is not None and most is not None and now < most for now, most in pairs):
        return False
    full = raw_gb_per_s(link.maximum_generation, link.maximum_width)
    return best is None or full is None or best < PROVES_FULL_WIDTH * full


def _below_siblings(gpu: Gpu, path: str, record: Bandwidth, facts: Facts, rates: HostRates) -> bool:
    # Whether the copy `record` is clearly slower than the median copy of other GPUs of the model on the same `path`.
    others = [
        rates[other.index][path].gb_per_s
        for other in facts.gpus
        if other.name == gpu.name and other.index != gpu.index and path in rates.get(other.index, {})
    ]
    return bool(others) and record.gb_per_s < LINK_OF_SIBLINGS * median(others)


def _finding(signs: tuple[str, ...], gpus: list[Gpu], facts: Facts, rates: HostRates) -> Finding:
    """Return the finding about all `gpus` with this combination of signs; `rates` are those of `host_rates`."""
    indices = [gpu.index for gpu in gpus]
    measured = {i: {path: record.gb_per_s for path, record in rates[i].items()} for i in indices if rates.get(i)}
    slowest = min((max(values.values()) for values in measured.values()), default=None)
    least_share = _least_share(indices, rates)
    siblings = _sibling_rates(gpus, facts, rates)
    details = _details(signs, gpus[0].pcie, slowest, least_share, siblings)
    severe = "narrow" in signs or ("ceiling" in signs and least_share[0] < LINK_SEVERE)
    cost = f"; {gradient_cost(slowest)}" if slowest else ""
    return Finding(
        code=DegradedLink.code,
        severity="critical" if severe else "warning",
        cause=signs[0],
        confidence="medium" if signs == ("ceiling",) else "high",
        title=f"{gpu_list_with_models(indices, facts.gpus)}: a slow link to the host, {', '.join(details)}{cost}",
        evidence={
            "gpus": indices,
            "signs": list(signs),
            "gb_per_s": slowest,
            "measured_gb_per_s": {str(i): values for i, values in measured.items()},
            "siblings_gb_per_s": round(median(siblings), 3) if siblings else None,
        },
        advice=_advice(signs, indices),
    )


def _details(
    signs: tuple[str, ...],
    link: PcieLink,
    slowest: float | None,
    of_ceiling: tuple[float, float, str | None],
    siblings: list[float],
) -> list[str]:
    """Return parts of the title; `of_ceiling` is the result of `_least_share`.

    `slowest` is the best rate of the slowest of the GPUs, and `siblings` the best rates of the other GPUs of their
    model, in GB/s. `link` is the first GPU's.
    """
    details = [] if slowest is None else [f"{slowest:.{2 if slowest < 10 else 1}f} GB/s to or from the host"]
    if "narrow" in signs:
        details.append("as little as one or two PCIe lanes carry, as on a riser")
    if "own-maximum" in signs:
        details.append(
            f"PCIe {link.generation} x{link.width} under load where PCIe {link.maximum_generation} "
            f"x{link.maximum_width} is possible"
        )
    share, ceiling, source = of_ceiling
    if "ceiling" in signs:
        details.append(f"{100 * share:.0f} % of the {ceiling:.1f} GB/s that {_short(source)} allows")
    if "siblings" in signs and siblings:
        details.append(f"other GPUs of its model reach {median(siblings):.2f}")
    return details


def _least_share(indices: list[int], rates: HostRates) -> tuple[float, float, str | None]:
    """Return (smallest share of a ceiling that a copy reached, the ceiling in GB/s, its source).

    Without ceilings the result is (1.0, 0.0, None).
    """
    shares = [
        (record.gb_per_s / record.ceiling_gb_per_s, record.ceiling_gb_per_s, record.ceiling_source)
        for index in indices
        for record in rates.get(index, {}).values()
        if record.ceiling_gb_per_s
    ]
    return min(shares, key=lambda item: item[:2], default=(1.0, 0.0, None))


def _short(source: str | None) -> str:
    """Return the name of the ceiling, without its calculation: `PCIe 5 x16 (read under load)`."""
    return (source or "").partition(":")[0] or "the link"


def _sibling_rates(gpus: list[Gpu], facts: Facts, rates: HostRates) -> list[float]:
    models, indices = {gpu.name for gpu in gpus}, {gpu.index for gpu in gpus}
    others = [_best(rates.get(o.index, {})) for o in facts.gpus if o.name in models and o.index not in indices]
    return [rate for rate in others if rate is not None]


def _advice(signs: tuple[str, ...], indices: list[int]) -> tuple[str, ...]:
    """Return what to do about these GPUs; links that are narrow but as fast as their siblings count as risers."""
    gpus = ",".join(map(str, indices))
    compare = f"Compare with the slot: `nvidia-smi -q -i {gpus} | grep -A6 'GPU Link Info'` while a copy runs."
    if "narrow" in signs and "siblings" not in signs:
        return (
            compare,
            "Move these GPUs from x1 risers to slots of eight or sixteen lanes.",
            "If they must stay: accumulate gradients over many batches, or run a separate job on each GPU.",
        )
    return (
        compare,
        "Reseat the card, then swap it with a fast one: a fault that stays put is the slot's, riser's or cable's.",
        "See `dmesg | grep -i -e aer -e pcie` for corrected errors, and the firmware for the slot's lanes.",
    )


def nvlink_findings(facts: Facts) -> tuple[Finding, ...]:
    """Return the findings about NVLink: lanes that are down, then slow pairs."""
    return (*_lanes_down(facts), *_slow_pairs(facts))


def _lanes_down(facts: Facts) -> list[Finding]:
    """Return findings about GPUs with fewer active NVLink lanes than other GPUs of their model."""
    models: dict[str, dict[int, int]] = defaultdict(dict)
    for gpu in facts.gpus:
        # A GPU without active lanes counts as a GPU without a bridge, not as faulty.
        up = sum(lane.active for lane in gpu.nvlinks)
        if up:
            models[gpu.name][gpu.index] = up
    findings = []
    for model, active in models.items():
        most = max(active.values())
        fewer = {index: lanes for index, lanes in active.items() if lanes < most}
        if not fewer:
            continue
        worst = min(fewer.values())
        findings.append(
            Finding(
                code=DegradedLink.code,
                severity="warning",
                cause="nvlink-lanes",
                confidence="high",
                title=(
                    f"{gpu_list(fewer)} ({model}): {worst} NVLink lanes up where the others have {most}. NCCL builds "
                    f"its rings for the weakest GPU, so every all-reduce runs at {100 * worst / most:.0f} % of the rate"
                ),
                evidence={
                    "gpus": sorted(fewer),
                    "active_lanes": {str(index): lanes for index, lanes in active.items()},
                    "gb_per_s": None,
                },
                advice=(
                    f"See which: `nvidia-smi nvlink -s -i {','.join(map(str, sorted(fewer)))}`, errors with `-e`.",
                    "Restart nvidia-fabricmanager (NVSwitch machines) or reseat the bridge, then reset the GPUs.",
                    "If lanes stay down, the baseboard or the bridge needs service.",
                ),
            )
        )
    return findings


def _slow_pairs(facts: Facts) -> list[Finding]:
    """Return findings on pairs that carry far less over NVLink than their ceiling or than other pairs of their kind."""
    kinds = {(link.a, link.b): link.kind for link in facts.links if link.lanes > 0}
    by_kind: dict[str, dict[Pair, float]] = defaultdict(dict)
    ceilings: dict[Pair, float] = {}
    for ends, record in peer_rates(facts, peer_access=True, direction="one_way").items():
        pair = (min(ends), max(ends))
        if pair in kinds:
            rates = by_kind[kinds[pair]]  # each pair has the rate of its slower direction
            rates[pair] = min(rates.get(pair, record.gb_per_s), record.gb_per_s)
            if record.ceiling_gb_per_s:
                ceilings[pair] = record.ceiling_gb_per_s
    findings = []
    for kind, rates in by_kind.items():
        least = LINK_OF_SIBLINGS * median(rates.values())
        slow = [pair for pair, rate in rates.items() if rate < max(least, LINK_OF_CEILING * ceilings.get(pair, 0.0))]
        if not slow:
            continue
        worst = min(slow, key=lambda pair: rates[pair])
        findings.append(
            Finding(
                code=DegradedLink.code,
                severity="warning",
                cause="nvlink-rate",
                confidence="high",
                title=(
                    f"NVLink between GPUs {pair_list(slow)} ({kind}) carries {rates[worst]:.0f} GB/s at worst, where "
                    f"pairs of its kind carry {max(rates.values()):.0f}; {gradient_cost(rates[worst])}"
                ),
                evidence={
                    "gpus": sorted({index for pair in slow for index in pair}),
                    "pairs": [{"a": a, "b": b, "gb_per_s": rates[a, b]} for a, b in slow],
                    "gb_per_s": rates[worst],
                },
                advice=(
                    "See error counters with `nvidia-smi nvlink -e`: replays and recoveries that grow name the lane.",
                    "Reseat the bridge or reset the GPUs and the fabric manager; then measure again.",
                ),
            )
        )
    return findings
