"""Compute the ceiling of each path: the bandwidth that the hardware allows, and its source. 1 GB/s is 1e9 bytes/s.

The ceiling of PCI Express, one way, is (PCI Express Base Specification 6.0, sections 2.2, 3.6, 4.2):

    lanes x transfer rate x encoding / 8 x payload / (payload + overhead)

- The transfer rate is 2.5, 5, 8, 16, 32, 64 GT/s for generations 1 to 6.
- The encoding is 8b/10b up to generation 2 and 128b/130b up to 5. In generation 6 a FLIT, a unit of 256 bytes,
  carries 236 bytes of packets.
- The payload of a packet is at most 256 bytes on nearly every server and PC (128 in some VMs and laptops).
- The overhead per packet is 8 bytes of framing, sequence number and link CRC (in generation 6 these are part of the
  FLIT), and the header: 16 bytes for a write (device to host), 12 for a read's completion (host to device).

Acknowledgements and flow control take another 1 to 3 %, which the ceiling ignores. Healthy links reach 93 to 97 % of
the ceiling.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from gpudiag.model.facts import Gpu, Link, PcieLink

_TRANSFERS_PER_S = {1: 2.5e9, 2: 5e9, 3: 8e9, 4: 16e9, 5: 32e9, 6: 64e9}
_ENCODING = {1: (8, 10), 2: (8, 10), 3: (128, 130), 4: (128, 130), 5: (128, 130), 6: (236, 256)}
_MAX_PAYLOAD_BYTES = 256
_FRAMING_AND_CRC_BYTES = 8
_WRITE_HEADER_BYTES, _COMPLETION_HEADER_BYTES = 16, 12
_FLIT_GENERATION = 6

#: One-way GB/s of an NVLink lane by version. NVIDIA's data sheets state the sum of all lanes and both directions:
#: P100 160 GB/s over 4 lanes, V100 300 over 6, A100 600 over 12, H100 and H200 900 over 18, B200 1800 over 18.
_NVLINK_LANE_GB_PER_S = {1: 20.0, 2: 25.0, 3: 25.0, 4: 25.0, 5: 50.0}

Way = Literal["host_to_device", "device_to_host"]


class PathCeiling(msgspec.Struct, frozen=True, kw_only=True):
    """An upper bound in GB/s and its source. If the bound is None, `source` is the reason."""

    gb_per_s: float | None = None
    source: str


def pcie_gb_per_s(generation: int, width: int, way: Way) -> float:
    """Return the one-way ceiling of a PCIe link of `width` lanes.

    >>> round(pcie_gb_per_s(5, 16, "host_to_device"), 1), round(pcie_gb_per_s(3, 1, "device_to_host"), 2)
    (58.4, 0.9)

    Raises:
        ValueError: this generation does not exist.
    """
    if generation not in _TRANSFERS_PER_S:
        raise ValueError(f"PCIe generation {generation} is unknown here")
    carried, sent = _ENCODING[generation]
    raw = width * _TRANSFERS_PER_S[generation] * carried / sent / 8
    header = _COMPLETION_HEADER_BYTES if way == "host_to_device" else _WRITE_HEADER_BYTES
    overhead = header + (0 if generation >= _FLIT_GENERATION else _FRAMING_AND_CRC_BYTES)
    return raw * _MAX_PAYLOAD_BYTES / (_MAX_PAYLOAD_BYTES + overhead) / 1e9


def pcie(link: PcieLink, way: Way) -> PathCeiling:
    """Return the ceiling of a GPU's PCIe link, for its generation and width under load, or else for their maxima."""
    measured = link.under_load and link.generation is not None and link.width is not None
    generation = link.generation if measured else link.maximum_generation
    width = link.width if measured else link.maximum_width
    if not generation or not width:
        return PathCeiling(source="the PCIe generation and width cannot be read")
    try:
        value = pcie_gb_per_s(generation, width, way)
    except ValueError as error:
        return PathCeiling(source=str(error))
    basis = "read under load" if measured else "the link's maximum; under load it could not be read"
    carried, sent = _ENCODING[generation]
    rate = _TRANSFERS_PER_S[generation] / 1e9
    headers = "completion" if way == "host_to_device" else "write"
    source = (
        f"PCIe {generation} x{width} ({basis}): {width} x {rate:g} GT/s x {carried}/{sent}, "
        f"packets of {_MAX_PAYLOAD_BYTES} bytes with {headers} headers"
    )
    return PathCeiling(gb_per_s=value, source=source)


