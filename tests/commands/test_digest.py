"""Test `gpudiag digest`: its output, its errors and its warnings."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.cli_process import gpudiag, in_this_process

TRACES = Path(__file__).parents[1] / "traces"
SMALL = TRACES / "gloo_dataloader"

pytestmark = pytest.mark.processes


def test_digests_are_beside_the_traces_and_progress_is_quiet_in_a_pipe(tmp_path: Path) -> None:
    shutil.copytree(SMALL, tmp_path / "traces")
    done = gpudiag("digest", str(tmp_path / "traces"))
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    (line,) = done.stderr.splitlines()
    directory = tmp_path / "traces" / "digests"
    assert line.startswith("2 digests, 0.0 MB (1.8 times smaller than the traces), in ")
    assert line.endswith(f"next: gpudiag analyze {directory}")
    assert sorted(path.name for path in directory.iterdir()) == ["rank0.gpudiag-digest", "rank1.gpudiag-digest"]
    # The traces are analysed as before, and digesting again writes the same files.
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    assert gpudiag("digest", str(tmp_path / "traces")).returncode == 0
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before
    reports = [gpudiag("analyze", str(path)) for path in (directory, tmp_path / "traces")]
    assert [report.returncode for report in reports] == [0, 0]
    verdicts = [report.stdout.partition("More:")[0].splitlines()[:8] for report in reports]
    assert verdicts[0] == verdicts[1]


def test_json_lists_the_digests_and_their_traces(tmp_path: Path) -> None:
    done = gpudiag("digest", str(SMALL), "--output", str(tmp_path), "--json")
    assert (done.returncode, done.stderr) == (0, "")
    answer = json.loads(done.stdout)
    assert answer["schema"] == "gpudiag/digests/1"
    assert answer["directory"] == str(tmp_path)
    assert answer["digests"] == {
        f"rank{rank}.gpudiag-digest": str(SMALL / f"rank{rank}.pt.trace.json.gz") for rank in (0, 1)
    }
    assert answer["size_bytes"] == sum(path.stat().st_size for path in tmp_path.iterdir())
    assert answer["trace_bytes"] == sum(path.stat().st_size for path in SMALL.iterdir())
    assert answer["warnings"] == []


def test_nodes_write_into_one_directory_and_replace_only_their_ranks(tmp_path: Path) -> None:
    (tmp_path / "rank0.gpudiag-digest").write_bytes(b"an older digest")
    (tmp_path / "notes.txt").write_text("kept", encoding="utf-8")
    for rank in (1, 0):
        done = gpudiag("digest", str(SMALL / f"rank{rank}.pt.trace.json.gz"), "--output", str(tmp_path))
        assert done.stderr.startswith("1 digest, "), done.stderr
    assert (tmp_path / "notes.txt").read_text(encoding="utf-8") == "kept"
    assert json.loads(gpudiag("analyze", str(tmp_path), "--json").stdout)["ranks_present"] == [0, 1]


def test_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for output in (tmp_path / "file", tmp_path / "file" / "below"):
        done = in_this_process("digest", str(SMALL), "--output", str(output))
        assert (done.returncode, done.stdout) == (5, "")
        assert f"cannot write to {output}" in done.stderr
    (tmp_path / "rank0.gpudiag-digest").mkdir()
    done = in_this_process("digest", str(SMALL / "rank0.pt.trace.json.gz"), "--output", str(tmp_path))
    assert done.returncode == 5
    assert f"cannot write {tmp_path / 'rank0.gpudiag-digest'}" in done.stderr


def test_link_in_a_directory_of_traces_does_not_redirect_digests(tmp_path: Path) -> None:
    shutil.copytree(SMALL, tmp_path / "traces")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "traces" / "digests").symlink_to(tmp_path / "elsewhere")
    done = in_this_process("digest", str(tmp_path / "traces"))
    assert done.returncode == 4
    assert "leads out of its directory" in done.stderr
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_first_of_two_traces_of_one_rank_is_kept(tmp_path: Path) -> None:
    for name in ("a", "b"):
        shutil.copy(SMALL / "rank0.pt.trace.json.gz", tmp_path / f"{name}.json.gz")
    shutil.copy(SMALL / "rank1.pt.trace.json.gz", tmp_path / "c.json.gz")
    done = gpudiag("digest", str(tmp_path), "--json")
    assert done.returncode == 0
    first, second = tmp_path / "a.json.gz", tmp_path / "b.json.gz"
    assert done.stderr == f"gpudiag: {second} was left out: {first} has the same rank or name\n"
    assert json.loads(done.stdout)["digests"]["rank0.gpudiag-digest"] == str(first)


def test_broken_files_are_reported_and_the_others_digested(tmp_path: Path) -> None:
    for path in SMALL.iterdir():
        shutil.copy(path, tmp_path)
    (tmp_path / "config.json").write_text('{"layers": 3}', encoding="utf-8")
    broken = tmp_path / "rank1.pt.trace.json.gz"
    broken.write_bytes(broken.read_bytes()[:1000])
    done = gpudiag("digest", str(tmp_path))
    assert done.returncode == 0
    warning, summary = done.stderr.splitlines()
    assert warning.startswith(f"gpudiag: {broken} is a gzip file cut short")
    assert summary.startswith("1 digest, ")
    (tmp_path / "rank0.pt.trace.json.gz").unlink()
    done = gpudiag("digest", str(tmp_path))
    assert (done.returncode, done.stdout) == (4, "")
    assert "no digest was written: " in done.stderr
    assert str(broken) in done.stderr


def test_name_that_is_not_utf8_is_accepted(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9_1.1700000000000000000.pt.trace.json.gz")
    shutil.copy(SMALL / "rank0.pt.trace.json.gz", tmp_path / name)
    done = gpudiag("digest", str(tmp_path), "--json")
    assert done.returncode == 0, done.stderr
    assert list(json.loads(done.stdout)["digests"]) == ["rank0.gpudiag-digest"]
    assert gpudiag("analyze", str(tmp_path / "digests"), "--json").returncode == 0
