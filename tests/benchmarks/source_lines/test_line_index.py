from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from source_lines.line_index import LineIndex
from source_lines.records import LineSpans

POSITIONS = (
    ("train.py", 90, "<module>", "main()"),
    ("train.py", 20, "main", "loss.backward()"),
    ("train.py", 21, "main", "save(model)"),
    ("train.py", 9, "save", "torch.save(model.state_dict(), path)"),
)


def spans(*stretches: tuple[int, int, int]) -> LineSpans:
    return LineSpans(
        positions=POSITIONS,
        parents=(-1, 0, 0, 2),
        own=(True, True, True, True),
        begin_ns=tuple(begin for begin, _, _ in stretches),
        end_ns=tuple(end for _, end, _ in stretches),
        position=tuple(position for _, _, position in stretches),
    )


def intervals(*pairs: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([begin for begin, _ in pairs], np.int64), np.array([end for _, end in pairs], np.int64)


LOOP = spans((0, 10, 1), (10, 12, 2), (12, 30, 3), (30, 40, 1))


def test_the_deepest_line_with_most_of_the_time_is_named() -> None:
    source = LineIndex(LOOP).source(*intervals((9, 31)))
    assert source is not None
    assert (source.file, source.line, source.text) == POSITIONS[3][:2] + POSITIONS[3][3:]
    assert source.called_from == "train.py:21"
    assert round(source.share_percent or 0) == 82


def test_the_line_of_the_loop_is_named_if_no_line_below_has_most() -> None:
    source = LineIndex(spans((0, 10, 1), (10, 22, 2), (22, 30, 3))).source(*intervals((10, 30)))
    assert source is not None
    assert source.line == 21


def test_no_line_is_named_if_the_time_is_in_several() -> None:
    assert LineIndex(LOOP).source(*intervals((0, 10), (12, 22))) is None, "the line that starts the loop has both"
    assert LineIndex(LOOP).source(*intervals((40, 90))) is None
    assert LineIndex(LOOP).source(*intervals()) is None


def test_times_are_shifted() -> None:
    source = LineIndex(LOOP, shift_ns=1000).source(*intervals((1012, 1030)))
    assert source is not None
    assert source.line == 9


SORTED = st.lists(st.integers(0, 60), min_size=2, max_size=12, unique=True).map(sorted)


@given(SORTED, st.lists(st.tuples(st.integers(0, 70), st.integers(0, 30)), max_size=8))
def test_time_by_position_is_the_overlap_with_each_span(cuts: list[int], pairs: list[tuple[int, int]]) -> None:
    stretches = [(begin, end, number % 4) for number, (begin, end) in enumerate(itertools.pairwise(cuts))]
    wanted = [(begin, begin + length) for begin, length in pairs]
    found = LineIndex(spans(*stretches)).time_by_position(*intervals(*wanted))
    for position in range(4):
        expected = sum(
            max(0, min(end, last) - max(begin, first))
            for first, last, at in stretches
            for begin, end in wanted
            if at == position
        )
        assert found[position] == expected
