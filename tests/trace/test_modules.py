"""Test which module each operator belongs to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpudiag.model.event import EventKind, Module
from gpudiag.trace.with_operators import with_operators
from tests.trace.documents import document, event, read_one
from tests.trace.marked_modules import BACKWARD, MAIN, STEPS, backward, job, mark, operator

if TYPE_CHECKING:
    from pathlib import Path

    from gpudiag.model.event import Trace

NET, A, B = Module("Net", "", "Net"), Module("Net", "a", "Linear"), Module("Net", "b", "Linear")


def module_paths(trace: Trace) -> list[tuple[str, str, bool]]:
    """Return (operator, path of its module, True for backward), sorted by start."""
    work = trace.modules
    assert work is not None
    rows = zip(work.row.tolist(), work.module.tolist(), work.backward.tolist(), strict=True)
    return [(trace.events.name_of(row), work.modules[module].path, back) for row, module, back in rows]


def test_operators_belong_to_innermost_module_and_backward_to_that_of_forward(tmp_path: Path) -> None:
    trace = read_one(tmp_path, job())
    assert trace.modules is not None
    assert set(trace.modules.modules) == {NET, A, B}
    expected = [
        ("gpudiag.module:Net/ (Net)", "", False),
        ("gpudiag.module:Net/a (Linear)", "a", False),
        ("aten::linear", "a", False),
        ("aten::t", "a", False),
        ("aten::addmm", "a", False),
        ("aten::add", "", False),
        ("gpudiag.module:Net/b (Linear)", "b", False),
        ("aten::detach", "b", False),
        ("aten::addmm", "b", False),
        ("autograd::engine::evaluate_function: AddmmBackward0", "b", True),
        ("AddmmBackward0", "b", True),
        ("aten::mm", "b", True),
        ("autograd::engine::evaluate_function: AddBackward0", "", True),
        ("AddBackward0", "", True),
        ("autograd::engine::evaluate_function: AddmmBackward0", "a", True),
        ("AddmmBackward0", "a", True),
        ("aten::mm", "a", True),
        ("autograd::engine::evaluate_function: TBackward0", "a", True),
        ("TBackward0", "a", True),
    ]
    assert module_paths(trace) == expected * STEPS


def test_backward_thread_may_come_first_in_the_file(tmp_path: Path) -> None:
    whole = job()["traceEvents"]
    first = [item for item in whole if item["tid"] == BACKWARD]
    others = [item for item in whole if item["tid"] != BACKWARD]
    # The events of `apart` separate the two parts by more than any block in which a file is read.
    apart = [event("python_function", "x" * 1000, 0, 1)] * 3000
    assert module_paths(read_one(tmp_path, document(*first, *apart, *others))) == module_paths(
        read_one(tmp_path, document(*whole))
    )


def test_module_marks_are_neither_operators_nor_user_ranges(tmp_path: Path) -> None:
    events = read_one(tmp_path, job()).events
    marks = events.rows_of(EventKind.MODULE)
    assert len(marks) == 3 * STEPS
    assert {events.name_of(row) for row in marks} == {
        f"gpudiag.module:Net/{where}" for where in ("a (Linear)", "b (Linear)", " (Net)")
    }
    named = document(event("user_annotation", "gpudiag.module:Net/a (Linear)", 0, 10))
    assert read_one(tmp_path, named).events.kind.tolist() == [EventKind.ANNOTATION], (
        "a user's annotation is no mark of a module"
    )


def test_trace_without_marks_has_no_modules(tmp_path: Path) -> None:
    without = [item for item in job()["traceEvents"] if not item["name"].startswith("gpudiag.module")]
    assert read_one(tmp_path, document(*without)).modules is None


def test_recomputation_in_backward_belongs_to_its_module(tmp_path: Path) -> None:
    """A checkpoint repeats forward in backward's thread, which numbers its nodes separately."""
    again = [
        mark("a", "Linear", 112, 8, BACKWARD),
        operator("aten::addmm", 113, 6, 40, tid=BACKWARD),
        *(item | {"ts": item["ts"] + 25} for item in backward("AddmmBackward0", 100, 4, 40, forward_thread=2)),
    ]
    first = [mark("", "Net", 0, 50), operator("CheckpointFunction", 5, 40, 7)]
    trace = read_one(tmp_path, document(*first, *backward("CheckpointFunctionBackward", 100, 40, 7), *again))
    assert module_paths(trace)[2:] == [
        ("autograd::engine::evaluate_function: CheckpointFunctionBackward", "", True),
        ("CheckpointFunctionBackward", "", True),
        ("gpudiag.module:Net/a (Linear)", "a", True),
        ("aten::addmm", "a", True),
        ("autograd::engine::evaluate_function: AddmmBackward0", "a", True),
        ("AddmmBackward0", "a", True),
    ]


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("gpudiag.module:Net#2/a.0 (Linear)", Module("Net#2", "a.0", "Linear")),
        ("gpudiag.module:Net/odd (name)/x (Linear)", Module("Net", "odd (name)/x", "Linear")),
        ("gpudiag.module:\u001b[31m", Module("gpudiag.module:\u001b[31m", "", "")),
    ],
)
def test_unparsable_mark_becomes_the_module_name(name: str, module: Module, tmp_path: Path) -> None:
    trace = read_one(tmp_path, document(event("cpu_op", name, 0, 5), operator("aten::mm", 1, 2)))
    assert trace.modules is not None
    assert trace.modules.modules == (module,)
    assert trace.modules.row.tolist() == [0, 1]


def test_backward_without_recorded_forward_has_no_module(tmp_path: Path) -> None:
    lone = document(mark("a", "Linear", 0, 5), *backward("AddmmBackward0", 100, 10, 3))
    assert module_paths(read_one(tmp_path, lone)) == [("gpudiag.module:Net/a (Linear)", "a", False)]
    hostile = document(
        mark("a", "Linear", 0, 5),
        operator("aten::mm", 1, 2, args={"Sequence number": "x", "Fwd thread id": -(2**63)}),
        operator("aten::mm", 4, 9, args={"Sequence number": 2**63 - 1, "Fwd thread id": 2**63 - 1}),
    )
    assert [path for _, path, _ in module_paths(read_one(tmp_path, hostile))] == ["a", "a", "a"]


def test_kernel_only_trace_gets_modules_with_the_operators(tmp_path: Path) -> None:
    full = read_one(tmp_path, job(slower=1.5), "rank0.json")
    light = read_one(tmp_path, job(operators=False), "light/rank0.json")
    assert light.modules is None
    joined = with_operators(light, full)
    assert joined is not None
    assert module_paths(joined) == module_paths(full)
    marks = joined.events.rows_of(EventKind.MODULE)
    assert set(joined.events.thread[marks].tolist()) == {MAIN}
