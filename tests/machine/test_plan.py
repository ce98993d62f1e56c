"""Test the choice of probes for a machine."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from gpudiag.machine.probes import plan
from gpudiag.machine.probes.programs import programs_directory
from gpudiag.model.facts import Facts, Host
from tests.probed_machine import inventory

PROGRAMS = Path("/somewhere")


def planned(facts: Facts, *, quick: bool = False) -> tuple[list[str], list[str]]:
    programs, skipped = plan.plan_probes(facts, PROGRAMS, quick=quick, timeout_s=9)
    return [program.program.stem for program in programs], [probe.why for probe in skipped]


@pytest.fixture
def everything_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "installed", lambda _: True)


@pytest.mark.usefixtures("everything_installed")
class TestWithEveryLibrary:
    def test_four_gpus_get_every_probe(self) -> None:
        names, why = planned(inventory())
        assert names == ["gpu_paths", "allreduce_nccl", "allreduce_nccl", "host_memory", "allreduce_gloo"]
        assert why == []

    def test_gpus_are_released_before_the_host_is_measured(self) -> None:
        programs, _ = plan.plan_probes(inventory(), PROGRAMS, quick=False, timeout_s=9)
        holding = [program.holds_gpus for program in programs]
        assert holding == sorted(holding, reverse=True)

    @pytest.mark.parametrize(("cpus", "aside"), [(64, True), (8, False), (None, False)])
    def test_pytorch_is_loaded_in_parallel_with_enough_cores(self, cpus: int | None, aside: bool) -> None:
        facts = inventory()
        facts = msgspec.structs.replace(facts, host=msgspec.structs.replace(facts.host, usable_cpus=cpus))
        programs, _ = plan.plan_probes(facts, PROGRAMS, quick=False, timeout_s=9)
        assert programs[-1].program.stem == "allreduce_gloo"
        assert programs[-1].loads_aside == aside

    def test_peer_access_off_runs_in_a_separate_process(self) -> None:
        programs, _ = plan.plan_probes(inventory(), PROGRAMS, quick=False, timeout_s=9)
        environments = [dict(program.environment) for program in programs if program.program.stem == "allreduce_nccl"]
        assert environments == [{}, {"NCCL_P2P_DISABLE": "1"}]

    def test_quick_skips_slow_programs_with_a_reason(self) -> None:
        names, why = planned(inventory(), quick=True)
        assert names == ["gpu_paths", "host_memory"]
        assert why == ["left out by --quick"]

    def test_quick_creates_contexts_once_and_separates_the_results(self) -> None:
        programs, _ = plan.plan_probes(inventory(), PROGRAMS, quick=True, timeout_s=9)
        assert [name for _, name in programs[0].parts] == [
            "copies to and from the host",
            "copies between GPUs",
            "NCCL all-reduce",
        ]

    def test_single_gpu_has_no_peer(self) -> None:
        programs, _ = plan.plan_probes(inventory(1), PROGRAMS, quick=False, timeout_s=9)
        assert [program.program.stem for program in programs] == ["gpu_paths", "host_memory", "allreduce_gloo"]
        assert [name for _, name in programs[0].parts] == ["copies to and from the host"]

    def test_without_gpus_the_host_is_measured(self) -> None:
        for quick in (False, True):
            assert planned(Facts(host=Host()), quick=quick) == (["host_memory", "allreduce_gloo"], [])

    def test_hidden_gpus_are_not_measured(self) -> None:
        facts = inventory()
        hidden = tuple(msgspec.structs.replace(gpu, visible=False) for gpu in facts.gpus)
        names, why = planned(msgspec.structs.replace(facts, gpus=hidden))
        assert names == ["host_memory", "allreduce_gloo"]
        assert why == ["CUDA_VISIBLE_DEVICES hides every GPU"]

    def test_limits_and_budgets_reach_the_programs(self) -> None:
        programs, _ = plan.plan_probes(inventory(), PROGRAMS, quick=True, timeout_s=9)
        assert all((program.setup_timeout_s, program.timeout_s) == (9, 9) for program in programs)
        assert all("--quick" in program.arguments and "--seconds" in program.arguments for program in programs)


def test_missing_libraries_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "installed", lambda _: False)
    names, why = planned(inventory())
    assert names == ["host_memory"]
    assert "cuda-bindings is not installed" in why[0]
    assert "PyTorch is not installed" in why[1]


def test_libraries_are_found_without_importing_them() -> None:
    assert plan.installed("json.decoder")
    assert not plan.installed("no_such_module.inside")


def test_every_planned_program_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "installed", lambda _: True)
    programs, _ = plan.plan_probes(inventory(), programs_directory(), quick=False, timeout_s=9)
    assert all(program.program.is_file() for program in programs)
