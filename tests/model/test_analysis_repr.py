"""What a notebook or a debugger shows of an analysis."""

from __future__ import annotations

from msgspec.structs import replace

from tests import builders


def test_an_analysis_is_shown_by_its_findings_in_a_few_lines() -> None:
    assert repr(builders.late_loader()).splitlines() == [
        "Analysis of 4 of 4 ranks, 57.1 ms per step",
        "  critical: Rank 2's input comes late, and the other ranks wait for it",
        "  info: Gradient exchange is exposed for a moment at the end of each step",
        "  fields: .findings, .steps, .devices, .validity; tables: .frames()",
    ]


def test_one_without_findings_says_so_and_one_with_many_is_cut() -> None:
    analysis = builders.late_loader()
    assert "  no finding" in repr(replace(analysis, findings=()))
    many = repr(replace(analysis, findings=analysis.findings * 5))
    assert "  and 5 more findings" in many
    assert len(many.splitlines()) < 10


def test_titles_from_files_cannot_command_the_terminal() -> None:
    assert "\x1b" not in repr(builders.hostile())
