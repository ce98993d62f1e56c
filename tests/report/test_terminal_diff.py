"""Test the terminal report of a difference, at several widths and in color."""

from __future__ import annotations

import doctest
import io
import re
import unicodedata
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from rich.cells import cell_len

from gpudiag.analysis.comparison import compare
from gpudiag.report.diff import words as diff_words
from gpudiag.report.diff.tables import BarGlyphs, bars_of
from gpudiag.report.diff.terminal import render_diff
from tests.analysis.comparison.runs import analyses, healthy, hostile, late_rank, run, source
from tests.examples import examples
from tests.report.consoles import Colour, console

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpudiag.model.analysis import Analysis
    from gpudiag.model.diff import Diff

CASES: dict[str, Callable[[], Diff]] = {
    "late_rank": lambda: compare(healthy(), late_rank()),
    "fixed": lambda: compare(late_rank(), healthy()),
    "same": lambda: compare(healthy(), healthy()),
    "hostile": lambda: compare(healthy(), hostile()),
}
ANSI = re.compile(r"\x1b\[[0-9;]*m")
PEN = BarGlyphs(longer="#", shorter="=", nothing="|")


def drawn(diff: Diff, width: int, *, colour: Colour | None = None, encoding: str = "utf-8") -> str:
    target = console(width, colour=colour, encoding=encoding)
    render_diff(diff, target)
    assert isinstance(target.file, io.StringIO)
    return target.file.getvalue()


def test_documented_examples_are_correct() -> None:
    assert doctest.testmod(diff_words).failed == 0


@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize("case", CASES)
def test_report_equals_its_golden(case: str, width: int, golden: Callable[[str, str], None]) -> None:
    golden(f"diff-{case}-{width}.txt", drawn(CASES[case](), width))


def test_report_in_color_equals_its_golden(golden: Callable[[str, str], None]) -> None:
    output = drawn(CASES["late_rank"](), 80, colour="256")
    golden("diff-late_rank-80.ansi", output)
    assert ANSI.sub("", output) == drawn(CASES["late_rank"](), 80), "color changes no word and no bar"


@examples(40, suppress_health_check=[HealthCheck.too_slow])
@given(analyses(), analyses(), st.integers(40, 160))
def test_any_figures_fit_any_width(before: Analysis, after: Analysis, width: int) -> None:
    lines = drawn(compare(before, after), width).splitlines()
    assert max(cell_len(line) for line in lines) <= width
    assert all(line == line.rstrip(" ") for line in lines)


@pytest.mark.parametrize("width", [40, 57, 80, 160])
def test_names_from_files_are_shown_without_effect(width: int) -> None:
    for diff in (compare(healthy(), hostile()), compare(hostile(), healthy()), compare(hostile(), hostile())):
        output = drawn(diff, width)
        assert not [c for c in output if unicodedata.category(c) in {"Cc", "Cf", "Cs"} and c != "\n"]
        assert max(cell_len(line) for line in output.splitlines()) <= width
    assert "[bold" in output


def test_verdict_is_in_the_first_lines() -> None:
    first, second = drawn(CASES["late_rank"](), 160).splitlines()[:2]
    assert first == "SLOWER  Steps of B take 26.0 ms longer than those of A (+83 %)."
    assert second.startswith("Mostly because rank 2 has 26.0 ms more idle")
    assert "others wait 25.8 ms longer for it" in second


def test_small_difference_is_called_noise() -> None:
    # Both runs have five steps of variance 0.00625: 0.02 ± t(8) sqrt(2 · 0.00625 / 5) = 0.02 ± 2.306 · 0.05.
    diff = compare(run({"compute": 30.0}), run({"compute": 30.02}))
    (first, *rest) = drawn(diff, 120).splitlines()
    assert first.startswith("NO DIFFERENCE  beyond noise: B's step is +0.02 ms, 95 % interval -0.10 to +0.14 ms.")
    assert rest[0] == ""


def test_ascii_terminals_get_ascii_bars() -> None:
    bars = drawn(CASES["late_rank"](), 80, encoding="ascii")
    assert "####" in bars
    assert "█" not in bars


def test_many_ranks_are_reduced_to_median_and_outliers() -> None:
    before = run(*({"compute": 40.0} for _ in range(32)))
    after = run(*({"compute": 44.0, "idle": 9.0 if rank == 17 else 0.0} for rank in range(32)))
    output = drawn(compare(before, after), 100)
    ranks = output.partition("Ranks, B - A\n")[2].split("\n\n")[0]
    assert [line.split("  ")[0] for line in ranks.splitlines()[:2]] == ["median of 32", "rank 17"]
    assert len(ranks.splitlines()) == 3


def test_different_settings_are_listed_at_the_end() -> None:
    after = msgspec.structs.replace(healthy(), source=source(batch_size_per_device=128, samples_per_s=4000.0))
    output = drawn(compare(healthy(), after), 120)
    assert "batch size per device 64 → 128: a step does other work: compare samples per second" in output


def test_each_bar_begins_where_the_previous_one_ended() -> None:
    bars = [bar.plain for bar in bars_of([6.0, -2.0], 4.0, 12, PEN)]
    assert bars == ["############", "        ====", "########"]


@given(st.lists(st.floats(-1e3, 1e3), max_size=8), st.integers(1, 60))
def test_bars_stay_within_their_width_and_are_never_empty(differences: list[float], width: int) -> None:
    bars = bars_of(differences, sum(differences), width, PEN)
    assert len(bars) == len(differences) + 1
    for bar, difference in zip(bars, [*differences, sum(differences)], strict=True):
        assert 1 <= len(bar.plain) <= width
        assert set(bar.plain.strip()) <= ({"#", "|"} if difference > 0 else {"=", "|"})


def test_parts_sum_to_the_difference() -> None:
    output = drawn(CASES["late_rank"](), 100)
    table = output.partition("Largest changes\n")[2].split("\n\n")[0].splitlines()[1:]
    figures = [float(line.split()[0]) for line in table]
    assert sum(figures[:-1]) == pytest.approx(figures[-1], abs=0.05 * len(figures))
    assert figures[-1] == pytest.approx(26.0)
