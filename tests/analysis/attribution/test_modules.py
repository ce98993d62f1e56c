"""Test module times on recordings with known times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gpudiag.analysis.attribution.modules import summarise_modules
from gpudiag.analysis.timeline import build_timeline
from gpudiag.model.analysis import Modules, ModuleTime
from gpudiag.model.event import EventKind, Module, ModuleWork, Trace
from gpudiag.model.run import RankRecord, RunRecord
from gpudiag.trace.with_operators import with_operators
from tests.timeline_builder import TraceBuilder
from tests.trace.documents import document, event, read_one
from tests.trace.marked_modules import OUTSIDE_US, STEP_US, STEPS, TAKES, backward, job, mark, operator

if TYPE_CHECKING:
    from pathlib import Path


def near(*values: float) -> Any:
    return pytest.approx(values)


def modules_of(*traces: Trace) -> Modules:
    modules = summarise_modules(build_timeline(traces), None)
    assert modules is not None
    return modules


def by_path(found: Modules) -> dict[str, ModuleTime]:
    assert len({time.path for time in found.times}) == len(found.times)
    return {time.path: time for time in found.times}


def check_truth(found: Modules) -> None:
    """Check the times of `tests.trace.marked_modules`, in ms per step."""
    times = by_path(found)
    assert list(times) == ["", "a", "b"], "modules are in the order of their calls"
    for path, (forward_us, back_us) in TAKES.items():
        one = times[path]
        assert (one.own_forward_ms, one.own_backward_ms) == (near(forward_us / 1e3), near(back_us / 1e3))
        assert one.calls == 1
    assert times["a"].forward_ms == times["a"].own_forward_ms
    assert (times[""].forward_ms, times[""].backward_ms) == (near(0.16), near(0.18))
    assert [(time.root, time.type) for time in found.times] == [("Net", "Net"), ("Net", "Linear"), ("Net", "Linear")]
    assert found.outside_ms == near(OUTSIDE_US / 1e3), "the all-reduce counts neither inside nor outside of modules"


def test_kernels_belong_to_module_of_launching_operator(tmp_path: Path) -> None:
    check_truth(modules_of(read_one(tmp_path, job())))


def test_kernel_only_trace_uses_modules_of_the_full_trace(tmp_path: Path) -> None:
    light, full = read_one(tmp_path, job(operators=False), "light/rank0.json"), read_one(tmp_path, job(slower=1.5))
    joined = with_operators(light, full)
    assert joined is not None
    check_truth(modules_of(joined))


def test_module_times_are_per_device(tmp_path: Path) -> None:
    """Work of a rank without marks is outside all modules."""
    marked = replace(read_one(tmp_path, job()), rank=0, world_size=2)
    modules = modules_of(marked, replace(marked, rank=1, modules=None))
    times = by_path(modules)
    assert times["a"].forward_ms == near(0.1, 0)
    assert times["a"].calls == 0.5
    assert modules.outside_ms[1] == pytest.approx(0.16 + 0.18 + OUTSIDE_US / 1e3)


def test_cpu_module_times_are_self_times_of_operators(tmp_path: Path) -> None:
    modules = modules_of(read_one(tmp_path, job(devices=False)))
    times = by_path(modules)
    # Self times in µs: aten::linear and its nested calls 50, add 10, detach 1 and addmm 40. Backward on a different
    # thread does not count.
    assert times["a"].own_forward_ms == near(0.05)
    assert times[""].own_forward_ms == near(0.01)
    assert times["b"].own_forward_ms == near(0.041)
    assert times[""].forward_ms == near(0.101)
    assert times[""].backward_ms == near(0)
    assert modules.outside_ms == near(0.015 + 0.02)


def test_waiting_for_communication_on_a_cpu_is_no_module_time(tmp_path: Path) -> None:
    """A module enqueues a collective and waits for it in a second operator, as with FSDP."""
    events = []
    for number in range(STEPS):
        at = number * STEP_US
        events += [
            event("user_annotation", f"ProfilerStep#{number}", at, 900),
            mark("", "Net", at + 10, 400),
            operator("aten::mm", at + 20, 30),
            operator("c10d::_allgather_base_", at + 60, 20),
            event("user_annotation", "gloo:all_gather", at + 70, 200, tid=77),
            operator("aten::mul", at + 300, 50),
            operator("aten::sub", at + 500, 7),
        ]
    modules = modules_of(read_one(tmp_path, document(*events)))
    assert by_path(modules)[""].own_forward_ms == near(0.08)
    assert modules.outside_ms == near(0.007)


def test_cpu_backward_is_separate(tmp_path: Path) -> None:
    events = []
    for number in range(STEPS):
        at, node = number * STEP_US, 10 * number
        events += [
            event("user_annotation", f"ProfilerStep#{number}", at, 900),
            mark("a", "Linear", at + 10, 100),
            operator("aten::addmm", at + 20, 30, node),
            *(row | {"tid": 11} for row in backward("AddmmBackward0", at + 200, 60, node)),
            operator("aten::mm", at + 210, 40),
        ]
    times = by_path(modules_of(read_one(tmp_path, document(*events))))
    assert (times["a"].forward_ms, times["a"].backward_ms) == (near(0.03), near(0.06))


def test_no_modules_without_marks(tmp_path: Path) -> None:
    timeline = build_timeline([replace(read_one(tmp_path, job()), modules=None)])
    assert summarise_modules(timeline, None) is None
    rank = RankRecord(rank=0, local_rank=0, host="", pid=1, device="cuda:0", device_name="")
    run = RunRecord(
        created="",
        command=(),
        workload="net",
        framework="pytorch",
        strategy="nccl",
        world_size=1,
        nodes=1,
        batch_size_per_device=None,
        ranks=(rank,),
        status="complete",
    )
    assert summarise_modules(timeline, run) is None
    changed_run = replace(run, ranks=(rank, replace(rank, rank=1, unmarked="torch.compile has compiled it")))
    assert summarise_modules(timeline, changed_run) == Modules(reason="torch.compile has compiled it")


#: A module call: (nested calls, time of its operator in µs, time of the operator's backward in µs).
CALLS = st.recursive(
    st.tuples(st.just(()), st.integers(1, 9), st.integers(0, 9)),
    lambda inner: st.tuples(st.lists(inner, max_size=3).map(tuple), st.integers(0, 9), st.integers(0, 9)),
    max_leaves=8,
)


@settings(max_examples=40)
@given(calls=st.lists(CALLS, min_size=1, max_size=3), on_gpu=st.booleans(), outside=st.integers(0, 9))
def test_module_time_includes_nested_modules(calls: list[Any], on_gpu: bool, outside: int) -> None:
    trace, total_us = random_job(calls, on_gpu=on_gpu, outside=outside)
    modules = modules_of(trace)
    times = by_path(modules)
    for path, one in times.items():
        below = [other for other in times if other and path == other.rpartition(".")[0] and other != path]
        for whole, own in (("forward_ms", "own_forward_ms"), ("backward_ms", "own_backward_ms")):
            parts = sum(getattr(times[other], whole)[0] for other in below)
            assert getattr(one, whole)[0] == pytest.approx(getattr(one, own)[0] + parts)
            assert parts <= getattr(one, whole)[0] + 1e-9
    of_all = sum(time.own_forward_ms[0] + time.own_backward_ms[0] for time in modules.times)
    assert of_all + modules.outside_ms[0] == pytest.approx(total_us / 1e3)


def random_job(calls: list[Any], *, on_gpu: bool, outside: int) -> tuple[Trace, int]:
    """Return a trace whose steps make `calls`, and the time in µs of a step's operators (on a GPU: kernels)."""
    builder = TraceBuilder()
    names: list[Module] = []
    work: list[tuple[str, int, bool]] = []

    def run(call: Any, path: str, at: int) -> int:
        """Add a module call that begins at `at` µs, with its nested calls; return its end in µs."""
        inner, forward, back = call
        module = Module("Net", path, "Any")
        if module not in names:
            names.append(module)
        for index, one in enumerate(inner):
            at = run(one, f"{path}.{index}" if path else str(index), at)
        for length, backwards in ((forward, False), (back, True)):
            if length:
                name = f"{path}/{backwards}/{at}"
                builder.operator(at, at + length, name)
                work.append((name, names.index(module), backwards))
                if on_gpu:
                    builder.compute(at, at + length, launch=(at, at))
                at += length
        return at

    for _ in range(5):
        builder.step()
        at = run((tuple(calls), 1, 0), "", 0)
        builder.operator(at, at + outside, "outside")
        if on_gpu and outside:
            builder.compute(at, at + outside, launch=(at, at))
    trace = builder.build()
    of_name = {name: (module, backwards) for name, module, backwards in work}
    rows = [row for row in trace.events.rows_of(EventKind.OPERATOR).tolist() if trace.events.name_of(row) in of_name]
    module_of_row = [of_name[trace.events.name_of(row)] for row in rows]
    modules = ModuleWork(
        modules=tuple(names),
        row=np.array(rows, np.int64),
        module=np.array([module for module, _ in module_of_row], np.int32),
        backward=np.array([backwards for _, backwards in module_of_row], np.bool_),
    )
    return replace(trace, modules=modules), at + outside
