"""Test the selftest's table in a terminal and as Markdown."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import msgspec

from gpudiag.model.benchmarks.selftest import ExpectedFinding, FaultCost, Found, LeftOut, Score, Selftest, SelftestRow
from gpudiag.report.console import report_console
from gpudiag.report.terminal.selftest import markdown, render_selftest, summary

if TYPE_CHECKING:
    from collections.abc import Callable


def result() -> Selftest:
    """Return a selftest with four rows: right, wrong, with hostile text, and too small to judge."""

    def row(fault: str, expected: ExpectedFinding, ms: float, found: Found | None, *why: str) -> SelftestRow:
        """Return a row; `why` are the reasons if it is wrong."""
        return SelftestRow(
            workload="resnet50",
            fault=fault,
            expected=expected,
            true=FaultCost(clean_ms=30.9, faulty_ms=30.9 + ms, ms=ms, standard_error_ms=0.21),
            found=found,
            tolerance_ms=2.6,
            alarm_ms=2.0,
            verdict="wrong" if why else "too small" if ms and found is None else "right",
            why=why,
            run_dir=f"resnet50/{fault}",
        )

    late = ExpectedFinding(code="straggler", ranks=(2,), causes=("input",))
    sync = ExpectedFinding(code="host-sync", ranks=(0, 1, 2, 3), causes=("aten::item", "cudaStreamSynchronize"))
    hostile = Found(code="launch-bound", ranks=(0, 1, 2, 3), cause="a|b\x1b[31m[red]", ms=12.3, confidence="high")
    return Selftest(
        device="cuda",
        device_name="NVIDIA H200",
        world_size=4,
        tolerance="found and true cost may differ by 10 % or 1 ms",
        rows=(
            row("none", ExpectedFinding(code=None, ranks=()), 0.0, None),
            row(
                "late-loader-one",
                late,
                26.2,
                Found(code="straggler", ranks=(2,), cause="input", ms=25.9, confidence="high"),
            ),
            row("sync", sync, 12.0, hostile, "launch-bound instead of host-sync"),
            row(
                "no-p2p",
                ExpectedFinding(code="communication-bound", ranks=(0, 1, 2, 3), causes=("transfer",)),
                0.9,
                None,
            ),
        ),
        left_out=(LeftOut(fault="tiny-kernels", why="needs GPUs"), LeftOut(fault="pageable-copies", why="needs GPUs")),
        scores=(
            Score(name="found", right=2, of=3, low=0.21, high=0.94),
            Score(name="code first", right=0, of=0, low=0.0, high=1.0),
        ),
        software={"torch": "2.11"},
    )


def test_table_equals_its_golden(golden: Callable[[str, str], None]) -> None:
    drawn = io.StringIO()
    render_selftest(result(), report_console(drawn, width=100))
    golden("selftest-100.txt", "".join(f"{line.rstrip()}\n" for line in drawn.getvalue().splitlines()))


def test_markdown_table_equals_its_golden(golden: Callable[[str, str], None]) -> None:
    golden("selftest.md", markdown(result()))


def test_clean_job_shows_its_measured_losses() -> None:
    whole = result()
    clean = msgspec.structs.replace(whole.rows[0], exchange_ms=1.84, launching_ms=-0.2)
    assert "no alarm, but communication 1.8 ms, launching 0.0 ms" in markdown(
        msgspec.structs.replace(whole, rows=(clean,))
    )


def test_summary_counts_each_verdict() -> None:
    assert summary(result()) == "4 rows: 2 right, 1 wrong, 1 too small to see."
