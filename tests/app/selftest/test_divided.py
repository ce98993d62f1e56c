"""Test a divided job of `gpudiag selftest` with real processes, more than this machine has cores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli_process import gpudiag

# `.ci/run` also judges all divided rows.
pytestmark = [pytest.mark.measured, pytest.mark.xdist_group("processes")]

Result = tuple[dict[str, Any], Path]


@pytest.fixture(scope="module")
def tested(tmp_path_factory: pytest.TempPathFactory) -> Result:
    cwd = tmp_path_factory.mktemp("divided")
    words = ("--quick", "--faults", "long-sequences", "--output", "out", "--json")
    result = gpudiag("selftest", *words, cwd=cwd, CUDA_VISIBLE_DEVICES="")
    return json.loads(result.stdout), cwd / "out" / "gpt-parallel" / "long-sequences"


def test_row_has_slow_rank_of_four_processes(tested: Result) -> None:
    (row,) = tested[0]["rows"]
    assert tested[0]["world_size"] == 4
    assert row["expected"]["code"] == "straggler"
    assert (row["expected"]["ranks"], row["expected"]["causes"]) == ([2], ["sequence"])


def test_layers_take_their_artificial_time_in_each_step(tested: Result) -> None:
    """Four layers take 16 ms in forward and 32 ms in backward for each of two sequences, and twice that on rank 2."""
    ablation = json.loads((tested[1] / "ablation.json").read_text(encoding="utf-8"))
    assert [block["on"] for block in ablation["blocks"]] == [False, True, True, False]
    for block in ablation["blocks"]:
        usual = 4 * 2 * 48.0
        assert min(ms for steps in block["step_ms"] for ms in steps) > (2 if block["on"] else 1) * usual


def test_record_has_layout_and_operations_of_each_rank(tested: Result) -> None:
    record = json.loads((tested[1] / "run.json").read_text(encoding="utf-8"))
    assert record["parallel"]["dp"] == 4
    counts = [rank["flops"]["by_precision"]["fp32"] for rank in record["ranks"]]
    assert counts[0] == counts[1] == counts[3]
    assert counts[2] > 1.8 * counts[0]
