"""Test the headline: it names the hardware cause if a finding about the machine explains the cost of communication."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from gpudiag.model.analysis import Analysis, Explained, Finding, Fix
from gpudiag.report.figures import MINUS
from gpudiag.report.page.render import report
from gpudiag.report.text.run import to_markdown
from gpudiag.report.verdict import other_findings, verdict_of
from tests import builders
from tests.report.consoles import drawn


def slow_communication(*others: Finding, busbw_gb_per_s: float = 27.4, **evidence: Any) -> Analysis:
    """Return a job that spends 19 of 40 ms per step in communication, and findings about its machine."""
    communication = Finding(
        code="communication-bound",
        severity="critical",
        ranks=(0, 1, 2, 3),
        recoverable_ms_per_step=19.1,
        recoverable_percent=47.8,
        title="communication adds 19.1 ms per step",
        parts_ms={"exposed": 17.5, "copying buckets": 0.4, "kernels slowed beside it": 0.6, "copies and waits": 0.6},
        evidence={"largest_collective": "all_reduce", "busbw_gb_per_s": busbw_gb_per_s, **evidence},
        advice=("Compress gradients.",),
    )
    devices = (builders.device(rank, compute=20.0, communication_transfer=20.0) for rank in range(4))
    return builders.analysis(*devices, findings=(communication, *others))


def hardware(code: str, severity: Any = "warning", **evidence: Any) -> Finding:
    return Finding(
        code=code, severity=severity, title=f"meaning of {code}", evidence=evidence, advice=(f"Mend {code}.",)
    )


@pytest.mark.parametrize(
    ("analysis", "expected"),
    [
        (
            slow_communication(nvlink_gb_per_s=450.0),
            (
                "GPU peer access over NVLink is off: all-reduce runs at 27 of 450 GB/s; "
                "communication costs up to 19.1 of 40.0 ms"
            ),
        ),
        (
            slow_communication(hardware("no-peer-access", gpus=[0, 1]), nvlink_gb_per_s=450.0),
            "GPU peer access is off: all-reduce runs at 27 of 450 GB/s; communication costs up to 19.1 of 40.0 ms",
        ),
        (
            slow_communication(hardware("no-peer-access"), busbw_gb_per_s=4.2, probe_busbw_gb_per_s=4.4),
            "GPU peer access is off: all-reduce runs at 4.20 GB/s; communication costs up to 19.1 of 40.0 ms",
        ),
        (
            slow_communication(hardware("degraded-link", "critical", gpus=[2])),
            "The link of GPU 2 is degraded: all-reduce runs at 27 GB/s; communication costs up to 19.1 of 40.0 ms",
        ),
        (
            slow_communication(hardware("shared-uplink", gpus=[0, 1])),
            "GPUs 0 and 1 share one uplink: all-reduce runs at 27 GB/s; communication costs up to 19.1 of 40.0 ms",
        ),
        (slow_communication(), "Communication adds 19.1 ms per step"),
        (slow_communication(hardware("clock-mismatch")), "Communication adds 19.1 ms per step"),
        (slow_communication(hardware("no-peer-access", "info")), "Communication adds 19.1 ms per step"),
        # Such fast collectives use direct links, so links to the host do not matter.
        (slow_communication(hardware("degraded-link"), busbw_gb_per_s=280.0), "Communication adds 19.1 ms per step"),
    ],
)
def test_every_report_leads_with_the_cause(analysis: Analysis, expected: str) -> None:
    assert verdict_of(analysis).title == expected
    assert expected in drawn(analysis, 200)
    assert expected in to_markdown(analysis)
    assert expected in report(analysis=analysis)


def test_advice_on_the_cause_comes_first_and_once() -> None:
    analysis = slow_communication(hardware("no-peer-access"), hardware("clock-mismatch"))
    verdict = verdict_of(analysis)
    assert verdict.steps == ("Mend no-peer-access.", "Compress gradients.")
    assert [finding.code for finding in other_findings(analysis, verdict)] == ["clock-mismatch"]
    assert drawn(analysis, 200).count("Mend no-peer-access.") == 1


def test_small_components_of_savings_are_summed_as_indirect() -> None:
    assert verdict_of(slow_communication()).parts == "17.5 ms not overlapped with compute, 1.6 ms indirect"


def test_order_of_fixes_is_omitted_if_it_contradicts_the_gain() -> None:
    analysis = slow_communication()
    fixes = (
        Fix(code="communication-bound", ranks=(0, 1, 2, 3), step_ms=20.9, then="input"),
        Fix(code="input-bound", step_ms=15.0, then="compute"),
    )
    agreeing = verdict_of(replace(analysis, next=fixes))
    assert agreeing.gain == f"40.0 → 20.9 ms per step at best ({MINUS}48 %), then limited by data loading"
    assert len(agreeing.path) == 2
    other = verdict_of(replace(analysis, next=(replace(fixes[0], step_ms=5.5), fixes[1])))
    assert other.gain == f"40.0 → 20.9 ms per step at best ({MINUS}48 %)"
    assert other.path == ()


def test_compute_bound_verdict_remains_if_a_little_is_unexplained() -> None:
    fast = Finding(
        code="compute-bound", severity="info", title="compute-bound (86 %); nothing here saves more than 5 %"
    )
    analysis = builders.analysis(
        builders.device(0, compute=8.6, idle=1.4),
        findings=(fast,),
        explained=(Explained(bucket="idle", ms=1.4, unexplained_ms=0.6),),
    )
    verdict = verdict_of(analysis)
    assert verdict.title == "Compute-bound (86 %); nothing here saves more than 5 %"
    assert not any("Record again" in step for step in verdict.steps)
