"""Test `gpudiag recommend` on real GPUs: it keeps to its time budget, and reports predictions beside measurements."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from tests.cli_process import gpudiag as run_cli

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.gpu, pytest.mark.multigpu]


@pytest.fixture(scope="module", autouse=True)
def _two_gpus() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")


@pytest.mark.parametrize("options", [(), ("--no-p2p",)])
def test_recommend_measures_the_best_candidates_within_its_budget(tmp_path: Path, options: tuple[str, ...]) -> None:
    began = time.monotonic()
    result = run_cli(
        "recommend", "mlp", "--budget", "60", "--json", "--output", str(tmp_path / "run"), *options, cwd=tmp_path
    )
    assert result.returncode == 0, result.stderr
    assert time.monotonic() - began < 90  # the limit is the budget, plus the time to start and end processes
    answer = json.loads(result.stdout)
    assert answer["basis"] == "measured"
    assert answer["ranking"][0]["strategy"] in {answer["recommended"], "independent", *answer["tied"]}
    measured = [ranked for ranked in answer["ranking"] if ranked["measured_step_ms"] is not None]
    assert len(measured) >= 3
    contest = json.loads((tmp_path / "run" / "contest-mlp.json").read_text())
    compute = contest["gradients"]["compute"]
    # The device time of an operation is at most the step time, because it was measured behind a kernel that delays it.
    assert compute["forward_ms"] + compute["backward_ms"] + compute["update_ms"] <= 1.05 * compute["step_ms"]
    assert all(turn["cannot"] is None for turn in contest["turns"]), contest["turns"]
