"""Test that damaged and hostile databases give a trace or a one-line error, in bounded time and memory."""

from __future__ import annotations

import contextlib
import random
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.errors import GpudiagError, UnreadableInputError
from gpudiag.model.event import EventKind, Trace
from gpudiag.trace import ReadLimits, read_traces
from gpudiag.trace.readers.nsys.database import Database
from gpudiag.trace.readers.nsys.processes import read_export
from tests.examples import examples
from tests.trace.readers.nsys.exports import SCHEMA_2022, ExportWriter
from tests.trace.readers.nsys.test_read import NCCL_KERNEL, STEP_NS, Job, thread

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_job(tmp_path / "report.sqlite")


def write_job(path: Path) -> Path:
    """Write an export of two processes with six marked steps."""
    with ExportWriter(path) as writer:
        job = Job(writer)
        for pid in (100, 101):
            job.steps(pid, kernels=("gemm", NCCL_KERNEL))
            for step in range(6):
                writer.nvtx(step * STEP_NS, (step + 1) * STEP_NS - 1, f"step {step}", thread(pid))
    return path


def run(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as database:
        for statement in statements:
            database.execute(statement)
        database.commit()


def check(traces: tuple[Trace, ...]) -> None:
    """Check that the columns of traces are valid."""
    for trace in traces:
        events = trace.events
        assert (events.end_ns >= events.start_ns).all()
        assert (np.diff(events.start_ns) >= 0).all()
        assert (events.name < len(events.names)).all()
        assert all(0 <= call.row < len(events) for call in trace.collectives)


KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"


@pytest.mark.parametrize(
    "statements",
    [
        ("UPDATE NVTX_EVENTS SET start = 'text', end = x'00ff'",),
        ("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET deviceId = 1e300, streamId = 'x', correlationId = -5",),
        ("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = 9223372036854775807 WHERE rowid % 2",),
        ("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = -9223372036854775808 WHERE rowid = 1",),
        ("UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET globalTid = -1, nameId = 9e18",),
        ("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET demangledName = 12345678901",),
        ("UPDATE StringIds SET value = x'fffe00'",),
        ("UPDATE StringIds SET value = char(27) || '[31m' || char(0) || 'x'",),
        ("DROP TABLE StringIds", "CREATE TABLE StringIds (id TEXT, value INTEGER)"),
        ("DROP TABLE StringIds", "CREATE TABLE StringIds (value)"),
        ("DROP TABLE NVTX_EVENTS", "CREATE TABLE NVTX_EVENTS (start INTEGER)", "INSERT INTO NVTX_EVENTS VALUES (1)"),
        ("DROP TABLE CUPTI_ACTIVITY_KIND_RUNTIME",),
        ("UPDATE TARGET_INFO_SESSION_START_TIME SET utcEpochNs = 1e30",),
        ("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN streamId",),
        ("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET globalPid = rowid << 24",),
        ("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET deviceId = rowid % 3, correlationId = rowid % 5",),
        ("INSERT INTO NVTX_EVENTS (start, end, eventType, text) SELECT 5, 6, 59, hex(zeroblob(3000000))",),
    ],
)
def test_unexpected_values_and_columns_are_survived(path: Path, statements: tuple[str, ...]) -> None:
    run(path, *statements)
    with contextlib.suppress(UnreadableInputError):
        check(read_traces([path]))


def test_impossible_times_are_left_out_with_a_note(path: Path) -> None:
    run(path, "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = start - 5 WHERE rowid = 1")
    traces = read_traces([path])
    assert sum(len(trace.events.rows_of(EventKind.KERNEL)) for trace in traces) == 23
    assert "1 events had impossible times" in traces[0].notes[0]


@pytest.mark.parametrize(
    "definition",
    [
        "CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS SELECT a.id AS start, b.id AS end FROM StringIds a, StringIds b",
        "CREATE VIRTUAL TABLE CUPTI_ACTIVITY_KIND_KERNEL USING rtree(id, start, end)",
        "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (x, start GENERATED ALWAYS AS (x * 2), end)",
    ],
    ids=["view", "virtual table", "generated column"],
)
def test_only_ordinary_tables_and_columns_are_read(path: Path, definition: str) -> None:
    try:
        run(path, "DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL", definition)
    except sqlite3.OperationalError:
        pytest.skip("this SQLite lacks the module")
    if "GENERATED" in definition:
        run(path, "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL (x, end) VALUES (1, 2)")
    with Database(path, "report.sqlite", ReadLimits()) as database:
        assert "start" not in database.tables.get(KERNELS, ())
    traces = read_traces([path])
    assert not any(len(trace.events.rows_of(EventKind.KERNEL)) for trace in traces)


def test_more_rows_than_the_file_can_hold_are_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpudiag.trace.readers.nsys.database._ROW_BYTES", 1 << 20)
    with ExportWriter(path.with_name("large.sqlite"), SCHEMA_2022) as writer:
        Job(writer).steps(100, 600)
    with pytest.raises(UnreadableInputError, match="more rows than its size allows"):
        read_traces([path.with_name("large.sqlite")])


def test_endless_queries_are_ended(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpudiag.trace.readers.nsys.database._TICK", 10)
    monkeypatch.setattr("gpudiag.trace.readers.nsys.database._INSTRUCTIONS", 0)
    monkeypatch.setattr("gpudiag.trace.readers.nsys.database._INSTRUCTIONS_PER_BYTE", 0)
    with pytest.raises(UnreadableInputError, match="interrupted"):
        read_traces([path])


def test_reading_does_not_write(path: Path) -> None:
    run(path, "CREATE TRIGGER t AFTER INSERT ON CUPTI_ACTIVITY_KIND_KERNEL BEGIN DELETE FROM StringIds; END")
    before, names = path.read_bytes(), sorted(path.parent.iterdir())
    path.chmod(0o444)
    check(read_traces([path]))
    assert (path.read_bytes(), sorted(path.parent.iterdir())) == (before, names)


@examples(40)
@given(seed=st.integers(0, 2**32), cut=st.booleans())
def test_damaged_files_give_a_trace_or_an_error(tmp_path_factory: pytest.TempPathFactory, seed: int, cut: bool) -> None:
    path = write_job(tmp_path_factory.mktemp("damaged") / "report.sqlite")
    content = bytearray(path.read_bytes())
    chance = random.Random(seed)  # noqa: S311
    if cut:
        del content[chance.randrange(len(content)) :]
    for _ in range(chance.choice((1, 10, 200))):
        if content:
            content[chance.randrange(len(content))] = chance.randrange(256)
    path.write_bytes(content)
    with contextlib.suppress(GpudiagError):
        check(read_export(path, "report.sqlite", ReadLimits()))
