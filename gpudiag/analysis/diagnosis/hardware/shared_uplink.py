"""`shared-uplink`: GPUs that are fast alone and slow together."""

from __future__ import annotations

from typing import ClassVar

from gpudiag.analysis.diagnosis.calibration import ONE_DIRECTION, ONE_LINK
from gpudiag.analysis.diagnosis.hardware.measured import FROM_DEVICE, all_at_once, gpu_index, host_rates, peer_rates
from gpudiag.analysis.diagnosis.hardware.rule import NO_TRACE
from gpudiag.analysis.diagnosis.hardware.words import gpu_list, gradient_cost, pair_list
from gpudiag.model.analysis import Confidence, Finding
from gpudiag.model.facts import Facts

_BEHIND_ONE_BRIDGE = ("PIX", "PXB")


class SharedUplink:
    """Several GPUs hang on one link to the host, so that they share its bandwidth.

    Boards with two GPUs and PCIe switches have one uplink for all GPUs below them. Copies of one GPU run at full rate,
    which is all that most tests look at; in training all GPUs fetch input and exchange gradients at the same time, and
    each gets its share. Two signs are looked for: GPUs copying to the host all at once carry together no more than one
    carries alone, or copies between two GPUs in both directions at once carry no more than in one.

    A total that stops at several links' worth is no sign: four GPUs on PCIe 5 can saturate the memory of one CPU
    (about 160 GB/s measured) without sharing any link.

    What to do: spread jobs over uplinks (the pairs named here apart), keep input on the device side of the uplink small
    (uint8 images, decoding on the GPU), and prefer slots that lead straight to the CPU.
    """

    code: ClassVar[str] = "shared-uplink"

    def examine(self, facts: Facts) -> tuple[Finding, ...]:
        """What is shared among GPUs, then links that carry one direction at a time."""
        shared = _together(facts)
        named = {frozenset(finding.evidence["gpus"]) for finding in shared}
        pairs = [finding for finding in _pairwise(facts) if frozenset(finding.evidence["gpus"]) not in named]
        return (*shared, *pairs, *_one_direction(facts))


def _groups(facts: Facts) -> list[frozenset[int]]:
    """GPUs that sit behind one bridge or switch, as far as the machine shows."""
    groups: dict[int, frozenset[int]] = {gpu.index: frozenset({gpu.index}) for gpu in facts.gpus}
    for link in facts.links:
        if link.kind in _BEHIND_ONE_BRIDGE and link.a in groups and link.b in groups:
            merged = groups[link.a] | groups[link.b]
            groups.update(dict.fromkeys(merged, merged))
    return [group for group in dict.fromkeys(groups.values()) if len(group) > 1]


def _together(facts: Facts) -> list[Finding]:
    alone = host_rates(facts)
    findings: dict[frozenset[int], Finding] = {}
    for record in all_at_once(facts):
        shares = {i: rate for place, rate in record.per_device.items() if (i := gpu_index(place)) is not None}
        everyone = frozenset(shares)
        for group in (*_groups(facts), everyone):
            members = [i for i in sorted(group & everyone) if record.path in alone.get(i, {})]
            if len(members) < 2 or any(group <= known or known <= group for known in findings):
                continue
            best = max(alone[i][record.path].gb_per_s for i in members)
            total = sum(shares[i] for i in members)
            if total > ONE_LINK * best:
                continue
            worst = min(shares[i] for i in members)
            way = "from" if record.path == FROM_DEVICE else "to"
            findings[frozenset(members)] = Finding(
                code=SharedUplink.code,
                severity="warning",
                cause="uplink",
                confidence="high",
                title=(
                    f"{gpu_list(members)} share one link to the host: {best:.1f} GB/s {way} one alone, {total:.1f} "
                    f"GB/s {way} all {len(members)} at once, {worst:.1f} each; {gradient_cost(worst)}"
                ),
                evidence={
                    "gpus": members,
                    "path": record.path,
                    "alone_gb_per_s": round(best, 3),
                    "together_gb_per_s": round(total, 3),
                    "reason": NO_TRACE,
                },
                advice=_advice(members),
            )
    return list(findings.values())


