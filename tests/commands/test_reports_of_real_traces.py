"""Test full reports of real jobs (4 GPUs, PyTorch 2.11), as shown in the README and docs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli_process import gpudiag

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.processes

TRACES = Path(__file__).parents[1] / "traces"


@pytest.mark.parametrize("job", ["slow_loader_rank2", "vgg_p2poff", "gloo_dataloader"])
def test_whole_report(job: str, golden: Callable[[str, str], None]) -> None:
    result = gpudiag("analyze", job, "--width", "100", cwd=TRACES)
    assert (result.returncode, result.stderr) == (0, "")
    golden(f"report-{job}.txt", result.stdout)


def test_whole_report_with_details(golden: Callable[[str, str], None]) -> None:
    result = gpudiag("analyze", "vgg_p2poff", "--full", "--width", "100", cwd=TRACES)
    assert (result.returncode, result.stderr) == (0, "")
    golden("report-vgg_p2poff-full.txt", result.stdout)
