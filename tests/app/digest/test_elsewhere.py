"""Test that the analysis does not depend on the processes that read the traces (the `engine` of `analyze`)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gpudiag.app.analyze import analyze
from gpudiag.app.digests.write import in_processes
from gpudiag.errors import NotATraceError
from gpudiag.model.run_directory import encode_json
from gpudiag.trace.recordings import SeveralRecordingsError

TRACES = Path(__file__).parents[2] / "traces"
JOB, OTHER_JOB = TRACES / "gloo_dataloader", TRACES / "clean"

pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("processes")]


def test_two_jobs_are_reported_as_two(tmp_path: Path) -> None:
    for name in ("a", "b"):
        shutil.copytree(JOB if name == "a" else OTHER_JOB, tmp_path / name)
    paths = [tmp_path / "a", tmp_path / "b"]
    with pytest.raises(SeveralRecordingsError) as here:
        analyze(paths)
    with pytest.raises(SeveralRecordingsError) as elsewhere:
        analyze(paths, engine=in_processes)
    assert elsewhere.value.recordings == here.value.recordings
    assert str(elsewhere.value) == str(here.value)


def test_copies_and_traces_of_one_rank_get_the_same_warnings(tmp_path: Path) -> None:
    shutil.copytree(JOB, tmp_path, dirs_exist_ok=True)
    shutil.copy(JOB / "rank0.pt.trace.json.gz", tmp_path / "again.json.gz")
    shutil.copy(OTHER_JOB / "rank1.pt.trace.json.gz", tmp_path / "other.json.gz")
    analysis = analyze([tmp_path])
    assert [warning.code for warning in analysis.validity].count("duplicate-ranks") == 2
    assert encode_json(analyze([tmp_path], engine=in_processes)) == encode_json(analysis)


def test_directory_without_traces_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"layers": 3}', encoding="utf-8")
    with pytest.raises(NotATraceError, match="no traces"):
        analyze([tmp_path], engine=in_processes)