def _pairwise(facts: Facts) -> list[Finding]:
    """Pairs whose copies, PCIe or staged, gain nothing from a second direction, in every mode that was measured."""
    over_nvlink = {(link.a, link.b) for link in facts.links if link.lanes > 0}
    judged: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for peer_access in (True, False):
        one_way = peer_rates(facts, peer_access=peer_access, direction="one_way")
        for (a, b), record in peer_rates(facts, peer_access=peer_access, direction="both_ways").items():
            pair = (min(a, b), max(a, b))
            alone = [one_way[ends].gb_per_s for ends in (pair, pair[::-1]) if ends in one_way]
            if alone and pair not in over_nvlink:
                judged.setdefault(pair, []).append((max(alone), record.gb_per_s))
    shared = {
        pair: figures for pair, figures in judged.items() if all(both <= ONE_DIRECTION * one for one, both in figures)
    }
    healthy_elsewhere = len(shared) < len(judged)
    confidence: Confidence = "high" if healthy_elsewhere else "medium"
    findings = []
    for (a, b), figures in sorted(shared.items()):
        one, both = figures[0]
        contrast = ", while other pairs here nearly double" if healthy_elsewhere else ""
        findings.append(
            Finding(
                code=SharedUplink.code,
                severity="warning",
                cause="uplink",
                confidence=confidence,
                title=(
                    f"GPUs {a} and {b} share one link: copies between them carry {one:.1f} GB/s in one direction and "
                    f"{both:.1f} GB/s in both together{contrast}. Exchanging gradients, each gets {both / 2:.1f}; "
                    f"{gradient_cost(both / 2)}"
                ),
                evidence={
                    "gpus": [a, b],
                    "path": "peer",
                    "one_way_gb_per_s": round(one, 3),
                    "both_ways_gb_per_s": round(both, 3),
                    "other_pairs": pair_list(set(judged) - set(shared)),
                    "reason": NO_TRACE,
                },
                advice=_advice([a, b]),
            )
        )
    return findings


def _one_direction(facts: Facts) -> list[Finding]:
    one_way, both_ways = host_rates(facts), host_rates(facts, "both_ways")
    slow = {}
    for index, records in both_ways.items():
        both = max(record.gb_per_s for record in records.values())
        alone = max((record.gb_per_s for record in one_way.get(index, {}).values()), default=None)
        if alone is not None and both <= ONE_DIRECTION * alone:
            slow[index] = (alone, both)
    if not slow:
        return []
    alone, both = next(iter(slow.values()))
    return [
        Finding(
            code=SharedUplink.code,
            severity="info",
            cause="one-direction",
            confidence="low",
            title=(
                f"{gpu_list(slow)}: copies to and from the host together carry {both:.1f} GB/s, no more than one "
                f"direction alone ({alone:.1f}): loading input and exchanging gradients through the host take turns"
            ),
            evidence={
                "gpus": sorted(slow),
                "path": "host",
                "one_way_gb_per_s": {str(i): round(one, 3) for i, (one, _) in slow.items()},
                "both_ways_gb_per_s": {str(i): round(two, 3) for i, (_, two) in slow.items()},
                "reason": NO_TRACE,
            },
            advice=(
                "GPUs with one copy engine (some GeForce models) are built so: deviceQuery shows asyncEngineCount.",
                "Otherwise look for a riser or an external enclosure between the GPU and its slot.",
            ),
        )
    ]


def _advice(members: list[int]) -> tuple[str, ...]:
    return (
        f"With fewer GPUs than the machine has, take no two of {gpu_list(members)} for one job.",
        "Move less over it: uint8 instead of float input, decoding on the GPU, bf16 gradients, larger batches.",
        "If the board has free slots that lead straight to a CPU, spread the GPUs over them.",
    )
