"""Test the line events of real functions on this interpreter."""

from __future__ import annotations

import contextlib
import gzip
import json
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gpudiag.model.run_directory import LINES_DIR, RUN_FILE, SOURCE_TEXT_VARIABLE
from gpudiag.model.source_lines import log as log_reader
from gpudiag.model.source_lines.log import CALL, LEAVE, PAUSE, STEP, find_line_logs
from gpudiag.training.session import line_events, line_log
from gpudiag.training.session.line_events import drives_loops, events_to_disable, is_own
from gpudiag.training.session.line_log import LineLog, write_lines

STEPS = 12


def spin(ms: float) -> int:
    """Compute in Python for some milliseconds."""
    end = time.perf_counter() + ms / 1e3
    turns = 0
    while time.perf_counter() < end:
        turns += 1
    return turns


def fails() -> None:
    """Raise an exception after a line."""
    time.sleep(0.0005)
    raise KeyError


def numbers() -> Any:
    """Yield from a generator that sleeps."""
    for number in range(3):
        time.sleep(0.0003)  # in the generator
        yield number


def train(log: LineLog, *, hot: bool = False) -> None:
    """Run steps as a loop does: the session is called at the end of each step."""
    for step in range(STEPS + 1):
        if step == 0:
            log.begin("alone")
        else:
            log.pause()
            log.step()
        log.mark()
        if step == STEPS:
            log.end()
            return
        time.sleep(0.001)  # in the loop
        with contextlib.suppress(KeyError):
            fails()
        list(numbers())
        if hot:
            spin(5)


def columns(log: LineLog) -> list[tuple[str, int]]:
    """Return (function, value) of each event of the first section."""
    content = log.encode()
    events = content["sections"][0]["events"]
    names = [code["function"] for code in content["codes"]]
    return [
        (names[code] if code >= 0 else "", value) for code, value in zip(events["code"], events["value"], strict=True)
    ]


def test_each_step_has_the_lines_calls_and_returns_of_the_users_functions() -> None:
    log = LineLog()
    train(log)
    events = columns(log)
    counts = Counter(events)
    assert counts["", STEP] == STEPS + 1
    assert counts["", PAUSE] == STEPS
    assert counts["fails", CALL] == counts["fails", LEAVE] == STEPS
    sleeping = next(
        number for number, line in enumerate(Path(__file__).read_text().splitlines(), 1) if "in the loop" in line
    )
    assert counts["train", sleeping] == STEPS
    assert counts["numbers", CALL] == counts["numbers", LEAVE]  # each number enters and leaves the generator
    assert not any(name.startswith("LineLog") for name, _ in events)
    assert log.encode()["stack"][-1][1] > 0


def test_recorded_functions_behave_as_without_recording() -> None:
    log = LineLog()
    train(log)
    assert spin(0) >= 0
    assert sys.gettrace() is None
    monitoring: Any = getattr(sys, "monitoring", None)
    assert monitoring is None or all(monitoring.get_tool(tool) != "gpudiag" for tool in range(6))


def test_lines_that_run_often_are_disabled_after_the_first_steps() -> None:
    log = LineLog()
    train(log, hot=True)
    steps: list[int] = []
    for name, value in columns(log):
        if value == STEP:
            steps.append(0)
        elif name == "spin" and value > 0:
            steps[-1] += 1
    assert min(steps[:2]) > 1000
    assert max(steps[3:-1]) < 0.05 * min(steps[:2])


def test_nothing_is_recorded_beside_another_tracer() -> None:
    log = LineLog()
    sys.settrace(lambda *_: None)
    try:
        train(log)
    finally:
        sys.settrace(None)
    assert "tracer" in log.unavailable
    assert log.encode()["sections"] == []


def test_events_with_the_least_time_per_event_are_disabled_first() -> None:
    cheap, slow = (compile(f"{name} = 1", "/project/train.py", "exec") for name in ("cheap", "slow"))
    entries: list[Any] = [(0, None, STEP)]
    entries += [(500 * number, cheap, 4) for number in range(1000)]
    now = 500_000
    entries += [(now + 1, slow, 9), (now + 9_000_000, None, STEP)]
    assert events_to_disable(entries, set()) == {(cheap, 4)}
    # The file of the loop itself is disabled last.
    assert events_to_disable(entries, {cheap}) == {(slow, 9), (cheap, 4)}
    assert events_to_disable(entries[:1], set()) == set()


@pytest.mark.parametrize(
    ("file", "own", "loop"),
    [
        ("/home/me/train.py", True, False),
        ("train.py", True, False),
        ("/run/ipykernel_7/123.py", True, False),
        ("<string>", False, False),
        ("/venv/lib/python3.12/site-packages/lightning/loop.py", False, True),
        ("/venv/lib/python3.12/site-packages/torch/optim/adam.py", False, False),
        (threading.__file__, False, False),
        (json.__file__, False, False),
    ],
)
def test_files_outside_of_installed_packages_are_the_users(file: str, own: bool, loop: bool) -> None:
    assert (is_own(file), drives_loops(file)) == (own, loop)


def run_with_lines(folder: Path, log: LineLog) -> Path:
    """Write a log into a run directory."""
    (folder / RUN_FILE).write_text("{}")
    write_lines(folder / LINES_DIR / "rank0.json.gz", log.encode())
    return folder


def test_writer_and_reader_agree_on_the_values_of_events() -> None:
    """Writer and reader define the values separately, because the writer's interpreter may lack the reader's
    imports."""
    for name in ("CALL", "LEAVE", "STEP", "PAUSE", "CALLS"):
        assert getattr(line_events, name) == getattr(log_reader, name)
    assert {value: kind for kind, value in line_events.WORK.items()} == log_reader.WORK
    assert line_log.LINES_SCHEMA == log_reader.LINES_SCHEMA


def test_written_log_is_read_back_with_the_texts_of_its_lines(tmp_path: Path) -> None:
    log = LineLog()
    train(log)
    logs = find_line_logs([run_with_lines(tmp_path, log)])
    assert (list(logs.ranks), logs.unread, logs.missing) == ([0], (), "")
    texts = logs.ranks[0].texts[__file__]
    assert any("in the generator" in text for text in texts.values())


def test_source_texts_are_omitted_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = LineLog()
    train(log)
    monkeypatch.setenv(SOURCE_TEXT_VARIABLE, "0")
    logs = find_line_logs([run_with_lines(tmp_path, log)])
    assert logs.ranks[0].texts == {}
    assert b"in the generator" not in gzip.decompress((tmp_path / LINES_DIR / "rank0.json.gz").read_bytes())


@pytest.mark.parametrize("damage", ["cut", "text", "schema", "code", "link", "large"])
def test_damaged_log_is_named_and_not_read(tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log = LineLog()
    train(log)
    run_with_lines(tmp_path, log)
    path = tmp_path / LINES_DIR / "rank0.json.gz"
    content = json.loads(gzip.decompress(path.read_bytes()))
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-40])
    elif damage == "text":
        path.write_text("no gzip")
    elif damage == "schema":
        write_lines(path, {**content, "schema": "gpudiag/lines/9"})
    elif damage == "code":
        content["sections"][0]["events"]["code"][3] = 99
        write_lines(path, content)
    elif damage == "link":
        path.rename(tmp_path / "elsewhere.json.gz")
        path.symlink_to(tmp_path / "elsewhere.json.gz")
    else:
        monkeypatch.setattr("gpudiag.model.source_lines.log.MAX_LOG_BYTES", 100)
    logs = find_line_logs([tmp_path])
    assert logs.ranks == {}
    assert logs.missing.startswith("lines/rank0.json.gz (")
