"""`peer-slower-than-host`: direct copies are slower than copies through host memory."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from gpudiag.analysis.diagnosis.calibration import MOST, PEER_SLOWER
from gpudiag.analysis.diagnosis.hardware.rule import (
    FROM_DEVICE,
    TO_DEVICE,
    Pair,
    gradient_cost,
    host_rates,
    pair_list,
    peer_rates,
)
from gpudiag.model.analysis import Finding
from gpudiag.model.facts import Facts


class PeerSlowerThanHost:
    """Copies with peer access on are slower than the same copies through host memory.

    Peer traffic over PCIe may take a long path: through the CPU if Access Control Services (ACS) redirect it, through
    an IOMMU that translates each packet, or over the link between two CPU sockets, which carries peer traffic slowly.
    NCCL uses peer access wherever the driver allows it, even where copies through host memory are faster.

    All bandwidths measured between the pair are compared, for each direction alone and for both at once. If copies
    through host memory were not measured, they are estimated as half the bandwidth of the slower host link.

    What to do: `NCCL_P2P_LEVEL=PHB` (or `PXB`) limits NCCL's peer access to short distances, and `NCCL_P2P_DISABLE=1`
    disables it. On bare metal switch ACS off on the switches, or the IOMMU to passthrough.
    """

    code: ClassVar[str] = "peer-slower-than-host"

    def examine(self, facts: Facts) -> tuple[Finding, ...]:
        """Return one finding for all pairs whose direct copies are clearly slower, by the mean of all bandwidths."""
        slow = {}
        for pair in _pairs(facts):
            compared = _measured(facts, pair) or _estimated(facts, pair)
            if compared is not None and compared.direct < PEER_SLOWER * compared.staged:
                slow[pair] = compared
        if not slow:
            return ()
        a, b = min(slow, key=lambda pair: slow[pair].ratio)
        percent = 100 * (1 - slow[a, b].ratio)
        kinds = sorted({link.kind for link in facts.links if (link.a, link.b) in slow} - {"unknown", ""})
        over = f" ({', '.join(kinds)})" if kinds else ""
        return (
            Finding(
                code=self.code,
                severity="critical" if percent >= 100 * MOST else "warning",
                cause="peer-path",
                confidence="medium" if any(compared.estimated for compared in slow.values()) else "high",
                title=(
                    f"Direct copies between GPUs {pair_list(slow)}{over} are slower than through host memory, by "
                    f"{percent:.0f} % between {a} and {b}, and NCCL takes the direct path; "
                    f"{gradient_cost(slow[a, b].direct)}"
                ),
                evidence={
                    "gpus": sorted({index for pair in slow for index in pair}),
                    "pairs": [
                        {
                            "a": pair[0],
                            "b": pair[1],
                            "direct_gb_per_s": round(compared.direct, 3),
                            "staged_gb_per_s": round(compared.staged, 3),
                        }
                        for pair, compared in slow.items()
                    ],
                    "iommu": facts.host.iommu,
                    "acs": facts.host.acs,
                },
                advice=(
                    _setting(kinds),
                    "On bare metal switch ACS off (firmware, or setpci) and the IOMMU to passthrough (iommu=pt).",
                    "Prefer GPUs below one PCIe switch or one CPU for a job.",
                ),
            ),
        )


class _Comparison(msgspec.Struct, frozen=True):
    """Rates of copies between two GPUs, in GB/s: direct, and staged through host memory (`estimated` or measured)."""

    direct: float
    staged: float
    estimated: bool = False

    @property
    def ratio(self) -> float:
        return self.direct / self.staged


def _setting(kinds: list[str]) -> str:
    """Return advice with the NCCL setting that forbids peer access over the distances of the slow pairs."""
    nearest = next((kind for kind in ("PIX", "PXB", "PHB", "NODE", "SYS") if kind in kinds), None)
    # The next shorter distance. NCCL has no level NODE, and below PIX only disabling peer access is left.
    level = {"PXB": "PIX", "PHB": "PXB", "NODE": "PHB", "SYS": "PHB"}.get(nearest or "")
    variable = f"NCCL_P2P_LEVEL={level}" if level else "NCCL_P2P_DISABLE=1"
    return f"Set {variable}, which makes NCCL go through host memory there, and time the job again."


def _pairs(facts: Facts) -> list[Pair]:
    return sorted({(min(pair), max(pair)) for pair in peer_rates(facts, peer_access=True, direction="one_way")})


def _measured(facts: Facts, pair: Pair) -> _Comparison | None:
    """Return the mean one-way rates of copies measured both with and without peer access; None without such copies."""
    direct: list[float] = []
    staged: list[float] = []
    for direction, share in (("one_way", 1.0), ("both_ways", 0.5)):  # rates both ways are sums
        on = peer_rates(facts, peer_access=True, direction=direction)
        off = peer_rates(facts, peer_access=False, direction=direction)
        for ends in (pair, pair[::-1]):
            if ends in on and ends in off:
                direct.append(on[ends].gb_per_s * share)
                staged.append(off[ends].gb_per_s * share)
    return _Comparison(sum(direct) / len(direct), sum(staged) / len(staged)) if direct else None


def _estimated(facts: Facts, pair: Pair) -> _Comparison | None:
    """Compare the slower direction with half the rate of the slower host link; None if a rate is unknown."""
    on, hosts = peer_rates(facts, peer_access=True, direction="one_way"), host_rates(facts)
    compared = []
    for source, destination in (pair, pair[::-1]):
        record = on.get((source, destination))
        down, up = hosts.get(source, {}).get(FROM_DEVICE), hosts.get(destination, {}).get(TO_DEVICE)
        if record is not None and down is not None and up is not None:
            compared.append(_Comparison(record.gb_per_s, min(down.gb_per_s, up.gb_per_s) / 2, estimated=True))
    return min(compared, key=lambda comparison: comparison.ratio, default=None)
