"""Test that files of a run directory are written atomically, and read as untrusted data."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import msgspec
import pytest

from gpudiag.errors import UnreadableInputError
from gpudiag.model import run_directory as run_files
from gpudiag.model.run import RUN_SCHEMA, RunRecord
from gpudiag.model.run_directory import locked, write_output

if TYPE_CHECKING:
    from pathlib import Path


def record(**changed: str) -> RunRecord:
    """Return the record of a run of two ranks, with fields `changed`."""
    whole = RunRecord(
        created="2026-01-01T00:00:00Z",
        command=("gpudiag", "profile"),
        workload="mlp",
        framework="pytorch",
        strategy="gloo",
        world_size=2,
        nodes=1,
        batch_size_per_device=None,
        status="complete",
    )
    return msgspec.structs.replace(whole, **changed)


def test_written_record_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    run_files.write_json(path, record())
    assert run_files.read_json(path, RunRecord, RUN_SCHEMA) == record()
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.json"]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    run_files.write_json(path, record())
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError, match="directory"):
        run_files.write_json(tmp_path / "taken", record(workload="gpt"))
    assert run_files.read_json(path, RunRecord, RUN_SCHEMA).workload == "mlp"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["run.json", "taken"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "not a JSON object"),
        (b"[1, 2]", "not a JSON object"),
        (b"\xff\xfe{", "not a JSON object"),
        (b'{"schema": "gpudiag/run/1"', "not a JSON object"),
        (b'{"schema": "gpudiag/run/999"}', "has schema"),
        (b"{}", "has schema"),
        (b'{"schema": "gpudiag/run/1"}', "missing required field"),
        (b'{"schema": "gpudiag/run/1", "options": ' + b"[" * 200_000, "recursion"),
    ],
)
def test_invalid_run_record_is_refused_in_one_line(tmp_path: Path, text: bytes, said: str) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(text)
    with pytest.raises(UnreadableInputError, match=said) as refused:
        run_files.read_json(path, RunRecord, RUN_SCHEMA)
    assert refused.value.exit_code == 4
    assert "\n" not in str(refused.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnreadableInputError, match="No such file"):
        run_files.read_json(tmp_path / "run.json", RunRecord, RUN_SCHEMA)


def test_a_huge_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    with path.open("wb") as file:
        file.truncate(run_files.MOST_BYTES + 1)
    with pytest.raises(UnreadableInputError, match="larger than"):
        run_files.read_json(path, RunRecord, RUN_SCHEMA)


@pytest.mark.processes
def test_run_directory_is_locked_for_one_writer(tmp_path: Path) -> None:
    with locked(tmp_path), locked(tmp_path):  # nested locks of one process are allowed
        code = (
            "from pathlib import Path\nfrom gpudiag.model.run_directory import locked\n"
            f"with locked(Path({str(tmp_path)!r})): pass"
        )
        other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "another gpudiag is writing to it" in other.stderr
    assert list(tmp_path.iterdir()) == []
    with locked(tmp_path):
        pass


@pytest.mark.processes
def test_output_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "report.md"
    write_output(path, b"before")
    code = (
        "import resource, sys\nfrom pathlib import Path\nfrom gpudiag.model.run_directory import write_output\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        f"write_output(Path({str(path)!r}), bytes(8192))"
    )
    full = subprocess.run([sys.executable, "-B", "-c", code], capture_output=True, text=True, check=False)
    assert f"cannot write {path}: File too large" in full.stderr
    assert path.read_bytes() == b"before"
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.md"]
