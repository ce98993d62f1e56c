"""Test how the time of source lines is compared between two runs."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from gpudiag.analysis.comparison.changes import line_changes
from gpudiag.app.analyze import analyze
from gpudiag.model.analysis import Analysis
from gpudiag.model.source_lines import SourceLine


def line(number: int, source: str, ms: float, *, rank: int = 0, process: str = "training") -> SourceLine:
    return SourceLine(
        rank=rank,
        process=process,  # type: ignore[arg-type]
        file="train.py",
        line=number,
        function="main",
        source=source,
        ms_per_step=ms,
        self_ms=ms,
        samples=9,
    )


@pytest.fixture(scope="module")
def plain() -> Analysis:
    return analyze([Path(__file__).parents[2] / "traces" / "clean"])


def test_line_is_identified_by_its_text_and_not_by_its_number(plain: Analysis) -> None:
    before = msgspec.structs.replace(plain, lines=(line(7, "  save()", 4.0), line(8, "  step()", 2.0)))
    after = msgspec.structs.replace(plain, lines=(line(9, "  step()", 2.5), line(11, "save()", 1.0)))
    changes = [
        (change.line, change.source, change.before_ms, change.after_ms) for change in line_changes(before, after)
    ]
    assert changes == [(11, "save()", 4.0, 1.0), (9, "step()", 2.0, 2.5)]


def test_line_times_are_means_over_ranks_without_workers(plain: Analysis) -> None:
    before = msgspec.structs.replace(plain, lines=(line(7, "save()", 4.0), line(7, "save()", 8.0, rank=1)))
    after = msgspec.structs.replace(
        before,
        lines=(line(7, "save()", 1.0), line(7, "save()", 1.0, rank=1), line(3, "decode()", 50, process="worker")),
    )
    (change,) = line_changes(before, after)
    assert (change.before_ms, change.after_ms, change.difference_ms) == (6.0, 1.0, -5.0)


def test_lines_are_compared_only_if_both_runs_have_lines(plain: Analysis) -> None:
    assert line_changes(msgspec.structs.replace(plain, lines=(line(7, "save()", 4.0),)), plain) == ()
