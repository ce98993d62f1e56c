from __future__ import annotations

from types import CodeType

from hypothesis import given
from hypothesis import strategies as st
from source_lines.log import CALL, LEAVE, STEP, Entry, LineNode, replay, work_of


def outer() -> None: ...


def inner() -> None: ...


OUTER, INNER = outer.__code__, inner.__code__


def total(node: LineNode) -> int:
    return sum(node.step_ns.values())


def test_time_of_nested_calls_belongs_to_the_callers_line() -> None:
    entries: list[Entry] = [
        (0, None, STEP),
        (10, OUTER, 3),
        (11, INNER, CALL),
        (12, INNER, 8),
        (16, INNER, LEAVE),
        (20, OUTER, 4),
        (25, None, STEP),
    ]
    walk = replay(entries, [(OUTER, 2)])
    lines = {position[1]: node for position, node in walk.root.below.items()}
    assert {number: total(node) for number, node in lines.items()} == {2: 10, 3: 10, 4: 5}
    assert lines[3].self_ns == 6
    (below,) = lines[3].below.values()
    assert (below.position, total(below)) == ((INNER, 8), 4)
    assert walk.steps == 1


def test_an_exception_that_leaves_no_return_event_ends_the_inner_frames() -> None:
    entries: list[Entry] = [(0, None, STEP), (1, INNER, CALL), (2, INNER, 8), (5, OUTER, 4), (9, None, STEP)]
    walk = replay(entries, [(OUTER, 3)])
    assert {position[1]: total(node) for position, node in walk.root.below.items()} == {3: 5, 4: 4}


def test_time_after_the_last_step_is_in_no_step() -> None:
    walk = replay([(0, None, STEP), (4, None, STEP), (10, OUTER, 9), (11, None, 9)], [(OUTER, 3)])
    (node,) = (node for position, node in walk.root.below.items() if position[1] == 3)
    assert walk.steps == 1
    assert node.step_ns[0] == 4


def test_a_line_has_the_rarest_kind_of_work_that_it_calls() -> None:
    walk = replay([(0, None, STEP), (1, None, -12), (2, None, -13), (3, None, STEP)], [(OUTER, 3)])
    (node,) = walk.root.below.values()
    assert work_of(node) == "backward"
    assert work_of(walk.root) == "other"


ENTRIES = st.lists(
    st.tuples(st.integers(0, 50), st.sampled_from([OUTER, INNER]), st.sampled_from([CALL, LEAVE, 1, 2, 3])), max_size=40
)


@given(ENTRIES, st.integers(0, 50))
def test_line_times_sum_to_the_steps(moves: list[tuple[int, CodeType, int]], last: int) -> None:
    now = 0
    entries: list[Entry] = [(0, None, STEP)]
    for elapsed, code, what in moves:
        now += elapsed
        entries.append((now, code, what))
    entries.append((now + last, None, STEP))
    walk = replay(entries, [(OUTER, 7)])
    # A log may leave the loop's frame; time without any frame belongs to no line.
    assert sum(total(node) for node in walk.root.below.values()) <= now + last
    assert total(walk.root) == now + last

    def check(node: LineNode) -> None:
        assert total(node) == node.self_ns + sum(total(below) for below in node.below.values())
        for below in node.below.values():
            check(below)

    for node in walk.root.below.values():
        check(node)
