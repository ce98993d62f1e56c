"""Test that causes at one location of the step become one finding, and that causes elsewhere stay separate."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpudiag.analysis.diagnosis.engine import diagnose
from tests.analysis.diagnosis.cases import case_of
from tests.analysis.diagnosis.rule_examples.jobs import (
    Job,
    collection,
    fetch,
    item,
    kernels,
    read_back,
    silence,
    update,
)
from tests.conftest import WHOLE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gpudiag.model.analysis import Analysis, Finding

#: A checkpoint after the update has copies to the host, waits for these copies, and Python code in between.
SAVING = (read_back(2, megabytes=40), silence(6), read_back(2, megabytes=40), silence(6))


#: A range separates the model's work from the rest of the step.
MODEL = (kernels(10), update(1), collection(0.01))


def findings(*step: object) -> tuple[Finding, ...]:
    return diagnose(case_of(Job(ranks=1, step=step, steps=8).traces())).findings  # type: ignore[arg-type]


def step_ms(*step: object) -> float:
    times = Job(ranks=1, step=step, steps=8).step_times_ms()  # type: ignore[arg-type]
    return sum(times) / len(times)


def test_checkpoint_in_each_step_is_one_finding() -> None:
    before = (fetch(0.2), *MODEL)
    found = findings(*before, *SAVING)
    first = found[0]
    assert first.code == "host-stall"
    costs = step_ms(*before, *SAVING) - step_ms(*before)
    assert first.recoverable_ms_per_step == pytest.approx(costs, rel=0.25)
    assert sum(first.parts_ms.values()) == pytest.approx(first.recoverable_ms_per_step)
    assert len(first.evidence["ms_by_finding_alone"]) >= 2
    assert not {"host-sync", "slow-copy"} & {finding.code for finding in found}


def test_stall_without_other_causes_is_unchanged() -> None:
    (stall,) = [finding for finding in findings(fetch(0.2), *MODEL, silence(20)) if finding.code == "host-stall"]
    assert "ms_by_finding_alone" not in stall.evidence


def test_wait_elsewhere_in_the_step_is_a_separate_finding() -> None:
    found = findings(
        fetch(0.2), kernels(5), item(), silence(0.2), kernels(5), item(), update(1), collection(0.01), silence(8)
    )
    stall = next(finding for finding in found if finding.code == "host-stall")
    assert "host-sync" not in stall.evidence.get("ms_by_finding_alone", {})
    assert "host-sync" in [finding.code for finding in found]


@pytest.mark.long
def test_checkpoint_in_each_step_is_found_on_a_gpu(analysis_of: Callable[[Path], Analysis]) -> None:
    """The trace alone shows one source location for all launches, copies and waits of torch.save."""
    analysis = analysis_of(WHOLE / "faults" / "saves-each-step.npz")
    first = analysis.findings[0]
    assert (first.code, first.cause) == ("host-stall", "other work within the step")
    assert first.place.startswith("after Optimizer.step#AdamW.step")
    assert first.evidence["ms_by_finding_alone"].keys() >= {"host-stall", "host-sync"}
    assert first.advice[0].startswith("Tensors are copied to the CPU there")
    codes = [finding.code for finding in analysis.findings]
    assert codes.count("host-stall") == 1
    assert not {"host-sync", "slow-copy"} & set(codes)
