"""Test that trace files are found in every common directory layout."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpudiag.errors import NotATraceError, UnreadableInputError, UsageError
from gpudiag.trace import read_traces
from gpudiag.trace.ranks import parse_name
from gpudiag.trace.sources import find_sources
from tests.trace.documents import document, event, write

TRACE = document(event("cpu_op", "aten::add", 1, 1))


def _found(*paths: Path | str) -> list[str]:
    return [source.path.name for source in find_sources(paths)]


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank0.pt.trace.json.gz", 0),
        ("rank_3.json.gz", 3),
        ("rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz", 34),
        ("trace_rank_2.json", 2),
        ("iteration_10/rank12_trace.json", 12),
        ("worker1.1712345678901234567.pt.trace.json", 1),
        ("sampled_rank-1.json.gz", 1),
        ("rank_7/host_123.1712345678901.pt.trace.json", 7),
        ("host_4711.1712345678901234567.pt.trace.json.gz", None),
        ("rank_non_gpu.json.gz", None),
        ("frank5.json", None),
        ("kineto_2021_resnet50_workers4.pt.trace.json.gz", None),
        ("rank99999999999999.json", None),
    ],
)
def test_ranks_are_read_from_names(name: str, rank: int | None) -> None:
    assert parse_name(Path(name)).rank == rank


def test_host_worker_and_world_size_are_read_from_names() -> None:
    facts = parse_name(Path("gpu-node-3_4711.1712345678901234567.pt.trace.json.gz"))
    assert (facts.host, facts.worker, facts.stamp) == ("gpu-node-3", "gpu-node-3_4711", 1712345678901234567)
    assert parse_name(Path("world_size8_rank3.json")).world_size == 8


def test_world_size_of_the_trace_overrides_that_of_the_caller(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json", TRACE)
    write(tmp_path / "rank1.json", document(*TRACE["traceEvents"], distributedInfo={"rank": 1, "world_size": 2}))
    assert [trace.world_size for trace in read_traces([tmp_path], world_size=4)] == [4, 2]
    assert [trace.world_size for trace in read_traces([tmp_path])] == [None, 2]


def test_rank_in_the_trace_overrides_that_in_its_name(tmp_path: Path) -> None:
    path = write(tmp_path / "rank5.json", document(*TRACE["traceEvents"], distributedInfo={"rank": 2}))
    (trace,) = read_traces([path])
    assert trace.rank == 2


def test_traces_are_sorted_by_rank_with_unranked_last(tmp_path: Path) -> None:
    for name in ("rank10.json", "rank2.json", "some_trace.json"):
        write(tmp_path / name, TRACE)
    assert [trace.rank for trace in read_traces([tmp_path])] == [2, 10, None]


def test_directory_of_traces_among_other_files_is_read(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json", TRACE)
    write(tmp_path / "oddly-named.json.gz", TRACE)
    write(tmp_path / "truth.json", {"step_ms_clean": 30.8})
    write(tmp_path / "config.json", {"lr": 0.1})
    write(tmp_path / "half.json", '{"lr": ')
    write(tmp_path / "trace_settings.json", {"active": 5})
    write(tmp_path / "README.md", "hello")
    assert _found(tmp_path) == ["oddly-named.json.gz", "rank0.json", "trace_settings.json"]
    assert len(read_traces([tmp_path])) == 2


def test_broken_file_named_as_trace_is_an_error_in_a_directory(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json", TRACE)
    write(tmp_path / "rank1.json", '{"traceEvents": [')
    with pytest.raises(UnreadableInputError, match=r"rank1\.json is cut short"):
        read_traces([tmp_path])


def test_named_file_that_is_no_trace_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "analysis.json", {"schema": "gpudiag/analysis/1"})
    with pytest.raises(NotATraceError, match=r"analysis\.json is JSON, but no profiler trace"):
        read_traces([path])


def test_run_directory_is_read(tmp_path: Path) -> None:
    write(tmp_path / "run.json", {"schema": "gpudiag/run/1"})
    write(tmp_path / "analysis.json", {"schema": "gpudiag/analysis/1"})
    write(tmp_path / "traces" / "rank0.pt.trace.json.gz", TRACE)
    write(tmp_path / "traces" / "rank1.pt.trace.json.gz", TRACE)
    assert _found(tmp_path) == ["rank0.pt.trace.json.gz", "rank1.pt.trace.json.gz"]


def test_latest_iteration_of_torchtitan_is_read(tmp_path: Path) -> None:
    for iteration in (5, 10, 100):
        for rank in (0, 1):
            write(tmp_path / "profile_trace" / f"iteration_{iteration}" / f"rank{rank}_trace.json", TRACE)
    (tmp_path / "profile_trace" / "iteration_200").mkdir()
    traces = read_traces([tmp_path])
    assert [Path(trace.source).parent.name for trace in traces] == ["iteration_100"] * 2
    assert traces[0].notes == ("of 4 recordings the latest was read: iteration_100",)
    assert traces[1].notes == ()


def test_latest_recording_of_tensorboard_is_read(tmp_path: Path) -> None:
    for recording in ("2024_01_01", "2024_02_01"):
        write(tmp_path / "plugins" / "profile" / recording / "rank0.pt.trace.json.gz", TRACE)
    (trace,) = read_traces([tmp_path])
    assert "2024_02_01" in trace.source
    assert trace.notes == ("of 2 recordings the latest was read: 2024_02_01",)


def test_directory_per_rank_is_read(tmp_path: Path) -> None:
    for rank in (0, 1, 2):
        write(tmp_path / f"rank_{rank}" / "host_1.1712345678901.pt.trace.json", TRACE)
    assert [trace.rank for trace in read_traces([tmp_path])] == [0, 1, 2]


def test_newest_file_of_each_worker_is_read(tmp_path: Path) -> None:
    for worker in ("node_1", "node_2"):
        for stamp in (1712345678901000000, 1712345679901000000, 1712345670000000000):
            write(tmp_path / f"{worker}.{stamp}.pt.trace.json", TRACE)
    traces = read_traces([tmp_path])
    assert [Path(trace.source).name for trace in traces] == [
        "node_1.1712345679901000000.pt.trace.json",
        "node_2.1712345679901000000.pt.trace.json",
    ]
    assert {trace.host for trace in traces} == {"node"}
    assert all("the newest of the 3 files of its worker" in trace.notes[0] for trace in traces)


def test_globs_and_paths_give_each_file_once(tmp_path: Path) -> None:
    for rank in range(3):
        write(tmp_path / f"rank{rank}.json", TRACE)
    write(tmp_path / "notes.txt", "x")
    assert _found(str(tmp_path / "*"), tmp_path / "rank1.json", tmp_path) == ["rank0.json", "rank1.json", "rank2.json"]
    assert _found(str(tmp_path / "rank[12].json")) == ["rank1.json", "rank2.json"]


def test_existing_name_with_glob_characters_is_no_pattern(tmp_path: Path) -> None:
    path = write(tmp_path / "rank[1].json", TRACE)
    assert _found(path) == ["rank[1].json"]


def test_links_are_followed_only_if_named(tmp_path: Path) -> None:
    outside = write(tmp_path / "elsewhere" / "rank7.json", TRACE)
    inside = tmp_path / "run"
    write(inside / "rank0.json", TRACE)
    (inside / "rank7.json").symlink_to(outside)
    (inside / "traces").symlink_to(outside.parent)
    os.mkfifo(inside / "rank8.json")
    assert _found(inside) == ["rank0.json"]
    assert _found(inside / "rank7.json") == ["rank7.json"]


def test_missing_inputs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no path"):
        read_traces([])
    with pytest.raises(UnreadableInputError, match="does not exist"):
        read_traces([tmp_path / "missing.json"])
    with pytest.raises(UnreadableInputError, match="nothing matches"):
        read_traces([str(tmp_path / "*.json")])
    with pytest.raises(NotATraceError, match="no traces in"):
        read_traces([tmp_path])
    write(tmp_path / "trace_settings.json", {"active": 5})
    with pytest.raises(NotATraceError, match="no traces in"):
        read_traces([tmp_path])
    with pytest.raises(UnreadableInputError, match="is no path"):
        read_traces(["a\0b"])


def test_directory_of_runs_names_subdirectories_with_traces(tmp_path: Path) -> None:
    for run in ("first", "second", "deeper/third"):
        write(tmp_path / run / "traces" / "rank0.json", TRACE)
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotATraceError, match=r"no traces in .* itself, but in folders below it: ") as caught:
        read_traces([tmp_path])
    named = str(caught.value).partition("below it: ")[2].split(", ")
    assert named == [str(tmp_path / run) for run in ("deeper/third", "first", "second")]
    for number in range(5):
        write(tmp_path / f"zz{number}" / "rank0.json", TRACE)
    with pytest.raises(NotATraceError, match=r"and others$"):
        read_traces([tmp_path])
    assert len(read_traces([tmp_path / "first"])) == 1


def test_error_of_a_failed_run_is_the_reason_for_missing_traces(tmp_path: Path) -> None:
    run: dict[str, object] = {"schema": "gpudiag/run/1", "created": "", "command": ["python"], "workload": "train.py"}
    run |= {"framework": "pytorch", "strategy": "own", "world_size": 1, "nodes": 1, "batch_size_per_device": None}
    write(tmp_path / "run.json", run | {"status": "failed", "error": "the loop ended after 113 steps"})
    write(tmp_path / "ranks" / "rank0.json", {"rank": 0})
    with pytest.raises(NotATraceError, match=r"no traces in .*: the loop ended after 113 steps$"):
        read_traces([tmp_path])


def test_search_for_subdirectories_is_bounded(tmp_path: Path) -> None:
    for number in range(300):
        (tmp_path / f"{number:03}").mkdir()
    write(tmp_path / "999" / "rank0.json", TRACE)
    with pytest.raises(NotATraceError, match=r"no traces in [^:]*$"):
        read_traces([tmp_path])


def test_file_names_are_printable_in_messages(tmp_path: Path) -> None:
    path = write(tmp_path / "rank0\x1b[31m.json", "x")
    with pytest.raises(NotATraceError) as caught:
        read_traces([path])
    assert str(caught.value).isprintable()
    assert r"rank0\x1b[31m.json" in str(caught.value)
