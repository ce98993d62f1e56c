"""Test reading of processes, steps, graphs and ranges, and the errors for files that cannot be read."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from gpudiag.app.analyze import analyze
from gpudiag.errors import NotATraceError, TooLargeError, UnreadableInputError
from gpudiag.model.event import EventKind, HostMemory, Role, Trace
from gpudiag.trace import ReadLimits, read_traces
from gpudiag.trace.readers.nsys.processes import read_export
from tests.cli_process import gpudiag
from tests.trace.documents import TRACES
from tests.trace.readers.nsys.exports import SCHEMA_2022, SCHEMA_2024, ExportWriter, Schema, write_export

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

STEP_NS = 1_000_000
NCCL_KERNEL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def thread(pid: int, number: int = 0) -> int:
    """Return the global id of a process's thread."""
    return pid << 24 | (pid + number)


class Job:
    """Write steps of processes, each with launched kernels."""

    def __init__(self, writer: ExportWriter) -> None:
        self.writer = writer
        self._correlation = 0

    def launch(
        self, pid: int, start: int, kernel: str, *, device: int = 0, length: int = 100_000, number: int = 0
    ) -> int:
        """Write a call of the process's thread `number` that launches a kernel, and the kernel 20 µs later."""
        self._correlation += 1
        name = self.writer.string(kernel)
        self.call(pid, start, "cudaLaunchKernel_v7000", correlation=self._correlation, number=number)
        self.writer.rows(
            "CUPTI_ACTIVITY_KIND_KERNEL",
            [
                {"start": start + 20_000, "end": start + 20_000 + length, "deviceId": device, "contextId": 1}
                | {"streamId": 7, "correlationId": self._correlation, "globalPid": pid << 24}
                | {"demangledName": name, "shortName": name, "gridX": 1, "blockX": 1}
            ],
        )
        return self._correlation

    def call(
        self, pid: int, start: int, name: str, *, correlation: int = 0, length: int = 5_000, number: int = 0
    ) -> None:
        """Write a runtime call of the process's thread `number`."""
        caller = thread(pid, number)
        values = {"start": start, "end": start + length, "eventClass": 0, "globalTid": caller, "returnValue": 0}
        named = {"correlationId": correlation, "nameId": self.writer.string(name)}
        self.writer.rows("CUPTI_ACTIVITY_KIND_RUNTIME", [values | named])

    def steps(self, pid: int, count: int = 6, *, device: int = 0, kernels: Sequence[str] = ("gemm", "relu")) -> None:
        """Write `count` steps of one millisecond, each with one launch of every kernel."""
        for step in range(count):
            for index, kernel in enumerate(kernels):
                self.launch(pid, step * STEP_NS + 10_000 + index * 200_000, kernel, device=device)


def only(path: Path) -> Trace:
    (trace,) = read_traces([path])
    return trace


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "report.sqlite"


def test_each_process_is_a_rank_in_the_order_of_gpus(path: Path) -> None:
    with ExportWriter(path) as writer:
        writer.rows("TARGET_INFO_GPU", ({"vmId": 0, "id": gpu, "name": f"GPU {gpu}"} for gpu in range(4)))
        job = Job(writer)
        for pid, gpu in ((100, 3), (101, 0), (102, 2), (103, 1)):
            # CUDA_VISIBLE_DEVICES makes each process number its only device 0.
            writer.rows("TARGET_INFO_CUDA_DEVICE", [{"gpuId": gpu, "cudaId": 0, "pid": pid}])
            job.steps(pid, kernels=(f"kernel_of_{gpu}", NCCL_KERNEL))
    traces = read_traces([path])
    assert [trace.rank for trace in traces] == [0, 1, 2, 3]
    assert [trace.device_names for trace in traces] == [{0: f"GPU {gpu}"} for gpu in range(4)]
    for gpu, trace in enumerate(traces):
        names = {trace.events.name_of(row) for row in trace.events.rows_of(EventKind.KERNEL).tolist()}
        assert names == {f"kernel_of_{gpu}", NCCL_KERNEL}
        assert {call.operation for call in trace.collectives} == {"all_reduce"}
    assert analyze([path]).world_size == 4


