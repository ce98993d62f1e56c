"""Test the user's functions in the evidence of findings, if the profiler recorded stacks."""

from __future__ import annotations

import doctest
from typing import TYPE_CHECKING

import numpy as np
import pytest
from msgspec.structs import replace

from gpudiag.model.event import HOST, NO_CORRELATION, NO_SIZE, Direction, EventKind, HostMemory, Role, Trace
from gpudiag.trace.readers.kineto import roles
from gpudiag.trace.readers.kineto.roles import is_user_function
from tests.analysis.diagnosis.cases import diagnosis_of
from tests.analysis.diagnosis.rule_examples.jobs import DDP, Job, item, kernels, python
from tests.moved_events import with_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

Frame = tuple[str, int, int]


def with_frames(trace: Trace, *added: Frame) -> Trace:
    """Return the trace with Python functions (name, start, end in ns) on its training thread."""
    events = trace.events
    thread = int(events.thread[events.rows_of(EventKind.ANNOTATION)[0]])
    columns: dict[str, Sequence[int]] = {
        "kind": [EventKind.PYTHON] * len(added),
        "role": [Role.USER_FUNCTION if is_user_function(name) else Role.OTHER for name, _, _ in added],
        "name": range(len(events.names), len(events.names) + len(added)),
        "start_ns": [start for _, start, _ in added],
        "end_ns": [end for _, _, end in added],
        "thread": [thread] * len(added),
        "device": [HOST] * len(added),
        "correlation": [NO_CORRELATION] * len(added),
        "size_bytes": [NO_SIZE] * len(added),
        "direction": [Direction.NONE] * len(added),
        "host_memory": [HostMemory.UNKNOWN] * len(added),
    }
    joined = {
        name: np.concatenate([column, np.array(columns[name], column.dtype)])
        for name, column in events.columns().items()
    }
    came_from = np.concatenate([np.arange(len(events)), np.full(len(added), -1)])
    named = replace(trace, events=replace(events, names=(*events.names, *(name for name, _, _ in added))))
    return with_rows(named, joined, came_from)


def named(trace: Trace, name: str) -> list[tuple[int, int]]:
    events = trace.events
    return [
        (int(events.start_ns[row]), int(events.end_ns[row]))
        for row in range(len(events))
        if events.name_of(row) == name
    ]


def test_users_functions_are_recognized() -> None:
    assert doctest.testmod(roles).failed == 0


def test_synchronization_finding_names_the_waiting_function() -> None:
    job = Job(ranks=1, step=(kernels(5), item(), python(4)))
    (trace,) = job.traces()
    items = named(trace, "aten::item")
    added: list[Frame] = [("train.py(10): main", 0, int(trace.events.end_ns.max()))]
    added += [("train.py(33): log_loss", start - 500, end + 500) for start, end in items]
    added += [("torch/_tensor.py(9): item", start - 100, end + 100) for start, end in items]
    found, _ = diagnosis_of([with_frames(trace, *added)])
    assert found["host-sync"].evidence["host_frames_per_step"] == {"train.py(33): log_loss": pytest.approx(1)}
    without, _ = diagnosis_of([trace])
    assert "host_frames_per_step" not in without["host-sync"].evidence


def test_slow_host_finding_names_the_slower_function() -> None:
    traces = Job(ranks=4, step=DDP, extra={1: (python(30),)}).traces()
    framed = []
    for trace in traces:
        end = int(trace.events.end_ns.max())
        logging = [("train.py(33): save", start, stop) for start, stop in named(trace, "aten::to")]
        framed.append(with_frames(trace, ("train.py(10): main", 0, end), *logging))
    found, _ = diagnosis_of(framed)
    (name, ms), *_ = found["straggler"].evidence["host_frames_ms_more_than_peers"].items()
    assert (name, ms) == ("train.py(33): save", pytest.approx(30, rel=0.05))
