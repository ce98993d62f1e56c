"""Test merging the operators of a full trace into the kernel-only trace of the same job."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gpudiag.model.event import EventKind
from gpudiag.trace import read_traces
from gpudiag.trace.kernel_only import least_disturbed
from gpudiag.trace.with_operators import with_operators
from tests.conftest import WHOLE
from tests.trace.documents import document, event, kernel, launch, names, read_one, write
from tests.traces.pack import unpack

if TYPE_CHECKING:
    from pathlib import Path

    from gpudiag.model.event import Trace


def step(number: int, begin_us: float, *inside: dict[str, Any]) -> list[dict[str, Any]]:
    last = max(each["ts"] + each["dur"] for each in inside if each["tid"] == 11)
    moved = [each | {"ts": each["ts"] + begin_us} for each in inside]
    return [event("user_annotation", f"ProfilerStep#{number}", begin_us, last + 10), *moved]


def kernel_only_and_full(directory: Path, calls: int = 2) -> tuple[Trace, Trace]:
    """Return the kernel-only and the full trace of three steps.

    In the full trace host calls take twice as long, and a step has `calls` launches.
    """
    light, full = [], []
    inputs = {"Input Dims": [[2, 3], [3, 5]], "Input type": ["float", "float"]}
    for number in range(3):
        first = 10 * number
        light += step(
            number + 3,
            1000 * number,
            launch(100, first + 1),
            kernel("gemm", 110, 50, first + 1),
            launch(200, first + 2),
        )
        full += step(
            number + 9,
            1000 * number,
            event("cpu_op", "aten::mm", 190, 20, args=inputs),
            *(launch(200 * (call + 1), first + call + 1) for call in range(calls)),
            kernel("gemm", 220, 50, first + 1),
            event("cpu_op", "aten::add", 301, 80),
        )
    return (
        read_one(directory, document(*light), "light/rank0.json"),
        read_one(directory, document(*full), "rank0.json"),
    )


def times_us(trace: Trace, name: str) -> list[tuple[float, float]]:
    events = trace.events
    rows = [row for row in range(len(events)) if events.name_of(row) == name]
    return [(events.start_ns[row] / 1e3, events.end_ns[row] / 1e3) for row in rows]


def test_operators_keep_their_position_between_calls(tmp_path: Path) -> None:
    light, full = kernel_only_and_full(tmp_path)
    merged = with_operators(light, full)
    assert merged is not None
    assert merged.operators_merged
    assert (light.workload, full.workload, merged.workload) == ("unknown", "inference", "inference")
    assert [name for name in names(merged) if not name.startswith("aten::")] == names(light)
    # The first launch ends at 202 µs and the second begins at 400 µs in the full trace; in the kernel-only trace these
    # times are 102 and 200 µs.
    assert times_us(merged, "aten::add")[0] == pytest.approx((102 + 99 * 98 / 198, 102 + 179 * 98 / 198), abs=0.001)
    (begin, end), *_ = times_us(merged, "aten::mm")
    assert begin < 100
    assert end > 102  # the operator still encloses the first launch
    assert merged.operator_work is not None
    assert [merged.events.name_of(row) for row in merged.operator_work.row.tolist()] == ["aten::mm"] * 3
    assert merged.operator_work.flops.tolist() == [60] * 3
    marks = merged.step_marks[0]
    assert [merged.events.name_of(row) for row in marks.row.tolist()] == [f"ProfilerStep#{n}" for n in (3, 4, 5)]


def test_steps_with_different_calls_are_not_merged(tmp_path: Path) -> None:
    light, full = kernel_only_and_full(tmp_path, calls=3)
    assert with_operators(light, full) is None


def test_kernel_that_sends_is_named_by_the_full_trace(tmp_path: Path) -> None:
    """A kernel-only trace does not have the operators that describe the messages of a batch."""
    described = {"Collective name": "send", "Process Group Name": "pp", "Process Group Ranks": "[0, 1]", "Dst Rank": 1}
    light, full = [], []
    for number in range(3):
        work = [launch(100, number + 1), kernel("ncclDevKernel_SendRecv(x)", 110, 50, number + 1)]
        range_of_batch = event("user_annotation", "nccl:coalesced", 90, 20)
        message = event("cpu_op", "record_param_comms", 60, 20, args=described)
        light += step(number, 1000 * number, range_of_batch, *work)
        full += step(number, 1000 * number, message, range_of_batch, *work)
    traces = []
    for name, events in (("light", light), ("full", full)):
        (tmp_path / name).mkdir()
        traces.append(read_one(tmp_path / name, document(*events)))
    assert {call.operation for call in traces[0].collectives} == {"send_recv"}
    merged = with_operators(*traces)
    assert merged is not None
    assert [(call.operation, call.peer, call.group) for call in merged.collectives] == [("send", 1, "pp")] * 3


@pytest.mark.long
def test_real_recordings_are_merged(tmp_path: Path) -> None:
    for name, directory in (("gpt-nccl-light", "light"), ("gpt-nccl", "")):
        unpack(WHOLE / "exchanges" / f"{name}.npz", tmp_path / "traces" / directory)
    (tmp_path / "run.json").write_text(json.dumps({"schema": "gpudiag/run/1"}), encoding="utf-8")
    light, full = read_traces([tmp_path / "traces" / "light"]), read_traces([tmp_path])
    joined, unused = least_disturbed([tmp_path], full)
    assert unused == ()
    for before, operators, after in zip(light, full, joined, strict=True):
        on_device = after.events.rows_of(EventKind.KERNEL, EventKind.COPY)
        timed = before.events.rows_of(EventKind.KERNEL, EventKind.COPY)
        assert np.array_equal(after.events.start_ns[on_device], before.events.start_ns[timed])
        had = len(operators.events.rows_of(EventKind.OPERATOR))
        assert len(before.events.rows_of(EventKind.OPERATOR)) == 0
        assert len(after.events.rows_of(EventKind.OPERATOR)) >= 0.9 * had
        assert all(after.events.name_of(call.row) == before.events.name_of(call_before.row)
                   for call, call_before in zip(after.collectives, before.collectives, strict=True))  # fmt: skip
    sized = [call for trace in joined for call in trace.collectives if call.size_bytes]
    assert len(sized) >= len([call for trace in light for call in trace.collectives]) / 2


@pytest.mark.parametrize("broken", ["missing rank", "no trace", "other steps"])
def test_full_traces_are_analysed_if_a_kernel_only_one_is_missing(tmp_path: Path, broken: str) -> None:
    kernel_only_and_full(tmp_path / "traces", calls=3 if broken == "other steps" else 2)
    write(tmp_path / "run.json", {"schema": "gpudiag/run/1"})
    if broken == "no trace":
        write(tmp_path / "traces" / "light" / "rank0.json", "{")
    if broken == "missing rank":
        (tmp_path / "traces" / "light" / "rank0.json").rename(tmp_path / "traces" / "light" / "rank1.json")
    full = read_traces([tmp_path])
    traces, unused = least_disturbed([tmp_path], full)
    assert traces is full
    assert [validity.code for validity in unused] == ["no-light-recording"]
