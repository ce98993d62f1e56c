"""Test that line events attribute each instant to one line, below the lines that called it."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.analysis.lines.times import ProcessTimes
from gpudiag.analysis.lines.walk import LineTree, walk
from gpudiag.model.source_lines.log import CALL, CALLS, INPUT_BEGIN, INPUT_END, LEAVE, PAUSE, STEP, ProcessLines
from tests.analysis.lines.logs import HELPER, HOOK, MAIN, Row, calling, log_of, step_rows

BACKWARD, FORWARD = -13, -12


def times_of(log: ProcessLines) -> dict[tuple[int, ...], float]:
    """Return path of line numbers → self time of the line in ns over all steps."""
    process = ProcessTimes(log)
    own = process.self_ns.sum(axis=1)
    paths = [tuple(process.tree.position[above][1] for above in process.tree.path(node)) for node in range(len(own))]
    return {path: float(ns) for path, ns in zip(paths, own, strict=True) if ns}


def test_time_belongs_to_the_current_line_below_the_line_that_called_it() -> None:
    rows = step_rows(0, [(1, MAIN, 3), (1, HELPER, CALL), (2, HELPER, 8), (6, HELPER, LEAVE), (7, MAIN, 4)], 9)
    assert times_of(log_of([*rows, (10, -1, STEP)])) == {(9,): 1, (3,): 2, (3, 8): 4, (4,): 2}


def test_gpudiags_own_time_between_steps_belongs_to_no_line() -> None:
    rows = [*step_rows(0, calling(1, 22, 5), 10), *step_rows(500, calling(501, 22, 5), 510), (900, -1, STEP)]
    assert sum(times_of(log_of(rows)).values()) == 20


def test_exception_leaves_frames_that_report_no_return() -> None:
    rows = step_rows(0, [(1, MAIN, 5), (1, HELPER, CALL), (1, HELPER, 22), (4, MAIN, 6)], 9)
    assert times_of(log_of([*rows, (10, -1, STEP)])) == {(9,): 1, (5, 22): 3, (6,): 5}


def test_hook_on_autograds_thread_counts_below_the_line_that_waits_in_backward() -> None:
    rows = step_rows(0, [(1, MAIN, 5), (2, -1, BACKWARD), (20, MAIN, 6)], 30)
    hook: list[Row] = [(5, HOOK, CALL), (5, HOOK, 41), (12, HOOK, LEAVE)]
    late: list[Row] = [(25, HOOK, CALL), (25, HOOK, 41), (28, HOOK, LEAVE)]
    log = log_of([*rows, (40, -1, STEP)], threads=[[*hook, *late]])
    assert times_of(log) == {(9,): 1, (5,): 4 + 8, (5, 41): 7, (6,): 10}


def test_line_has_the_kind_of_work_that_it_calls() -> None:
    rows = step_rows(0, [(1, MAIN, 5), (2, -1, FORWARD), (3, MAIN, 6), (4, -1, BACKWARD), (5, MAIN, 7)], 9)
    tree = LineTree()
    log = log_of([*rows, (10, -1, STEP)])
    walk(tree, log, log.sections[0])
    kinds = {tree.position[node][1]: tree.kind(node) for node in range(1, len(tree.parent))}
    assert kinds == {9: "other", 5: "forward", 6: "backward", 7: "other"}


def test_all_lines_within_an_input_range_are_input() -> None:
    fetch: list[Row] = [(2, -1, INPUT_BEGIN), (3, MAIN, 6), (4, HELPER, CALL), (4, HELPER, 22), (6, -1, INPUT_END)]
    rows = step_rows(0, [(1, MAIN, 5), *fetch, (6, HELPER, LEAVE), (7, MAIN, 7)], 9)
    tree = LineTree()
    log = log_of([*rows, (10, -1, STEP)])
    walk(tree, log, log.sections[0])
    kinds = {tree.position[node][1]: tree.kind(node) for node in range(1, len(tree.parent))}
    assert kinds == {9: "other", 5: "input", 6: "input", 22: "input", 7: "other"}


def test_calls_of_functions_without_events_count_at_the_previous_event() -> None:
    rows = step_rows(0, [(1, MAIN, 5), (1, -1, CALLS - 12), (8, MAIN, 6)], 9)
    tree, log = LineTree(), log_of([*rows, (10, -1, STEP)])
    walked = walk(tree, log, log.sections[0])
    assert [(tree.position[walked.node[index]][1], calls) for index, calls in walked.calls.items()] == [(5, 12)]


@st.composite
def any_events(draw: st.DrawFn) -> list[Row]:
    """Draw events of two steps or more: calls, returns and lines in any order, with pauses before steps."""
    rows: list[Row] = [(0, -1, STEP)]
    now = 0
    for _ in range(draw(st.integers(1, 4))):
        for value in draw(st.lists(st.sampled_from([CALL, LEAVE, 3, 5, 22, 41, BACKWARD, CALLS - 3]), max_size=12)):
            now += draw(st.integers(0, 50))
            code = -1 if value == BACKWARD or value < -900 else draw(st.sampled_from([MAIN, HELPER, HOOK]))
            rows.append((now, code, value))
        now += draw(st.integers(1, 50))
        rows.append((now, -1, PAUSE))
        now += draw(st.integers(0, 50))
        rows.append((now, -1, STEP))
    return rows


@given(rows=any_events())
def test_lines_of_any_events_sum_to_the_steps_without_pauses(rows: list[Row]) -> None:
    process = ProcessTimes(log_of(rows))
    marks = [(at_ns, value) for at_ns, _, value in rows if value in {STEP, PAUSE}]
    lengths = [pause - step for (step, kind), (pause, _) in itertools.pairwise(marks) if kind == STEP]
    assert process.total_ns[0].sum() == pytest.approx(sum(lengths[len(lengths) - process.steps :]))
    assert (process.total_ns >= process.self_ns - 1e-6).all()
