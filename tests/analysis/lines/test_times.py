"""Test the time of lines: lines without events, lines in traced steps, and lines placed on a trace."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from gpudiag.analysis.lines.choose import location, main_line, other_work
from gpudiag.analysis.lines.on_trace import LinesOnTrace, lines_on_trace
from gpudiag.analysis.lines.spans import line_spans
from gpudiag.analysis.lines.table import line_table
from gpudiag.analysis.lines.times import ProcessTimes
from gpudiag.analysis.lines.walk import NO_LINE
from gpudiag.model.source_lines.log import CALL, CALLS, LEAVE, PAUSE, STEP, ProcessLines
from tests.analysis.lines.logs import HELPER, HOOK, LIBRARY, MAIN, Row, calling, log_of, step_rows

MS = 1_000_000


def hot_loop(begin_ns: int, *, recorded: bool) -> list[Row]:
    """Return a step in which `helper` spends 6 ms in a loop of the lines 21 and 22; only line 20 is always recorded."""
    rows: list[Row] = [(begin_ns, MAIN, 5), (begin_ns, HELPER, CALL), (begin_ns, HELPER, 20)]
    if recorded:
        for turn in range(100):
            start = begin_ns + turn * 60_000
            rows += [(start, HELPER, 21), (start + 20_000, HELPER, 22)]
    return [*rows, (begin_ns + 6 * MS, HELPER, LEAVE), (begin_ns + 6 * MS, MAIN, 9)]


def with_hot_loop() -> ProcessLines:
    rows: list[Row] = []
    for step in range(6):
        begin = step * 10 * MS
        rows += step_rows(begin, hot_loop(begin + MS, recorded=step < 2), begin + 8 * MS)
    return log_of([*rows, (60 * MS, -1, STEP)])


def test_omitted_lines_get_their_share_of_the_function() -> None:
    process = ProcessTimes(with_hot_loop())
    line = {process.tree.position[node][1]: node for node in range(1, len(process.tree.parent))}
    assert {process.tree.position[node][1] for node in process.omitted} == {21, 22}
    mean_ms = process.self_ns.mean(axis=1) / MS
    assert mean_ms[line[22]] == pytest.approx(4, rel=0.02)
    assert mean_ms[line[21]] == pytest.approx(2, rel=0.02)
    assert process.total_ns[0].mean() == 8 * MS


def test_loop_in_a_helper_is_named_by_its_longest_line() -> None:
    process = ProcessTimes(with_hot_loop())
    node = main_line(process, process.self_ns.mean(axis=1))
    assert node is not None
    source = location(process, node)
    assert (source.file, source.line, source.function) == ("train.py", 22, "helper")
    assert source.words == "train.py:22 `time.sleep(1)`"
    rows = line_table(process, 3, "training")
    assert [(row.line, row.depth, row.estimated) for row in rows] == [
        (5, 0, False),
        (21, 1, True),
        (22, 1, True),
        (9, 0, False),
    ]
    assert rows[0].ms_per_step == pytest.approx(6)
    assert rows[0].ci95 == pytest.approx(0)


def test_lines_above_the_loop_are_never_named() -> None:
    rows = [*step_rows(0, [(1, MAIN, 9)], 9), (10, -1, STEP)]
    stack = [(HOOK, 99), (MAIN, 9)]
    process = ProcessTimes(log_of(rows, stack=stack))
    amounts = np.zeros(len(process.tree.parent))
    amounts[1] = 5.0  # line 99 of the library calls `main`
    assert main_line(process, amounts) is None


def test_callback_below_a_librarys_loop_is_named_and_the_library_is_not() -> None:
    fit = [(1, LIBRARY, 8), (1, HELPER, CALL), (1, HELPER, 22), (8, HELPER, LEAVE), (8, LIBRARY, 9)]
    process = ProcessTimes(log_of([*step_rows(0, fit, 9), (10, -1, STEP)], stack=[(MAIN, 5), (LIBRARY, 7)]))
    node = main_line(process, process.self_ns.mean(axis=1))
    assert node is not None
    assert location(process, node).line == 22
    assert [(row.line, row.depth) for row in line_table(process, 0, "training")] == [(22, 0)]
    library = np.array([float(process.tree.position[n][0] == LIBRARY) for n in range(len(process.tree.parent))])
    assert main_line(process, library) is None


def test_traced_steps_are_corrected_by_the_unprofiled_step() -> None:
    rows: list[Row] = []
    for step in range(5):
        begin = step * 10 * MS
        middle = [(begin + 1, MAIN, 5), (begin + 1, -1, CALLS - 900), (begin + 6 * MS, MAIN, 6)]
        rows += step_rows(begin, middle, begin + 8 * MS)
    log = log_of([*rows, (50 * MS, -1, STEP)], by="traced")
    plain, corrected = ProcessTimes(log), ProcessTimes(log, step_ms=4.0)
    assert plain.total_ns[0].mean() == 8 * MS
    assert corrected.total_ns[0].mean() == pytest.approx(4 * MS, rel=0.02)
    line = {corrected.tree.position[node][1]: node for node in range(1, len(corrected.tree.parent))}
    # Line 5 has 900 of the 904 calls and events.
    assert corrected.self_ns[line[5]].mean() == pytest.approx(2 * MS, rel=0.03)
    assert corrected.self_ns[line[6]].mean() == pytest.approx(2 * MS, rel=0.03)


def test_removable_work_is_neither_training_nor_recomputation() -> None:
    forward, backward = -12, -13
    step = [
        (0, MAIN, 3),
        (0, -1, forward),
        (1, HELPER, CALL),
        (1, HELPER, 22),
        (20, HELPER, LEAVE),
        (20, MAIN, 4),
        (20, -1, backward),
        (21, HELPER, CALL),  # checkpointing calls the forward function again
        (21, HELPER, 22),
        (40, HELPER, LEAVE),
        (41, HOOK, CALL),
        (41, HOOK, 41),
        (60, HOOK, LEAVE),
        (60, MAIN, 6),
        (80, MAIN, 9),
    ]
    process = ProcessTimes(log_of([*step_rows(0, step, 90), (99, -1, STEP)]))
    lines = [process.tree.position[node][1] for node in other_work(process, 10.0)]
    assert sorted(lines) == [6, 9, 41]


def test_section_is_placed_on_the_trace_by_its_step_marks() -> None:
    rows: list[Row] = []
    for step in range(6):
        begin = step * 10 * MS
        rows += step_rows(begin, calling(begin + MS, 22, 3 * MS), begin + 9 * MS)
    process = ProcessTimes(log_of([*rows, (60 * MS, -1, STEP)], kind="light"))
    shift = 123_456_789
    marks = np.array([step * 10 * MS + shift + jitter for step, jitter in enumerate([5, 0, 9, 2, 4, 0])])
    lines = lines_on_trace(process, marks)
    assert lines is not None
    by_node = lines.by_node(shift + 20 * MS, shift + 30 * MS)
    helper = next(node for node in by_node if process.tree.position[node][1] == 22)
    assert by_node[helper] == pytest.approx(3 * MS, abs=20)
    assert lines_on_trace(process, marks * 2) is None  # the marks are of another recording
    assert lines_on_trace(process, marks[:1]) is None


def test_log_without_steps_has_no_times() -> None:
    process = ProcessTimes(log_of([(0, -1, STEP)]))
    assert process.steps == 0
    assert line_table(process, 0, "training") == ()
    assert ProcessTimes(log_of([(0, -1, PAUSE)])).steps == 0


def test_slower_phase_scales_lines_and_does_not_count_as_tracing() -> None:
    """Each event costs 1 µs, and traced steps were 1.5 times as slow as the unprofiled steps of 4 ms."""
    rows: list[Row] = []
    for step in range(5):
        begin = step * 20 * MS
        middle = [(begin + 1, MAIN, 5), (begin + 1, -1, CALLS - 1996), (begin + 6 * MS, MAIN, 6)]
        rows += step_rows(begin, middle, begin + 9 * MS)
    log = msgspec.structs.replace(log_of([*rows, (100 * MS, -1, STEP)], by="traced"), call_ns=1000.0)
    process = ProcessTimes(log, step_ms=4.0)
    line = {process.tree.position[node][1]: node for node in range(1, len(process.tree.parent))}
    assert process.self_ns[line[5]].mean() == pytest.approx(2 * MS, rel=0.01)  # 6 ms / 1.5 - 2 ms
    assert process.self_ns[line[6]].mean() == pytest.approx(2 * MS, rel=0.01)  # 3 ms / 1.5
    alone = ProcessTimes(log)  # without a step time, as in a worker
    assert alone.self_ns[line[5]].mean() == pytest.approx(4 * MS, rel=0.01)


def with_step_function() -> ProcessTimes:
    """Return the times of a loop in `main` (line 5). Each step is a call of `helper`, and ends within that call."""
    rows: list[Row] = []
    for step in range(4):
        begin = step * 10 * MS
        rows += [
            (begin, -1, STEP),
            (begin + 1, HELPER, LEAVE),
            (begin + 1, MAIN, 7),  # a callback
            (begin + 1, HOOK, CALL),
            (begin + 1, HOOK, 41),
            (begin + 4 * MS, HOOK, LEAVE),
            (begin + 4 * MS, MAIN, 5),
            (begin + 5 * MS, MAIN, 6),
            (begin + 5 * MS, HELPER, CALL),
            (begin + 5 * MS, HELPER, 21),
            (begin + 6 * MS, HELPER, 22),
            (begin + 8 * MS, -1, PAUSE),
        ]
    return ProcessTimes(log_of([*rows, (40 * MS, -1, STEP)], stack=[(LIBRARY, 3), (MAIN, 6), (HELPER, 22)]))


def test_loop_is_in_the_frame_that_is_not_left_between_steps() -> None:
    process = with_step_function()
    table = [(row.line, row.depth, round(row.ms_per_step, 1)) for row in line_table(process, 0, "training")]
    assert table == [(5, 0, 1.0), (6, 0, 3.0), (21, 1, 1.0), (22, 1, 2.0), (7, 0, 4.0), (41, 1, 4.0)]
    lines = [process.tree.position[node][1] for node in other_work(process, 2.5 * MS)]
    assert 7 in lines


def test_placed_lines_become_nested_spans() -> None:
    process = with_step_function()
    walked = process.alone
    assert walked is not None
    time, node = np.array(walked.time_ns, np.int64), np.array(walked.node[:-1], np.int64)
    kept = node != NO_LINE
    spans = line_spans(process, LinesOnTrace(start=time[:-1][kept], end=time[1:][kept], node=node[kept]))
    rows = [
        (spans.labels[label].partition(" ")[0], start / MS, end / MS, depth)
        for label, start, end, depth in zip(
            spans.label.tolist(), spans.start.tolist(), spans.end.tolist(), spans.depth.tolist(), strict=True
        )
        if 10 * MS <= start < 20 * MS
    ]
    assert [(place, round(start), round(end), depth) for place, start, end, depth in rows] == [
        ("train.py:6", 10, 10, 0),
        ("train.py:22", 10, 10, 1),
        ("train.py:7", 10, 14, 0),
        ("train.py:41", 10, 14, 1),
        ("train.py:5", 14, 15, 0),
        ("train.py:6", 15, 18, 0),
        ("train.py:21", 15, 16, 1),
        ("train.py:22", 16, 18, 1),
    ]


def test_tracing_cost_is_spread_over_the_spans_that_made_calls() -> None:
    columns = [np.array(column, np.int64) for column in ([0, 100, 300], [100, 200, 400], [1, 2, 1])]
    lines = LinesOnTrace(start=columns[0], end=columns[1], node=columns[2], tracing_ns=np.array([10.0, 50.0, 4.0]))
    until = lines.tracing_until(np.array([-5.0, 50.0, 100.0, 150.0, 250.0, 500.0]))
    assert until.tolist() == [0.0, 5.0, 10.0, 35.0, 60.0, 64.0]
    assert lines.without(np.array([1])).node.tolist() == [2]
