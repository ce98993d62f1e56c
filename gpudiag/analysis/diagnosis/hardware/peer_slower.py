"""`peer-slower-than-host`: the direct way is the longer one."""

from __future__ import annotations

from typing import ClassVar

from gpudiag.analysis.diagnosis.calibration import MOST, PEER_SLOWER
from gpudiag.analysis.diagnosis.hardware.measured import FROM_DEVICE, TO_DEVICE, host_rates, peer_rates
from gpudiag.analysis.diagnosis.hardware.rule import NO_TRACE
from gpudiag.analysis.diagnosis.hardware.words import gradient_cost, pair_list
from gpudiag.model.analysis import Finding
from gpudiag.model.facts import Facts


class PeerSlowerThanHost:
    """Copies with peer access on are slower than the same copies through host memory.

    Peer traffic over PCIe may take a bad turn: up through the CPU because Access Control Services redirect it there,
    through an IOMMU that translates each packet, or across the link between two sockets, which carries peer traffic
    badly. Then NCCL, which trusts peer access where the driver grants it, picks the slower path.

    Compared are all figures measured between the pair, each direction alone and both at once; where staged copies were
    not measured, half of what the slower host link carries stands in for them.

    What to do: `NCCL_P2P_LEVEL=PHB` (or `PXB`) keeps NCCL from using peer access over long distances,
    `NCCL_P2P_DISABLE=1` from using it at all. On bare metal switch ACS off on the switches, or the IOMMU to
    passthrough.
    """

    code: ClassVar[str] = "peer-slower-than-host"

    def examine(self, facts: Facts) -> tuple[Finding, ...]:
        """One finding for every pair that is clearly slower over all its figures."""
        slow: dict[tuple[int, int], tuple[float, float]] = {}
        low_confidence = False
        kinds = {(link.a, link.b): link.kind for link in facts.links}
        for pair in _pairs(facts):
            compared = _staged(facts, pair)
            estimated = compared is None
            if compared is None:
                compared = _estimated(facts, pair)
            if compared is None:
                continue
            direct, staged = compared
            if direct < PEER_SLOWER * staged:
                slow[pair] = (direct, staged)
                low_confidence = low_confidence or estimated
        if not slow:
            return ()
        a, b = min(slow, key=lambda pair: slow[pair][0] / slow[pair][1])
        direct, staged = slow[a, b]
        percent = 100 * (1 - direct / staged)
        far = sorted({kinds[pair] for pair in slow if kinds.get(pair, "unknown") != "unknown"})
        over = f" ({', '.join(far)})" if far else ""
        return (
            Finding(
                code=self.code,
                severity="critical" if percent >= 100 * MOST else "warning",
                cause="peer-path",
                confidence="medium" if low_confidence else "high",
                title=(
                    f"Direct copies between GPUs {pair_list(slow)}{over} are slower than through host memory, "
                    f"by {percent:.0f} % between {a} and {b}, and NCCL takes the direct way; {gradient_cost(direct)}"
                ),
                evidence={
                    "gpus": sorted({index for pair in slow for index in pair}),
                    "pairs": [
                        {"a": x, "b": y, "direct_gb_per_s": round(d, 3), "staged_gb_per_s": round(s, 3)}
                        for (x, y), (d, s) in slow.items()
                    ],
                    "iommu": facts.host.iommu,
                    "acs": facts.host.acs,
                    "reason": NO_TRACE,
                },
                advice=(
                    _setting(far),
                    "On bare metal switch ACS off (firmware, or setpci) and the IOMMU to passthrough (iommu=pt).",
                    "Prefer GPUs below one PCIe switch or one CPU for a job.",
                ),
            ),
        )


def _setting(kinds: list[str]) -> str:
    """The NCCL setting that still allows peer access over distances shorter than those that are slow."""
    nearest = next((kind for kind in ("PIX", "PXB", "PHB", "NODE", "SYS") if kind in kinds), None)
    level = {"PXB": "PIX", "PHB": "PXB", "NODE": "PHB", "SYS": "PHB"}.get(nearest or "")
    variable = f"NCCL_P2P_LEVEL={level}" if level else "NCCL_P2P_DISABLE=1"
    return f"Set {variable}, which makes NCCL go through host memory there, and time the job again."


def _pairs(facts: Facts) -> list[tuple[int, int]]:
    return sorted({(min(pair), max(pair)) for pair in peer_rates(facts, peer_access=True, direction="one_way")})


def _staged(facts: Facts, pair: tuple[int, int]) -> tuple[float, float] | None:
    """Mean one-way rate of the pair with and without peer access, over every figure that was measured both ways."""
    direct: list[float] = []
    staged: list[float] = []
    for direction, share in (("one_way", 1.0), ("both_ways", 0.5)):
        on = peer_rates(facts, peer_access=True, direction=direction)
        off = peer_rates(facts, peer_access=False, direction=direction)
        for ends in (pair, pair[::-1]):
            if ends in on and ends in off:
                direct.append(on[ends].gb_per_s * share)
                staged.append(off[ends].gb_per_s * share)
    return (sum(direct) / len(direct), sum(staged) / len(staged)) if direct else None


def _estimated(facts: Facts, pair: tuple[int, int]) -> tuple[float, float] | None:
    """The slower direction, beside half of what the host links between the two carry: staging without any overlap."""
    on, hosts = peer_rates(facts, peer_access=True, direction="one_way"), host_rates(facts)
    compared = []
    for source, destination in (pair, pair[::-1]):
        record = on.get((source, destination))
        down, up = hosts.get(source, {}).get(FROM_DEVICE), hosts.get(destination, {}).get(TO_DEVICE)
        if record is not None and down is not None and up is not None:
            compared.append((record.gb_per_s, min(down.gb_per_s, up.gb_per_s) / 2))
    return min(compared, key=lambda both: both[0] / both[1], default=None)
