"""Test `gpudiag bandwidth` on real GPUs: figures are plausible, data is verified, and each missing figure has a reason.

    pytest tests/gpu/test_bandwidth_gpu.py -m "gpu or multigpu"

The tests compare speeds with hardware limits and with each other, never with a fixed value.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from gpudiag.machine.facts_file import load_facts
from gpudiag.machine.inventory.gather import gather_inventory
from gpudiag.machine.measure import failed_probes

if TYPE_CHECKING:
    from pathlib import Path

    from gpudiag.model.facts import Facts

GPUS = len(gather_inventory().gpus)
needs_gpu = pytest.mark.skipif(GPUS < 1, reason="there is no NVIDIA GPU")
needs_gpus = pytest.mark.skipif(GPUS < 2, reason="there are not two NVIDIA GPUs")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    """Run `gpudiag bandwidth` once for all tests of this module; return its facts."""
    path = tmp_path_factory.mktemp("bandwidth") / "facts.json"
    page = path.with_name("page.html")
    command = [sys.executable, "-m", "gpudiag", "bandwidth", "--save", str(path), "--html", str(page)]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert finished.returncode == 0, finished.stderr + finished.stdout
    assert "<table" in page.read_text()
    return load_facts(path)


@pytest.mark.gpu
@needs_gpu
class TestEveryMachine:
    def test_all_probes_succeed(self, measured: Facts) -> None:
        assert failed_probes(measured) == (), measured.skipped

    def test_every_path_is_verified(self, measured: Facts) -> None:
        assert {record.verified for record in measured.bandwidth} == {True}

    def test_no_figure_exceeds_its_ceiling(self, measured: Facts) -> None:
        # A figure above its ceiling shows that the ceiling or the measurement is wrong.
        over = [
            record
            for record in measured.bandwidth
            if record.ceiling_gb_per_s and record.gb_per_s > 1.02 * record.ceiling_gb_per_s
        ]
        assert not over

    def test_every_gpu_has_its_host_paths(self, measured: Facts) -> None:
        for gpu in measured.gpus:
            place = f"gpu:{gpu.index}"
            found = {
                (record.path, record.memory, record.direction)
                for record in measured.bandwidth
                if place in {record.src, record.dst} and record.path != "peer"
            }
            for memory in ("pinned", "pageable"):
                assert ("host_to_device", memory, "one_way") in found
                assert ("device_to_host", memory, "one_way") in found
                assert ("host_to_device", memory, "both_ways") in found
            assert ("device_to_device", "device", "one_way") in found

    def test_pinned_copies_are_at_least_as_fast_as_pageable_copies(self, measured: Facts) -> None:
        rates = {
            (record.path, record.dst, record.memory): record.gb_per_s
            for record in measured.bandwidth
            if record.path == "host_to_device" and record.direction == "one_way"
        }
        for (path, place, memory), rate in rates.items():
            if memory == "pinned" and (path, place, "pageable") in rates:
                assert rate >= 0.9 * rates[path, place, "pageable"]

    def test_repeated_runs_of_a_probe_agree(self, measured: Facts) -> None:
        alone = [rate for rate in measured.bandwidth if rate.memory == "pinned" and "all" not in {rate.src, rate.dst}]
        assert all(record.cv is not None and record.cv < 0.05 for record in alone)

    def test_pcie_link_is_read_under_load(self, measured: Facts) -> None:
        assert all(gpu.pcie.under_load for gpu in measured.gpus if gpu.visible)


@pytest.mark.multigpu
@needs_gpus
class TestSeveralGpus:
    def test_every_pair_is_measured_with_peer_access_off_and_on(self, measured: Facts) -> None:
        allowed = {(link.a, link.b) for link in measured.links if link.peer_access}
        found = {
            (record.src, record.dst, record.peer_access)
            for record in measured.bandwidth
            if record.path == "peer" and record.direction == "one_way"
        }
        for a, b in ((x.index, y.index) for x in measured.gpus for y in measured.gpus if x.index != y.index):
            assert (f"gpu:{a}", f"gpu:{b}", False) in found
            if (min(a, b), max(a, b)) in allowed:
                assert (f"gpu:{a}", f"gpu:{b}", True) in found

    def test_both_directions_together_exceed_one_direction(self, measured: Facts) -> None:
        one_way = {
            (rate.src, rate.dst): rate.gb_per_s
            for rate in measured.bandwidth
            if rate.path == "peer" and rate.peer_access and rate.direction == "one_way" and rate.initiator == "dst"
        }
        for record in measured.bandwidth:
            if record.path == "peer" and record.peer_access and record.direction == "both_ways":
                assert record.gb_per_s > 0.95 * one_way[record.src, record.dst]

    def test_nccl_sums_are_right_at_every_size(self, measured: Facts) -> None:
        nccl = [collective for collective in measured.collectives if collective.strategy.startswith("nccl")]
        assert {collective.strategy for collective in nccl} >= {"nccl", "nccl-ring", "nccl-tree", "nccl-no-p2p"}
        assert all(collective.verified for collective in nccl)
        assert {collective.bytes for collective in nccl if collective.strategy == "nccl"} == {
            1 << power for power in range(10, 30)
        }

    def test_small_all_reduces_take_less_device_time_than_launch_time(self, measured: Facts) -> None:
        times = {(collective.strategy, collective.bytes): collective.time_us for collective in measured.collectives}
        queued = {size: time for (name, size), time in times.items() if name == "nccl-queued"}
        assert queued.keys() == {1 << power for power in range(10, 21)}
        assert all(time < 1.05 * times["nccl", size] for size, time in queued.items())

    def test_duration_of_each_phase_is_reported(self, measured: Facts) -> None:
        phases = measured.probes["copies to and from the host"]["phases_s"]
        assert {"interpreter and imports", "driver", "contexts and kernels", "buffers"} <= set(phases)

    def test_quick_measures_essential_figures_in_one_process(self, tmp_path: Path) -> None:
        path = tmp_path / "facts.json"
        command = [sys.executable, "-m", "gpudiag", "bandwidth", "--quick", "--save", str(path)]
        finished = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert finished.returncode == 0, finished.stderr + finished.stdout
        facts = load_facts(path)
        assert {rate.path for rate in facts.bandwidth} >= {
            "host_to_device",
            "device_to_host",
            "device_to_device",
            "peer",
        }
        assert {collective.strategy for collective in facts.collectives} == {"nccl", "nccl-queued"}
        assert (
            {rate.verified for rate in facts.bandwidth}
            == {collective.verified for collective in facts.collectives}
            == {True}
        )
        # If NCCL had enabled peer access, the paths without peer access would be as fast as the paths with peer access.
        links = {(link.a, link.b) for link in facts.links if link.lanes}
        direct = {
            (rate.src, rate.dst): rate.gb_per_s for rate in facts.bandwidth if rate.path == "peer" and rate.peer_access
        }
        for record in facts.bandwidth:
            if record.path == "peer" and record.peer_access is False and links:
                assert record.gb_per_s < 0.7 * direct[record.src, record.dst]

    def test_profiled_bandwidth_is_compared_with_the_probe(self, tmp_path: Path) -> None:
        run = tmp_path / "run"
        environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
        for expected in ("measuring", ""):
            command = [sys.executable, "-m", "gpudiag", "profile", "resnet50", "--steps", "5", "--output", str(run)]
            finished = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=240, check=False
            )
            assert finished.returncode == 0, finished.stderr
            assert ("measuring" in finished.stderr) == bool(expected), "only the first run measures the links"
            analysis = json.loads((run / "analysis.json").read_bytes())
            large = [collective for collective in analysis["collectives"] if (collective["size_bytes"] or 0) >= 1 << 20]
            assert large
            for record in large:
                if record["operation"] == "all_reduce":
                    assert 0.3 < record["busbw_gb_per_s"] / record["probe_busbw_gb_per_s"] < 1.3

    def test_peer_access_changes_nccl_bandwidth_where_available(self, measured: Facts) -> None:
        fits = {fit.strategy: fit for fit in measured.collective_fits}
        if all(link.lanes for link in measured.links):
            assert fits["nccl"].busbw_gb_per_s > 1.5 * fits["nccl-no-p2p"].busbw_gb_per_s


@pytest.mark.gpu
@needs_gpu
def test_hidden_gpus_are_not_reported_as_failures(tmp_path: Path) -> None:
    path = tmp_path / "facts.json"
    finished = subprocess.run(
        [sys.executable, "-m", "gpudiag", "bandwidth", "--quick", "--save", str(path)],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    assert "hides every GPU" in " ".join(probe.why for probe in load_facts(path).skipped)
