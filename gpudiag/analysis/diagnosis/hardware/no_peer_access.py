"""`no-peer-access`: GPUs cannot read each other's memory."""

from __future__ import annotations

from collections import defaultdict
from typing import ClassVar

from gpudiag.analysis.diagnosis.hardware.rule import host_rates, pair_list
from gpudiag.model.analysis import Finding
from gpudiag.model.facts import Facts, Link

_MOST_STEPS = 50_000
_NO_REASON = "the driver gives no reason"


class NoPeerAccess:
    """Pairs of GPUs between which the driver allows no direct copies.

    Without peer access every byte between the two GPUs goes through the host's memory: over one GPU's link into RAM,
    and over the other GPU's link out of RAM. This adds latency, uses the CPU's memory bandwidth, and halves the
    bandwidth if both GPUs share one link. NCCL uses shared memory for such pairs (its log says `via SHM` instead of
    `via P2P`).

    What can be done depends on the driver's reason. *GPU not supported*: peer access cannot be switched on for most
    GeForce cards since the RTX 40 series, and for many GPUs inside virtual machines. *Chipset* or *topology not
    supported*: the pair is attached to different CPUs; put jobs on GPUs of one CPU. In virtual machines ask the
    provider for a type with NVLink.

    If the other pairs form a ring of direct links, as on an eight-GPU hybrid cube mesh, NCCL uses the ring. Little is
    lost, so that the finding is only `info`. GPUs in MIG mode never have peer access, by design, and are left out.
    """

    code: ClassVar[str] = "no-peer-access"

    def examine(self, facts: Facts) -> tuple[Finding, ...]:
        """Return one finding for all denied pairs; `info` if the other pairs form a ring."""
        mig = {gpu.index for gpu in facts.gpus if gpu.mig}
        links = [link for link in facts.links if mig.isdisjoint((link.a, link.b))]
        denied = [link for link in links if link.peer_access is False]
        if not denied:
            return ()
        ring = has_ring(_members(links), {(link.a, link.b) for link in links if link.peer_access})
        by_reason = _pairs_by_reason(denied)
        reasons = "; ".join(by_reason)
        consequence = (
            "the other pairs form a ring, which NCCL will use, so that all-reduce loses little"
            if ring
            else "their communication goes through host memory, at a fraction of the direct rate"
        )
        return (
            Finding(
                code=self.code,
                severity="info" if ring else "warning",
                cause=None if by_reason.keys() == {_NO_REASON} else reasons,
                confidence="high",
                title=f"{_subject(links, denied)} peer access ({reasons}): {consequence}",
                evidence={
                    "gpus": _members(denied),
                    "pairs": [[link.a, link.b] for link in denied],
                    "driver_reasons": by_reason,
                    "ring_without_them": ring,
                },
                advice=_advice(facts, reasons, ring=ring, all_denied=len(denied) == len(links)),
            ),
        )


def _pairs_by_reason(denied: list[Link]) -> dict[str, list[list[int]]]:
    pairs: dict[str, list[list[int]]] = defaultdict(list)
    for link in denied:
        pairs[link.reason or _NO_REASON].append([link.a, link.b])
    return dict(pairs)


def _subject(links: list[Link], denied: list[Link]) -> str:
    if len(denied) < len(links):
        pairs = pair_list((link.a, link.b) for link in denied)
        return f"{len(denied)} of {len(links)} pairs of GPUs ({pairs}) do not have"
    return "No two GPUs have" if len(_members(links)) > 2 else "The two GPUs do not have"


def _members(links: list[Link]) -> list[int]:
    return sorted({index for link in links for index in (link.a, link.b)})


def _advice(facts: Facts, reasons: str, *, ring: bool, all_denied: bool) -> tuple[str, ...]:
    """Return what to do; `ring` means that pairs with peer access form a ring, `all_denied` that no pair has access."""
    if ring:
        return ("Nothing to do; with fewer GPUs choose ones that reach each other (see the islands above).",)
    advice = []
    if not all_denied and any(len(island) > 1 for island in facts.islands):
        gpus = ",".join(map(str, _best_island(facts)))
        advice.append(f"Run smaller jobs on GPUs that reach each other: CUDA_VISIBLE_DEVICES={gpus}.")
    if "registry" in reasons:
        advice.append("Remove the driver option that disables peer access (/etc/modprobe.d, NVreg_RegistryDwords).")
    if facts.host.hypervisor:
        advice.append("In a virtual machine this is the provider's choice: ask for a type with NVLink or peer access.")
    elif "chipset" in reasons.lower():
        advice.append("Put the GPUs below one CPU or one PCIe switch; check the board's manual for its slots.")
    advice.append("Communicate less: accumulate gradients over several batches, or compress them to bf16.")
    advice.append("Compare strategies with `gpudiag recommend`: reducing on the CPU can win without peer access.")
    return tuple(advice)


def _best_island(facts: Facts) -> tuple[int, ...]:
    """Return the largest group of GPUs with peer access; of equal sizes, the one whose slowest host link is fastest."""
    fastest = {
        index: max(record.gb_per_s for record in records.values()) for index, records in host_rates(facts).items()
    }
    return max(facts.islands, key=lambda island: (len(island), min(fastest.get(index, 0.0) for index in island)))


def has_ring(members: list[int], edges: set[tuple[int, int]]) -> bool:
    """Return whether `edges` contain a closed ring through all members; for two members, one edge is enough.

    Search depth first. Return False after 50,000 steps; machines with at most 16 GPUs need fewer steps.
    """
    neighbours: dict[int, set[int]] = {member: set() for member in members}
    for a, b in edges:
        neighbours[a].add(b)
        neighbours[b].add(a)
    if len(members) <= 2:
        return len(members) == 2 and bool(edges)
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
