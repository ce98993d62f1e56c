"""Test faults of known cost in real jobs on a slow host, with kernel-only traces, full traces and unprofiled steps.

The cost of each fault is the unprofiled step time with the fault minus the unprofiled step time without it, measured
in alternation (`gpudiag selftest`, 2 H200). On the hosts of these jobs a step takes 1.5 times as long with a
kernel-only trace, and twice as long with a full trace.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from gpudiag.app.analyze import analyze
from tests.conftest import WHOLE
from tests.traces.pack import unpack

if TYPE_CHECKING:
    from pathlib import Path

    from gpudiag.model.analysis import Analysis

FAULTS: dict[str, dict[str, Any]] = json.loads((WHOLE / "faults" / "runs.json").read_text(encoding="utf-8"))

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("faults")]


def analysis_of(name: str, run: dict[str, Any], where: Path) -> Analysis:
    unpack(WHOLE / "faults" / f"{name}.npz", where / "traces")
    unpack(WHOLE / "faults" / f"{name}-light.npz", where / "traces" / "light")
    (where / "run.json").write_text(json.dumps(run), encoding="utf-8")
    return analyze([where])


@pytest.mark.parametrize(
    ("name", "code", "ranks", "cause"),
    [
        ("gpt-busy-core-one", "straggler", (1,), "launch"),
        pytest.param("resnet50-float64-batches", "slow-copy", (0, 1), "pageable memory", marks=pytest.mark.apart),
    ],
)
def test_fault_is_first_with_ranks_cause_and_amount(
    name: str, code: str, ranks: tuple[int, ...], cause: str, tmp_path: Path
) -> None:
    first = analysis_of(name, FAULTS[name]["run"], tmp_path).findings[0]
    assert (first.code, first.ranks, first.cause) == (code, ranks, cause)
    assert first.recoverable_ms_per_step == pytest.approx(FAULTS[name]["costs_ms"], rel=0.25)


@pytest.mark.apart
def test_unprofiled_steps_show_which_host_is_slow(tmp_path: Path) -> None:
    """Both hosts took 52 ms for an unprofiled step.

    One host was ahead of its device by 49 ms, and the other by less than 1 ms.
    """
    name = "gpt-busy-core-one"
    run = json.loads(json.dumps(FAULTS[name]["run"]))
    assert [round(sum(rank["timed"]["lead_ms"]) / 20) for rank in run["ranks"]] == [49, 1]
    for rank in run["ranks"]:
        rank["timed"]["lead_ms"] = None
    untold = analysis_of(name, run, tmp_path)
    assert "straggler" not in {finding.code for finding in untold.findings}
    assert "cannot-tell:straggler" in {doubt.code for doubt in untold.validity}
