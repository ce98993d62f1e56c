"""Test that files of other programs are refused with the name of their format and the format to use instead."""

from __future__ import annotations

import json
import pickle
import sqlite3
import time
from typing import TYPE_CHECKING, Any

import pytest

from gpudiag.app.analyze import analyze
from gpudiag.errors import NotATraceError, UnreadableInputError
from gpudiag.trace import read_traces
from gpudiag.trace.other_formats import other_format
from tests.cli_process import gpudiag
from tests.trace.documents import document, event, write

if TYPE_CHECKING:
    from pathlib import Path

SPAN = {"pid": 1, "tid": 1, "ts": 1, "dur": 2, "name": "f", "ph": "X"}
#: A profile as JAX's and TensorFlow's plugin exports it for a browser: events without categories.
XLA = {
    "displayTimeUnit": "ns",
    "metadata": {"highres-ticks": True},
    "traceEvents": [{"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "/device:GPU:0"}}, SPAN],
}
JSON: list[tuple[str, Any, str]] = [
    ("a.har", {"log": {"version": "1.2", "creator": {}, "entries": []}}, "an HTTP archive"),
    ("result.json", {"traceEvents": [SPAN | {"cat": "FEE"}], "viztracer_metadata": {}}, "a trace of VizTracer"),
    ("vm.trace.json.gz", XLA, "the Chrome trace that TensorFlow or JAX makes of a profile"),
    ("et.json", {"schema": "1.0.2-chakra.0.0.4", "pid": 1, "nodes": []}, "an execution trace of PyTorch"),
    ("snapshot.json", {"segments": [], "device_traces": [[]]}, "a snapshot of PyTorch's memory"),
    ("out.json", {"rocprofiler-sdk-tool": [{"metadata": {}}]}, "the JSON of rocprofv3"),
    ("results.json", {"traceEvents": [SPAN | {"args": {"BeginNs": "5", "EndNs": "9"}}]}, "a Chrome trace of rocprof"),
    ("py-spy.json", {"$schema": "https://www.speedscope.app/file-format-schema.json", "profiles": []}, "speedscope"),
    ("timeline.json", [{"name": "NEGOTIATE_ALLREDUCE", "ph": "B", "ts": 1, "pid": 1}], "a timeline of Horovod"),
    ("spans.json", {"traceEvents": [{"ph": "B", "ts": 1, "name": "f"}, {"ph": "E", "ts": 2}]}, "of another program"),
    ("old.json", [SPAN | {"pid": "CPU functions"}], "a trace of PyTorch's profiler of before 2021"),
    ("export.json", {"Type": 48, "CudaEvent": {"startNs": "1"}}, "an export of Nsight Systems"),
]


@pytest.mark.parametrize(("name", "content", "called"), JSON, ids=[name for name, _, _ in JSON])
def test_documents_of_other_programs_are_named(tmp_path: Path, name: str, content: Any, called: str) -> None:
    path = write(tmp_path / name, content)
    with pytest.raises(NotATraceError, match=called) as caught:
        read_traces([path])
    assert str(path) in str(caught.value)
    assert (
        "torch.profiler.profile(activities=[" in caught.value.hint
        or ".xplane.pb" in caught.value.hint
        or ("nsys export --type sqlite" in caught.value.hint)
    )


def _database(path: Path) -> Path:
    with sqlite3.connect(path) as database:
        database.execute("create table CUPTI_ACTIVITY_KIND_KERNEL (start integer)")
    database.close()
    return path


def test_binary_formats_are_named(tmp_path: Path) -> None:
    snapshot = pickle.dumps({"segments": [], "device_traces": [[]]})
    for path, called in (
        (_database(tmp_path / "report.sqlite"), "an SQLite database"),
        (write(tmp_path / "snapshot.pickle", snapshot), "a snapshot of PyTorch's memory .pickle"),
        (write(tmp_path / "packed.json.gz", snapshot), "a snapshot of PyTorch's memory .pickle"),
        (write(tmp_path / "numbers.pkl", pickle.dumps([1, 2])), "a Python pickle, which is never opened"),
        (write(tmp_path / "a.pftrace", b"\x0a\x10\x52\x05abcde"), "a protobuf of Perfetto"),
        (write(tmp_path / "a.pb", b"\x0a\x10\x52\x05abcde"), "an XSpace whose name does not end in .xplane.pb"),
        (write(tmp_path / "a.qdrep", b"\x01\x02"), "a report of Nsight Systems"),
        (write(tmp_path / "page.json", b"<!DOCTYPE html><html></html>"), "an HTML page"),
    ):
        with pytest.raises(NotATraceError, match=called):
            read_traces([path])


def test_directory_of_other_formats_is_refused_with_their_names(tmp_path: Path) -> None:
    write(tmp_path / "vm.trace.json.gz", XLA)
    with pytest.raises(
        NotATraceError, match=r"no traces in .*vm\.trace\.json\.gz is the Chrome trace that TensorFlow"
    ) as caught:
        read_traces([tmp_path])
    assert caught.value.hint == "Give the .xplane.pb that the same profiler wrote beside it."


def test_profiler_span_alone_is_no_other_format(tmp_path: Path) -> None:
    span = event("Trace", "PyTorch Profiler (0)", 1, 5)
    with pytest.raises(UnreadableInputError, match="without events"):
        read_traces([write(tmp_path / "rank0.json", document(span))])


def test_format_search_is_fast_for_any_text() -> None:
    texts = (b'{"cat": "Session"', b'{"log": {', b'{"highres-ticks"', b"\x0a" * 9, b"\x80\x04dev", b'{"schema": "1.')
    begun = time.perf_counter()
    for text in texts:
        other_format(text * (512 * 1024 // len(text)), "a")
    # The search takes some milliseconds, but backtracking patterns would take minutes.
    assert time.perf_counter() - begun < 20


def test_recording_without_compute_names_what_is_missing(tmp_path: Path) -> None:
    path = write(tmp_path / "rank0.json", document(event("user_annotation", "mine", 1, 5)))
    analysis = analyze([path])
    (message,) = [warning.message for warning in analysis.validity if warning.code == "missing-device-activity"]
    assert message.startswith("the recording has no device activity, no host operators, no step marks")
    assert "torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], schedule=" in message
    assert (analysis.devices, analysis.findings) == ((), ())
    marked = write(tmp_path / "marked.json", document(event("user_annotation", "ProfilerStep#3", 1, 5)))
    (message,) = [
        warning.message for warning in analyze([marked]).validity if warning.code == "missing-device-activity"
    ]
    assert message.startswith("the recording has no device activity, no host operators: ")


@pytest.mark.processes
def test_insufficient_recordings_exit_with_0_and_non_traces_with_4(tmp_path: Path) -> None:
    insufficient = write(tmp_path / "rank0.json", document(event("user_annotation", "mine", 1, 5)))
    assert gpudiag("analyze", str(insufficient)).returncode == 0
    other = write(tmp_path / "result.json", json.dumps(JSON[1][1]))
    refused = gpudiag("analyze", str(other))
    assert refused.returncode == 4
    assert "a trace of VizTracer" in refused.stderr
