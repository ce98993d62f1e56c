"""PCI Express rates.

Payload before protocol overhead, per lane and direction: transfers per second less line coding, 8b/10b up to generation
2, 128b/130b from 3 to 5, and flit mode with its checksum in 6 (PCI-SIG, PCI Express Base Specification).
"""

from __future__ import annotations

_GB_PER_S_PER_LANE = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}


def raw_gb_per_s(generation: int | None, width: int | None) -> float | None:
    """GB/s one way of a link, before headers and flow control; None where a part is unknown."""
    lane = _GB_PER_S_PER_LANE.get(generation) if generation is not None else None
    return None if lane is None or not width else lane * width