def both_ways(there: PathCeiling, back: PathCeiling) -> PathCeiling:
    """Add the ceilings of both directions of a full-duplex link. If one is None, so is the sum, with its reason."""
    if there.gb_per_s is None or back.gb_per_s is None:
        return PathCeiling(source=there.source if there.gb_per_s is None else back.source)
    if there.source == back.source:
        return PathCeiling(gb_per_s=there.gb_per_s + back.gb_per_s, source=f"both directions of {there.source}")
    return PathCeiling(gb_per_s=there.gb_per_s + back.gb_per_s, source=f"{there.source}; and back {back.source}")


def all_at_once(each: list[PathCeiling]) -> PathCeiling:
    """Add the ceilings of links that are used at once, as if they shared no hardware. If one is None, so is the sum."""
    total = 0.0
    for ceiling in each:
        if ceiling.gb_per_s is None:
            return PathCeiling(source=ceiling.source)
        total += ceiling.gb_per_s
    kinds = list(dict.fromkeys(ceiling.source for ceiling in each))
    return PathCeiling(gb_per_s=total, source=f"{len(each)} links that share nothing, each {' or '.join(kinds)}")


def nvlink(a: Gpu, lanes: int) -> PathCeiling:
    """Return the one-way ceiling of `lanes` NVLink lanes of `a`, by its active lanes' lowest version or else rate."""
    active = [lane for lane in a.nvlinks if lane.active]
    versions = {lane.version for lane in active if lane.version is not None}
    version = min(versions) if versions else None
    if version in _NVLINK_LANE_GB_PER_S:
        rate = _NVLINK_LANE_GB_PER_S[version]
        return PathCeiling(gb_per_s=lanes * rate, source=f"NVLink {version}: {lanes} lanes x {rate:g} GB/s one way")
    rates = [lane.gb_per_s for lane in active if lane.gb_per_s]
    if rates:
        source = f"NVLink: {lanes} lanes x {min(rates):g} GB/s one way, as NVML reads them"
        return PathCeiling(gb_per_s=lanes * min(rates), source=source)
    return PathCeiling(source="the NVLink version and rate cannot be read")


def peer(a: Gpu, b: Gpu, link: Link | None) -> PathCeiling:
    """Return the one-way ceiling of direct copies from a to b: NVLink's, or else the slower PCIe link's."""
    if link is not None and link.lanes > 0:
        return nvlink(a, link.lanes)
    return staged(a, b)


def staged(a: Gpu, b: Gpu) -> PathCeiling:
    """Return the one-way ceiling of copies from a to b over PCIe, directly or through the host: the slower link's."""
    out, into = pcie(a.pcie, "device_to_host"), pcie(b.pcie, "host_to_device")
    if out.gb_per_s is None or into.gb_per_s is None:
        return out if out.gb_per_s is None else into
    slower = min(out, into, key=lambda ceiling: ceiling.gb_per_s or 0.0)
    return PathCeiling(gb_per_s=slower.gb_per_s, source=f"the slower of two links: {slower.source}")


def on_device(gpu: Gpu) -> PathCeiling:
    """Return the ceiling of a copy within a GPU: half of (memory clock x 2 x bus width), for reading and writing.

    For HBM and GDDR, twice NVML's memory clock is the data rate per pin.
    """
    clock, bits = gpu.memory_clock.maximum_mhz, gpu.memory_bus_bits
    if not clock or not bits:
        return PathCeiling(source="the memory clock or bus width cannot be read")
    peak = clock * 1e6 * 2 * bits / 8 / 1e9
    source = f"memory {clock} MHz x 2 x {bits} bit = {peak:.0f} GB/s, half for reading and half for writing"
    return PathCeiling(gb_per_s=peak / 2, source=source)


def host_memory() -> PathCeiling:
    """Return no ceiling, because the host's memory clock cannot be read without privileges."""
    return PathCeiling(source="memory channels and speed of the host cannot be read without privileges (dmidecode)")
