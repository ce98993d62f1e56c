"""Test the status of programs that hang, crash or print garbage, and that they do not affect other programs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from gpudiag.machine.probes import runner
from gpudiag.machine.probes.programs import HostMemoryResult
from gpudiag.machine.probes.runner import Planned, ProbeStep, run_probes

pytestmark = pytest.mark.processes

GOOD = """
    import json, sys
    print(json.dumps({"event": "ready"}), file=sys.stderr, flush=True)
    assert sys.stdin.readline() == "go\\n"
    print(json.dumps({"event": "progress", "what": "a thing", "done": 0, "of": 1}), file=sys.stderr, flush=True)
    print(json.dumps({"schema": "gpudiag/probe-host-memory/1", "bandwidth": [], "versions": {"x": "1"}}), flush=True)
"""


def program(folder: Path, name: str, text: str, **limits: float) -> Planned:
    path = folder / f"{name}.py"
    path.write_text(textwrap.dedent(text))
    return Planned(name=name, program=path, **({"setup_timeout_s": 120.0, "timeout_s": 120.0} | limits))  # type: ignore[arg-type]


def test_result_of_a_good_program_is_read(tmp_path: Path) -> None:
    heard: list[ProbeStep] = []
    (outcome,) = run_probes([program(tmp_path, "good", GOOD)], heard.append)
    assert outcome.status == "ok"
    assert isinstance(outcome.document, HostMemoryResult)
    assert [step.what for step in heard if step.stage == "measuring"] == ["a thing"]


@pytest.mark.parametrize(
    ("text", "status", "reason"),
    [
        ("raise RuntimeError('no luck')", "failed", "ended with exit code 1: RuntimeError: no luck"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "failed", "was ended by SIGSEGV"),
        ("print('hello')", "garbage", "printed no valid result"),
        ('print(\'{"schema": "someone/else/7"}\')', "garbage", "unknown schema 'someone/else/7'"),
        ('print(\'{"schema": "gpudiag/probe-host-memory/1", "bandwidth": 3}\')', "garbage", "Expected `array`"),
        ("print('[' * 100000)", "garbage", "printed no valid result"),
        ("", "garbage", "printed no valid result"),
        (
            'print(\'{"schema": "gpudiag/probe-host-memory/1", "unavailable": "nothing here"}\')',
            "unavailable",
            "nothing here",
        ),
    ],
)
def test_every_failure_has_a_status(tmp_path: Path, text: str, status: str, reason: str) -> None:
    bad, good = run_probes([program(tmp_path, "bad", text), program(tmp_path, "good", GOOD)])
    assert bad.status == status
    assert reason in (bad.reason or "")
    assert good.status == "ok"
    failed = [outcome.planned.name for outcome in (bad, good) if outcome.status not in {"ok", "unavailable"}]
    assert failed == ([] if status == "unavailable" else ["bad"])


def test_a_program_that_hangs_while_measuring_is_ended(tmp_path: Path) -> None:
    text = """
        import sys, time
        print('{"event": "ready"}', file=sys.stderr, flush=True)
        print("stuck in a call", file=sys.stderr, flush=True)
        time.sleep(600)
    """
    slow, good = run_probes([program(tmp_path, "slow", text, timeout_s=0.5), program(tmp_path, "good", GOOD)])
    assert (slow.status, good.status) == ("timeout", "ok")
    assert "had not finished after 0.5 s: stuck in a call" in (slow.reason or "")


def test_a_program_that_never_gets_ready_is_ended(tmp_path: Path) -> None:
    late = program(tmp_path, "late", "import time; time.sleep(600)", setup_timeout_s=0.5)
    outcome, good = run_probes([late, program(tmp_path, "good", GOOD)])
    assert (outcome.status, good.status) == ("timeout", "ok")
    assert "was not ready" in (outcome.reason or "")


def test_endless_output_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "MAX_OUTPUT_BYTES", 1 << 20)
    text = "import sys\nwhile True: sys.stdout.write('x' * 65536)"
    (outcome,) = run_probes([program(tmp_path, "loud", text)])
    assert outcome.status == "garbage"
    assert "printed more than 1 MiB" in (outcome.reason or "")


def test_endless_messages_do_not_fill_memory(tmp_path: Path) -> None:
    text = "import sys\nfor _ in range(20000): sys.stderr.write('y' * 100)\nsys.exit(3)"
    (outcome,) = run_probes([program(tmp_path, "chatty", text)])
    assert outcome.status == "failed"
    assert len(outcome.reason or "") < 1000


def test_invalid_progress_is_ignored(tmp_path: Path) -> None:
    lines = [
        '{"event": "progress", "done": "x"}',
        '{"event": 7}',
        "[1]",
        "{",
        '{"event": "progress", "of": 1, "done": 0}',
    ]
    text = f"import sys\nfor line in {lines!r}: print(line, file=sys.stderr)\n" + textwrap.dedent(GOOD)
    heard: list[ProbeStep] = []
    (outcome,) = run_probes([program(tmp_path, "odd", text)], heard.append)
    assert outcome.status == "ok"
    assert [step.what for step in heard if step.stage == "measuring"] == ["", "a thing"]


def test_programs_measure_one_at_a_time_in_order(tmp_path: Path) -> None:
    text = """
        import json, pathlib, sys, time
        print('{"event": "ready"}', file=sys.stderr, flush=True)
        sys.stdin.readline()
        with open(pathlib.Path(__file__).with_name("log"), "a") as log:
            log.write(f"start {sys.argv[0][-4]}\\n"); log.flush()
            time.sleep(0.1)
            log.write(f"end {sys.argv[0][-4]}\\n")
        print(json.dumps({"schema": "gpudiag/probe-host-memory/1"}))
    """
    run_probes([program(tmp_path, name, text) for name in ("c", "a", "b")])
    steps = (tmp_path / "log").read_text().splitlines()
    assert steps == [f"{what} {name}" for name in ("c", "a", "b") for what in ("start", "end")]


def test_grandchildren_end_with_their_program(tmp_path: Path) -> None:
    text = f"""
        import subprocess, sys, time
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        open({str(tmp_path / "pid")!r}, "w").write(str(child.pid))
        print('{{"event": "ready"}}', file=sys.stderr, flush=True)
        time.sleep(600)
    """
    run_probes([program(tmp_path, "parent", text, timeout_s=0.5)])
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 60
    while _running(pid):
        assert time.monotonic() < deadline, "the grandchild is still running"
        time.sleep(0.02)


def test_ctrl_c_ends_every_program(tmp_path: Path) -> None:
    waiting = program(
        tmp_path,
        "waiting",
        f"""
        import os, sys, time
        open({str(tmp_path / "pid")!r}, "w").write(str(os.getpid()))
        time.sleep(600)
    """,
    )
    script = (
        "import sys; from pathlib import Path; from gpudiag.machine.probes.runner import *; "
        f"run_probes([Planned(name='waiting', program=Path({str(waiting.program)!r}))])"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL)
    pid_file = tmp_path / "pid"
    deadline = time.monotonic() + 120
    while not (pid_file.exists() and pid_file.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    assert process.wait(120) != 0
    deadline = time.monotonic() + 60
    while _running(int(pid_file.read_text())):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_no_thread_is_left_behind(tmp_path: Path) -> None:
    before = threading.active_count()
    run_probes([program(tmp_path, "good", GOOD)])
    assert threading.active_count() <= before


def _running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A zombie process has ended, although its parent has not waited for it.
    return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()


HOST, MEMORY = "gpudiag/probe-copy-host/1", "gpudiag/probe-host-memory/1"
TWO_PARTS = """
    import json, os, sys, time
    print(json.dumps({"event": "ready"}), file=sys.stderr, flush=True)
    sys.stdin.readline()
    first = {"event": "progress", "schema": "gpudiag/probe-host-memory/1", "what": "x", "done": 0, "of": 1}
    print(json.dumps(first), file=sys.stderr, flush=True)
    print(json.dumps({"schema": "gpudiag/probe-copy-host/1", "phases_s": {"buffers": 0.5}}), flush=True)