def test_ranks_of_mpi_are_used(path: Path) -> None:
    tables = {**SCHEMA_2024.tables, "MPI_RANKS": "globalTid, rank"}
    with ExportWriter(path, Schema(SCHEMA_2024.product, text_ids=True, tables=tables)) as writer:
        job = Job(writer)
        for pid, rank in ((100, 9), (101, 8)):
            job.steps(pid, device=pid - 100)
            writer.rows("MPI_RANKS", [{"globalTid": thread(pid), "rank": rank}])
    assert [trace.rank for trace in read_traces([path])] == [8, 9]


def test_ranks_in_file_names_are_used(tmp_path: Path) -> None:
    for rank in (1, 0):
        with ExportWriter(tmp_path / f"report_rank{rank}.sqlite") as writer:
            Job(writer).steps(100 + rank, kernels=(f"kernel_of_{rank}",))
    traces = read_traces([tmp_path])
    assert [(trace.rank, trace.events.names[0]) for trace in traces] == [
        (0, "kernel_of_0"),
        (1, "kernel_of_1"),
    ]


def test_devices_of_one_process_stay_in_one_trace(path: Path) -> None:
    with ExportWriter(path) as writer:
        job = Job(writer)
        for device in range(2):
            job.steps(100, device=device)
    trace = only(path)
    assert set(trace.events.device[trace.events.rows_of(EventKind.KERNEL)].tolist()) == {0, 1}
    assert len(analyze([path]).devices) == 2


def test_devices_that_communicate_are_ranks_without_pytorch(path: Path) -> None:
    with ExportWriter(path) as writer:
        job = Job(writer)
        for device in range(2):  # one thread launches for each device
            for step in range(8):
                for index, kernel in enumerate(("loop_fusion", NCCL_KERNEL)):
                    start = step * STEP_NS + 10_000 + index * (200_000 + 300_000 * device)
                    job.launch(100, start, kernel, device=device, number=1 + device)
                job.call(100, step * STEP_NS + 800_000, "cudaStreamSynchronize_v3020", number=1 + device)
        for step in range(8):
            writer.nvtx(step * STEP_NS, (step + 1) * STEP_NS - 9, f"step {step}", thread(100))
            job.call(100, step * STEP_NS + 900_000, "cudaEventQuery_v3020")
        job.launch(100, 8 * STEP_NS, "last")
    traces = read_traces([path])
    assert [trace.rank for trace in traces] == [0, 1]
    for device, trace in enumerate(traces):
        assert set(trace.events.device.tolist()) == {-1, device}
        names = [trace.events.name_of(row) for row in trace.events.rows_of(EventKind.RUNTIME).tolist()]
        assert names.count("cudaLaunchKernel") == 16 + (device == 0)
        assert names.count("cudaStreamSynchronize") == 8
        assert {trace.events.name_of(call.row) for call in trace.collectives} == {NCCL_KERNEL}
        assert len(trace.step_marks[0].row) == 8
    analysis = analyze([path])
    assert analysis.world_size == 2
    assert analysis.steps.mean_ms == pytest.approx(1.0)


def test_processes_with_little_device_work_are_left_out(path: Path) -> None:
    with ExportWriter(path) as writer:
        job = Job(writer)
        job.steps(100, 200)
        job.launch(200, 5, "probe")
        writer.nvtx(0, 10, "in a worker", thread(300))
    trace = only(path)
    assert "probe" not in trace.events.names
    assert any("1 processes with less than 1 %" in note for note in trace.notes)


