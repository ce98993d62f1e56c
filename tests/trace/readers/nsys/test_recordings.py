"""Test that exports made from real recordings have the events, device times and verdicts of the recordings."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest

from gpudiag.app.analyze import analyze
from gpudiag.model.event import NO_SIZE, EventKind, EventTable, Trace, any_of
from gpudiag.trace import read_traces
from tests.trace.documents import TRACES
from tests.trace.readers.nsys.exports import SCHEMA_2022, SCHEMA_2024, Schema, write_export

if TYPE_CHECKING:
    from gpudiag.model.analysis import Analysis

#: A function that returns the export of a recording in `tests/traces`, in a version of the schema, with or without
#: operators.
Exporter = Callable[..., Path]
SCHEMAS = pytest.mark.parametrize("schema", [SCHEMA_2022, SCHEMA_2024], ids=["2022", "2024"])
EXPORTED = (
    *(EventKind.OPERATOR, EventKind.ANNOTATION, EventKind.RUNTIME, EventKind.OVERHEAD),
    *(EventKind.KERNEL, EventKind.COPY, EventKind.MEMSET),
)
DEVICE_TIMES = (
    "SELECT value, count(*), sum(end - start) FROM CUPTI_ACTIVITY_KIND_KERNEL "
    "JOIN StringIds ON id = demangledName GROUP BY value"
)


@pytest.fixture(scope="module")
def export_of(tmp_path_factory: pytest.TempPathFactory) -> Exporter:
    """Return the function that writes exports, each only once."""
    written: dict[tuple[object, ...], Path] = {}

    def export(job: str, schema: Schema = SCHEMA_2024, *, operators: bool = True) -> Path:
        key = (job, schema.product, operators)
        if key not in written:
            path = tmp_path_factory.mktemp("export") / "report.sqlite"
            written[key] = write_export(path, read_traces([TRACES / job]), schema, operators=operators)
        return written[key]

    return export


def events_of(trace: Trace, begin: int) -> Counter[tuple[object, ...]]:
    """Return the events of the exported kinds, with times since `begin` and without threads, whose numbers differ."""
    events = trace.events
    rows = events.rows_of(*EXPORTED)
    columns = (
        *(events.kind, trace.origin_ns - begin + events.start_ns, events.end_ns - events.start_ns, events.device),
        *(events.correlation, np.where(events.size_bytes == NO_SIZE, 0, events.size_bytes)),
        *(events.role, events.direction, events.host_memory),
    )
    values = zip(*(column[rows].tolist() for column in columns), strict=True)
    return Counter((events.name_of(row), *row_values) for row, row_values in zip(rows.tolist(), values, strict=True))


def relative(traces: tuple[Trace, ...]) -> list[Counter[tuple[object, ...]]]:
    """Return the events of each rank, with times since the first event of all ranks."""
    begin = min(trace.origin_ns for trace in traces)
    return [events_of(trace, begin) for trace in traces]


def device_times(traces: tuple[Trace, ...]) -> dict[str, tuple[int, int]]:
    """Return name of a kernel → (number, device time in ns)."""
    times: dict[str, tuple[int, int]] = {}
    for trace in traces:
        for row in trace.events.rows_of(EventKind.KERNEL).tolist():
            count, total = times.get(name := trace.events.name_of(row), (0, 0))
            times[name] = count + 1, total + int(trace.events.end_ns[row] - trace.events.start_ns[row])
    return times


@pytest.mark.parametrize("job", [pytest.param("slow_loader_rank2", marks=pytest.mark.apart), "gloo_dataloader"])
@SCHEMAS
def test_events_are_those_of_the_recording(export_of: Exporter, job: str, schema: Schema) -> None:
    recorded = read_traces([TRACES / job])
    exported = read_traces([export_of(job, schema)])
    assert [trace.rank for trace in exported] == [trace.rank for trace in recorded]
    assert relative(exported) == relative(recorded)
    for ours, theirs in zip(exported, recorded, strict=True):
        assert ours.device_names == theirs.device_names
        assert [(call.operation, ours.events.start_ns[call.row]) for call in ours.collectives] == [
            (call.operation, theirs.events.start_ns[call.row]) for call in theirs.collectives
        ]
        assert (ours.framework, ours.workload, ours.host) == ("pytorch", "training", "node7")
        assert [marks.number.tolist() for marks in ours.step_marks] == [
            marks.number.tolist() for marks in theirs.step_marks
        ]


@pytest.mark.parametrize("job", ["vgg_p2poff", "public/nccl_data.json.gz", "public/benchmark_result_alexnet.json.gz"])
@SCHEMAS
def test_device_time_of_each_kernel_equals_a_query(export_of: Exporter, job: str, schema: Schema) -> None:
    path = export_of(job, schema)
    with closing(sqlite3.connect(path)) as database:
        queried = {name: (count, total) for name, count, total in database.execute(DEVICE_TIMES)}
    assert device_times(read_traces([path])) == queried
    assert queried


def test_exported_event_waits_equal_recorded_event_waits(tmp_path: Path) -> None:
    recorded = read_traces([TRACES / "public" / "benchmark_result_alexnet.json.gz"])
    (exported,) = read_traces([write_export(tmp_path / "report.sqlite", recorded)])
    waits, theirs = exported.event_waits, recorded[0].event_waits
    assert len(waits) == len(theirs) > 0
    assert waits.stream.tolist() == theirs.stream.tolist()
    assert waits.recorded_stream.tolist() == theirs.recorded_stream.tolist()
    assert (
        exported.events.start_ns[waits.call].tolist()
        == (
            recorded[0].events.start_ns[theirs.call]
            - recorded[0].events.start_ns[recorded[0].events.rows_of(*EXPORTED)[0]]
        ).tolist()
    )


def same_verdict(recording: Path, export: Path) -> Analysis:
    """Check that the first finding of an export is that of its recording; return the analysis of the export."""
    theirs, ours = analyze([recording]), analyze([export])
    assert theirs.findings
    first, expected = ours.findings[0], theirs.findings[0]
    assert (first.code, first.cause, first.ranks) == (expected.code, expected.cause, expected.ranks)
    assert first.recoverable_ms_per_step == pytest.approx(expected.recoverable_ms_per_step, rel=0.05)
    assert ours.steps.mean_ms == pytest.approx(theirs.steps.mean_ms, rel=0.001)
    assert (ours.framework, ours.workload, ours.world_size) == (theirs.framework, theirs.workload, theirs.world_size)
    return ours


@pytest.mark.parametrize(
    ("job", "code", "schema"),
    [
        pytest.param("slow_loader_rank2", "straggler", SCHEMA_2022, marks=pytest.mark.apart),
        pytest.param("slow_loader_rank2", "straggler", SCHEMA_2024, marks=pytest.mark.apart),
        ("tiny", "launch-bound", SCHEMA_2024),
        ("vgg_p2poff", "communication-bound", SCHEMA_2022),
        ("gloo_dataloader", "communication-bound", SCHEMA_2022),
    ],
    ids=lambda value: value.product[:4] if isinstance(value, Schema) else value,
)
def test_verdict_is_that_of_the_recording(export_of: Exporter, job: str, code: str, schema: Schema) -> None:
    assert same_verdict(TRACES / job, export_of(job, schema)).findings[0].code == code


@pytest.mark.parametrize(
    "job", ["tiny", *(pytest.param(job, marks=pytest.mark.apart) for job in ("slow_loader_rank2", "vgg_p2poff"))]
)
def test_verdict_does_not_need_operators(export_of: Exporter, job: str) -> None:
    ours, theirs = analyze([export_of(job, operators=False)]).findings[0], analyze([TRACES / job]).findings[0]
    assert (ours.code, ours.cause, ours.ranks) == (theirs.code, theirs.cause, theirs.ranks)
    assert ours.recoverable_ms_per_step == pytest.approx(theirs.recoverable_ms_per_step, rel=0.15)


def with_user_ranges(trace: Trace, name: str) -> Trace:
    """Return a trace without operators and ranges, except its steps, which are renamed to `name` with their number."""
    events = trace.events
    steps = np.zeros(len(events), np.bool_)
    steps[trace.step_marks[0].row] = True
    kept = steps | any_of(events.kind, EventKind.RUNTIME, EventKind.KERNEL, EventKind.COPY, EventKind.MEMSET)
    names = tuple(name.format(text.rpartition("#")[2]) if "ProfilerStep" in text else text for text in events.names)
    columns = {field: column[kept] for field, column in events.columns().items()}
    return msgspec.structs.replace(trace, events=EventTable(**columns, names=names), collectives=(), step_marks=())


@pytest.mark.parametrize("name", ["step {}", "train_step"])
@pytest.mark.parametrize(
    ("job", "within"),
    # Without the ranges of DDP's reducer, its copies of gradients count as compute.
    [("slow_loader_rank2", 0.1), ("tiny", 0.15), ("vgg_p2poff", 0.35)],
)
def test_verdict_needs_only_ranges_of_steps(tmp_path: Path, job: str, within: float, name: str) -> None:
    traces = [with_user_ranges(trace, name) for trace in read_traces([TRACES / job])]
    ours, theirs = analyze([write_export(tmp_path / "report.sqlite", traces)]), analyze([TRACES / job])
    first, expected = ours.findings[0], theirs.findings[0]
    assert (first.code, first.ranks) == (expected.code, expected.ranks)
    assert first.recoverable_ms_per_step == pytest.approx(expected.recoverable_ms_per_step, rel=within)
    assert ours.steps.mean_ms == pytest.approx(theirs.steps.mean_ms, rel=0.001)
    if "{}" in name:
        assert "no-step-marks" not in {warning.code for warning in ours.validity}


@pytest.mark.parametrize(
    ("job", "code"),
    [
        ("faults/gpt-busy-core-one", "straggler"),
        ("exchanges/vgg16-fsdp", "communication-bound"),
        pytest.param("faults/resnet50-float64-batches", "slow-copy", marks=pytest.mark.apart),
        pytest.param("faults/saves-each-step", "host-stall", marks=pytest.mark.apart),
        pytest.param("faults/allocator-light", "memory-allocation", marks=pytest.mark.apart),
        # One process with four devices.
        pytest.param("exchanges/vgg16-data-parallel", "communication-bound", marks=pytest.mark.apart),
        pytest.param("kineto_2021_resnet50_workers4", "launch-bound", marks=pytest.mark.apart),
        pytest.param("clean", "slow-compute", marks=pytest.mark.apart),
    ],
)
def test_verdict_is_that_of_the_whole_recording(
    tmp_path: Path, job: str, code: str, whole_recording: Callable[[str], Path]
) -> None:
    recording = whole_recording(job)
    export = write_export(tmp_path / "report.sqlite", read_traces([recording]))
    assert same_verdict(recording, export).findings[0].code == code
