"""`shared-uplink`: GPUs are fast alone and slow together."""

from __future__ import annotations

from collections import defaultdict
from typing import ClassVar

from gpudiag.analysis.diagnosis.calibration import ONE_DIRECTION, ONE_LINK
from gpudiag.analysis.diagnosis.hardware.rule import (
    FROM_DEVICE,
    Pair,
    all_at_once,
    gpu_index,
    gpu_list,
    gradient_cost,
    host_rates,
    pair_list,
    peer_rates,
)
from gpudiag.model.analysis import Finding
from gpudiag.model.facts import Bandwidth, Facts

#: Kinds of links (`nvidia-smi topo -m`) that cross PCIe bridges but no CPU.
_BEHIND_ONE_BRIDGE = ("PIX", "PXB")


class SharedUplink:
    """Several GPUs share one link to the host, and therefore its bandwidth.

    A PCIe switch, or a board with two GPUs, has one uplink for all of its GPUs. Most tests copy with one GPU at a
    time and reach the full rate. In training, all GPUs fetch input and communicate gradients at the same time, so that
    each GPU gets a share of the uplink. There are two signs: all GPUs together copy to the host no faster than one
    alone, or two GPUs copy in both directions at once no faster than in one direction.

    A total between the bandwidth of one link and the sum of all links is not a sign: four GPUs on PCIe 5 can saturate
    the memory of one CPU (about 160 GB/s measured) without sharing any link.

    What to do: spread jobs over uplinks (do not use the GPUs named here together), keep the input that crosses the
    uplink small (uint8 images, decoding on the GPU), and prefer slots that lead straight to the CPU.
    """

    code: ClassVar[str] = "shared-uplink"

    def examine(self, facts: Facts) -> tuple[Finding, ...]:
        """Return findings about GPUs that share a link, then about links that carry one direction at a time."""
        together = _together(facts)
        named = {frozenset(finding.evidence["gpus"]) for finding in together}
        pairs = [finding for finding in _pairwise(facts) if frozenset(finding.evidence["gpus"]) not in named]
        return (*together, *pairs, *_one_direction(facts))


def _groups_behind_bridges(facts: Facts) -> list[frozenset[int]]:
    """Return the groups of GPUs behind one bridge or switch, for links whose kind is known."""
    groups = {gpu.index: frozenset({gpu.index}) for gpu in facts.gpus}
    for link in facts.links:
        if link.kind in _BEHIND_ONE_BRIDGE and link.a in groups and link.b in groups:
            merged = groups[link.a] | groups[link.b]
            groups.update(dict.fromkeys(merged, merged))
    return [group for group in dict.fromkeys(groups.values()) if len(group) > 1]


def _together(facts: Facts) -> list[Finding]:
    """Return findings about groups that have no more bandwidth together than one GPU alone.

    Groups behind one bridge come first. A group that contains a reported group, or lies within it, is skipped.
    """
    alone = host_rates(facts)
    findings: dict[frozenset[int], Finding] = {}
    for record in all_at_once(facts):
        shares = {index: rate for end, rate in record.per_device.items() if (index := gpu_index(end)) is not None}
        everyone = frozenset(shares)
        for group in (*_groups_behind_bridges(facts), everyone):
            members = [index for index in sorted(group & everyone) if record.path in alone.get(index, {})]
            if len(members) < 2 or any(group <= known or known <= group for known in findings):
                continue
            best = max(alone[index][record.path].gb_per_s for index in members)
            member_shares = [shares[index] for index in members]
            if sum(member_shares) <= ONE_LINK * best:
                findings[frozenset(members)] = _together_finding(record, members, best, member_shares)
    return list(findings.values())


