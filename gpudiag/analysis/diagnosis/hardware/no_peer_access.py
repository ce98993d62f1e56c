"""`no-peer-access`: GPUs that cannot read each other's memory."""

from __future__ import annotations

from collections import defaultdict
from typing import ClassVar

from gpudiag.analysis.diagnosis.hardware.measured import host_rates
from gpudiag.analysis.diagnosis.hardware.rule import NO_TRACE
from gpudiag.analysis.diagnosis.hardware.words import pair_list
from gpudiag.model.analysis import Finding
from gpudiag.model.facts import Facts

_MOST_STEPS = 50_000
_UNSTATED = "the driver gives no reason"


class NoPeerAccess:
    """Pairs of GPUs between which the driver allows no direct copies.

    Without peer access every byte between the two goes through the host's memory: down one link, into RAM, and up the
    other. That halves what a shared link can carry, adds latency, and takes the CPU's memory bandwidth. NCCL falls
    back to shared memory for such pairs (its log says `via SHM` instead of `via P2P`).

    The driver's reason decides what can be done. *GPU not supported*: most GeForce cards since the RTX 40 series, and
    many GPUs inside virtual machines; nothing to switch on. *Chipset* or *topology not supported*: the pair hangs on
    different CPUs; put jobs on GPUs of one CPU. In virtual machines ask the provider for a type with NVLink.

    When the GPUs can still form a ring of direct links, NCCL finds it and little is lost: that is `info`, as on an
        eight-GPU hybrid cube mesh. GPUs in MIG mode never have peer access, by design, and are left out.
    """

    code: ClassVar[str] = "no-peer-access"

    def examine(self, facts: Facts) -> tuple[Finding, ...]:
        """One finding for all denied pairs, `info` where the other pairs still form a ring."""
        sliced = {gpu.index for gpu in facts.gpus if gpu.mig}
        links = [link for link in facts.links if link.a not in sliced and link.b not in sliced]
        denied = [link for link in links if link.peer_access is False]
        if not denied:
            return ()
        members = sorted({index for link in links for index in (link.a, link.b)})
        ring = has_ring(members, {(link.a, link.b) for link in links if link.peer_access})
        by_reason: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for link in denied:
            by_reason[link.reason or _UNSTATED].append((link.a, link.b))
        whole = len(denied) == len(links)
        if whole:
            which = "No two GPUs have" if len(members) > 2 else "The two GPUs do not have"
        else:
            which = f"{len(denied)} of {len(links)} pairs of GPUs ({pair_list((x.a, x.b) for x in denied)}) do not have"
        stated = "; ".join(by_reason)
        consequence = (
            "the other pairs still form a ring, which NCCL will use, so that all-reduce loses little"
            if ring
            else "what they exchange goes through host memory, at a fraction of the direct rate"
        )
        return (
            Finding(
                code=self.code,
                severity="info" if ring else "warning",
                cause=None if by_reason.keys() == {_UNSTATED} else stated,
                confidence="high",
                title=f"{which} peer access ({stated}): {consequence}",
                evidence={
                    "gpus": sorted({index for link in denied for index in (link.a, link.b)}),
                    "pairs": [[link.a, link.b] for link in denied],
                    "driver_reasons": {reason: [list(pair) for pair in pairs] for reason, pairs in by_reason.items()},
                    "ring_without_them": ring,
                    "reason": NO_TRACE,
                },
                advice=_advice(facts, stated, ring=ring, whole=whole),
            ),
        )


def _advice(facts: Facts, stated: str, *, ring: bool, whole: bool) -> tuple[str, ...]:
    if ring:
        return ("Nothing to do; with fewer GPUs choose ones that reach each other (see the islands above).",)
    advice = []
    if not whole and facts.islands and any(len(island) > 1 for island in facts.islands):
        rates = host_rates(facts)

        def worth(island: tuple[int, ...]) -> tuple[int, float]:
            """The largest island, and of equals the one whose slowest GPU has the fastest link to the host."""
            return len(island), min(max((r.gb_per_s for r in rates.get(i, {}).values()), default=0.0) for i in island)

        largest = max(facts.islands, key=worth)
        advice.append(
            f"Run smaller jobs on GPUs that reach each other: CUDA_VISIBLE_DEVICES={','.join(map(str, largest))}."
        )
    if "registry" in stated:
        advice.append("Remove the driver option that disables peer access (/etc/modprobe.d, NVreg_RegistryDwords).")
    if facts.host.hypervisor:
        advice.append("In a virtual machine this is the provider's choice: ask for a type with NVLink or peer access.")
    elif "chipset" in stated.lower():
        advice.append("Put the GPUs below one CPU or one PCIe switch; check the board's manual for its slots.")
    advice.append("Exchange less: accumulate gradients over several batches, or compress them to bf16.")
    advice.append("Compare strategies with `gpudiag recommend`: reducing on the CPU can win without peer access.")
    return tuple(advice)


def has_ring(members: list[int], edges: set[tuple[int, int]]) -> bool:
    """Whether a closed ring through all members uses only the given edges (for two members: their one edge).

    Depth-first search, cut off after 50,000 steps, then answered with no; machines have at most 16 GPUs.
    """
    neighbours: dict[int, set[int]] = {member: set() for member in members}
    for a, b in edges:
        neighbours[a].add(b)
        neighbours[b].add(a)
    if len(members) < 2:
        return False
    if len(members) == 2:
        return bool(edges)
    if any(len(near) < 2 for near in neighbours.values()):
        return False
    start, steps = members[0], 0
    stack = [(start, frozenset({start}))]
    while stack and steps < _MOST_STEPS:
        steps += 1
        last, visited = stack.pop()
        if len(visited) == len(members):
            if start in neighbours[last]:
                return True
            continue
        stack.extend((near, visited | {near}) for near in neighbours[last] - visited)
    return False