@pytest.mark.parametrize("name", ["step {}", "Iteration: {}", "train_step_{}", "[epoch 1] step={}", "iter#{} (warm)"])
def test_numbered_ranges_are_steps(path: Path, name: str) -> None:
    with ExportWriter(path) as writer:
        Job(writer).steps(100, 8)
        writer.nvtx(0, 8 * STEP_NS, "epoch 0", thread(100))
        for step in range(8):
            begin = step * STEP_NS
            writer.nvtx(begin, begin + STEP_NS - 1, name.format(step + 20), thread(100))
            for layer in range(3):  # numbered parts begin anew in each step
                part = begin + 5_000 + layer * 200_000
                writer.nvtx(part, part + 150_000, f"step {layer}", thread(100))
    (marks,) = only(path).step_marks
    assert (marks.source, marks.number.tolist()) == ("NVTX", list(range(20, 28)))
    assert analyze([path]).steps.mean_ms == pytest.approx(1.0)


def test_repeating_range_within_an_outer_range_is_a_step(path: Path) -> None:
    with ExportWriter(path) as writer:
        Job(writer).steps(100, 8)
        writer.nvtx(0, 8 * STEP_NS, "[pl][profile]run_training_epoch", thread(100))
        for step in range(8):
            writer.nvtx(step * STEP_NS, (step + 1) * STEP_NS - 9, "[pl][profile]run_training_batch", thread(100))
            writer.nvtx(step * STEP_NS + 100, step * STEP_NS + 300_000, "forward", thread(100))
    (marks,) = only(path).step_marks
    assert len(marks.row) == 8
    assert analyze([path]).steps.analysed == 6


@pytest.mark.parametrize("name", ["step {}", "train_step"])
def test_steps_are_those_of_the_main_thread_if_the_backward_pass_launches_more(path: Path, name: str) -> None:
    with ExportWriter(path) as writer:
        job = Job(writer)
        job.steps(100, 8, kernels=("forward",))
        for step in range(8):
            writer.nvtx(step * STEP_NS, (step + 1) * STEP_NS - 9, name.format(step), thread(100))
            for kernel in range(3):
                job.launch(100, step * STEP_NS + 300_000 + kernel * 110_000, "backward", number=1)
    (marks,) = only(path).step_marks
    assert len(marks.row) == 8
    assert analyze([path]).steps.mean_ms == pytest.approx(1.0)


def test_steps_without_ranges_are_found_by_their_kernels(path: Path) -> None:
    with ExportWriter(path) as writer:
        Job(writer).steps(100, 20)
    analysis = analyze([path])
    assert analysis.steps.mean_ms == pytest.approx(1.0)
    assert analysis.framework == "unknown"
    assert "no-step-marks" in {warning.code for warning in analysis.validity}


@pytest.mark.parametrize("schema", [SCHEMA_2022, SCHEMA_2024], ids=["2022", "2024"])
def test_ranges_have_kinds_and_roles_of_their_domains(path: Path, schema: Schema) -> None:
    texts = {
        "aten::mm, seq = 12, op_id = 4, sizes = [[2, 3], [3, 4]]": 0,
        "autograd::engine::evaluate_function: MmBackward0, seq = 12": 0,
        "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__": 0,
        "Optimizer.step#SGD.step": 0,
        "load_batch": 0,
        "my range": 0,
        "ncclAllReduce": 1,
        "cublasGemmEx": 2,
        "input": 3,
    }
    with ExportWriter(path, schema) as writer:
        Job(writer).steps(100)
        for number, name in enumerate(("NCCL", "cuBLAS", "gpudiag"), start=1):
            writer.domain(name, thread(100), number)
        for index, (text, domain) in enumerate(texts.items()):
            writer.nvtx(index * 1000, index * 1000 + 500, text, thread(100), domain=domain)
        writer.nvtx(0, None, "unended", thread(100))
        writer.nvtx(0, 5, "a mark", thread(100), kind=34)
    trace = only(path)
    found = {
        trace.events.name_of(row): (EventKind(int(trace.events.kind[row])), Role(int(trace.events.role[row])))
        for row in trace.events.rows_of(EventKind.OPERATOR, EventKind.ANNOTATION).tolist()
    }
    assert found == {
        "aten::mm": (EventKind.OPERATOR, Role.OPERATOR),
        "autograd::engine::evaluate_function: MmBackward0": (EventKind.OPERATOR, Role.OPERATOR),
        "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__": (EventKind.ANNOTATION, Role.INPUT),
        "Optimizer.step#SGD.step": (EventKind.ANNOTATION, Role.OPTIMIZER),
        "load_batch": (EventKind.ANNOTATION, Role.INPUT),
        "my range": (EventKind.ANNOTATION, Role.OTHER),
        "nccl:AllReduce": (EventKind.OPERATOR, Role.ENQUEUE),
        "cublasGemmEx": (EventKind.OPERATOR, Role.OPERATOR),
        "gpudiag.input": (EventKind.ANNOTATION, Role.INPUT),
    }
    assert (trace.framework, trace.workload) == ("pytorch", "training")


