"""Find NVLink lanes that are down and NVLink pairs slower than others of their kind, for `degraded-link`."""

from __future__ import annotations

from collections import defaultdict
from statistics import median

from gpudiag.analysis.diagnosis.calibration import LINK_OF_CEILING, LINK_OF_SIBLINGS
from gpudiag.analysis.diagnosis.hardware.measured import peer_rates
from gpudiag.analysis.diagnosis.hardware.rule import NO_TRACE
from gpudiag.analysis.diagnosis.hardware.words import gpu_list, gradient_cost, pair_list
from gpudiag.model.analysis import Finding
from gpudiag.model.facts import Facts

_CODE = "degraded-link"

Pair = tuple[int, int]


def nvlink_findings(facts: Facts) -> tuple[Finding, ...]:
    """Return the findings about NVLink: lanes that are down, then slow pairs."""
    return (*_lanes_down(facts), *_slow_pairs(facts))


def _lanes_down(facts: Facts) -> list[Finding]:
    models: dict[str, dict[int, int]] = defaultdict(dict)
    for gpu in facts.gpus:
        # No lane up means no bridge, which is a choice; lanes up beside lanes down are a fault.
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
                code=_CODE,
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
                    "reason": NO_TRACE,
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
    kinds = {(link.a, link.b): link.kind for link in facts.links if link.lanes > 0}
    by_kind: dict[str, dict[Pair, float]] = defaultdict(dict)
    ceilings: dict[Pair, float] = {}
    for ends, record in peer_rates(facts, peer_access=True, direction="one_way").items():
        pair = (min(ends), max(ends))
        if pair in kinds:
            rates = by_kind[kinds[pair]]
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
                code=_CODE,
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
                    "reason": NO_TRACE,
                },
                advice=(
                    "See error counters with `nvidia-smi nvlink -e`: replays and recoveries that grow name the lane.",
                    "Reseat the bridge or reset the GPUs and the fabric manager; then measure again.",
                ),
            )
        )
    return findings