def _together_finding(record: Bandwidth, members: list[int], alone: float, shares: list[float]) -> Finding:
    """Return the finding; `alone` is the best rate of one GPU, `shares` are the GPUs' rates together, in GB/s."""
    total, worst = sum(shares), min(shares)
    way = "from" if record.path == FROM_DEVICE else "to"
    return Finding(
        code=SharedUplink.code,
        severity="warning",
        cause="uplink",
        confidence="high",
        title=(
            f"{gpu_list(members)} share one link to the host: {alone:.1f} GB/s {way} one alone, {total:.1f} "
            f"GB/s {way} all {len(members)} at once, {worst:.1f} each; {gradient_cost(worst)}"
        ),
        evidence={
            "gpus": members,
            "path": record.path,
            "alone_gb_per_s": round(alone, 3),
            "together_gb_per_s": round(total, 3),
        },
        advice=_advice(members),
    )


def _pairwise(facts: Facts) -> list[Finding]:
    """Return findings about pairs without NVLink whose copies in both directions are no faster than in one."""
    over_nvlink = {(link.a, link.b) for link in facts.links if link.lanes > 0}
    # Pair → GB/s (in the faster direction alone, in both together), with peer access and without.
    judged: dict[Pair, list[tuple[float, float]]] = defaultdict(list)
    for peer_access in (True, False):
        one_way = peer_rates(facts, peer_access=peer_access, direction="one_way")
        for (a, b), record in peer_rates(facts, peer_access=peer_access, direction="both_ways").items():
            pair = (min(a, b), max(a, b))
            alone = [one_way[ends].gb_per_s for ends in (pair, pair[::-1]) if ends in one_way]
            if alone and pair not in over_nvlink:
                judged[pair].append((max(alone), record.gb_per_s))
    shared = {
        pair: rates for pair, rates in judged.items() if all(both <= ONE_DIRECTION * single for single, both in rates)
    }
    healthy = set(judged) - set(shared)
    findings = []
    for (a, b), rates in sorted(shared.items()):
        single, both = rates[0]  # with peer access, if measured
        contrast = ", while other pairs here nearly double" if healthy else ""
        findings.append(
            Finding(
                code=SharedUplink.code,
                severity="warning",
                cause="uplink",
                confidence="high" if healthy else "medium",
                title=(
                    f"GPUs {a} and {b} share one link: copies between them carry {single:.1f} GB/s in one direction, "
                    f"{both:.1f} GB/s in both together{contrast}. Communicating gradients, each gets "
                    f"{both / 2:.1f}; {gradient_cost(both / 2)}"
                ),
                evidence={
                    "gpus": [a, b],
                    "path": "peer",
                    "one_way_gb_per_s": round(single, 3),
                    "both_ways_gb_per_s": round(both, 3),
                    "other_pairs": pair_list(healthy),
                },
                advice=_advice([a, b]),
            )
        )
    return findings


def _one_direction(facts: Facts) -> list[Finding]:
    """Return one finding for all GPUs whose host link carries only one direction at a time at the full rate."""
    one_way = host_rates(facts)
    slow = {}
    for index, records in host_rates(facts, "both_ways").items():
        both = max(record.gb_per_s for record in records.values())
        alone = max((record.gb_per_s for record in one_way.get(index, {}).values()), default=None)
        if alone is not None and both <= ONE_DIRECTION * alone:
            slow[index] = (alone, both)
    if not slow:
        return []
    alone, both = next(iter(slow.values()))  # the title has the rates of the first GPU, in GB/s
    return [
        Finding(
            code=SharedUplink.code,
            severity="info",
            cause="one-direction",
            confidence="low",
            title=(
                f"{gpu_list(slow)}: copies to and from the host together carry {both:.1f} GB/s, no more than one "
                f"direction alone ({alone:.1f}): loading input and communicating gradients through the host take turns"
            ),
            evidence={
                "gpus": sorted(slow),
                "path": "host",
                "one_way_gb_per_s": {str(index): round(alone, 3) for index, (alone, _) in slow.items()},
                "both_ways_gb_per_s": {str(index): round(both, 3) for index, (_, both) in slow.items()},
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
