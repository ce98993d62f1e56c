"""Test the choice of faults, and the diagnoses that are expected for each fault."""

from __future__ import annotations

from typing import Any

import pytest

from gpudiag.app.selftest.catalogue import CATALOGUE, catalogue_entry, choose, fault_plan, faulty_rank, processes_of
from gpudiag.app.selftest.selftest import CPU_TRAININGS, GPU_TRAININGS
from gpudiag.errors import UsageError
from gpudiag.model.analysis import FINDING_CODES
from gpudiag.training.frameworks.registry import framework_named

PYTORCH = {"framework": framework_named("pytorch")}
FOUR_GPUS: dict[str, Any] = {"device": "cuda", "world_size": 4, "usable_cpus": 64, "peer_access": True} | PYTORCH
TWO_CPUS: dict[str, Any] = {"device": "cpu", "world_size": 2, "usable_cpus": 2, "peer_access": False} | PYTORCH


def names(chosen: tuple[Any, ...]) -> set[str]:
    return {entry.name for entry in chosen}


def test_all_faults_run_on_four_gpus() -> None:
    chosen, left_out = choose((), **FOUR_GPUS)
    assert names(chosen) == set(CATALOGUE)
    assert left_out == ()


def test_faults_that_need_gpus_are_left_out_on_cpus() -> None:
    chosen, left_out = choose((), **TWO_CPUS)
    on_gpus = "pageable-copies sync tiny-kernels no-p2p item-between-layers looped-optimizer float64-batches"
    on_gpus += " many-small-copies busy-core-one sync-batchnorm emptied-cache cuda-graph compiled side-stream-copies"
    assert {entry.fault for entry in left_out} == set(on_gpus.split())
    assert names(chosen) == set(CATALOGUE) - {entry.fault for entry in left_out}


@pytest.mark.parametrize(
    ("changes", "name", "why"),
    [
        ({"world_size": 1}, "late-loader-one", "two devices"),
        ({"usable_cpus": 1}, "pinned-core-one", "two CPU cores"),
        ({"peer_access": False}, "no-p2p", "no peer access"),
        ({"world_size": 3}, "tensor-parallel", "even number"),
        ({"world_size": 3}, "uneven-stages", "even number"),
        ({"workloads": ("resnet50",)}, "fsdp2", "only in gpt"),
    ],
)
def test_impossible_fault_is_left_out_with_a_reason(changes: dict[str, Any], name: str, why: str) -> None:
    chosen, left_out = choose((name, "none"), **(FOUR_GPUS | changes))
    assert names(chosen) == {"none"}
    assert [entry.fault for entry in left_out] == [name]
    assert why in left_out[0].why


def test_divided_jobs_have_four_processes_on_cpus() -> None:
    """The layers of divided jobs wait instead of computing, so the number of cores does not matter."""
    chosen, _ = choose(("uneven-stages", "fsdp2"), **(TWO_CPUS | {"world_size": 1}))
    assert names(chosen) == {"uneven-stages"}
    assert processes_of(chosen[0], device="cpu", world_size=1) == 4
    assert processes_of(chosen[0], device="cuda", world_size=8) == 8


def test_quick_leaves_out_longer_faults_unless_named() -> None:
    chosen, left_out = choose((), quick=True, **TWO_CPUS)
    usual = {"none", "late-loader", "late-loader-marked", "late-loader-one", "slow-compute-one", "slow-exchange"}
    assert names(chosen) == usual | {"pinned-core-one"}
    assert next(entry.why for entry in left_out if entry.fault == "rank0-logs").startswith("not with --quick")
    assert names(choose(("rank0-logs",), quick=True, **TWO_CPUS)[0]) == {"rank0-logs"}


def test_every_trained_workload_has_faults() -> None:
    assert {name for entry in CATALOGUE.values() for name in entry.workloads} <= {
        training.workload for training in (*GPU_TRAININGS, *CPU_TRAININGS)
    }


def test_unknown_fault_is_refused_with_a_list_of_known_ones() -> None:
    with pytest.raises(UsageError) as raised:
        catalogue_entry("slow")
    assert "late-loader" in raised.value.hint


@pytest.mark.parametrize("entry", CATALOGUE.values(), ids=lambda entry: entry.name)
def test_expected_codes_and_causes_exist(entry: Any) -> None:
    assert entry.code is None or entry.code in FINDING_CODES
    expected = entry.expected("cuda", fault_plan(entry, device="cuda", world_size=4, framework="pytorch").ranks, 4)
    one_rank = entry.one_rank or (entry.divided and entry.code == "straggler")
    some: tuple[int, ...] = (0,) if entry.first_rank else (2,) if one_rank else (0, 1, 2, 3)
    some = (2, 3) if entry.name == "uneven-stages" else some  # the second of two stages with two ranks each
    assert expected.ranks == (() if entry.code is None else some)
    assert expected.codes <= set(FINDING_CODES)


def test_slow_launches_on_a_cpu_are_slow_compute() -> None:
    pinned = CATALOGUE["pinned-core-one"]
    assert pinned.expected("cuda", (2,), 4).causes == ("launch",)
    assert pinned.expected("cpu", (1,), 2).causes == ("compute",)


@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_rank_0_never_has_a_single_rank_fault(world_size: int) -> None:
    assert 0 < faulty_rank(world_size) < world_size
