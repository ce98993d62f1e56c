"""Test that broken, foreign and hostile files are refused: a line for the fault, one for the remedy, exit code 4."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
import textwrap
import time
import tracemalloc
import zlib
from typing import TYPE_CHECKING, Any

import pytest

from gpudiag.errors import GpudiagError, NotATraceError, TooLargeError, UnreadableInputError, UsageError
from gpudiag.model.quantities import MOST_RANKS
from gpudiag.trace import ReadLimits, read_traces
from tests.cli_process import SECONDS
from tests.trace.documents import document, event, names, read_one, write

if TYPE_CHECKING:
    from pathlib import Path

GOOD = document(*(event("cpu_op", f"op{number}", number, 1) for number in range(400)))
TEXT = json.dumps(GOOD, indent=2)


def _refused(path: Path, kind: type[GpudiagError], says: str, **limits: int) -> None:
    with pytest.raises(kind, match=says) as caught:
        read_traces([path], limits=ReadLimits(**limits))
    assert caught.value.exit_code == 4
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize("share", [0.02, 0.5, 0.999])
def test_truncated_gzip_is_refused(tmp_path: Path, share: float) -> None:
    packed = gzip.compress(TEXT.encode())
    path = write(tmp_path / "rank0.pt.trace.json", packed[: int(len(packed) * share)])
    _refused(path, UnreadableInputError, "gzip file cut short: it ends after [0-9]+ bytes")


@pytest.mark.parametrize("share", [0.01, 0.3, 0.7, 0.9999])
@pytest.mark.parametrize("name", ["rank0.json", "rank0.json.gz"])
def test_half_written_json_is_refused(tmp_path: Path, share: float, name: str) -> None:
    half = TEXT[: int(len(TEXT) * share)].rstrip()
    path = write(tmp_path / name, half)
    _refused(path, UnreadableInputError, f"cut short: its JSON ends unfinished at byte {len(half)}")


def test_empty_file_is_refused(tmp_path: Path) -> None:
    _refused(write(tmp_path / "rank0.json", b""), UnreadableInputError, "is empty")


@pytest.mark.parametrize(
    "content",
    ["{}", "[]", '{"traceEvents": 5}', '{"traceEvents": {"a": 1}}', '{"schema": "gpudiag/analysis/1"}', "[1, 2]"],
)
def test_json_without_trace_is_refused(tmp_path: Path, content: str) -> None:
    path = write(tmp_path / "notes.json", content)
    with pytest.raises(UnreadableInputError) as caught:
        read_traces([path])
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("content", [b"hello", b"\x00\x01\x02", b"<html></html>", "naïve".encode("latin-1")])
def test_non_json_is_refused(tmp_path: Path, content: bytes) -> None:
    _refused(write(tmp_path / "rank0.json", content), NotATraceError, "is not JSON")


def test_trace_of_another_profiler_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "rank0.json", document(event("tf_op", "MatMul", 1, 2)))
    _refused(path, NotATraceError, "none that PyTorch's profiler writes .categories: tf_op")


def test_empty_trace_is_refused(tmp_path: Path) -> None:
    _refused(write(tmp_path / "rank0.json", document()), UnreadableInputError, "without events")


def test_file_named_gz_without_gzip_data_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json.gz"
    path.write_bytes(b"not gzip at all")
    _refused(path, UnreadableInputError, "named .gz but is not gzip")


@pytest.mark.parametrize(("magic", "packing"), [(b"\x28\xb5\x2f\xfd", "zstd"), (b"PK\x03\x04", "zip")])
def test_other_compressions_are_named(tmp_path: Path, magic: bytes, packing: str) -> None:
    _refused(write(tmp_path / "rank0.json", magic + b"x" * 50), UnreadableInputError, f"packed with {packing}")


def test_damaged_gzip_is_refused(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(TEXT.encode()))
    packed[len(packed) // 2] ^= 0xFF
    path = write(tmp_path / "rank0.json", bytes(packed))
    with pytest.raises(UnreadableInputError, match=re.escape(str(path))):
        read_traces([path])


def test_wrong_checksum_is_refused(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(TEXT.encode()))
    packed[-8] ^= 0xFF
    _refused(write(tmp_path / "rank0.json", bytes(packed)), UnreadableInputError, "damaged gzip")


def test_bytes_after_gzip_data_are_reported(tmp_path: Path) -> None:
    path = write(tmp_path / "rank0.json", gzip.compress(TEXT.encode()) + b"more")
    _refused(path, UnreadableInputError, "other bytes after its gzip data")


def test_gzip_members_and_padding_are_read(tmp_path: Path) -> None:
    members = gzip.compress(TEXT[:5000].encode()) + b"\0" * 70_000 + gzip.compress(TEXT[5000:].encode()) + b"\0" * 9
    assert len(read_one(tmp_path, members).events) == 400


@pytest.mark.parametrize("depth", [2_000, 100_000])
def test_deep_nesting_is_refused(tmp_path: Path, depth: int) -> None:
    deep = '{"traceEvents": [{"args": ' + "[" * depth + "]" * depth + "}]}"
    _refused(write(tmp_path / "rank0.json", deep), UnreadableInputError, "nested too deep|without events")


def test_nan_and_infinity_are_repaired(tmp_path: Path) -> None:
    text = (
        '{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 5, "dur": 2, "args": {"x": nan, "y": -inf}}]}'
    )
    trace = read_one(tmp_path, text)
    assert names(trace) == ["k"]
    assert "not valid JSON" in trace.notes[0]


@pytest.mark.parametrize("raw", [b"\xff\xfe", b"a\nb", b"\\q", b"\\ud800", b"\x1b[31m"])
def test_broken_utf8_in_a_name_is_repaired(tmp_path: Path, raw: bytes) -> None:
    text = json.dumps(document(event("cpu_op", "NAME", 1, 1), event("cpu_op", "other", 2, 1))).encode()
    trace = read_one(tmp_path, text.replace(b"NAME", raw))
    assert len(trace.events) == 2
    assert names(trace)[1] == "other"


def test_repair_keeps_valid_escapes(tmp_path: Path) -> None:
    text = json.dumps(document(event("cpu_op", 'quote " slash \\ é 😀', 1, 1), event("cpu_op", "NAN", 2, 1)))
    trace = read_one(tmp_path, text.replace('"NAN"', r'"\ud800"'))
    assert names(trace)[0] == 'quote " slash \\ é 😀'


def test_long_text_repaired_in_blocks_equals_text_repaired_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = ("\\q", "\\ud800", "\x1b}", "\\\\ \\n", '", "args": {"x": nan}, "cat": "cpu_op')
    events = [json.dumps(event("cpu_op", f"op{n} NAME", n, 1)).replace("NAME", wrong[n % 5]) for n in range(2000)]
    path = write(tmp_path / "rank0.json", '{"traceEvents": [' + ",\n".join(events) + "]}")
    (whole,) = read_traces([path])
    monkeypatch.setattr("gpudiag.trace.readers.kineto.event_json._REPAIRED_WHOLE", 0)
    monkeypatch.setattr("gpudiag.trace.readers.kineto.document._REPAIRED_AT_ONCE", 1000)
    (pieces,) = read_traces([path])
    assert len(whole.events) == 2000
    assert names(pieces) == names(whole)
    assert pieces.notes == whole.notes


@pytest.mark.parametrize("begin", ['{"traceEvents": [', TEXT[:2000]], ids=["at-once", "after-events"])
def test_unrepairable_file_is_refused_early_in_little_memory(tmp_path: Path, begin: str) -> None:
    size = 48 << 20
    path = write(tmp_path / "rank0.json", begin.encode() + bytes(size))
    tracemalloc.start()
    try:
        _refused(path, UnreadableInputError, "is damaged")
        assert (
            tracemalloc.get_traced_memory()[1] < 3 * size
        )  # repairing the whole file would take 5.6 times as much memory
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "wrong",
    [
        {"ts": None},
        {"ts": "soon"},
        {"ts": 1e300},
        {"ts": -1e300},
        {"dur": 1e300},
        {"ts": 10**400},
        {"name": None},
        {"name": 5},
        {"cat": 7},
        {"ph": ["X"]},
        {"pid": {}},
        {"tid": 2**70},
        {"tid": 1.5},
    ],
)
def test_malformed_event_is_left_out_and_the_rest_is_read(tmp_path: Path, wrong: dict[str, Any]) -> None:
    good = [event("cpu_op", f"good{number}", number, 1) for number in range(3)]
    trace = read_one(tmp_path, document(*good, event("cpu_op", "bad", 3, 1) | wrong, 7, None, "text"))
    assert names(trace) == ["good0", "good1", "good2"]
    assert trace.notes


@pytest.mark.parametrize(
    "arguments",
    [[], "text", 5, {"device": []}, {"correlation": 2**64}, {"stream": {}}, {"bytes": None}, {"correlation": 1.5}],
)
def test_malformed_arguments_do_not_affect_other_fields(tmp_path: Path, arguments: Any) -> None:
    trace = read_one(tmp_path, document(event("kernel", "k", 1, 1, pid=2, tid=9, args=arguments)))
    assert names(trace) == ["k"]
    assert (trace.events.device.tolist(), trace.events.thread.tolist()) == ([2], [9])
    assert trace.notes == ("1 events had arguments of an unknown form, which were left out",)


def test_device_numbers_out_of_range_become_device_0(tmp_path: Path) -> None:
    trace = read_one(tmp_path, document(event("kernel", "k", 1, 1, pid=99, args={"device": 2**40})))
    assert trace.events.device.tolist() == [0]


def test_markup_and_control_characters_in_names_are_kept(tmp_path: Path) -> None:
    hostile = "[bold red]x[/] <script>alert(1)</script> \x1b]0;title\x07 \u202e"
    assert names(read_one(tmp_path, document(event("cpu_op", hostile, 1, 1)))) == [hostile]


def test_pipes_and_devices_are_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rank0.json")
    _refused(tmp_path / "rank0.json", UnreadableInputError, "is not a regular file")
    with pytest.raises(UnreadableInputError, match="/dev/zero is not a regular file"):
        read_traces(["/dev/zero"])


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable_file_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "rank0.json", GOOD)
    path.chmod(0)
    _refused(path, UnreadableInputError, "Permission denied")


def test_size_limit_is_enforced(tmp_path: Path) -> None:
    for name in ("rank0.json", "rank1.json.gz"):
        _refused(write(tmp_path / name, TEXT), TooLargeError, "unpacks to more than", max_bytes=10_000)


def test_two_traces_of_one_rank_are_refused(tmp_path: Path) -> None:
    paths = [write(tmp_path / directory / "rank3.json", GOOD) for directory in ("a", "b")]
    with pytest.raises(UnreadableInputError, match=r"two traces claim rank 3: .*a/rank3\.json and .*b/rank3\.json"):
        read_traces(paths)


@pytest.mark.parametrize("facts", [{"world_size": 2**31 - 1}, {"rank": 2**31 - 1}, {"world_size": MOST_RANKS + 1}])
def test_sizes_beyond_any_job_are_refused_before_use(tmp_path: Path, facts: dict[str, int]) -> None:
    path = write(tmp_path / "rank0.json", {**GOOD, "distributedInfo": facts})
    before = time.process_time()
    with pytest.raises(UnreadableInputError, match="no job has more than"):
        read_traces([path])
    with pytest.raises(UsageError, match="no job has"):
        read_traces([path], world_size=2**31 - 1)
    assert time.process_time() - before < 1


def test_groups_with_impossible_ranks_are_left_out(tmp_path: Path) -> None:
    groups = [{"pg_name": "0", "ranks": [0, 2**62]}, {"pg_name": "1", "ranks": [-1]}]
    (trace,) = read_traces([write(tmp_path / "rank0.json", {**GOOD, "distributedInfo": {"pg_config": groups}})])
    assert not any(call.group_ranks for call in trace.collectives)


@pytest.fixture(scope="module")
def bomb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return 10 MB of gzip that unpack to 10 GB of JSON: a list of events that contains only spaces."""
    path = tmp_path_factory.mktemp("bomb") / "rank0.json.gz"
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    first = packer.compress(b'{"traceEvents": [') + packer.flush(zlib.Z_FULL_FLUSH)
    spaces = packer.compress(b" " * (1 << 24)) + packer.flush(zlib.Z_FULL_FLUSH)  # this block is repeated below
    path.write_bytes(first + spaces * 600)
    return path


@pytest.mark.processes
def test_decompression_bomb_is_detected_early_in_little_memory(bomb: Path) -> None:
    program = f"""
        import resource, sys
        from gpudiag.errors import TooLargeError
        from gpudiag.trace import read_traces
        resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            read_traces([{str(bomb)!r}])
        except TooLargeError as error:
            print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024, error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    taken_mb, _, message = done.stdout.partition(" ")
    assert "unpacks to more than 200 times its size" in message
    assert int(taken_mb) < 200


def test_bomb_of_small_events_stops_at_the_limit_in_bounded_memory(tmp_path: Path) -> None:
    line = json.dumps(event("cpu_op", "aten::empty", 1, 1))
    text = '{"traceEvents": [' + ",\n".join([line] * 200_000) + "]}"
    path = write(tmp_path / "rank0.json.gz", text)
    _refused(path, TooLargeError, "200 times its size|allowed for one trace", max_bytes=4_000_000)