def payload(schema: int, *fields: tuple[int, int]) -> bytes:
    """Return a payload of domain 1 with its header; fields are (value, bytes)."""
    data = b"".join(value.to_bytes(length, "little") for value, length in fields)
    header = (1, schema, len(data), 32 + len(data))
    return b"".join(number.to_bytes(8, "little") for number in header) + data


def test_payloads_of_nccl_give_sizes_and_communicators(path: Path) -> None:
    labels = {
        (1 << 24): ("Communicator ID", "No. of ranks", "Rank"),
        (1 << 24) + 3: ("Communicator ID", "Message size [bytes]", "Reduction operation"),
        (1 << 24) + 4: ("Communicator ID", "Message size [bytes]"),
    }
    offsets = {"Communicator ID": 0, "Message size [bytes]": 8, "No. of ranks": 8, "Rank": 12}
    entries = [
        {"domainId": 1, "schemaId": schema, "idx": index, "name": label, "offset": offsets.get(label, 16)}
        for schema, names in labels.items()
        for index, label in enumerate(names)
    ]
    communicator = 0xFEDC_BA98_7654_3210
    with ExportWriter(path) as writer:
        job = Job(writer)
        writer.domain("NCCL", thread(100), 1)
        writer.rows("NVTX_PAYLOAD_SCHEMA_ENTRIES", entries)
        init = payload(1 << 24, (communicator, 8), (4, 4), (0, 4))
        writer.nvtx(0, 900, "ncclCommInitRank", thread(100), domain=1, payload=init)
        for begin, name, schema, kernel in (
            (10_000, "ncclAllReduce", (1 << 24) + 3, NCCL_KERNEL),
            (510_000, "ncclAllGather", (1 << 24) + 4, NCCL_KERNEL.replace("AllReduce", "AllGather")),
            (810_000, "ncclReduceScatter", (1 << 24) + 3, NCCL_KERNEL.replace("AllReduce", "ReduceScatter")),
        ):
            data = payload(schema, (communicator, 8), (4096, 8), (0, 4))
            writer.nvtx(begin, begin + 50_000, name, thread(100), domain=1, payload=data)
            job.launch(100, begin + 1_000, kernel)
        job.launch(100, 950_000, NCCL_KERNEL)
    calls = [(call.operation, call.size_bytes, call.group) for call in only(path).collectives]
    group = "0xfedcba9876543210"
    assert calls == [
        ("all_reduce", 4096, group),
        ("all_gather", 16_384, group),  # nccl-tests count the whole output, NCCL one rank's part
        ("reduce_scatter", 16_384, group),
        ("all_reduce", None, ""),
    ]


def graph_job(path: Path, *, as_a_whole: bool) -> Trace:
    """Write 6 launches of a graph of three kernels, recorded one by one or as a whole."""
    with ExportWriter(path) as writer:
        job = Job(writer)
        for step in range(6):
            begin, correlation = step * STEP_NS, 1000 + step
            job.call(100, begin, "cudaGraphLaunch_v10000", correlation=correlation)
            shared = {
                "deviceId": 0,
                "contextId": 1,
                "streamId": 7,
                "correlationId": correlation,
                "globalPid": 100 << 24,
            }
            times = [(begin + 10_000 + part * 100_000, begin + 100_000 + part * 100_000) for part in range(3)]
            if as_a_whole:
                whole = {"start": times[0][0], "end": times[-1][1], "graphId": 1, "graphExecId": 2}
                writer.rows("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", [shared | whole])
                continue
            name = writer.string("gemm")
            for node, (start, end) in enumerate(times):
                kernel = {"start": start, "end": end, "demangledName": name, "shortName": name, "graphNodeId": node}
                writer.rows("CUPTI_ACTIVITY_KIND_KERNEL", [shared | kernel])
    return only(path)


