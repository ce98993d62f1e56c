"""Test that directories of different jobs are distinguished from directories of one job's nodes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gpudiag.app.analyze import analyze
from gpudiag.trace import read_traces
from gpudiag.trace.recordings import Recording, SeveralRecordingsError, separate_recordings

TRACES = Path(__file__).parents[1] / "traces"
ALL = (0, 1, 2, 3)


def found(*paths: Path | str) -> list[Recording]:
    return list(separate_recordings(paths, read_traces(paths, repeated=True)))


@pytest.fixture
def nodes(tmp_path: Path) -> list[str]:
    """Return the directories of the nodes of two jobs with two ranks each, the first job's nodes first."""
    directories = []
    for job in ("tiny", "slow_loader_rank2"):
        for node in (0, 1):
            directory = tmp_path / job / f"node{node}"
            directory.mkdir(parents=True)
            for rank in (2 * node, 2 * node + 1):
                (trace,) = (TRACES / job).glob(f"rank{rank}.*")
                shutil.copy(trace, directory)
            directories.append(str(directory))
    return directories


def test_directories_with_the_same_ranks_are_two_jobs() -> None:
    tiny, slow = str(TRACES / "tiny"), str(TRACES / "slow_loader_rank2")
    assert found(tiny, slow) == [Recording((tiny,), ALL), Recording((slow,), ALL)]
    with pytest.raises(SeveralRecordingsError, match=r"tiny and .*slow_loader_rank2 both have rank 0") as raised:
        analyze([tiny, slow])
    assert f"gpudiag diff {tiny} {slow}" in raised.value.hint


def test_directories_of_one_jobs_nodes_are_one_job(nodes: list[str]) -> None:
    assert found(*nodes[:2]) == [Recording(tuple(nodes[:2]), ALL)]
    assert analyze(nodes[:2]).ranks_present == ALL


def test_nodes_of_two_jobs_are_two_jobs(nodes: list[str]) -> None:
    assert found(*nodes) == [Recording(tuple(nodes[:2]), ALL), Recording(tuple(nodes[2:]), ALL)]


def test_files_belong_to_the_job_of_their_directory_in_any_order(nodes: list[str]) -> None:
    files = [str(next(Path(node).glob(f"rank{rank}.*"))) for rank in (0, 1) for node in (nodes[0], nodes[2])]
    assert found(*files) == [Recording((files[0], files[2]), (0, 1)), Recording((files[1], files[3]), (0, 1))]
    assert found(*sorted(files)[:2]) == [Recording(tuple(sorted(files)[:2]), (0, 1))]


def test_pattern_of_two_jobs_is_two_jobs(nodes: list[str]) -> None:
    parent = Path(nodes[0]).parents[1]
    pattern = str(parent / "*" / "node0")
    assert [recording.paths for recording in found(pattern)] == [(nodes[2],), (nodes[0],)]


def test_copied_directory_belongs_to_the_same_job(nodes: list[str], tmp_path: Path) -> None:
    shutil.copytree(nodes[0], tmp_path / "copy")
    analysis = analyze([*nodes[:2], tmp_path / "copy"])
    assert analysis.ranks_present == ALL
    assert "duplicate-ranks" in {warning.code for warning in analysis.validity}


def test_rank_that_occurs_twice_in_one_directory_is_a_warning(tmp_path: Path) -> None:
    for job in ("tiny", "slow_loader_rank2"):
        (trace,) = (TRACES / job).glob("rank0.*")
        shutil.copy(trace, tmp_path / f"{job}.rank0.json.gz")
    assert "duplicate-ranks" in {warning.code for warning in analyze([tmp_path]).validity}
