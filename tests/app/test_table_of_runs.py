"""Test `gpudiag table` of profiled runs: verdicts, and reasons for missing figures."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from gpudiag.app.table import table
from gpudiag.model.run import RankRecord, RunRecord, StepTimes, Warmup
from gpudiag.model.run_directory import ANALYSIS_FILE, RUN_FILE, write_json
from gpudiag.report.console import ReportConsole
from gpudiag.report.text.results import render_table, to_markdown
from tests import builders

if TYPE_CHECKING:
    from pathlib import Path

    from gpudiag.model.benchmarks.tables import ResultsTable

ERROR = (
    "no training process reported: it imports no PyTorch, took no step, or ended before its first one; "
    "read what the command printed"
)


def record(command: tuple[str, ...], workload: str, **fields: Any) -> RunRecord:
    """Return the record of a run of one rank with steps of 57.1 ms, with `fields` changed."""
    rank = RankRecord(
        rank=0,
        local_rank=0,
        host="node",
        pid=1,
        device="cuda:0",
        device_name="NVIDIA H200",
        warmup=Warmup(steps=10, seconds=1.0, automatic=True, settled=True),
        unprofiled=StepTimes(
            step_ms=(57.0, 57.1, 57.2), mean_ms=57.1, median_ms=57.1, standard_error_ms=0.1, jitter_ms=0.1
        ),
    )
    known = RunRecord(
        created="2026-03-01T12:00:00Z",
        command=command,
        workload=workload,
        framework="pytorch",
        strategy="own",
        world_size=1,
        nodes=1,
        batch_size_per_device=None,
        ranks=(rank,),
        status="complete",
    )
    return replace(known, **fields)


def drawn(result: ResultsTable, width: int) -> str:
    console = ReportConsole(file=io.StringIO(), width=width, markup=False, emoji=False, highlight=False, _environ={})
    render_table(result, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_verdict_of_a_run_is_in_its_row(tmp_path: Path) -> None:
    write_json(tmp_path / RUN_FILE, record(("python", "train.py"), "train.py"))
    write_json(tmp_path / ANALYSIS_FILE, builders.late_loader())
    result = table([str(tmp_path)])
    (row,) = result.groups[0].environments[0].rows
    assert row.verdict == "straggler (rank 2), saves about 26.1 ms per step"
    assert row.verdict in drawn(result, 300)
    assert row.verdict in to_markdown(result).replace("\\", "")


def test_run_without_a_readable_analysis_has_no_verdict(tmp_path: Path) -> None:
    write_json(tmp_path / RUN_FILE, record(("python", "train.py"), "train.py"))
    (tmp_path / ANALYSIS_FILE).write_text('{"schema": "gpudiag/analysis/0"}')
    result = table([str(tmp_path)])
    assert result.groups[0].environments[0].rows[0].verdict == ""
    assert "verdict" not in drawn(result, 300)


def test_reason_for_missing_figures_is_not_truncated(tmp_path: Path) -> None:
    failed = record(("timeout", "60", "torchrun", "train.py"), "timeout", ranks=(), status="failed", error=ERROR)
    write_json(tmp_path / RUN_FILE, failed)
    text = drawn(table([str(tmp_path)]), 300)
    heading, columns, row, below = text.splitlines()[:4]
    assert heading.startswith("train.py")
    assert "unknown machine" not in text
    assert row.split()[:3] == ["own", "not", "measured"]
    assert below == f"{tmp_path}, own: {ERROR}"
    assert columns.split()[1] == "strategy"


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (("torchrun", "--nproc-per-node", "2", "src/train.py", "--lr", "1"), "train.py"),
        (("torchrun", "-m", "package.train"), "package.train"),
        (("python", "-m", "torch.distributed.run", "-m", "package.train"), "package.train"),
        (("./train.sh",), "train.sh"),
    ],
)
def test_command_without_reports_is_named_by_its_script(command: tuple[str, ...], name: str, tmp_path: Path) -> None:
    workload = command[0].rpartition("/")[2]
    write_json(tmp_path / RUN_FILE, record(command, workload, ranks=(), status="failed", error=ERROR))
    assert table([str(tmp_path)]).groups[0].environments[0].rows[0].point.workload == name