def test_kernels_of_graphs_belong_to_the_launch(path: Path) -> None:
    trace = graph_job(path, as_a_whole=False)
    assert len(trace.events.rows_of(EventKind.KERNEL)) == 18
    assert (trace.unrecorded_graphs, trace.notes) == (0, ())


def test_graphs_recorded_as_a_whole_are_device_work_with_a_note(path: Path) -> None:
    trace = graph_job(path, as_a_whole=True)
    kernels = trace.events.rows_of(EventKind.KERNEL)
    assert (trace.events.end_ns - trace.events.start_ns)[kernels].tolist() == [290_000] * 6
    assert {trace.events.name_of(row) for row in kernels.tolist()} == {"CUDA graph 2"}
    assert trace.unrecorded_graphs == 0
    assert any("6 launches of CUDA graphs" in note and "--cuda-graph-trace=node" in note for note in trace.notes)


def copy(writer: ExportWriter, start: int, **values: int) -> None:
    shared = {"start": start, "end": start + 1000, "deviceId": 0, "contextId": 1, "streamId": 7, "bytes": 4096}
    writer.rows("CUPTI_ACTIVITY_KIND_MEMCPY", [shared | {"globalPid": 100 << 24} | values])


def test_copies_have_names_and_memory_as_in_other_recordings(path: Path) -> None:
    with ExportWriter(path) as writer:
        Job(writer).steps(100)
        copy(writer, 0, copyKind=1, srcKind=0, dstKind=2)
        copy(writer, 2000, copyKind=2, srcKind=2, dstKind=1)
        copy(writer, 4000, copyKind=8, srcKind=2, dstKind=2, srcDeviceId=0, dstDeviceId=1)
        copy(writer, 6000, copyKind=8, srcKind=2, dstKind=2, srcDeviceId=1, dstDeviceId=1)
    events = only(path).events
    rows = events.rows_of(EventKind.COPY).tolist()
    assert [(events.name_of(row), Role(int(events.role[row]))) for row in rows] == [
        ("Memcpy HtoD (Pageable -> Device)", Role.COPY),
        ("Memcpy DtoH (Device -> Pinned)", Role.COPY),
        ("Memcpy PtoP (Device -> Device)", Role.COMMUNICATION),
        ("Memcpy DtoD (Device -> Device)", Role.COPY),
    ]
    assert [int(events.host_memory[row]) for row in rows[:2]] == [HostMemory.PAGEABLE, HostMemory.PINNED]


def test_problems_that_nsys_reported_are_notes(path: Path) -> None:
    with ExportWriter(path) as writer:
        Job(writer).steps(100)
        writer.diagnostic(1, "Number of CUDA events collected: 12.")
        writer.diagnostic(2, "Not all CUDA events might have been collected.")
    assert only(path).notes == ("Nsight Systems: Not all CUDA events might have been collected.",)


def test_part_of_a_large_export_is_read(path: Path) -> None:
    with ExportWriter(path) as writer:
        Job(writer).steps(100, 1000)
    (trace,) = read_export(path, "report.sqlite", ReadLimits(), most_events=1000)
    assert 500 < len(trace.events) <= 1000
    (note,) = trace.notes
    assert note.startswith("of about 0.0 million events in report.sqlite, the 0.0 million from 0.")
    with closing(sqlite3.connect(path)) as database:
        begin = trace.events.start_ns + trace.origin_ns
        assert begin.max() - begin.min() < 400 * STEP_NS
        middle = database.execute("SELECT avg(start) FROM CUPTI_ACTIVITY_KIND_KERNEL").fetchone()[0]
    first = trace.origin_ns - 1_700_000_000_000_000_000
    assert first < middle < first + int(trace.events.end_ns.max())


