"""Test the terminal report of bandwidth, at several widths and in color."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING

import msgspec
import pytest
from rich.cells import cell_len

from gpudiag.analysis.diagnosis.hardware import examine_facts
from gpudiag.model.facts import Facts, Host, Skipped
from gpudiag.report.facts.bandwidth import render_bandwidth
from gpudiag.report.page.render import bandwidth_page
from tests.probed_machine import four_h200
from tests.report.consoles import Colour, console

if TYPE_CHECKING:
    from collections.abc import Callable

ANSI = re.compile(r"\x1b\[[0-9;]*m")


def measured() -> Facts:
    facts = four_h200()
    return msgspec.structs.replace(facts, findings=examine_facts(facts))


def corrupt() -> Facts:
    facts = measured()
    first, *rest = facts.bandwidth
    spoilt = msgspec.structs.replace(first, verified=False)
    facts = msgspec.structs.replace(facts, bandwidth=(spoilt, *rest))
    return msgspec.structs.replace(facts, findings=examine_facts(facts))


def hostile() -> Facts:
    evil = "\x1b[31m[bold]<script>\u202e"
    return msgspec.structs.replace(measured(), host=Host(name=evil), skipped=(Skipped(what=evil, why=evil),))


def drawn(facts: Facts, width: int, colour: Colour | None = None) -> str:
    target = console(width, colour=colour)
    render_bandwidth(facts, target)
    assert isinstance(target.file, io.StringIO)
    return target.file.getvalue()


@pytest.mark.parametrize("width", [40, 80, 120])
def test_report_equals_its_golden(width: int, golden: Callable[[str, str], None]) -> None:
    golden(f"bandwidth-h200x4-{width}.txt", drawn(measured(), width))


def test_report_in_color_equals_its_golden(golden: Callable[[str, str], None]) -> None:
    golden("bandwidth-h200x4-80.ansi", drawn(measured(), 80, "256"))


def test_color_changes_no_word() -> None:
    assert ANSI.sub("", drawn(measured(), 80, "256")) == drawn(measured(), 80)


@pytest.mark.parametrize("width", [40, 47, 60, 80, 99, 120, 160])
@pytest.mark.parametrize("make", [measured, corrupt, hostile])
def test_no_line_is_wider_than_the_terminal_and_none_ends_in_spaces(make: Callable[[], Facts], width: int) -> None:
    lines = drawn(make(), width).splitlines()
    assert max(cell_len(line) for line in lines) <= width
    assert all(line == line.rstrip(" ") for line in lines)


def test_corrupted_data_is_marked_without_color() -> None:
    text = drawn(corrupt(), 100)
    assert "DATA CORRUPTED on 1 of" in text
    assert "55.6!" in text


def test_rate_above_its_ceiling_is_reported() -> None:
    assert "this ceiling is wrong" not in drawn(measured(), 100)
    first, *rest = measured().bandwidth
    asleep = msgspec.structs.replace(first, ceiling_gb_per_s=first.gb_per_s / 1.63)
    facts = msgspec.structs.replace(measured(), bandwidth=(asleep, *rest))
    text = " ".join(drawn(facts, 100).split())
    assert "163 % of 34." in text
    assert "this ceiling is wrong" in text
    assert "this ceiling is wrong" in bandwidth_page(facts)


def test_text_from_files_has_no_effect() -> None:
    text = drawn(hostile(), 100)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "[bold]<script>" in text


def test_missing_measurements_are_reported() -> None:
    assert "nothing was measured" in drawn(Facts(host=Host(name="laptop")), 80)
