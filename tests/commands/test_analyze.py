"""Test `gpudiag analyze` on a real trace of two CPU processes under gloo."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpudiag.commands.analyze import THRESHOLDS, crosses
from gpudiag.model.analysis import BUCKETS, Finding, Validity
from tests import builders
from tests.cli_process import gpudiag, in_this_process

if TYPE_CHECKING:
    from gpudiag.model.analysis import Severity

pytestmark = pytest.mark.processes

TRACES = Path(__file__).parents[1] / "traces" / "gloo_dataloader"


def test_json_is_alone_on_standard_output() -> None:
    result = gpudiag("analyze", str(TRACES), "--json")
    assert (result.returncode, result.stderr) == (0, "")
    analysis = json.loads(result.stdout)
    assert analysis["schema"] == "gpudiag/analysis/1"
    assert analysis["ranks_present"] == [0, 1]
    for device in analysis["devices"]:
        assert tuple(device["buckets_ms"]) == BUCKETS
        assert sum(device["buckets_ms"].values()) == pytest.approx(device["step_ms"])


def test_saved_json_gives_the_same_report_as_the_traces(tmp_path: Path) -> None:
    saved = tmp_path / "analysis.json"
    saved.write_text(in_this_process("analyze", str(TRACES), "--json").stdout, encoding="utf-8")
    from_traces = in_this_process("analyze", str(TRACES), "--width", "80")
    for source in (saved, TRACES):
        again = in_this_process("report", str(source), "--width", "80")
        assert again.stdout.partition("\nMore ")[0] == from_traces.stdout.partition("\nMore ")[0]
        assert "\nMore  gpudiag report" in again.stdout


@pytest.mark.parametrize(("severity", "code"), [("info", 1), ("corrupt-transfer", 0)])
def test_fail_on_sets_the_exit_code_but_not_the_json(severity: str, code: int) -> None:
    result = in_this_process("analyze", str(TRACES), "--json", "--fail-on", severity)
    assert result.returncode == code
    json.loads(result.stdout)
    assert result.stderr == ("" if code == 0 else "gpudiag: --fail-on info was crossed\n")


@pytest.mark.parametrize(
    ("severities", "word", "crossed"),
    [
        (["critical"], "critical", True),
        (["critical"], "warning", True),
        (["critical"], "info", True),
        (["warning"], "critical", False),
        (["info"], "warning", False),
        (["info"], "info", True),
        ([], "info", False),
        (["info"], "straggler", True),
        (["critical"], "slow-copy", False),
        ([], "few-steps", True),
        ([], "missing-ranks", False),
        ([], "cannot-tell", True),
    ],
)
def test_threshold_is_crossed_by_its_code_or_severity(severities: list[Severity], word: str, crossed: bool) -> None:
    analysis = builders.analysis(
        findings=tuple(Finding(code="straggler", severity=severity) for severity in severities),
        validity=(
            Validity(code="few-steps", message="one step"),
            Validity(code="cannot-tell:straggler", message="one rank of two"),
        ),
    )
    assert word in THRESHOLDS
    assert crosses(analysis, word) is crossed


def broken(name: str, directory: Path) -> Path:
    """Make a file with the damage that a crashed job or a broken transfer causes."""
    whole = (TRACES / "rank0.pt.trace.json.gz").read_bytes()
    content = {
        "empty.json": b"",
        "empty.json.gz": b"",
        "truncated.json.gz": whole[: len(whole) // 2],
        "no-json.json": b"hello",
        "other.json": b'{"a": [1, 2]}',
        "list.json": b"[1, 2, 3]",
        "binary.json": bytes(range(256)),
        "bomb.json.gz": gzip.compress(b'{"traceEvents": [' + b" " * 100_000_000, 9),
    }[name]
    path = directory / name
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    "name",
    [
        "empty.json",
        "empty.json.gz",
        "truncated.json.gz",
        "no-json.json",
        "other.json",
        "list.json",
        "binary.json",
        "bomb.json.gz",
    ],
)
def test_broken_trace_gives_code_4_one_line_and_a_hint(name: str, tmp_path: Path) -> None:
    result = in_this_process("analyze", str(broken(name, tmp_path)), "--max-trace-gb", "0.05")
    assert result.returncode == 4, result.stderr
    assert result.stdout == ""
    first, second = result.stderr.splitlines()
    assert name in first
    assert second.startswith("  hint: ")


@pytest.mark.parametrize("path", ["gone.json", "nowhere/*.json.gz", "\x1b[2Jgone", "a\nb", ""])
def test_missing_path_is_reported(path: str, tmp_path: Path) -> None:
    result = in_this_process("analyze", path, cwd=tmp_path)
    assert result.returncode == 4
    assert "\x1b" not in result.stderr
    assert len(result.stderr.splitlines()) == 2


def test_analysis_of_one_rank_of_two_mentions_the_missing_rank(tmp_path: Path) -> None:
    (tmp_path / "rank0.pt.trace.json.gz").write_bytes((TRACES / "rank0.pt.trace.json.gz").read_bytes())
    result = in_this_process("analyze", str(tmp_path), "--fail-on", "missing-ranks")
    assert result.returncode == 1
    assert "of 2 ranks" in result.stdout.splitlines()[0]
    assert re.search(r"^Also .*\bmissing-ranks\b", result.stdout, re.MULTILINE | re.DOTALL)


def test_each_of_two_jobs_gets_its_own_report(tmp_path: Path) -> None:
    jobs = [str(TRACES.parent / name) for name in ("tiny", "slow_loader_rank2")]
    both = in_this_process("analyze", *jobs, "--width", "100", "--fail-on", "straggler")
    alone = [in_this_process("analyze", job, "--width", "100").stdout for job in jobs]
    assert (both.returncode, both.stderr) == (1, "gpudiag: --fail-on straggler was crossed\n")
    assert both.stdout == (
        f"Job 1 of 2: {jobs[0]}\n\n{alone[0]}\nJob 2 of 2: {jobs[1]}\n\n{alone[1]}\n"
        f"Two compared: gpudiag diff {jobs[0]} {jobs[1]}\n"
    )


@pytest.mark.parametrize("options", [("analyze", "--json"), ("report", "--html", "page.html")])
def test_two_jobs_are_refused_where_one_is_needed(options: tuple[str, ...], tmp_path: Path) -> None:
    verb, *rest = options
    jobs = [str(TRACES.parent / name) for name in ("tiny", "slow_loader_rank2")]
    result = gpudiag(verb, *jobs, *rest, cwd=tmp_path)
    assert (result.returncode, result.stdout, [*tmp_path.iterdir()]) == (2, "", [])
    assert f"gpudiag diff {jobs[0]} {jobs[1]}" in result.stderr