"""


@pytest.mark.parametrize(
    ("end", "status", "reason"),
    [
        ('print(json.dumps({"schema": "gpudiag/probe-host-memory/1"}), flush=True)', "ok", ""),
        ("time.sleep(600)", "timeout", "had not finished after 1.5 s"),
        ("os.abort()", "failed", "was ended by SIGABRT"),
        ("""print('{"schema": "gpudiag/pro', end="", flush=True); os.abort()""", "failed", "was ended by SIGABRT"),
        ("", "garbage", "printed no result"),
        ("print('hello')", "garbage", "printed no valid result"),
        (
            """print('{"schema": "gpudiag/probe-host-memory/1", "unavailable": "no library"}')""",
            "unavailable",
            "no library",
        ),
    ],
)
def test_failed_part_keeps_earlier_results(tmp_path: Path, end: str, status: str, reason: str) -> None:
    planned = program(tmp_path, "both", textwrap.dedent(TWO_PARTS) + end, timeout_s=1.5 if "sleep" in end else 120.0)
    heard: list[ProbeStep] = []
    planned = replace(planned, parts=((HOST, "copies"), (MEMORY, "memory")))
    copies, memory = run_probes([planned], heard.append)
    assert (copies.name, memory.name) == ("copies", "memory")
    assert [step.probe for step in heard if step.stage == "measuring"] == ["memory"]
    assert memory.status == status
    assert reason in (memory.reason or "")
    if end != "print('hello')":  # invalid output makes all output of the program doubtful
        assert copies.status == "ok"
        assert copies.document is not None
        assert copies.document.phases_s == {"buffers": 0.5}


def test_missing_gpu_is_not_a_failure(tmp_path: Path) -> None:
    text = f"""print('{{"schema": "{HOST}", "unavailable": "CUDA sees no GPU"}}')"""
    planned = replace(program(tmp_path, "both", text), parts=((HOST, "copies"), (MEMORY, "memory")))
    assert [(probe.status, probe.reason) for probe in run_probes([planned])] == [
        ("unavailable", "CUDA sees no GPU")
    ] * 2


def test_program_that_is_done_before_it_is_ready_is_not_waited_for(tmp_path: Path) -> None:
    """A probe that finds no driver writes its result, reports `done`, and waits for the end of standard input."""
    text = """
        import sys
        print('{"schema": "gpudiag/probe-host-memory/1", "unavailable": "no driver"}', flush=True)
        print('{"event": "done"}', file=sys.stderr, flush=True)
        sys.stdin.read()
    """
    (outcome,) = run_probes([program(tmp_path, "absent", text)])
    assert (outcome.status, outcome.reason) == ("unavailable", "no driver")


def test_programs_loading_in_parallel_delay_none_and_release_gpus_early(tmp_path: Path) -> None:
    log = tmp_path / "log"
    holding = f"""
        import json, os, sys
        print('{{"event": "ready"}}', file=sys.stderr, flush=True)
        sys.stdin.readline()
        open({str(log)!r}, "a").write(f"measured {{os.getpid()}}\\n")
        print(json.dumps({{"schema": "gpudiag/probe-host-memory/1"}}), flush=True)
        print('{{"event": "done"}}', file=sys.stderr, flush=True)
        sys.stdin.read()
    """
    late = f"""
        import json, os, pathlib, sys, time
        log = pathlib.Path({str(log)!r})
        while not log.exists() or not log.read_text().endswith("\\n"):
            time.sleep(0.01)  # ready only after the other has measured
        print('{{"event": "ready"}}', file=sys.stderr, flush=True)
        sys.stdin.readline()
        status = pathlib.Path("/proc") / log.read_text().split()[1] / "status"
        deadline = time.monotonic() + 60
        while status.exists() and "State:\\tZ" not in status.read_text():
            assert time.monotonic() < deadline, "it still holds its GPUs"
            time.sleep(0.01)
        print(json.dumps({{"schema": "gpudiag/probe-host-memory/1"}}), flush=True)
    """
    first = replace(program(tmp_path, "holding", holding), holds_gpus=True)
    second = replace(program(tmp_path, "late", late), loads_aside=True)
    assert [(probe.status, probe.reason) for probe in run_probes([first, second])] == [("ok", None)] * 2
