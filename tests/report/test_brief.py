"""Test the short report: location of the finding, a line about other findings, and commands for details."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from gpudiag.model.analysis import Analysis, CollectiveSummary, Explained, Finding, Steps, Validity
from gpudiag.report.terminal.brief import commands_for_more, location, paths_in_command
from gpudiag.report.verdict import verdict_of
from tests import builders
from tests.report.consoles import drawn


def job(*findings: Finding, ranks: int = 4, **fields: Any) -> Analysis:
    devices = (builders.device(rank, compute=6.0, communication_transfer=4.0) for rank in range(ranks))
    return builders.analysis(*devices, findings=findings, **fields)


def finding(code: str = "host-stall", **fields: Any) -> Finding:
    """Return a finding with usual values, and `fields` changed."""
    usual: dict[str, Any] = {
        "severity": "critical",
        "ranks": (0, 1, 2, 3),
        "recoverable_ms_per_step": 4.0,
        "title": "the training thread stalls",
        "advice": ("Do less.",),
    }
    return Finding(code=code, **(usual | fields))


def where(analysis: Analysis) -> list[str]:
    return location(verdict_of(analysis), analysis)


def also(text: str) -> str:
    return text.partition("\nAlso")[2].partition("\nMore")[0].strip()


@pytest.mark.parametrize(
    ("analysis", "expected"),
    [
        (job(finding()), ["all 4 ranks"]),
        (job(finding(ranks=(0, 1)), ranks=2), ["both ranks"]),
        (job(finding(ranks=(1,))), ["rank 1"]),
        (job(finding(ranks=(1,), title="rank 1 stalls")), []),
        (job(finding(ranks=(0,)), ranks=1), []),
        (job(finding(ranks=(0, 1)), ranks=2, world_size=4), ["ranks 0 and 1"]),
    ],
)
def test_ranks_are_named_unless_the_title_has_them(analysis: Analysis, expected: list[str]) -> None:
    assert where(analysis) == expected


def test_recording_without_lines_says_which_command_names_them() -> None:
    hint = "gpudiag profile -- COMMAND names file and line"
    assert where(job(finding(place="after aten::to")))[-1] == hint
    assert hint not in where(job(finding(place="after aten::to (train.py:8)")))
    assert hint not in where(job(finding(code="slow-compute", place="in a kernel")))


@pytest.mark.parametrize(("transfer_us", "shown"), [(9000.0, True), (1000.0, False)])
def test_collective_that_takes_most_of_the_communication_is_named(transfer_us: float, shown: bool) -> None:
    def call(size_bytes: int, us: float) -> CollectiveSummary:
        return CollectiveSummary(
            operation="all_reduce", group="0", ranks=4, size_bytes=size_bytes, per_step=1.0, transfer_us=us, wait_us=0.0
        )

    calls = (call(411_000_000, transfer_us), call(4_000, 1000.0))
    analysis = job(finding("communication-bound", title="communication adds 4.0 ms per step"), collectives=calls)
    assert ("mostly all-reduce of 411 MB" in where(analysis)) == shown


def test_rest_has_other_findings_unexplained_time_and_warnings_in_one_line() -> None:
    analysis = job(
        finding(),
        finding("slow-copy", severity="info", recoverable_ms_per_step=0.4, cause="pageable memory", title="copies"),
        finding("straggler", severity="info", recoverable_ms_per_step=0.2, ranks=(2,), cause="unknown", title="late"),
        finding("compute-bound", severity="info", recoverable_ms_per_step=None, title="computes"),
        explained=(Explained(bucket="idle", ms=1.0, unexplained_ms=1.0),),
        validity=(Validity(code="few-steps", message="few"), Validity(code="clock-skew", message="skewed")),
    )
    assert also(drawn(analysis, 300)) == (
        "slow-copy (pageable memory) 0.4 ms (4 %), straggler (rank 2) 0.2 ms (2 %); without known cause: idle 1.0 ms; "
        "warnings: few-steps, clock-skew"
    )


def test_alternative_of_the_verdict_is_not_named_again() -> None:
    analysis = job(finding(instead=("slow-copy",)), finding("slow-copy", severity="info", title="copies"))
    output = drawn(analysis, 200)
    assert "  Or " in output
    assert also(output) == ""
    assert output.count("slow-copy") == 1


def test_warning_that_the_next_step_explains_is_not_named_again() -> None:
    output = drawn(job(validity=(Validity(code="few-steps", message="1 step was analysed"),)), 200)
    assert "Record again (few-steps): 1 step was analysed" in output
    assert also(output) == ""


def test_commands_have_quoted_paths_and_explain_the_finding() -> None:
    analysis = job(finding())
    commands = [line for line, _ in commands_for_more(analysis, verdict_of(analysis), ["my run"], "my run/report.html")]
    assert commands == ["gpudiag analyze 'my run' --full", "my run/report.html", "gpudiag explain host-stall"]
    assert paths_in_command([]) == paths_in_command(["x" * 200]) == "…"
    assert paths_in_command(["a;b", "\x1b[2J"]) == "'a;b' '␛[2J'"


def test_code_that_is_not_documented_is_not_explained() -> None:
    analysis = job(finding("made-up"))
    assert not any("explain" in line for line, _ in commands_for_more(analysis, verdict_of(analysis), []))


def test_gain_and_header_agree_if_an_estimate_hardly_differs() -> None:
    steps = Steps(analysed=4, mean_ms=10.0, median_ms=10.0, corrected_mean_ms=9.95)
    output = drawn(replace(job(finding()), steps=steps), 200)
    assert "Step 10.0 ms while profiling" in output
    assert "Gain    10.0 → 6.0 ms per step" in output
