from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest
from source_lines.records import LineTimes, SourceLine
from source_lines.worker_lines import WorkerLines


def decode() -> None:
    time.sleep(0.003)


def fetch() -> None:
    decode()
    time.sleep(0.001)


def flat(lines: tuple[SourceLine, ...]) -> dict[str, float]:
    found: dict[str, float] = {}
    for line in lines:
        found |= {line.text: line.ms} | flat(line.children)
    return found


@pytest.mark.parametrize("keep_source", [True, False])
def test_a_few_batches_of_a_worker_are_saved_with_their_lines(tmp_path: Path, keep_source: bool) -> None:
    lines = WorkerLines(tmp_path, 3, keep_source=keep_source)
    for _ in range(14):
        lines.before()
        fetch()
        lines.after()
        time.sleep(0.002)
    (file,) = tmp_path.iterdir()
    assert file.name.startswith("rank3-worker")
    times = msgspec.json.decode(file.read_bytes(), type=LineTimes)
    assert times.steps == 8
    if keep_source:
        found = flat(times.lines)
        assert found["decode()"] >= 3.0
        assert found["time.sleep(0.001)"] >= 1.0
    else:
        assert set(flat(times.lines)) == {""}


def test_a_directory_that_is_gone_disturbs_nothing(tmp_path: Path) -> None:
    lines = WorkerLines(tmp_path / "gone", 0)
    for _ in range(12):
        lines.before()
        fetch()
        lines.after()
