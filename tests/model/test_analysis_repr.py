"""Test how an analysis is shown in a notebook or a debugger."""

from __future__ import annotations

from msgspec.structs import replace

from tests import builders


def test_repr_shows_findings_in_a_few_lines() -> None:
    assert repr(builders.late_loader()).splitlines() == [
        "Analysis of 4 of 4 ranks, 57.1 ms per step",
        "  critical: Rank 2's input comes late, and the other ranks wait for it",
        "  info: Gradient exchange is exposed for a moment at the end of each step",
        "  fields: .findings, .steps, .devices, .validity; tables: .frames()",
    ]


def test_repr_says_no_finding_and_counts_omitted_findings() -> None:
    analysis = builders.late_loader()
    assert "  no finding" in repr(replace(analysis, findings=()))
    many = repr(replace(analysis, findings=analysis.findings * 5))
    assert "  and 5 more findings" in many
    assert len(many.splitlines()) < 10


def test_titles_from_files_contain_no_terminal_escapes() -> None:
    assert "\x1b" not in repr(builders.hostile())
