"""Test facts from results of programs: names, ceilings, verification, and missing measurements."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from gpudiag.machine.facts_file import decode_facts
from gpudiag.machine.measure import failed_probes
from gpudiag.machine.probes.assemble import assemble
from gpudiag.machine.probes.programs import HostCopies, PeerCopies, PeerCopy
from gpudiag.model.run_directory import encode_json
from tests.probed_machine import COUNT, collectives, four_h200, host_copies, inventory, outcome, peer_copies

if TYPE_CHECKING:
    from gpudiag.model.facts import Bandwidth, Facts


@pytest.fixture(scope="module")
def facts() -> Facts:
    return four_h200()


def only_rate(facts: Facts, **wanted: object) -> Bandwidth:
    found = [
        record for record in facts.bandwidth if all(getattr(record, name) == value for name, value in wanted.items())
    ]
    assert len(found) == 1, found
    return found[0]


def test_cuda_ordinals_become_inventory_indices_by_pci_address() -> None:
    copies = host_copies()
    slow = msgspec.structs.replace(copies.bandwidth[0], gb_per_s=7.0, each_gb_per_s=(7.0,))
    document = msgspec.structs.replace(copies, bandwidth=(slow,), latency=())
    facts = assemble(inventory(), [outcome("copies", document)], [])
    assert facts.bandwidth[0].dst == f"gpu:{COUNT - 1}"  # the first CUDA device is the last in PCI order


def test_bandwidths_have_ceilings(facts: Facts) -> None:
    pinned = only_rate(facts, path="host_to_device", dst="gpu:1", memory="pinned", direction="one_way")
    assert pinned.ceiling_gb_per_s == pytest.approx(58.45, abs=0.01)
    assert "PCIe 5 x16 (read under load)" in (pinned.ceiling_source or "")
    assert only_rate(
        facts, path="host_to_device", dst="gpu:1", memory="pinned", direction="both_ways"
    ).ceiling_gb_per_s == (pytest.approx(58.45 + 57.61, abs=0.02))
    together = only_rate(facts, path="device_to_host", src="all", memory="pinned")
    assert together.ceiling_gb_per_s == pytest.approx(4 * 57.61, abs=0.05)
    assert set(together.per_device) == {f"gpu:{i}" for i in range(4)}
    assert sum(together.per_device.values()) == pytest.approx(together.gb_per_s)
    assert only_rate(facts, path="device_to_device", src="gpu:2").ceiling_gb_per_s == pytest.approx(2458, abs=1)
    assert only_rate(facts, path="host_memory").ceiling_gb_per_s is None
    assert only_rate(facts, path="host_memory").ceiling_source


def test_peer_paths_have_nvlink_or_pcie_ceilings(facts: Facts) -> None:
    direct = only_rate(
        facts, path="peer", src="gpu:0", dst="gpu:3", peer_access=True, initiator="dst", direction="one_way"
    )
    staged = only_rate(facts, path="peer", src="gpu:0", dst="gpu:3", peer_access=False, direction="one_way")
    both = [r for r in facts.bandwidth if r.path == "peer" and r.peer_access and r.direction == "both_ways"]
    assert direct.ceiling_gb_per_s == 450
    assert staged.ceiling_gb_per_s == pytest.approx(57.61, abs=0.01)
    assert {record.ceiling_gb_per_s for record in both} == {900}


def test_links_read_under_load_replace_idle_ones(facts: Facts) -> None:
    assert all(gpu.pcie.under_load and gpu.pcie.generation == 5 and gpu.pcie.maximum_width == 16 for gpu in facts.gpus)
    assert {gpu.memory_bus_bits for gpu in facts.gpus} == {6144}


def test_rates_of_both_directions_on_all_gpus_are_summed_per_gpu(facts: Facts) -> None:
    record = only_rate(facts, path="host_to_device", dst="all", memory="pinned", direction="both_ways")
    assert record.per_device["gpu:0"] == pytest.approx((52.4 + 50.1) * 0.71)


def test_collectives_follow_the_convention_of_nccl_tests(facts: Facts) -> None:
    collective = next(c for c in facts.collectives if c.strategy == "nccl" and c.bytes == 1 << 28)
    assert collective.algbw_gb_per_s == pytest.approx((1 << 28) / collective.time_us / 1e3)
    assert collective.busbw_gb_per_s == pytest.approx(1.5 * collective.algbw_gb_per_s)
    fits = {fit.strategy: fit for fit in facts.collective_fits}
    assert fits["nccl-no-p2p"].busbw_gb_per_s == pytest.approx(29.6, rel=1e-3)


def test_missing_measurements_have_a_reason(facts: Facts) -> None:
    reasons = {skipped.what: skipped.why for skipped in facts.skipped}
    assert reasons["gloo all-reduce"] == "the probe had not finished after 60 s"
    assert reasons["latency of a small copy, GPU 9"] == "made up"
    assert reasons["something"] == "left out"


def test_partly_failed_probes_count_as_failed(facts: Facts) -> None:
    assert failed_probes(facts) == ("copies to and from the host", "gloo all-reduce")


def test_damaged_data_is_marked() -> None:
    copies = peer_copies()
    spoilt = msgspec.structs.replace(copies.bandwidth[0], wrong_words=3)
    unknown = msgspec.structs.replace(copies.bandwidth[1], wrong_words=None)
    document = msgspec.structs.replace(copies, bandwidth=(spoilt, unknown, copies.bandwidth[2]))
    facts = assemble(inventory(), [outcome("peers", document)], [])
    assert [record.verified for record in facts.bandwidth] == [False, None, True]


def test_program_that_names_unknown_gpus_loses_only_its_result() -> None:
    strange = PeerCopy(
        src=7, dst=8, direction="one_way", initiator="src", peer_access=True, gb_per_s=1, size_bytes=1, cv=0, repeats=1
    )
    document = PeerCopies(schema="gpudiag/probe-copy-peer/1", bandwidth=(strange,))
    facts = assemble(inventory(), [outcome("a", document), outcome("b", collectives(("nccl", 1, 1)))], [])
    assert facts.bandwidth == ()
    assert facts.collectives
    assert any("names a GPU that it does not list" in skipped.why for skipped in facts.skipped)


def test_text_of_programs_is_sanitized() -> None:
    document = HostCopies(schema="gpudiag/probe-copy-host/1", versions={"x": "\x1b[31m"})
    failed = outcome("a", None, "said \x1b[2J")
    facts = assemble(inventory(), [outcome("b", document), failed], [])
    assert "\x1b" not in encode_json(facts).decode()
    assert "\\u001b" not in encode_json(facts).decode()


def test_facts_survive_a_file(facts: Facts) -> None:
    assert decode_facts(encode_json(facts)) == facts
