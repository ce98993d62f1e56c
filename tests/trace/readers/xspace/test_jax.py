"""Test reading traces of JAX: CPU devices, collectives by HLO name, steps, waits, and functions of the program."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pytest

from gpudiag.analysis.timeline import build_timeline
from gpudiag.model.event import DEVICE_WORK, EventKind, Role
from gpudiag.model.timeline import UNKNOWN
from gpudiag.trace import read_traces
from gpudiag.trace.readers.xspace.waits import UNRECORDED_WAIT
from tests.trace.documents import TRACES
from tests.trace.readers.xspace.spaces import SpaceBuilder

if TYPE_CHECKING:
    from pathlib import Path

    from gpudiag.model.event import Trace

JAX = TRACES / "jax"
STEPS = 8
SHORTENED = {"many_operations": 6}


def recorded(name: str) -> tuple[Trace, ...]:
    return tuple(read_traces([JAX / f"{name}.xplane.pb.gz"]))


@pytest.mark.parametrize(
    "name",
    ["clean", "slow_input", "many_operations", "data_parallel", "recompiled", "unmarked", "runs_ahead"],
)
def test_real_recording_is_training_with_jax(name: str) -> None:
    traces = recorded(name)
    assert [trace.rank for trace in traces] == list(range(4 if name == "data_parallel" else 1))
    assert {(trace.framework, trace.workload) for trace in traces} == {("jax", "training")}
    assert not any(trace.notes for trace in traces)
    for trace in traces:
        assert not trace.uses_devices
        assert not len(trace.events.rows_of(*DEVICE_WORK))
        (marks,) = trace.step_marks
        assert len(marks.row) == SHORTENED.get(name, STEPS)
        assert (np.diff(trace.events.start_ns[marks.row]) > 0).all()


def test_steps_come_from_marks_else_from_the_calls_of_the_step() -> None:
    (marked,), (unmarked,) = recorded("clean"), recorded("unmarked")
    assert marked.step_marks[0].source == "step_num"
    assert marked.step_marks[0].number.tolist() == list(range(3, 3 + STEPS))
    (calls,) = unmarked.step_marks
    assert calls.source == "range"
    assert {unmarked.events.name_of(row) for row in calls.row.tolist()} == {"PjitFunction(train_step)"}


def test_main_thread_runs_one_module_per_dispatch() -> None:
    (trace,) = recorded("many_operations")
    events = trace.events
    modules = [
        events.name_of(row)
        for row in events.rows_of(EventKind.OPERATOR).tolist()
        if events.name_of(row).startswith("jit_")
    ]
    assert Counter(modules) == {"jit__lambda": 6, "jit_multiply": 30 * 6, "jit_subtract": 30 * 6}


def test_dispatching_is_launching_and_waiting_is_synchronizing() -> None:
    (trace,) = recorded("clean")
    events = trace.events
    launches = np.flatnonzero(events.role == Role.LAUNCH)
    assert {events.kind[row] for row in launches} == {EventKind.RUNTIME}
    assert "PjitFunction(train_step)" in {events.name_of(row) for row in launches.tolist()}
    waits = np.flatnonzero(events.role == Role.SYNCHRONIZATION)
    assert {events.name_of(row) for row in waits.tolist()} == {"np.asarray(jax.Array)"}
    assert len(waits) == STEPS


def test_all_reduce_of_each_cpu_device_is_a_matched_collective() -> None:
    traces = recorded("data_parallel")
    for trace in traces:
        # The profiler stopped before two devices had left the last collective.
        assert Counter(call.operation for call in trace.collectives)["all_reduce"] in {STEPS - 1, STEPS}
        assert {trace.events.name_of(call.row) for call in trace.collectives} == {"all-reduce"}
    timeline = build_timeline(traces)
    assert timeline.world_size == 4
    assert not [clock for clock in timeline.clocks if clock.residual_ns]
    for track in timeline.tracks:
        known = track.collectives.last_arrival != UNKNOWN
        assert np.count_nonzero(known) >= STEPS - 2
        assert (track.collectives.last_arrival >= track.collectives.start)[known].all()


def test_step_of_a_device_behind_its_host_begins_when_the_device_is_free() -> None:
    (trace,) = recorded("runs_ahead")
    events = trace.events
    (marks,) = trace.step_marks
    runs = [row for row in events.rows_of(EventKind.OPERATOR).tolist() if events.name_of(row) == "jit_train_step"]
    assert len(runs) == STEPS
    # The host has dispatched the last step before the device has begun it.
    begins, ends = events.start_ns[marks.row], events.end_ns[runs]
    assert (begins[2:] >= ends[1:-1]).all()


def test_compilations_are_ranges_of_the_main_thread() -> None:
    (trace,) = recorded("recompiled")
    events = trace.events
    compiling = [row for row in range(len(events)) if events.name_of(row) == "backend_compile_and_load"]
    assert len(compiling) == STEPS
    assert {events.kind[row] for row in compiling} == {EventKind.ANNOTATION}


def test_functions_of_the_program_are_told_from_those_of_libraries() -> None:
    (trace,) = recorded("slow_input")
    events = trace.events
    functions = {events.name_of(row) for row in np.flatnonzero(events.role == Role.USER_FUNCTION).tolist()}
    assert {name.split(": ")[1] for name in functions} == {"_batches", "decode_images", "train"}
    assert all(name.startswith("record_jax.py(") for name in functions)


def cpu_device(**stats: int) -> SpaceBuilder:
    """Build a process with one CPU device whose two operations have `stats`, in each of four steps."""
    built = SpaceBuilder()
    main, pool = built.thread(1, "python"), built.thread(2, "tf_XLAPjRtCpuClient")
    for step in range(4):
        begin = 1000 * step
        main.event("train", begin, begin + 900, step_num=step)
        main.event("PjitFunction(train_step)", begin + 1, begin + 60)
        main.event("np.asarray(jax.Array)", begin + 70, begin + 890)
        for name, at in (("dot.1", 100), ("wrapped_tanh", 500)):
            pool.event(name, begin + at, begin + at + 300, hlo_op=name, hlo_module="jit_train_step", **stats)
    return built


def test_operations_without_their_runs_number_are_runs(tmp_path: Path) -> None:
    (trace,) = read_traces([cpu_device(device_ordinal=0).write(tmp_path / "a.xplane.pb")])
    events = trace.events
    modules = [row for row in events.rows_of(EventKind.OPERATOR).tolist() if events.name_of(row) == "jit_train_step"]
    assert len(modules) == 8
    assert events.end_ns[modules].max() <= 3_890_000


@pytest.mark.parametrize("ordinal", [-1, 2**40, -(2**40)])
def test_impossible_numbers_of_devices_are_read(tmp_path: Path, ordinal: int) -> None:
    (trace,) = read_traces([cpu_device(device_ordinal=ordinal, run_id=7).write(tmp_path / "a.xplane.pb")])
    assert trace.rank == 0
    assert len(trace.step_marks[0].row) == 4


def test_implausible_number_of_devices_stays_one_trace(tmp_path: Path) -> None:
    built = cpu_device(device_ordinal=0, run_id=7)
    pool = built.thread(3, "tf_XLAPjRtCpuClient")
    for device in range(2000):
        pool.event("dot.1", 100 + device, 101 + device, hlo_module="jit_f", device_ordinal=device)
    assert len(read_traces([built.write(tmp_path / "a.xplane.pb")])) == 1


def gpus(*collectives: str) -> SpaceBuilder:
    """Build a process with two GPUs that launches a fusion and the operations `collectives` in each of five steps."""
    built = SpaceBuilder()
    main = built.thread(1, "python")
    streams = [built.gpu(device, 7) for device in range(2)]
    correlation = 0
    for step in range(5):
        begin = 1000 * step
        main.event("train", begin, begin + 900, step_num=step)
        main.event("PjitFunction(train_step)", begin + 1, begin + 60)
        for device, stream in enumerate(streams):
            for place, operation in enumerate(("loop_fusion.1", *collectives)):
                correlation += 1
                at = begin + 2 + 20 * device + 5 * place
                main.event("cuLaunchKernel", at, at + 2, correlation_id=correlation, device_id=device)
                kernel = "fusion" if operation.startswith("loop") else "ncclDevKernel_Generic"
                stream.event(
                    kernel,
                    begin + 100 + 100 * place,
                    begin + 190 + 100 * place,
                    correlation_id=correlation,
                    hlo_op=operation,
                    hlo_module="jit_train_step",
                )
        main.event("np.asarray(jax.Array)", begin + 70, begin + 890)
    return built


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        ("all-reduce-start.1", "all_reduce"),
        ("all-gather.7", "all_gather"),
        ("reduce-scatter.2.clone", "reduce_scatter"),
        ("all-to-all.3", "all_to_all"),
        ("ragged-all-to-all", "all_to_all"),
        ("collective-permute-start", "send_recv"),
        ("collective-broadcast.1", "broadcast"),
    ],
)
def test_generic_kernels_get_their_operation_from_hlo(tmp_path: Path, name: str, operation: str) -> None:
    traces = read_traces([gpus(name).write(tmp_path / "a.xplane.pb")])
    assert [trace.framework for trace in traces] == ["jax", "jax"]
    for trace in traces:
        assert [call.operation for call in trace.collectives] == [operation] * 5
        (marks,) = trace.step_marks
        assert marks.number.tolist() == [0, 1, 2, 3, 4]


def test_both_halves_of_an_asynchronous_pair_communicate_and_count_once(tmp_path: Path) -> None:
    built = gpus("all-gather-start.1", "all-gather-done.1")
    (first, _) = read_traces([built.write(tmp_path / "a.xplane.pb")])
    events = first.events
    kernels = events.rows_of(EventKind.KERNEL)
    assert int((events.role[kernels] == Role.COMMUNICATION).sum()) == 10
    starts = {events.start_ns[call.row] for call in first.collectives if call.operation == "all_gather"}
    assert len(starts) == 5


def test_recorded_wait_of_jax_is_a_synchronization_on_each_gpu(tmp_path: Path) -> None:
    for trace in read_traces([gpus().write(tmp_path / "a.xplane.pb")]):
        events = trace.events
        waits = np.flatnonzero(events.role == Role.SYNCHRONIZATION)
        assert {events.name_of(row) for row in waits.tolist()} == {"np.asarray(jax.Array)"}
        assert {events.kind[row] for row in waits} == {EventKind.RUNTIME}


def test_unrecorded_wait_is_found_while_the_main_thread_records_nothing(tmp_path: Path) -> None:
    built = SpaceBuilder()
    main, stream = built.thread(1, "python"), built.gpu(0, 7)
    for step in range(5):
        begin = 10_000 * step
        main.event("PjitFunction(train_step)", begin, begin + 100)
        main.event("PjitFunction(train_step)", begin + 1, begin + 99)
        main.event("cuLaunchKernel", begin + 50, begin + 55, correlation_id=step + 1)
        stream.event("fusion", begin + 60, begin + 9_900, correlation_id=step + 1, hlo_module="jit_train_step")
    (trace,) = read_traces([built.write(tmp_path / "a.xplane.pb")])
    events = trace.events
    waits = np.flatnonzero(events.role == Role.SYNCHRONIZATION)
    assert {events.name_of(row) for row in waits.tolist()} == {UNRECORDED_WAIT}
    assert events.start_ns[waits].tolist() == [10_000_000 * step + 99_000 for step in range(4)]
    assert trace.step_marks[0].source == "range"
