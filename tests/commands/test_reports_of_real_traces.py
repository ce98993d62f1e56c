"""Test the reports of real jobs that the documentation shows."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from gpudiag.report.figures import MINUS
from tests.cli_process import gpudiag
from tests.conftest import GOLDEN
from tests.documented_reports import REPORTS, DocumentedReport, directory_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SHORT = [report for report in REPORTS if not report.full]
#: Maximum number of lines of a short report at a width of 100 columns.
MOST_LINES = 40
#: Length in words of a phrase that a short report may have only once.
PHRASE = 5


def shown(report: DocumentedReport) -> str:
    return (GOLDEN / report.golden).read_text(encoding="utf-8")


@pytest.mark.processes
@pytest.mark.parametrize("report", REPORTS, ids=lambda report: report.golden)
def test_report_equals_its_golden(report: DocumentedReport, tmp_path: Path, golden: Callable[[str, str], None]) -> None:
    result = gpudiag(*report.words, "--width", "100", cwd=directory_of(report, tmp_path))
    assert (result.returncode, result.stderr) == (0, "")
    golden(report.golden, result.stdout)


def test_ten_recordings_are_shown() -> None:
    assert len(SHORT) >= 10


@pytest.mark.parametrize("report", SHORT, ids=lambda report: report.golden)
def test_short_report_fits_into_40_lines_of_100_columns(report: DocumentedReport) -> None:
    lines = shown(report).splitlines()
    assert len(lines) <= MOST_LINES
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize("report", SHORT, ids=lambda report: report.golden)
def test_short_report_says_nothing_twice(report: DocumentedReport) -> None:
    """Bars and commands are excluded, because they may have equal words."""
    lines = [line for line in shown(report).partition("\nMore  ")[0].splitlines() if not line.startswith("rank ")]
    words = re.findall(r"\S+", " ".join(lines))
    phrases = [" ".join(words[index : index + PHRASE]) for index in range(len(words) - PHRASE + 1)]
    assert [phrase for phrase in phrases if phrases.count(phrase) > 1] == []


@pytest.mark.parametrize("report", SHORT, ids=lambda report: report.golden)
def test_gain_begins_with_the_step_time_of_the_header(report: DocumentedReport) -> None:
    header = re.search(r"^Step (?:about )?([\d .]+) ms", shown(report), re.MULTILINE)
    form = rf"^ +Gain +([\d .]+) → ([\d .]+) ms per step.* \({MINUS}(\d+) %\)"
    gain = re.search(form, shown(report), re.MULTILINE)
    assert header is not None
    assert gain is not None
    assert gain[1] == header[1]
    before, after = (float(text.replace(" ", "")) for text in gain.groups()[:2])
    assert abs(100 * (before - after) / before - int(gain[3])) <= 0.7
