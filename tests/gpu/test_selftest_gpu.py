"""Test `gpudiag selftest` on real GPUs: every fault is found with its cause and its cost.

    pytest tests/gpu/test_selftest_gpu.py -m "gpu or multigpu"

The tests run one quick selftest of one workload, which takes about two minutes on 4 GPUs. The complete selftest is
`gpudiag selftest`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpudiag.app.selftest.catalogue import CATALOGUE
from gpudiag.machine.inventory.gather import gather_inventory

GPUS = sum(gpu.visible for gpu in gather_inventory().gpus)
ROOT = Path(__file__).parents[2]
NEED_SEVERAL = {entry.name for entry in CATALOGUE.values() if entry.several}

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(GPUS < 1, reason="there is no NVIDIA GPU"),
]


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Run a quick selftest once for all tests of this module; return its JSON."""
    output = tmp_path_factory.mktemp("selftest") / "out"
    command = [sys.executable, "-m", "gpudiag", "selftest", "--quick", "--json", "--output", str(output)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800, check=False, cwd=ROOT)
    logs = "\n".join(path.read_text(errors="replace")[-2000:] for path in output.glob("*/logs/*.log"))
    assert done.stdout, f"{done.stderr}\n{logs}"
    parsed: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == int(any(row["verdict"] == "wrong" for row in parsed["rows"]))
    return parsed


def row(result: dict[str, Any], fault: str) -> dict[str, Any]:
    left_out = {fault["fault"]: fault["why"] for fault in result["left_out"]}
    if fault in left_out:
        pytest.skip(left_out[fault])
    found: dict[str, Any] = next(row for row in result["rows"] if row["fault"] == fault)
    return found


@pytest.mark.parametrize(
    "fault",
    [pytest.param(name, marks=pytest.mark.multigpu if name in NEED_SEVERAL else pytest.mark.gpu) for name in CATALOGUE],
)
def test_every_fault_is_found_with_its_cause(result: dict[str, Any], fault: str) -> None:
    row_of_fault = row(result, fault)
    assert row_of_fault["verdict"] != "wrong", row_of_fault


@pytest.mark.gpu
@pytest.mark.parametrize("fault", ["late-loader", "pageable-copies", "sync", "tiny-kernels"])
def test_faults_on_one_gpu_are_large_enough(result: dict[str, Any], fault: str) -> None:
    row_of_fault = row(result, fault)
    assert row_of_fault["true"]["ms"] > row_of_fault["alarm_ms"], row_of_fault


@pytest.mark.multigpu
@pytest.mark.parametrize("fault", ["late-loader-one", "slow-compute-one", "slow-exchange", "pinned-core-one"])
def test_faults_on_several_gpus_are_large_enough(result: dict[str, Any], fault: str) -> None:
    row_of_fault = row(result, fault)
    assert row_of_fault["true"]["ms"] > row_of_fault["alarm_ms"], row_of_fault
