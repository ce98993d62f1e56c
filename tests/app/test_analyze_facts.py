"""Test that machine facts are measured before a run, saved in the run directory, and used in the diagnosis."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gpudiag.app.analyze import analyze
from gpudiag.app.profile import prepare
from gpudiag.app.profile.prepare import Prepared, measure_links
from gpudiag.machine.probes import cache
from gpudiag.model.job import Job as TrainingJob
from gpudiag.model.run import RankRecord, RunRecord
from gpudiag.model.run_directory import FACTS_FILE, RUN_FILE, write_json
from gpudiag.model.throttle import HARDWARE_THERMAL
from gpudiag.training.launch import Interpreter, Plan
from tests.probed_machine import four_h200, inventory

if TYPE_CHECKING:
    from gpudiag.model.facts import Facts

TRACES = Path(__file__).parents[1] / "traces" / "clean"


def record(**fields: Any) -> RunRecord:
    """Return the record of a run of four ranks on one host, with `fields` changed."""
    ranks = tuple(
        RankRecord(rank=i, local_rank=i, host="a", pid=1, device=f"cuda:{i}", device_name="NVIDIA H200")
        for i in range(4)
    )
    base = RunRecord(
        created="2026-01-01T00:00:00Z",
        command=("gpudiag", "profile"),
        workload="resnet50",
        framework="pytorch",
        strategy="nccl",
        world_size=4,
        nodes=1,
        batch_size_per_device=64,
        ranks=ranks,
        status="complete",
    )
    return msgspec.structs.replace(base, **fields)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    shutil.copytree(TRACES, tmp_path / "traces")
    write_json(tmp_path / RUN_FILE, record())
    return tmp_path


def hot(facts: Facts, index: int) -> Facts:
    gpus = tuple(
        msgspec.structs.replace(gpu, throttle_reasons=(HARDWARE_THERMAL,)) if gpu.index == index else gpu
        for gpu in facts.gpus
    )
    return msgspec.structs.replace(facts, gpus=gpus)


class TestAnalysis:
    def test_collectives_are_compared_with_the_probe_of_their_size(self, run_dir: Path) -> None:
        write_json(run_dir / FACTS_FILE, four_h200())
        sizes = [collective.bytes for collective in four_h200().collectives if collective.strategy == "nccl"]
        collectives = analyze([run_dir]).collectives
        reduced = [
            collective for collective in collectives if collective.operation == "all_reduce" and collective.size_bytes
        ]
        assert reduced
        for collective in reduced:
            assert collective.size_bytes is not None
            assert (collective.probe_busbw_gb_per_s is not None) == (min(sizes) <= collective.size_bytes <= max(sizes))
        assert any(collective.probe_busbw_gb_per_s for collective in reduced)
        assert all(
            collective.probe_busbw_gb_per_s is None for collective in collectives if collective.operation == "broadcast"
        )

    def test_run_without_peer_access_is_compared_with_a_probe_without_peer_access(self, run_dir: Path) -> None:
        write_json(run_dir / FACTS_FILE, four_h200())
        with_peers = {
            collective.size_bytes: collective.probe_busbw_gb_per_s for collective in analyze([run_dir]).collectives
        }
        write_json(run_dir / RUN_FILE, record(options={"p2p": "off"}))
        for collective in analyze([run_dir]).collectives:
            assert collective.probe_busbw_gb_per_s is None or collective.probe_busbw_gb_per_s < 0.5 * (
                with_peers[collective.size_bytes] or 0
            )

    def test_machine_findings_come_after_findings_with_a_cost(self, run_dir: Path) -> None:
        write_json(run_dir / FACTS_FILE, hot(four_h200(), 1))
        findings = analyze([run_dir]).findings
        assert findings[-1].code == "throttled"
        assert findings[-1].recoverable_ms_per_step is None
        gains = [finding.recoverable_ms_per_step is not None for finding in findings]
        assert gains == sorted(gains, reverse=True)

    def test_analysis_without_facts_has_no_machine_findings(self, run_dir: Path) -> None:
        analysis = analyze([run_dir])
        assert all(collective.probe_busbw_gb_per_s is None for collective in analysis.collectives)
        write_json(run_dir / FACTS_FILE, four_h200())
        # From traces alone, the machine of the recording is unknown.
        (run_dir / RUN_FILE).unlink()
        assert all(collective.probe_busbw_gb_per_s is None for collective in analyze([run_dir]).collectives)

    @pytest.mark.parametrize(
        "data", [b"{", b'{"schema": "gpudiag/facts/9"}', b'{"schema": "gpudiag/facts/1", "host": 3}']
    )
    def test_unreadable_facts_give_a_warning(self, run_dir: Path, data: bytes) -> None:
        (run_dir / FACTS_FILE).write_bytes(data)
        analysis = analyze([run_dir])
        assert analysis.devices
        assert any("the machine's facts are not used" in warning.message for warning in analysis.validity)


class TestMeasuring:
    @pytest.fixture
    def probed(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[bool]:
        """Replace the probes, which need GPUs; return the list of peer-access settings with which they are called."""
        calls: list[bool] = []

        def probe(facts: Facts, *, quick: bool, p2p: bool, on_progress: object) -> Facts:
            assert quick
            calls.append(p2p)
            found = four_h200()
            wanted = "nccl" if p2p else "nccl-no-p2p"
            kept = tuple(collective for collective in found.collectives if collective.strategy == wanted)
            return msgspec.structs.replace(facts, collectives=kept, bandwidth=found.bandwidth)

        monkeypatch.setattr(prepare, "probe_machine", probe)
        monkeypatch.setattr(prepare, "installed", lambda _: True)
        monkeypatch.setattr(cache, "cache_directory", lambda: tmp_path / "cache")
        return calls

    def prepared(self, facts: Facts, processes: int = 4, **job: Any) -> Prepared:
        device = "cuda" if facts.gpus else "cpu"
        training = TrainingJob(workload="mlp", strategy="nccl", **{"device": device, **job})
        launch = Plan(job=training, run_dir=Path("nowhere"), processes=processes, threads=1)
        interpreter = Interpreter(path="python3", version="3.12", framework="2.11", cuda="13.0", has_gpudiag=True)
        return Prepared(plan=launch, interpreter=interpreter, facts=facts)

    def test_links_are_measured_once_a_day_per_transport(self, probed: list[bool]) -> None:
        first = measure_links(self.prepared(inventory()))
        again = measure_links(self.prepared(inventory()))
        assert probed == [True]
        assert again.facts.collectives == first.facts.collectives != ()
        without = measure_links(self.prepared(inventory(), p2p=False))
        assert probed == [True, False]
        assert {collective.strategy for collective in without.facts.collectives} == {"nccl-no-p2p"}

    def test_link_measurement_can_be_forced_and_skipped(self, probed: list[bool]) -> None:
        assert measure_links(self.prepared(inventory(), probe=False)).facts.collectives == ()
        measure_links(self.prepared(inventory(), probe=True))
        measure_links(self.prepared(inventory(), probe=True))
        assert probed == [True, True]

    def test_links_are_not_measured_without_communication_between_gpus(self, probed: list[bool]) -> None:
        measure_links(self.prepared(inventory(1)))
        measure_links(self.prepared(inventory(0)))
        measure_links(self.prepared(inventory(), processes=1))
        assert probed == []

    def test_findings_are_added_to_the_facts(self, probed: list[bool]) -> None:
        measured = measure_links(self.prepared(hot(inventory(), 2), probe=False))
        assert [finding.code for finding in measured.facts.findings] == ["throttled"]
