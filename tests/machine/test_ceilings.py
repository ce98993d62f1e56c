"""Test ceilings against published rates and calculations by hand."""

from __future__ import annotations

import pytest

from gpudiag.machine import ceilings
from gpudiag.model.facts import Clock, Gpu, Link, NvLink, PcieLink


@pytest.mark.parametrize(
    ("generation", "width", "raw"),
    # One-way data rates as PCI-SIG tabulates them: 2.5 GT/s x 8/10 / 8 = 0.25 GB/s a lane, and so on.
    [(1, 1, 0.250), (2, 4, 2.000), (3, 1, 0.985), (3, 16, 15.754), (4, 16, 31.508), (5, 8, 31.508), (5, 16, 63.015)],
)
def test_pcie_is_the_published_rate_less_packet_overhead(generation: int, width: int, raw: float) -> None:
    # For 256 bytes of data, a write has 24 bytes of overhead, and a completion has 20.
    there = ceilings.pcie_gb_per_s(generation, width, "host_to_device")
    back = ceilings.pcie_gb_per_s(generation, width, "device_to_host")
    assert there == pytest.approx(raw * 256 / 276, rel=1e-3)
    assert back == pytest.approx(raw * 256 / 280, rel=1e-3)


def test_pcie_6_sends_flits() -> None:
    # 64 GT/s x 16 / 8 = 128 GB/s, of which 236/256 are packets; framing and checksums are part of the FLIT.
    assert ceilings.pcie_gb_per_s(6, 16, "device_to_host") == pytest.approx(118.0 * 256 / 272)


def test_unknown_generation_is_reported() -> None:
    with pytest.raises(ValueError, match="generation 9"):
        ceilings.pcie_gb_per_s(9, 16, "host_to_device")
    assert ceilings.pcie(PcieLink(generation=9, width=16, under_load=True), "host_to_device").gb_per_s is None


def test_idle_link_has_the_ceiling_of_its_maximum_and_loaded_link_of_its_reading() -> None:
    idle = PcieLink(generation=1, width=16, maximum_generation=5, maximum_width=16)
    loaded = PcieLink(generation=3, width=8, maximum_generation=5, maximum_width=16, under_load=True)
    assert ceilings.pcie(idle, "host_to_device").gb_per_s == pytest.approx(58.45, abs=0.01)
    assert ceilings.pcie(loaded, "host_to_device").gb_per_s == pytest.approx(7.307, abs=0.01)
    assert "read under load" in ceilings.pcie(loaded, "host_to_device").source
    assert ceilings.pcie(PcieLink(), "host_to_device").gb_per_s is None


@pytest.mark.parametrize(
    ("version", "lanes", "one_way"), [(1, 4, 80), (2, 6, 150), (3, 12, 300), (4, 18, 450), (5, 18, 900)]
)
def test_nvlink_ceiling_is_half_of_the_published_two_way_rate(version: int, lanes: int, one_way: float) -> None:
    gpu = Gpu(index=0, name="", nvlinks=tuple(NvLink(lane=i, active=True, version=version) for i in range(lanes)))
    link = Link(a=0, b=1, kind=f"NV{lanes}", lanes=lanes)
    assert ceilings.peer(gpu, gpu, link).gb_per_s == one_way


def test_nvlink_of_unknown_version_uses_the_rate_that_nvml_reports() -> None:
    gpu = Gpu(index=0, name="", nvlinks=(NvLink(lane=0, active=True, version=9, gb_per_s=70.0),))
    assert ceilings.nvlink(gpu, 2).gb_per_s == 140.0
    assert ceilings.nvlink(Gpu(index=0, name=""), 2).gb_per_s is None


@pytest.mark.parametrize(
    ("mhz", "bits", "peak"),
    # Memory bandwidths from NVIDIA's data sheets, with the clock that NVML reads.
    [(3201, 6144, 4917), (2619, 5120, 3352), (1215, 5120, 1555), (877, 4096, 898), (9751, 384, 936), (5505, 352, 484)],
)
def test_memory_ceiling_is_half_of_the_published_bandwidth(mhz: int, bits: int, peak: float) -> None:
    gpu = Gpu(index=0, name="", memory_clock=Clock(maximum_mhz=mhz), memory_bus_bits=bits)
    assert ceilings.on_device(gpu).gb_per_s == pytest.approx(peak / 2, rel=0.002)


def test_without_nvlink_the_slower_pcie_link_is_the_ceiling() -> None:
    fast = Gpu(index=0, name="", pcie=PcieLink(generation=4, width=16, under_load=True))
    slow = Gpu(index=1, name="", pcie=PcieLink(generation=3, width=1, under_load=True))
    ceiling = ceilings.peer(fast, slow, Link(a=0, b=1, kind="PHB"))
    assert ceiling.gb_per_s == pytest.approx(ceilings.pcie_gb_per_s(3, 1, "host_to_device"))
    assert "x1" in ceiling.source
    assert ceilings.peer(fast, Gpu(index=1, name=""), None).gb_per_s is None


def test_ceilings_of_several_links_are_sums() -> None:
    link = PcieLink(generation=5, width=16, under_load=True)
    there, back = ceilings.pcie(link, "host_to_device"), ceilings.pcie(link, "device_to_host")
    assert ceilings.both_ways(there, back).gb_per_s == pytest.approx(58.45 + 57.61, abs=0.02)
    assert ceilings.all_at_once([there] * 4).gb_per_s == pytest.approx(4 * 58.45, abs=0.04)
    unknown = ceilings.host_memory()
    assert ceilings.both_ways(there, unknown).gb_per_s is None
    assert ceilings.all_at_once([there, unknown]).source == unknown.source
