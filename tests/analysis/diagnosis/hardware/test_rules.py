"""Test each hardware rule on its example machines, and the wording that rules share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec
import pytest

from gpudiag.analysis.diagnosis.hardware import HARDWARE_RULES, examine_facts
from gpudiag.analysis.diagnosis.hardware.no_peer_access import has_ring
from gpudiag.analysis.diagnosis.hardware.rule import gpu_list, gradient_cost, pair_list
from gpudiag.model.analysis import FINDING_CODES, Finding
from gpudiag.model.facts import Facts, GpuProcess, Host, Link
from tests.analysis.diagnosis.rule_examples import examples_by_code
from tests.analysis.diagnosis.rule_examples.machines import gpu, host_copies, loaded, machine, peer_copies, together

if TYPE_CHECKING:
    from _pytest.mark import ParameterSet

    from gpudiag.analysis.diagnosis.hardware.rule import FactsRule


def parameters(kind: Literal["FIRES", "SILENT"]) -> list[ParameterSet]:
    return [
        pytest.param(rule, facts, id=f"{rule.code}: {title}")
        for rule in HARDWARE_RULES
        for title, facts in getattr(examples_by_code(rule.code), kind)
    ]


@pytest.mark.parametrize(("rule", "facts"), parameters("FIRES"))
def test_rule_fires_on_its_example(rule: FactsRule, facts: Facts) -> None:
    assert {finding.code for finding in rule.examine(facts)} == {rule.code}
    for finding in examine_facts(facts):
        assert_usable(finding, facts)


@pytest.mark.parametrize(("rule", "facts"), parameters("SILENT"))
def test_rule_is_silent_on_its_example(rule: FactsRule, facts: Facts) -> None:
    assert rule.examine(facts) == ()


def assert_usable(finding: Finding, facts: Facts) -> None:
    """Check that a finding has advice and evidence, and names only GPUs of the machine."""
    assert finding.code in FINDING_CODES
    assert finding.advice, "the finding has no advice"
    assert len(finding.title) <= 400
    assert finding.recoverable_ms_per_step is None
    assert "profile" in finding.evidence["reason"]
    assert finding.ranks == (), "facts of a machine do not include ranks"
    assert set(finding.evidence["gpus"]) <= {gpu.index for gpu in facts.gpus}
    msgspec.json.encode(finding)


@pytest.mark.parametrize("rule", HARDWARE_RULES, ids=lambda rule: rule.code)
def test_rule_has_a_page_and_both_kinds_of_examples(rule: FactsRule) -> None:
    page = type(rule).__doc__ or ""
    assert len(page) > 400, "the docstring is the page that users read"
    assert "What to do" in page or "can be done" in page
    examples = examples_by_code(rule.code)
    assert examples.FIRES
    assert examples.SILENT


def test_a_machine_without_gpus_has_no_findings() -> None:
    assert examine_facts(Facts(host=Host())) == ()


def test_findings_are_sorted_by_severity() -> None:
    facts = machine(
        gpu(0, sm_mhz=1700), gpu(1, sm_mhz=1600), links=(Link(a=0, b=1, kind="PHB", peer_access=False),),
        bandwidth=(host_copies(0, 0.8), host_copies(1, 25.0)),
    )  # fmt: skip
    assert [f.code for f in examine_facts(facts)] == ["degraded-link", "no-peer-access", "clock-mismatch"]


@pytest.mark.parametrize(
    ("shares", "fires"),
    [
        ((55.0, 55.0, 55.0, 55.0), False),
        ((38.8, 39.4, 39.6, 40.9), False),
        # The total rate equals the rate of two links, so either there are two uplinks, or host memory is the limit.
        ((27.5, 27.5, 27.5, 27.5), False),
        ((14.0, 14.0, 14.0, 14.0), True),
    ],
)
def test_uplink_is_shared_if_all_gpus_together_copy_as_fast_as_one(shares: tuple[float, ...], fires: bool) -> None:
    facts = machine(
        *(gpu(i) for i in range(4)), bandwidth=(*(host_copies(i, 55.4) for i in range(4)), together(*shares))
    )
    findings = examine_facts(facts)
    assert [f.code for f in findings] == (["shared-uplink"] if fires else [])
    if fires:
        assert findings[0].evidence["gpus"] == [0, 1, 2, 3]


def test_a_loaded_link_at_its_maximum_gives_no_finding() -> None:
    facts = machine(gpu(0, pcie=loaded(3, 8, 3, 8)), bandwidth=(host_copies(0, 6.3, ceiling_gb_per_s=7.3),))
    assert examine_facts(facts) == ()


@pytest.mark.parametrize(
    ("count", "edges", "expected"),
    [
        (1, set(), False),
        (2, {(0, 1)}, True),
        (3, {(0, 1), (1, 2)}, False),
        (4, {(0, 1), (1, 2), (2, 3), (0, 3)}, True),
        (6, {(0, 1), (1, 2), (0, 2), (3, 4), (4, 5), (3, 5)}, False),
    ],
)
def test_ring_is_found_if_and_only_if_the_graph_has_one(
    count: int, edges: set[tuple[int, int]], expected: bool
) -> None:
    assert has_ring(list(range(count)), edges) is expected


def test_ring_search_ends_on_the_worst_graph() -> None:
    # Two complete groups of eight are joined by one edge: every GPU has many neighbours, but there is no ring.
    halves = {(a, b) for half in (range(8), range(8, 16)) for a in half for b in half if a < b}
    assert has_ring(list(range(16)), halves | {(0, 8)}) is False


def test_lists_of_gpus_and_pairs_are_shortened() -> None:
    assert [gpu_list(x) for x in ([3], [0, 2], [0, 1], range(6), [0, 1, 2, 5])] == [
        "GPU 3", "GPUs 0 and 2", "GPUs 0 and 1", "GPUs 0-5", "GPUs 0-2 and 5",
    ]  # fmt: skip
    assert pair_list([(1, 2), (0, 1)]) == "0↔1, 1↔2"
    assert pair_list((0, i) for i in range(1, 10)) == "0↔1, 0↔2, 0↔3, 0↔4, 0↔5, 0↔6 and 3 more"
    # 102.2 MB at 0.7635 GB/s take 134 ms; a parameter server on x1 risers had 133 ms of exposed communication.
    assert gradient_cost(0.7635) == "ResNet-50's 102 MB of gradients take 134 ms to cross it once"


def test_faster_of_reading_and_writing_a_peer_counts() -> None:
    slow_when_reading = peer_copies(0, 1, 9.0, peer_access=True, initiator="dst")
    by_writing = peer_copies(0, 1, 12.0, peer_access=True, initiator="src")
    staged = peer_copies(0, 1, 11.0, peer_access=False, initiator="src")
    assert examine_facts(machine(gpu(0), gpu(1), bandwidth=(by_writing, slow_when_reading, staged))) == ()


@pytest.mark.parametrize("count", [1, 4, 5, 6])
def test_four_names_are_shown_and_the_others_counted(count: int) -> None:
    holders = tuple(GpuProcess(pid=100 + i, name=f"job{i}", memory_bytes=30 << 30) for i in range(count))
    copies = [peer_copies(2 * i, 2 * i + 1, 22.0, peer_access=True, verified=False)[0] for i in range(count)]
    pairs = [(f"job{i} ", f"gpu:{2 * i} →") for i in range(count)]
    held = examine_facts(machine(gpu(0, processes=holders)))[0].title
    damaged = examine_facts(machine(*(gpu(i) for i in range(2 * count)), bandwidth=copies))[0].title
    for index, (holder, path) in enumerate(pairs):
        assert (holder in held, path in damaged) == (index < 4, index < 4)
    for title in (held, damaged):
        assert (f"and {count - 4} more" in title) == (count > 4)
        assert ("more" in title) == (count > 4)


@pytest.mark.parametrize(("lanes", "codes"), [(18, []), (0, ["shared-uplink"])])
def test_a_pair_over_nvlink_shares_no_uplink(lanes: int, codes: list[str]) -> None:
    links = (Link(a=0, b=1, kind=f"NV{lanes}" if lanes else "PHB", lanes=lanes),)
    facts = machine(gpu(0), gpu(1), links=links, bandwidth=(peer_copies(0, 1, 12.0, 12.4, peer_access=True),))
    assert [finding.code for finding in examine_facts(facts)] == codes


def test_slowest_pair_relative_to_staging_is_named() -> None:
    rates = {(0, 1): (8.0, 11.0), (0, 2): (4.0, 16.0), (1, 2): (3.0, 5.0)}
    copies = [
        peer_copies(a, b, rate, peer_access=direct)
        for (a, b), pair_rates in rates.items()
        for rate, direct in zip(pair_rates, (True, False), strict=True)
    ]
    (finding,) = examine_facts(machine(gpu(0), gpu(1), gpu(2), bandwidth=copies))
    assert "GPUs 0↔1, 0↔2, 1↔2 are slower" in finding.title
    assert "by 75 % between 0 and 2" in finding.title
    assert finding.severity == "critical"


def test_the_source_of_a_ceiling_is_shortened() -> None:
    long = "PCIe 5 x16 (read under load): 16 x 32 GT/s x 128/130, packets of 256 bytes with write headers"
    (finding,) = examine_facts(
        machine(gpu(0), bandwidth=(host_copies(0, 18.0, ceiling_gb_per_s=57.0, ceiling_source=long),))
    )
    assert "that PCIe 5 x16 (read under load) allows" in finding.title
