"""`corrupt-transfer`: data did not arrive as it was sent."""

from __future__ import annotations

from typing import ClassVar

from gpudiag.analysis.diagnosis.hardware.rule import first_four, gpu_index
from gpudiag.model.analysis import Finding
from gpudiag.model.facts import Bandwidth, Facts


class CorruptTransfer:
    """A copy or a collective finished without an error, and its result was wrong.

    Every probe sends fresh random data, into a destination filled with other values, and compares the result. If the
    data differ, the measured bandwidth of the path means nothing. A training job that uses the path computes wrong
    numbers: its loss diverges or becomes NaN, or the model is slightly wrong without any sign.

    Known causes: peer copies through an IOMMU that translates (bare metal with `iommu=on` and ACS redirection), a
    faulty riser, cable or NVLink bridge, unstable overclocking, a driver bug.

    What to do: do not train over this path. Turn peer access off (`NCCL_P2P_DISABLE=1`) and measure again. If data then
    arrive intact, look at the IOMMU and ACS settings; else reseat or replace the part.
    """

    code: ClassVar[str] = "corrupt-transfer"

    def examine(self, facts: Facts) -> tuple[Finding, ...]:
        """Return one finding that names every path that failed."""
        copies = [record for record in facts.bandwidth if record.verified is False]
        collectives = [record for record in facts.collectives if record.verified is False]
        if not copies and not collectives:
            return ()
        paths = [_path_name(record) for record in copies]
        paths += [f"{record.operation} over {record.ranks} GPUs by {record.strategy}" for record in collectives]
        distinct = list(dict.fromkeys(paths))
        over_peer = any(record.peer_access for record in copies) or any(c.strategy == "nccl" for c in collectives)
        return (
            Finding(
                code=self.code,
                severity="critical",
                cause="peer-access" if over_peer else "path",
                confidence="high",
                title=(
                    f"Data arrives damaged: {first_four(distinct)}. Training over this path computes with wrong numbers"
                ),
                evidence={"gpus": _gpus(copies), "paths": distinct},
                advice=(
                    "Do not train over this path, and trust no result that came over it.",
                    *(("Set NCCL_P2P_DISABLE=1 and measure again with `gpudiag bandwidth`.",) if over_peer else ()),
                    "On bare metal switch the IOMMU to passthrough (`iommu=pt`) or off, and ACS off on the switches.",
                    "See `dmesg | grep -i -e xid -e aer` and reseat or replace the riser, cable or bridge it names.",
                ),
            ),
        )


def _gpus(copies: list[Bandwidth]) -> list[int]:
    indices = {gpu_index(end) for record in copies for end in (record.src, record.dst)}
    return sorted(index for index in indices if index is not None)


def _path_name(record: Bandwidth) -> str:
    if record.peer_access is None:
        return f"{record.src} → {record.dst}"
    return f"{record.src} → {record.dst} (peer access {'on' if record.peer_access else 'off'})"
