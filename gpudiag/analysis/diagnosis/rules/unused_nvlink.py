"""Tell from the bandwidth of collectives that they do not use NVLink."""

from __future__ import annotations

from gpudiag.analysis.diagnosis.calibration import LARGE_TRANSFER_BYTES, OF_NVLINK
from gpudiag.analysis.diagnosis.case import Case

#: One-way GB/s of all NVLink lanes of a GPU together, by what only boards that always have them are called: half of
#: what NVIDIA's data sheets say of both ways.
_GB_PER_S = (
    ("B200", 900.0),
    ("H200", 450.0),
    ("H100 80GB HBM3", 450.0),
    ("A100-SXM4", 300.0),
    ("V100-SXM2", 150.0),
    ("V100-SXM3", 150.0),
    ("P100-SXM2", 80.0),
)
#: Boards in PCIe slots, joined by bridges if at all.
_IN_SLOTS = ("NVL", "PCIe")


def unused_nvlink_gb_per_s(case: Case, size_bytes: int, busbw_gb_per_s: float) -> float | None:
    """Return the one-way NVLink bandwidth, in GB/s, if a collective shows that it does not use NVLink.

    Such a collective is large, all its ranks are on one machine, and its bus bandwidth is a small part of the link's:
    what a path through the host carries. Return None if this does not apply or is not known.
    """
    rates = [nvlink_gb_per_s(track.device_name) for track in case.tracks]
    least = min((rate for rate in rates if rate is not None), default=0.0)
    if None in rates or size_bytes < LARGE_TRANSFER_BYTES or busbw_gb_per_s > OF_NVLINK * least:
        return None
    return least if _on_one_machine(case) and _linked(case) else None


def nvlink_gb_per_s(name: str) -> float | None:
    """Return the one-way NVLink bandwidth of a board of this name, in GB/s; None if unknown."""
    if any(word in name for word in _IN_SLOTS):
        return None
    return next((rate for board, rate in _GB_PER_S if board in name), None)


def _on_one_machine(case: Case) -> bool:
    """Return whether all ranks share a machine, by the run's record or else by different device numbers."""
    if len(case.tracks) < 2 or len(case.timeline.ranks_present) < case.timeline.world_size:
        return False
    if case.run is not None and case.run.ranks:
        return len({rank.host for rank in case.run.ranks}) == 1
    return len({track.device for track in case.tracks}) == len(case.tracks)


def _linked(case: Case) -> bool:
    """Return False if the machine is known to have no NVLink."""
    return case.facts is None or not case.facts.links or any(link.lanes for link in case.facts.links)