def test_export_larger_than_allowed_is_refused(path: Path) -> None:
    with ExportWriter(path) as writer:
        Job(writer).steps(100)
    with pytest.raises(TooLargeError, match="more than the"):
        read_traces([path], limits=ReadLimits(max_bytes=1000))


def test_old_exports_do_not_state_the_process_of_device_work(path: Path) -> None:
    tables: Mapping[str, str] = SCHEMA_2022.tables
    old = {**tables, "CUPTI_ACTIVITY_KIND_KERNEL": tables["CUPTI_ACTIVITY_KIND_KERNEL"].replace(", globalPid", "")}
    schema = Schema("2020.1", text_ids=False, tables=old)
    with ExportWriter(path, schema) as writer:
        Job(writer).steps(100)
    assert len(only(path).events.rows_of(EventKind.KERNEL)) == 12
    path.unlink()
    with ExportWriter(path, schema) as writer:
        Job(writer).steps(100)
        Job(writer).steps(101)
    with pytest.raises(UnreadableInputError, match="has 2 processes, and does not say whose"):
        read_traces([path])


def test_other_databases_and_empty_exports_are_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.sqlite"
    with closing(sqlite3.connect(other)) as database:
        database.execute("CREATE TABLE notes (text TEXT)")
        database.commit()
    with pytest.raises(NotATraceError, match="an SQLite database without tables of Nsight Systems"):
        read_traces([other])
    text = tmp_path / "text.sqlite"
    text.write_text("{}")
    with pytest.raises(NotATraceError, match="is not an SQLite database"):
        read_traces([text])
    with pytest.raises(NotATraceError, match="no traces in"):
        read_traces([tmp_path])
    empty = tmp_path / "empty.sqlite"
    with ExportWriter(empty):
        pass
    with pytest.raises(UnreadableInputError, match="has no events of CUDA or NVTX"):
        read_traces([empty])


def test_report_beside_its_export_is_ignored(tmp_path: Path) -> None:
    with ExportWriter(tmp_path / "report.sqlite") as writer:
        Job(writer).steps(100)
    (tmp_path / "report.nsys-rep").write_bytes(b"\x01\x02")
    assert len(read_traces([tmp_path])) == 1


def test_report_without_nsys_says_how_to_export_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    report = tmp_path / "report.nsys-rep"
    report.write_bytes(b"\x01\x02")
    with pytest.raises(UnreadableInputError, match="nsys, which exports it, is not installed") as caught:
        read_traces([report])
    assert "nsys export --type sqlite report.nsys-rep" in caught.value.hint


def install_nsys(directory: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    program = directory / "nsys"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:/usr/bin:/bin")


@pytest.mark.processes
def test_report_is_exported_by_nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ExportWriter(tmp_path / "made.sqlite") as writer:
        Job(writer).steps(100)
    report = tmp_path / "job one.nsys-rep"
    report.write_bytes(b"\x01\x02")
    # nsys export --type sqlite --output TARGET --force-overwrite true REPORT
    install_nsys(tmp_path, monkeypatch, f'test "$8" = "{report}" && cp "{tmp_path}/made.sqlite" "$5"')
    assert len(only(report).events.rows_of(EventKind.KERNEL)) == 12
    install_nsys(tmp_path, monkeypatch, "echo 'starting'; echo 'unsupported version of the report' >&2; exit 1")
    with pytest.raises(UnreadableInputError, match=r"could not export .*: unsupported version of the report"):
        read_traces([report])


@pytest.mark.processes
def test_command_line_analyses_an_export(tmp_path: Path) -> None:
    export = write_export(tmp_path / "report.sqlite", read_traces([TRACES / "vgg_p2poff"]))
    done = gpudiag("analyze", str(export))
    assert done.returncode == 0
    assert "communication" in done.stdout
    assert "PyTorch training" in done.stdout
