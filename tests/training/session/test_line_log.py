"""Test the line events of real functions on this interpreter."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from gpudiag.analysis.lines.choose import location, main_line
from gpudiag.analysis.lines.times import ProcessTimes
from gpudiag.model.run_directory import LINES_DIR, RUN_FILE, SOURCE_TEXT_VARIABLE
from gpudiag.model.source_lines import log as log_reader
from gpudiag.model.source_lines.log import CALL, LEAVE, PAUSE, STEP, find_line_logs
from gpudiag.training.frameworks.pytorch.dataloader import marked_loaders
from gpudiag.training.session import line_events, line_log, user_code
from gpudiag.training.session.line_events import events_to_disable
from gpudiag.training.session.line_log import LineLog, write_lines
from gpudiag.training.session.ranges import Range
from gpudiag.training.session.user_code import drives_loops, is_own, shown_name

STEPS = 12


def spin(ms: float) -> int:
    """Compute in Python for some milliseconds."""
    end = time.perf_counter() + ms / 1e3
    turns = 0
    while time.perf_counter() < end:
        turns += 1
    return turns


def fails() -> None:
    """Run one line, and then raise an exception."""
    time.sleep(0.0005)
    raise KeyError


def numbers() -> Any:
    """Yield from a generator that sleeps."""
    for number in range(3):
        time.sleep(0.0003)  # in the generator
        yield number


def train(log: LineLog, *, hot: bool = False) -> None:
    """Run steps as a loop does: the session is called at the end of each step. With `hot`, each step computes 5 ms."""
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


@pytest.mark.xdist_group("processes")
def test_gpudiag_is_not_the_users_if_it_is_imported_through_a_link(tmp_path: Path) -> None:
    """Another Python may import gpudiag from a directory of symbolic links."""
    (tmp_path / "gpudiag").symlink_to(Path(user_code.__file__).parents[2])
    program = "from gpudiag.training.session import user_code; print(user_code.is_own(user_code.__file__))"
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], env={"PYTHONPATH": str(tmp_path)}, capture_output=True, check=True
    )
    assert done.stdout == b"False\n"


def run_with_lines(folder: Path, log: LineLog) -> Path:
    """Write a log into a run directory."""
    folder.mkdir(exist_ok=True)
    (folder / RUN_FILE).write_text("{}")
    write_lines(folder / LINES_DIR / "rank0.json.gz", log.encode())
    return folder


def test_writer_and_reader_agree_on_the_values_of_events() -> None:
    """Writer and reader define the values separately, because the writer's interpreter may lack the reader's
    imports."""
    for name in ("CALL", "LEAVE", "STEP", "PAUSE", "CALLS", "INPUT_BEGIN", "INPUT_END"):
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


def test_logs_beyond_the_total_limit_are_named_and_ranks_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = LineLog()
    train(log)
    run_with_lines(tmp_path, log)
    content = json.loads(gzip.decompress((tmp_path / LINES_DIR / "rank0.json.gz").read_bytes()))
    size = len(gzip.decompress((tmp_path / LINES_DIR / "rank0.json.gz").read_bytes()))
    for name in ("rank2", "rank10", "worker7-aa", "worker9-bb"):
        write_lines(tmp_path / LINES_DIR / f"{name}.json.gz", content)
    logs = find_line_logs([tmp_path])
    assert (list(logs.ranks), len(logs.workers), logs.missing) == ([0, 2, 10], 2, "")
    monkeypatch.setattr(log_reader, "MAX_TOTAL_BYTES", 2 * size + size // 2)  # enough for two logs
    logs = find_line_logs([tmp_path])
    assert (list(logs.ranks), logs.workers, logs.unread) == ([0, 2], (), ())
    assert logs.missing.startswith("lines/rank10.json.gz and 2 more were not read, because all logs together exceed")


def test_worker_belongs_to_the_process_that_started_it() -> None:
    """Numbers of processes and names of hosts may be equal in two containers."""
    here = LineLog().encode()
    assert here["begun"] >= here["parent_begun"] > 0
    names = {line_log.worker_log_name() for _ in range(8)}
    assert (len(names), all(log_reader._WORKER_LOG.fullmatch(name) for name in names)) == (8, True)
    rank = log_reader.LogOrigin(schema="gpudiag/lines/1", pid=7, parent=1, host="a", begun=100)
    worker = log_reader.LogOrigin(schema="gpudiag/lines/1", pid=9, parent=7, host="a", begun=300, parent_begun=100)
    elsewhere = log_reader.LogOrigin(schema="gpudiag/lines/1", pid=9, parent=7, host="a", begun=300, parent_begun=200)
    assert (rank.started(worker), rank.started(elsewhere)) == (True, False)


def test_notebook_cells_are_named_by_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    file = "/tmp/ipykernel_7/123.py"  # noqa: S108  # only a name
    assert [shown_name(name) for name in (file, "<ipython-input-12-ab>", "/a/b.py")] == [
        file,
        "Cell In[12]",
        "/a/b.py",
    ]
    compiler = SimpleNamespace(format_code_name=lambda name: ("Cell", "In[4]") if name == file else None)
    shell = SimpleNamespace(get_ipython=lambda: SimpleNamespace(compile=compiler))
    monkeypatch.setitem(sys.modules, "IPython", shell)
    assert [shown_name(name) for name in (file, "<ipython-input-12-ab>")] == ["Cell In[4]", "Cell In[12]"]


def test_fetch_and_step_function_are_seen_in_each_step() -> None:
    """Loaders are marked in the first steps only. Each step is a new call of `one_step`."""
    batches = iter(DataLoader(TensorDataset(torch.zeros(100)), batch_size=2))
    log = LineLog()

    def one_step() -> None:
        next(batches)
        log.begin("alone") if not log.sections else log.step()
        time.sleep(0.0005)  # after the step

    with marked_loaders():
        for _ in range(3):
            one_step()
    for _ in range(STEPS):
        one_step()
    log.end()
    counts = Counter(columns(log))
    assert counts["", line_events.WORK["input"]] >= STEPS
    after = next(
        number for number, line in enumerate(Path(__file__).read_text().splitlines(), 1) if "# after the step" in line
    )
    sleeps = [count for (name, value), count in counts.items() if name.endswith("one_step") and value == after]
    assert sleeps[0] >= STEPS


def test_input_range_bounds_the_lines_of_a_fetch() -> None:
    log = LineLog()
    log.begin("alone")
    for _ in range(STEPS):
        with Range("input"):
            time.sleep(0.0005)  # in the range
        time.sleep(0.0005)  # after the range
        log.pause()
        log.step()
        log.mark()
    log.end()
    values = [value for _, value in columns(log)]
    lines = Path(__file__).read_text().splitlines()
    inside, after = (
        next(n for n, line in enumerate(lines, 1) if f"# {which} the range" in line) for which in ("in", "after")
    )
    bounds = [value for value in values if value in {line_events.INPUT_BEGIN, line_events.INPUT_END, inside, after}]
    # The range may end after the event of a line, but before the line after the range.
    assert bounds[-8:] == [line_events.INPUT_BEGIN, inside, line_events.INPUT_END, after] * 2


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="sys.monitoring disables single lines")
def test_function_whose_lines_run_often_is_traced_no_more() -> None:
    log = LineLog()
    train(log, hot=True)
    events = log.encode()["sections"][0]["events"]["value"]
    later = events[[index for index, value in enumerate(events) if value == STEP][4] :]
    spins = [name for name, value in columns(log)[-len(later) :] if name == "spin"]
    assert spins == []
    log.begin("light")
    spin(1)
    log.end()
    assert len(log.sections[-1][1]) < 50
    assert log.encode()["call_ns"] > 0


def imported(folder: Path, text: str) -> Any:
    """Return the function `work` of a module with source `text`."""
    path = folder / "module_of_the_user.py"
    path.write_text(text)
    namespace: dict[str, Any] = {}
    exec(compile(text, str(path), "exec", dont_inherit=True), namespace)  # noqa: S102  # a program of this test
    return namespace["work"]


@pytest.mark.parametrize("event", ["nothing", "change", "removal"])
def test_file_that_changed_or_cannot_be_read_has_no_text(tmp_path: Path, event: str) -> None:
    work = imported(tmp_path, "import time\ndef work():\n    time.sleep(0.001)\n")
    path = tmp_path / "module_of_the_user.py"
    log = LineLog()
    log.begin("alone")
    for _ in range(4):
        work()
        log.step()
    log.end()
    assert path.stat().st_mtime > line_log._begun_s()  # written after the process began, and unchanged since
    if event == "change":
        path.write_text("# one more line\nimport time\ndef work():\n    time.sleep(0.001)\n")
    os.utime(path, (time.time() + 5, time.time() + 5))
    if event == "removal":
        path.unlink()
    logs = find_line_logs([run_with_lines(tmp_path / "run", log)])
    texts = logs.ranks[0].texts.get(str(path), {})
    assert texts.get("3") == ("    time.sleep(0.001)" if event == "nothing" else None)
    reasons = {"nothing": "", "change": "was changed after the program had begun", "removal": "cannot be read"}
    assert logs.without_text == (reasons[event] and f"{path} {reasons[event]}")


def test_line_that_calls_only_c_code_has_its_time(tmp_path: Path) -> None:
    work = imported(
        tmp_path, "def work(values):\n    values = list(values)\n    values.sort(key=abs)\n    return values\n"
    )
    values = [float(value * 7919 % 10007) for value in range(40_000)]
    log = LineLog()
    log.begin("alone")
    for _ in range(6):
        work(values)
        log.step()
    log.end()
    process = ProcessTimes(find_line_logs([run_with_lines(tmp_path / "run", log)]).ranks[0])
    node = main_line(process, process.self_ns.mean(axis=1))
    assert node is not None
    assert location(process, node).words == "module_of_the_user.py:3 `values.sort(key=abs)`"
