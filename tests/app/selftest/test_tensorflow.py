"""Test the selftest under TensorFlow, with real processes on CPUs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from gpudiag.app.selftest.catalogue import CATALOGUE, choose
from gpudiag.training.frameworks.registry import framework_named
from tests.cli_process import gpudiag
from tests.training.jobs.tensorflow_python import tensorflow_python

if TYPE_CHECKING:
    from pathlib import Path

FAULTS = ("late-loader-marked", "late-loader-one", "sync")


def chosen(*names: str, device: str = "cpu") -> tuple[list[str], dict[str, str]]:
    framework = framework_named("tensorflow")
    entries, left_out = choose(
        names, device=device, world_size=2, usable_cpus=2, peer_access=False, framework=framework
    )
    return [entry.name for entry in entries], {fault.fault: fault.why for fault in left_out}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_fault_runs_or_is_left_out_with_a_reason(device: str) -> None:
    entries, left_out = chosen(device=device)
    assert entries == ["none", "late-loader", "late-loader-marked", "late-loader-one", "slow-compute-one", "sync"]
    assert set(entries) | set(left_out) == set(CATALOGUE)
    assert all(left_out.values())


def test_single_named_fault_runs_alone() -> None:
    assert chosen("late-loader-one")[0] == ["late-loader-one"]
    assert chosen("sync")[0] == ["sync"]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Run a quick selftest under TensorFlow; return fault → row."""
    place: Path = tmp_path_factory.mktemp("selftest")
    words = ("--quick", "--framework", "tensorflow", "--python", tensorflow_python(), "--output", str(place / "out"))
    result = gpudiag("selftest", *words, "--faults", ",".join(FAULTS), "--json", CUDA_VISIBLE_DEVICES="")
    assert result.stdout, result.stderr
    answer = json.loads(result.stdout)
    assert result.returncode == int(any(row["verdict"] == "wrong" for row in answer["rows"]))
    assert answer["software"]["tensorflow"]
    assert [row["fault"] for row in answer["rows"]] == list(FAULTS)
    return {row["fault"]: row for row in answer["rows"]}


@pytest.mark.apart
@pytest.mark.xdist_group("processes")
def test_straggler_is_found_with_its_cause(rows: dict[str, Any]) -> None:
    finding = rows["late-loader-one"]["found"]
    # The loader has no ranges, so the trace shows untraced host time; the unprofiled steps show the wait for the batch.
    assert (finding["code"], finding["ranks"], finding["cause"]) == ("straggler", [1], "input")


@pytest.mark.apart
@pytest.mark.xdist_group("processes")
def test_late_input_on_all_ranks_is_found(rows: dict[str, Any]) -> None:
    finding = rows["late-loader-marked"]["found"]
    assert (finding["code"], finding["ranks"], finding["cause"]) == ("input-bound", [0, 1], "loader")


@pytest.mark.apart
@pytest.mark.xdist_group("processes")
def test_free_synchronization_is_not_reported(rows: dict[str, Any]) -> None:
    """A function on a CPU returns when its work is complete, so reading its result does not wait."""
    finding = rows["sync"]["found"]
    assert finding is None or finding["code"] != "host-sync"
