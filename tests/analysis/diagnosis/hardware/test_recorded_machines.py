"""Test that each recorded machine has exactly its true findings."""

from __future__ import annotations

import pytest

from gpudiag.analysis.diagnosis.hardware import examine_facts
from tests.machines import NAMES, machine

ALL_OF_8 = [0, 1, 2, 3, 4, 5, 6, 7]

#: Expected findings as (code, severity, GPUs), in any order.
EXPECTED = {
    # Six GTX 1070 are on one-lane risers beside a GTX 1080 on x8; the clocks of three of the six boards are 5 % lower.
    "7gforce": [
        ("degraded-link", "critical", [0, 1, 2, 3, 4, 5]),
        ("clock-mismatch", "warning", [1, 2, 3]),
    ],
    # Two GTX 1070 are on risers, and a third GTX 1070 copies at half of the usual rate. One of the four pairs with peer
    # access is across sockets.
    "7gforce-v2": [
        ("degraded-link", "critical", [0, 4]),
        ("degraded-link", "critical", [3]),
        ("peer-slower-than-host", "warning", [3, 4]),
        ("no-peer-access", "warning", [0, 1, 2, 3, 4, 5, 6]),
    ],
    # One M60 board has two GPUs behind one uplink. The VM hides the uplink and reports the pair as SYS.
    "az-2x-m60": [("shared-uplink", "warning", [0, 1]), ("no-peer-access", "warning", [0, 1])],
    # Two M60 boards can be distinguished only by the rates of their copies.
    "az-4x-m60": [
        ("shared-uplink", "warning", [0, 2]),
        ("shared-uplink", "warning", [1, 3]),
        ("no-peer-access", "warning", [0, 1, 2, 3]),
    ],
    # Hybrid cube mesh: some pairs have no direct link, but rings of direct links exist.
    "dgx-1": [("no-peer-access", "info", ALL_OF_8)],
    "gcp-8x-v100": [("no-peer-access", "info", ALL_OF_8)],
    # The links of the following machines are unknown, so there are no findings.
    "patrick-4x": [],
    "staging-area-box": [],
    # This VM is healthy: its links are idle, one GPU copies to the host at 55 GB/s, and all four together at 159 GB/s.
    "h200x4": [],
}


def test_every_recorded_machine_is_judged() -> None:
    assert set(NAMES) == set(EXPECTED)


@pytest.mark.parametrize("name", NAMES)
def test_recorded_machine_has_exactly_its_expected_findings(name: str) -> None:
    findings = [(f.code, f.severity, f.evidence["gpus"]) for f in examine_facts(machine(name))]
    assert sorted(findings) == sorted(EXPECTED[name])


def test_mismatched_clock_is_the_sm_clock() -> None:
    (finding,) = [f for f in examine_facts(machine("7gforce")) if f.code == "clock-mismatch"]
    assert finding.cause == "sm_clock"
    assert finding.title.startswith("SM clock maximum differs")
    assert finding.evidence["mhz"] == {"0": 1772, "4": 1772, "5": 1772, "1": 1683, "2": 1683, "3": 1683}
    assert finding.evidence["percent"] == 5.0


def test_half_rate_riser_has_a_separate_finding() -> None:
    worst, others = [f for f in examine_facts(machine("7gforce-v2")) if f.code == "degraded-link"]
    assert (worst.evidence["gpus"], worst.cause) == ([3], "siblings")
    assert worst.evidence["gb_per_s"] == pytest.approx(0.4048)
    assert worst.evidence["siblings_gb_per_s"] == pytest.approx(0.796, abs=0.01)
    assert (others.evidence["gpus"], others.cause) == ([0, 4], "narrow")


def test_peer_access_is_slower_only_across_sockets() -> None:
    (finding,) = [f for f in examine_facts(machine("7gforce-v2")) if f.code == "peer-slower-than-host"]
    (pair,) = finding.evidence["pairs"]
    assert (pair["a"], pair["b"]) == (3, 4)
    assert pair["direct_gb_per_s"] < pair["staged_gb_per_s"]
