"""Test each threshold of the hardware rules, with values just below and just above it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gpudiag.analysis.diagnosis.hardware import examine_facts
from gpudiag.analysis.diagnosis.hardware.no_peer_access import has_ring
from gpudiag.analysis.diagnosis.hardware.peer_slower import _setting
from gpudiag.analysis.diagnosis.hardware.rule import (
    all_at_once,
    gpu_index,
    gpu_list,
    gpu_list_with_models,
    gradient_cost,
    host_rates,
    pair_list,
    peer_rates,
    raw_gb_per_s,
)
from gpudiag.model import throttle
from gpudiag.model.facts import Bandwidth, Clock, Facts, Gpu, GpuProcess, Host, Link, NvLink, PcieLink
from tests.analysis.diagnosis.rule_examples.machines import (
    both_ways,
    gpu,
    host_copies,
    loaded,
    machine,
    peer_copies,
    together,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpudiag.model.analysis import Finding


def findings_of(*gpus: Gpu, **fields: Any) -> list[Finding]:
    return list(examine_facts(machine(*gpus, **fields)))


def signs(*rates: float, ceiling: float | None = None, pcie: PcieLink | None = None) -> list[str]:
    """Return the signs of damage to GPU 0's host link, if GPU i copies to and from the host at `rates[i]` GB/s.

    `ceiling` is the highest possible rate of GPU 0's copies in GB/s, and `pcie` is its link, by default a healthy one.
    """
    gpus = [gpu(0) if pcie is None else gpu(0, pcie=pcie), *(gpu(at) for at in range(1, max(len(rates), 1)))]
    copies = [
        host_copies(at, rate, **({"ceiling_gb_per_s": ceiling} if ceiling and not at else {}))
        for at, rate in enumerate(rates)
    ]
    of_first = [
        finding.evidence["signs"] for finding in findings_of(*gpus, bandwidth=copies) if 0 in finding.evidence["gpus"]
    ]
    return of_first[0] if of_first else []


@pytest.mark.parametrize(
    ("rates", "ceiling", "pcie", "expected"),
    [
        ((60.0,), 100.0, None, []),
        ((59.9,), 100.0, None, ["ceiling"]),
        ((7.5, 10.0), None, None, []),
        ((7.4, 10.0), None, None, ["siblings"]),
        ((7.4, 9.0, 10.0, 11.0), None, None, ["siblings"]),
        ((7.4, 9.0, 9.8, 11.0), None, None, []),
        ((2.0,), None, None, []),
        ((1.99,), None, None, ["narrow"]),
        ((50.5,), None, loaded(5, 8, 5, 16), []),
        ((50.3,), None, loaded(5, 8, 5, 16), ["own-maximum"]),
        ((50.3,), None, loaded(4, 16, 5, 16), ["own-maximum"]),
        ((50.3,), None, loaded(5, 16, 5, 16), []),
        ((50.3,), None, PcieLink(generation=5, width=8, maximum_generation=5, maximum_width=16), []),
        ((500.0,), None, loaded(8, 8, 9, 16), ["own-maximum"]),  # the rate of generation 8 is unknown
        ((), None, loaded(5, 8, 5, 16), ["own-maximum"]),
        ((1.0, 20.0), 20.0, loaded(3, 1, 3, 16), ["own-maximum", "ceiling", "siblings", "narrow"]),
    ],
)
def test_each_sign_of_a_degraded_host_link_has_a_threshold(
    rates: tuple[float, ...], ceiling: float | None, pcie: PcieLink | None, expected: list[str]
) -> None:
    assert signs(*rates, ceiling=ceiling, pcie=pcie) == expected


@pytest.mark.parametrize(
    ("rate", "ceiling", "severity", "confidence", "words"),
    [
        (35.0, 100.0, "warning", "medium", "35.0 GB/s to or from the host, 35 % of the 100.0 GB/s"),
        (34.9, 100.0, "critical", "medium", "34.9 GB/s"),
        (
            1.5,
            4.0,
            "critical",
            "high",
            "1.50 GB/s to or from the host, as little as one or two PCIe lanes carry, as on a riser, 38 %",
        ),
        (9.99, 20.0, "warning", "medium", "9.99 GB/s to"),
        (10.0, 20.0, "warning", "medium", "10.0 GB/s to"),
    ],
)
def test_degraded_link_is_critical_below_35_percent_or_2_gb_per_s(
    rate: float, ceiling: float, severity: str, confidence: str, words: str
) -> None:
    (finding,) = findings_of(
        gpu(0), bandwidth=(host_copies(0, rate, ceiling_gb_per_s=ceiling, ceiling_source="the slot: so"),)
    )
    assert (finding.severity, finding.confidence) == (severity, confidence)
    assert words in finding.title
    assert "that the slot allows" in finding.title


def test_gpus_with_the_same_signs_share_a_finding_and_the_slowest_comes_first() -> None:
    copies = [host_copies(at, rate) for at, rate in enumerate((7.0, 6.0, 1.0, 10.0, 10.0, 10.0, 10.0, 10.0))]
    without = gpu(8, "Another", pcie=loaded(5, 8, 5, 16))
    first, second, third = findings_of(*(gpu(at) for at in range(8)), without, bandwidth=copies)
    assert [finding.evidence["gpus"] for finding in (first, second, third)] == [[2], [0, 1], [8]]
    assert (first.evidence["gb_per_s"], second.evidence["gb_per_s"], third.evidence["gb_per_s"]) == (1.0, 6.0, None)
    assert second.evidence["siblings_gb_per_s"] == 10.0
    assert "other GPUs of its model reach 10.00" in second.title
    assert "PCIe 5 x8 under load where PCIe 5 x16 is possible" in third.title
    assert "nvidia-smi -q -i 0,1 " in second.advice[0]
    assert "Reseat" in first.advice[1]
    assert "x1 risers" in findings_of(gpu(0), bandwidth=(host_copies(0, 0.8),))[0].advice[1]


@pytest.mark.parametrize(
    ("direct", "staged", "both", "severity"),
    [
        (9.0, 10.0, None, None),
        (8.9, 10.0, None, "warning"),
        (5.1, 10.0, None, "warning"),
        (5.0, 10.0, None, "critical"),
        (8.0, 10.0, (20.2, 20.0), None),  # the limit is the mean of 8.0 and half of 20.2, which is 9.05
        (8.0, 10.0, (19.8, 20.0), "warning"),
    ],
)
def test_direct_copies_count_as_slower_below_nine_tenths(
    direct: float, staged: float, both: tuple[float, float] | None, severity: str | None
) -> None:
    copies = [
        peer_copies(0, 1, rate, of_both, peer_access=on)
        for rate, of_both, on in zip((direct, staged), both or (None, None), (True, False), strict=True)
    ]
    if both:  # keep the rates of one direction and of both at once
        copies = [(one_way, of_both) for one_way, _, of_both in copies]
    slower = [
        finding for finding in findings_of(gpu(0), gpu(1), bandwidth=copies) if finding.code == "peer-slower-than-host"
    ]
    assert [(finding.severity, finding.confidence) for finding in slower] == ([(severity, "high")] if severity else [])


@pytest.mark.parametrize(("direct", "fires"), [(11.3, False), (11.2, True)])
def test_unmeasured_staged_copy_counts_as_half_of_the_host_link_rate(direct: float, *, fires: bool) -> None:
    copies = (host_copies(0, 25.0), host_copies(1, 30.0), peer_copies(0, 1, direct, peer_access=True))
    slower = [
        finding for finding in findings_of(gpu(0), gpu(1), bandwidth=copies) if finding.code == "peer-slower-than-host"
    ]
    assert [finding.confidence for finding in slower] == (["medium"] if fires else [])
    assert (
        findings_of(gpu(0), gpu(1), bandwidth=(host_copies(0, 25.0), peer_copies(0, 1, direct, peer_access=True))) == []
    )


def test_nccl_setting_allows_distances_shorter_than_the_nearest_slow_one() -> None:
    levels = {"PIX": "P2P_DISABLE=1", "PXB": "LEVEL=PIX", "PHB": "LEVEL=PXB", "NODE": "LEVEL=PHB", "SYS": "LEVEL=PHB"}
    for kind, said in levels.items():
        assert said in _setting([kind])
        assert said in _setting([kind, "SYS"])
    assert "P2P_DISABLE=1" in _setting([])
    assert "P2P_DISABLE=1" in _setting(["NV4"])


def uplinks(*shares: float, alone: float = 10.0, links: Iterable[Link] = ()) -> list[tuple[list[int], float]]:
    """Return (GPUs, total GB/s) of each shared uplink.

    One GPU copies at `alone` GB/s, and all GPUs at once at `shares`.
    """
    gpus = [gpu(at) for at in range(len(shares))]
    copies = (*(host_copies(at, alone) for at in range(len(shares))), together(*shares))
    every = findings_of(*gpus, bandwidth=copies, links=links)
    return [
        (finding.evidence["gpus"], finding.evidence["together_gb_per_s"])
        for finding in every
        if finding.code == "shared-uplink"
    ]


def test_uplink_is_shared_up_to_1_3_times_the_rate_of_one_gpu() -> None:
    assert uplinks(6.5, 6.5) == [([0, 1], 13.0)]
    assert uplinks(6.5, 6.6) == []
    assert uplinks(10.0) == []


def test_gpus_below_one_bridge_are_a_group() -> None:
    bridge = [Link(a=0, b=1, kind="PIX"), Link(a=2, b=3, kind="PXB"), Link(a=1, b=2, kind="PHB")]
    assert uplinks(6.0, 6.0, 9.0, 9.0, links=bridge) == [([0, 1], 12.0)]
    assert uplinks(6.0, 6.0, 6.0, 7.0, links=bridge) == [([0, 1], 12.0), ([2, 3], 13.0)]
    assert uplinks(3.0, 3.0, 3.0, 3.0, links=bridge) == [([0, 1], 6.0), ([2, 3], 6.0)]
    chain = [Link(a=0, b=1, kind="PIX"), Link(a=1, b=2, kind="PIX"), Link(a=0, b=7, kind="PIX")]
    assert uplinks(4.0, 4.0, 4.0, 9.0, links=chain) == [([0, 1, 2], 12.0)]


@pytest.mark.parametrize(
    ("one_way", "both", "codes"), [(10.0, 12.5, ["shared-uplink"]), (10.0, 12.6, []), (10.0, 6.0, ["shared-uplink"])]
)
def test_pair_shares_a_link_up_to_1_25_times_one_direction(one_way: float, both: float, codes: list[str]) -> None:
    every = findings_of(gpu(0), gpu(1), bandwidth=(peer_copies(0, 1, one_way, both, peer_access=False),))
    assert [finding.code for finding in every] == codes
    for finding in every:
        assert (finding.confidence, finding.evidence["both_ways_gb_per_s"]) == ("medium", both)
        assert f"each gets {both / 2:.1f}" in finding.title
    healthy = (peer_copies(0, 1, one_way, both, peer_access=False), peer_copies(0, 2, 10.0, 19.0, peer_access=False))
    every = findings_of(gpu(0), gpu(1), gpu(2), bandwidth=healthy)
    assert [(finding.confidence, finding.evidence["other_pairs"]) for finding in every] == [("high", "0↔2")] * len(
        codes
    )


@pytest.mark.parametrize(("both", "fires"), [(12.5, True), (12.6, False)])
def test_host_link_that_carries_one_direction_at_a_time_is_reported(both: float, *, fires: bool) -> None:
    down, up = (msgspec.structs.replace(record, direction="both_ways", gb_per_s=both) for record in host_copies(0, 1.0))
    every = findings_of(gpu(0), gpu(1), bandwidth=(host_copies(0, 10.0), down, up))
    assert [(finding.severity, finding.evidence["gpus"]) for finding in every] == ([("info", [0])] if fires else [])


def clocks(*mhz: int | None, application: tuple[int | None, ...] = ()) -> list[Finding]:
    """Return the findings about GPUs with the maximum SM clocks `mhz`, and application clocks `application`."""
    return findings_of(
        *(
            gpu(at, sm_clock=Clock(maximum_mhz=maximum, application_mhz=application[at] if application else None))
            for at, maximum in enumerate(mhz)
        )
    )


@pytest.mark.parametrize(
    ("slow", "severity"),
    [(991, None), (989, "info"), (951, "info"), (949, "warning"), (801, "warning"), (799, "critical"), (None, None)],
)
def test_clock_mismatch_starts_above_one_percent(slow: int | None, severity: str | None) -> None:
    every = clocks(1000, slow, 1000)
    assert [(finding.severity, finding.evidence["gpus"]) for finding in every] == (
        [(severity, [1])] if severity else []
    )


def test_each_clock_domain_reports_the_first_limit_that_differs() -> None:
    (finding,) = clocks(1000, 900, application=(800, 700))
    assert (finding.evidence["mhz"], finding.evidence["percent"]) == ({"0": 1000, "1": 900}, 10.0)
    (finding,) = clocks(1000, 1000, 1000, application=(800, 700, 600))
    assert (finding.evidence["gpus"], finding.evidence["percent"]) == ([1, 2], 25.0)
    assert "GPU 0 800 MHz, GPU 1 700 MHz, GPU 2 600 MHz" in finding.title
    both = findings_of(gpu(0), gpu(1, sm_mhz=1000, memory_mhz=1000))
    assert [finding.cause for finding in both] == ["sm_clock", "memory_clock"]
    assert ["arithmetic" in finding.title for finding in both] == [True, False]


def test_throttling_is_thermal_or_power_with_less_confidence_on_an_idle_gpu() -> None:
    hot, brake, idle = throttle.SOFTWARE_THERMAL, throttle.POWER_BRAKE, throttle.IDLE
    working = Clock(current_mhz=700, maximum_mhz=1980)
    (finding,) = findings_of(*(gpu(at, throttle_reasons=(hot,), sm_clock=working) for at in range(5)))
    assert (finding.cause, finding.severity, finding.confidence) == ("thermal", "warning", "high")
    assert finding.title.count("700 of 1980 MHz") == 4
    assert "GPUs 0-4 are held back" in finding.title
    assert "airflow" in finding.advice[1]
    (finding,) = findings_of(gpu(0, throttle_reasons=(brake,), sm_clock=Clock(maximum_mhz=1980)))
    assert (finding.cause, "SM clock" in finding.title, "GPU 0 is held back" in finding.title) == ("power", False, True)
    assert "power supplies" in finding.advice[1]
    (finding,) = findings_of(gpu(0, throttle_reasons=(brake, idle), sm_clock=working))
    assert (finding.severity, finding.confidence, "although idle" in finding.title, "SM clock" in finding.title) == (
        "info", "medium", True, False
    )  # fmt: skip
    every = findings_of(
        gpu(0, throttle_reasons=(hot,)), gpu(1, throttle_reasons=(brake,)), gpu(2, throttle_reasons=(hot,))
    )
    assert [finding.evidence["gpus"] for finding in every] == [[0, 2], [1]]


def nvlinks(*active: int) -> list[list[int]]:
    gpus = [gpu(at, nvlinks=tuple(NvLink(lane=i, active=i < up) for i in range(18))) for at, up in enumerate(active)]
    return [finding.evidence["gpus"] for finding in findings_of(*gpus)]


def test_nvlink_lanes_are_down_if_others_of_the_model_have_more() -> None:
    assert nvlinks(18, 18) == []
    assert nvlinks(18, 17, 12) == [[1, 2]]
    assert nvlinks(18, 0) == []
    (finding,) = findings_of(
        *(gpu(at, nvlinks=tuple(NvLink(lane=i, active=i < up) for i in range(18))) for at, up in ((0, 18), (1, 9)))
    )
    assert "9 NVLink lanes up where the others have 18" in finding.title
    assert "at 50 % of the rate" in finding.title


@pytest.mark.parametrize(
    ("rates", "ceiling", "slow"),
    [
        ((75.0, 100.0, 100.0), None, []),
        ((74.0, 100.0, 100.0), None, [(0, 1)]),
        ((60.0, 60.0, 60.0), 100.0, []),
        ((59.0, 60.0, 60.0), 100.0, [(0, 1)]),
        ((59.0, 58.0, 60.0), 100.0, [(0, 1), (0, 2)]),
    ],
)
def test_nvlink_pair_is_slow_against_its_kind_or_its_ceiling(
    rates: tuple[float, ...], ceiling: float | None, slow: list[tuple[int, int]]
) -> None:
    pairs = ((0, 1), (0, 2), (1, 2))
    links = [Link(a=a, b=b, kind="NV6", lanes=6) for a, b in pairs]
    copies = [
        peer_copies(a, b, rate, peer_access=True, ceiling_gb_per_s=ceiling)
        for (a, b), rate in zip(pairs, rates, strict=True)
    ]
    every = findings_of(*(gpu(at) for at in range(3)), links=links, bandwidth=copies)
    assert [[(pair["a"], pair["b"]) for pair in finding.evidence["pairs"]] for finding in every] == (
        [slow] if slow else []
    )
    for finding in every:
        assert finding.evidence["gb_per_s"] == min(rates)
        assert (
            f"carries {min(rates):.0f} GB/s at worst, where pairs of its kind carry {max(rates):.0f}" in finding.title
        )
    # Without lanes the link is not an NVLink.
    bare = [Link(a=a, b=b, kind="PHB") for a, b in pairs]
    assert "degraded-link" not in {
        finding.code for finding in findings_of(*(gpu(at) for at in range(3)), links=bare, bandwidth=copies)
    }


@pytest.mark.parametrize(
    ("name", "memory", "severity", "confidence"),
    [
        ("python", 512 << 20, "warning", "high"),
        ("python", (512 << 20) - 1, "info", "high"),
        ("python", None, "warning", "medium"),
        ("Xorg", 4 << 30, "info", "high"),
        ("Xorg", None, "info", "high"),
        (None, 4 << 30, "warning", "high"),
    ],
)
def test_process_with_as_much_memory_as_a_context_counts_as_a_job(
    name: str | None, memory: int | None, severity: str, confidence: str
) -> None:
    (finding,) = findings_of(gpu(0, processes=(GpuProcess(pid=7, name=name, memory_bytes=memory),)), gpu(1))
    assert (finding.severity, finding.confidence) == (severity, confidence)
    assert f"GPU 0 is also used by {name or 'unnamed'} (pid 7):" in finding.title


def test_own_processes_are_omitted_and_others_named_once() -> None:
    job = GpuProcess(pid=7, name="job", memory_bytes=4 << 30)
    own_process, small = GpuProcess(pid=9, name="python", own=True), GpuProcess(pid=8, name="x", memory_bytes=1)
    heavy, light = findings_of(gpu(0, processes=(own_process, small, job)), gpu(1, processes=(job,)))
    assert (heavy.evidence["gpus"], light.evidence["gpus"]) == ([0, 1], [0])
    assert "GPUs 0 and 1 are also used by job (pid 7):" in heavy.title
    assert "ps -fp 7`" in heavy.advice[0]


def denied(count: int, *pairs: tuple[int, int], reason: str = "not supported (NS)", **fields: Any) -> Finding:
    """Return the finding on a machine whose driver denies peer access to `pairs` of its `count` GPUs."""
    links = [
        Link(a=a, b=b, kind="SYS", peer_access=(a, b) not in pairs, reason=reason if (a, b) in pairs else "")
        for a in range(count)
        for b in range(a + 1, count)
    ]
    every = findings_of(*(gpu(at) for at in range(count)), links=links, **fields)
    return next(finding for finding in every if finding.code == "no-peer-access")


def test_missing_peer_access_names_pairs_and_consequence() -> None:
    two, three = denied(2, (0, 1)), denied(3, (0, 1), (0, 2), (1, 2))
    assert two.title.startswith("The two GPUs do not have peer access (not supported (NS)): their communication")
    assert three.title.startswith("No two GPUs have peer access")
    partly_denied = denied(3, (0, 1))
    assert partly_denied.title.startswith("1 of 3 pairs of GPUs (0↔1) do not have peer access")
    assert (two.severity, two.cause, partly_denied.evidence["gpus"]) == ("warning", "not supported (NS)", [0, 1])
    assert denied(2, (0, 1), reason="").cause is None
    ring = denied(4, (0, 2))
    assert (ring.severity, len(ring.advice)) == ("info", 1)
    assert "form a ring" in ring.title


def test_advice_for_missing_peer_access_follows_islands_and_reasons() -> None:
    def first(*pairs: tuple[int, int], **fields: Any) -> str:
        return denied(4, *pairs, **fields).advice[0]

    cut = ((0, 2), (0, 3), (1, 2), (1, 3))
    assert first(*cut, islands=((0, 1), (2, 3)), bandwidth=(host_copies(2, 9.0), host_copies(3, 9.0))).endswith("=2,3.")
    slow_last = (host_copies(0, 5.0), host_copies(1, 9.0), host_copies(2, 9.0), host_copies(3, 4.0))
    assert first(*cut, islands=((0, 1), (2, 3)), bandwidth=slow_last).endswith("=0,1.")
    assert first((0, 3), (1, 3), (2, 3), islands=((3,), (0, 1, 2))).endswith("=0,1,2.")
    assert "Communicate less" in first(*cut, islands=((0,), (1,), (2,), (3,)))
    assert "Communicate less" in denied(2, (0, 1), islands=((0, 1),)).advice[0]
    assert "modprobe" in denied(2, (0, 1), reason="disabled by registry").advice[0]
    assert "CPU or one PCIe switch" in denied(2, (0, 1), reason="Chipset not supported").advice[0]
    facts = machine(gpu(0), gpu(1), links=[Link(a=0, b=1, kind="SYS", peer_access=False, reason="chipset")])
    (virtual,) = examine_facts(msgspec.structs.replace(facts, host=Host(name="vm", hypervisor="KVM")))
    assert "provider's choice" in virtual.advice[0]
    assert len(virtual.advice) == 3


def test_ring_passes_all_members_and_closes() -> None:
    star = {(0, at) for at in range(1, 5)}
    assert not has_ring([0, 1, 2, 3, 4], star | {(1, 2), (3, 4)})
    assert has_ring([0, 1, 2, 3, 4], star | {(1, 2), (2, 3), (3, 4)})
    assert not has_ring([], set())
    assert not has_ring([3, 5], set())
    assert has_ring([5, 7, 9], {(5, 7), (7, 9), (5, 9)})
    assert not has_ring([0, 1, 2, 3], {(0, 1), (1, 2), (0, 2), (2, 3)})


def test_host_rates_keep_the_fastest_pinned_copy_of_each_path() -> None:
    assert [gpu_index(place) for place in ("gpu:3", "gpu:12", "gpu:", "gpu:x", "numa:1", "host", "gpu:²")] == [
        3, 12, None, None, None, None, None
    ]  # fmt: skip
    down, up = host_copies(0, 10.0)
    worse, better = (
        msgspec.structs.replace(down, src=f"numa:{at}", gb_per_s=rate) for at, rate in enumerate((9.0, 11.0))
    )
    others = (
        msgspec.structs.replace(down, memory="pageable", gb_per_s=99.0),
        msgspec.structs.replace(down, direction="both_ways", gb_per_s=99.0),
        msgspec.structs.replace(down, dst="all", gb_per_s=99.0),
        msgspec.structs.replace(down, path="host_memory", gb_per_s=99.0),
    )
    facts = machine(gpu(0), bandwidth=(*others, down, up, worse, better))
    rates = {path: record.gb_per_s for path, record in host_rates(facts)[0].items()}
    assert rates == {"host_to_device": 11.0, "device_to_host": 10.0}
    assert host_rates(facts).keys() == {0}


def test_copies_of_all_gpus_at_once_are_pinned_and_in_one_direction() -> None:
    good = together(1.0, 2.0)
    changes: list[dict[str, Any]] = [
        {"memory": "pageable"}, {"direction": "both_ways"}, {"src": "gpu:0"}, {"per_device": {}}, {"path": "peer"}
    ]  # fmt: skip
    others = [msgspec.structs.replace(good, **change) for change in changes]
    assert all_at_once(machine(gpu(0), bandwidth=(*others, good))) == [good]


def test_peer_rates_are_by_source_and_destination() -> None:
    def rates(*records: Bandwidth, peer_access: bool = True) -> dict[tuple[int, int], float]:
        facts: Facts = machine(gpu(0), bandwidth=records)
        return {
            pair: record.gb_per_s
            for pair, record in peer_rates(facts, peer_access=peer_access, direction="one_way").items()
        }

    there, back = peer_copies(0, 1, 5.0, peer_access=True)
    itself = msgspec.structs.replace(there, dst="gpu:0", gb_per_s=99.0)
    elsewhere = msgspec.structs.replace(there, dst="host", gb_per_s=99.0)
    slower = msgspec.structs.replace(there, gb_per_s=4.0)
    unknown = msgspec.structs.replace(there, peer_access=None, gb_per_s=3.0)
    assert rates(itself, elsewhere, there, slower, unknown, back) == {(0, 1): 5.0, (1, 0): 5.0}
    assert rates(there, unknown, peer_access=False) == {(0, 1): 3.0}
    assert rates(msgspec.structs.replace(there, path="device_to_device")) == {}


def test_long_lists_are_shortened_and_costs_are_rounded() -> None:
    assert [gpu_list(of) for of in ([], [2, 1, 1], [0, 1, 2, 4, 5, 7])] == [
        "GPUs none",
        "GPUs 1 and 2",
        "GPUs 0-2, 4, 5 and 7",
    ]
    assert gpu_list_with_models([0, 1], [gpu(0, "A"), gpu(1, "B"), gpu(2, "C")]) == "GPUs 0 and 1 (A, B)"
    assert gpu_list_with_models([0], []) == "GPU 0"
    assert "more" not in pair_list((0, at) for at in range(1, 7))
    assert pair_list((0, at) for at in range(1, 8)).endswith("0↔6 and 1 more")
    assert "take 10 ms" in gradient_cost(10.2228128)
    assert "take 9.9 ms" in gradient_cost(10.3)
    assert [raw_gb_per_s(*of) for of in ((4, 16), (1, 1), (None, 16), (4, None), (9, 16), (4, 0))] == [
        31.504, 0.25, None, None, None, None
    ]  # fmt: skip


def test_nvlink_pairs_are_compared_within_their_kind() -> None:
    kinds = {
        (0, 1): ("NV6", 60.0),
        (0, 2): ("NV6", 60.0),
        (0, 3): ("NV12", 120.0),
        (1, 2): ("NV12", 120.0),
        (1, 3): ("NV12", 50.0),
    }
    links = [Link(a=a, b=b, kind=kind, lanes=6) for (a, b), (kind, _) in kinds.items()]
    copies = [peer_copies(a, b, rate, peer_access=True) for (a, b), (_, rate) in kinds.items()]
    (finding,) = findings_of(*(gpu(at) for at in range(4)), links=links, bandwidth=copies)
    assert finding.evidence["pairs"] == [{"a": 1, "b": 3, "gb_per_s": 50.0}]
    assert "(NV12) carries 50 GB/s at worst, where pairs of its kind carry 120" in finding.title


def test_rate_of_a_pcie_lane_by_generation() -> None:
    assert [raw_gb_per_s(generation, 1) for generation in range(1, 7)] == [0.25, 0.5, 0.985, 1.969, 3.938, 7.563]


def test_evidence_is_rounded_to_three_digits_and_percent_to_one() -> None:
    third = 1 / 3
    (shared,) = findings_of(
        gpu(0),
        gpu(1),
        bandwidth=(host_copies(0, 10 + third), host_copies(1, 10 + third), together(5 + third, 5 + third)),
    )
    assert (shared.evidence["alone_gb_per_s"], shared.evidence["together_gb_per_s"]) == (10.333, 10.667)
    (pair,) = findings_of(gpu(0), gpu(1), bandwidth=(peer_copies(0, 1, 10 + third, 10 + 2 * third, peer_access=False),))
    assert (pair.evidence["one_way_gb_per_s"], pair.evidence["both_ways_gb_per_s"]) == (10.333, 10.667)
    (way,) = findings_of(gpu(0), bandwidth=(host_copies(0, 10 + third), both_ways(0, 10 + 2 * third)))
    assert (way.evidence["one_way_gb_per_s"], way.evidence["both_ways_gb_per_s"]) == ({"0": 10.333}, {"0": 10.667})
    copies = (peer_copies(0, 1, 5 + third, peer_access=True), peer_copies(0, 1, 10 + third, peer_access=False))
    (slower,) = findings_of(gpu(0), gpu(1), bandwidth=copies)
    assert slower.evidence["pairs"] == [{"a": 0, "b": 1, "direct_gb_per_s": 5.333, "staged_gb_per_s": 10.333}]
    siblings = findings_of(gpu(0), gpu(1), bandwidth=(host_copies(0, 5.0), host_copies(1, 10 + third)))
    assert siblings[0].evidence["siblings_gb_per_s"] == 10.333
    assert clocks(3000, 2000)[0].evidence["percent"] == 33.3
