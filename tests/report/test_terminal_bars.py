from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from gpudiag.model.analysis import BUCKETS
from gpudiag.report.palette import fills
from gpudiag.report.rank_rows import buckets_seen, rows_of
from gpudiag.report.terminal.ranks import apportion, buckets_drawn, stacked_bar
from tests import builders
from tests.report.consoles import console

SHARES = st.lists(st.floats(0, 1e9), min_size=1, max_size=8)


@given(SHARES, st.integers(1, 200))
def test_cells_sum_exactly_and_are_within_one_of_the_exact_share(parts: list[float], cells: int) -> None:
    counts = apportion(parts, cells)
    total = math.fsum(parts)
    if total == 0:
        assert counts == [0] * len(parts)
        return
    assert sum(counts) == cells
    assert all(abs(count - part / total * cells) < 1 + 1e-9 for count, part in zip(counts, parts, strict=True))


@given(st.lists(st.floats(), max_size=8), st.integers(0, 200))
def test_invalid_figures_break_no_bar(parts: list[float], cells: int) -> None:
    counts = apportion(parts, cells)
    assert all(count >= 0 for count in counts)
    assert sum(counts) in {0, cells}


def test_cells_are_apportioned_to_buckets_by_rounding() -> None:
    assert apportion([29.4, 0.8, 26.1], 10) == [5, 0, 5]


def test_without_color_each_bucket_has_its_own_character() -> None:
    for encoding in ("utf-8", "ascii"):
        glyphs = [fill.glyph for fill in fills(console(80, encoding=encoding)).values()]
        assert len(set(glyphs)) == len(BUCKETS)
        assert "".join(glyphs).encode(encoding)


def test_with_color_each_bucket_has_its_own_style() -> None:
    for system in ("standard", "256", "truecolor"):
        pairs = fills(console(80, colour=system)).values()
        assert len({fill.style for fill in pairs}) == len(BUCKETS)
    assert len({fill.glyph for fill in fills(console(80, colour="standard")).values()}) == len(BUCKETS)


def test_bar_has_the_order_of_the_buckets() -> None:
    fill = fills(console(80))
    bar = stacked_bar({"idle": 1.0, "compute": 2.0, "communication_wait": 1.0}, fill, 8)
    assert bar.plain == "████░░··"


def test_legend_has_only_buckets_with_a_character_in_a_bar() -> None:
    rows, _ = rows_of([builders.device(0, compute=90.0, copy=0.1, idle=10.0)])
    assert buckets_drawn(rows, 60) == ["compute", "idle"]
    assert buckets_seen(rows) == ["compute", "copy", "idle"]
