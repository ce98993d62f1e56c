"""Run mutants through gpudiag in separate processes, and report excessive time, excessive memory and wrong exits."""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import selectors
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.fuzzing.structured import VICTIM

#: Limits of CPU time and memory for each command on a mutant.
MOST_SECONDS = 20.0
MOST_BYTES = 1_000_000_000
#: Exit codes that a mutant may cause: success, invalid option, and unreadable input.
DOCUMENTED = frozenset({0, 2, 4})
#: Larger allocations fail in the worker instead of exhausting the machine's memory.
_ADDRESS_SPACE = 6 << 30
#: A worker that is silent for longer hangs in code that no signal interrupts.
_SILENCE_S = 15 * MOST_SECONDS


class TooLong(BaseException):
    """A command exceeded its limit of CPU time."""


def failures(numbers: range) -> Iterator[dict[str, Any]]:
    """Run the mutants `numbers`, and yield the failures."""
    return (told for told in outcomes(numbers) if told["wrong"])


def outcomes(numbers: range) -> Iterator[dict[str, Any]]:
    """Run the mutants `numbers` in a separate process, restart it if it dies, and yield the outcome of each mutant."""
    left = numbers
    while len(left):
        done = yield from _worker(left)
        left = left[done:]


def _worker(numbers: range) -> Any:
    """Run mutants in one process until it hangs or dies; yield outcomes and return the number of mutants run."""
    command = [
        sys.executable,
        "-m",
        "tests.fuzzing",
        "--worker",
        str(numbers.start),
        str(numbers.stop),
        str(numbers.step),
    ]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "COLUMNS": "100"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        watch = selectors.DefaultSelector()
        watch.register(process.stdout, selectors.EVENT_READ)
        done = 0
        while watch.select(_SILENCE_S) and (line := process.stdout.readline()):
            yield json.loads(line)
            done += 1
        if done < len(numbers):
            process.kill()
            yield {"number": numbers[done], "wrong": f"the worker hung or died ({process.wait()})"}
            done += 1
    return done


def work(numbers: range) -> None:
    """Run mutants in this process, the worker, and write each outcome to standard output."""
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE))
    signal.signal(signal.SIGPROF, _too_long)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # commands must not write between the outcomes
    for number in numbers:
        with tempfile.TemporaryDirectory(prefix="gpudiag-fuzz-") as name:
            outcome = run_mutant(number, Path(name) / "mutant")
        out.write(json.dumps(outcome) + "\n")
        out.flush()


def run_mutant(number: int, directory: Path) -> dict[str, Any]:
    """Make a mutant and run its commands until one fails.

    Return the number, the error (`wrong`, None if there is none), and the time and peak memory of the last command.
    """
    from tests.fuzzing.mutants import write_mutant

    directory.mkdir()
    victim = directory.parent / VICTIM
    victim.mkdir()
    (victim / "file").write_text("mine")
    try:
        commands = write_mutant(number, directory)
    except RecursionError:  # the document is nested too deeply to be written
        return {"number": number, "wrong": None}
    for command in commands:
        words = [word.replace("{}", str(directory)) for word in command]
        wrong, seconds, peak = run(words)
        if not wrong and [path.read_text() for path in victim.iterdir()] != ["mine"]:
            wrong = "a file outside of the mutant was changed"
        if wrong:
            return {"number": number, "command": words, "wrong": wrong, "seconds": seconds, "bytes": peak}
    return {"number": number, "wrong": None, "seconds": seconds, "bytes": peak}


def run(words: list[str]) -> tuple[str | None, float, int]:
    """Run one command line in this process; return (error or None, duration in s, peak memory in bytes)."""
    from gpudiag.commands.main import main

    errors = io.StringIO()
    sink = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # reset the peak, so that only the following command counts
    begun = time.monotonic()
    signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
    wrong = None
    try:
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(sink):
            code = main([*words])
    except TooLong:
        wrong = f"longer than {MOST_SECONDS:g} s"
    except BaseException:  # noqa: BLE001 - the test looks for any exception from `main`
        wrong = traceback.format_exc()[-1500:]
    else:
        text = errors.getvalue()
        if code not in DOCUMENTED or "gpudiag: unexpected " in text or "Traceback" in text:
            wrong = f"exit code {code}: {text[-1500:]}"
        elif any(not character.isprintable() and character not in "\n\r" for character in text):
            wrong = f"harmful characters: {text!r}"
        elif code == 0 and "--json" in words:
            sink.flush()
            wrong = _wrong_with_json(sink.buffer.getvalue().decode())
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    seconds, peak = time.monotonic() - begun, _peak_bytes()
    if wrong is None and peak > MOST_BYTES:
        wrong = f"{peak / 1e9:.2f} GB"
    return wrong, seconds, peak


def _wrong_with_json(text: str) -> str | None:
    """Describe what must not be in JSON output: non-finite numbers, percentages not in 0 to 100, harmful characters."""
    if not text.replace("\n", "").isprintable():
        return "harmful characters in JSON"
    nones: list[str] = []
    document = json.loads(text, parse_constant=nones.append)
    beyond = [f"{name}: {value}" for name, value in _percentages(document) if not 0 <= value <= 100]
    return f"JSON with {nones + beyond}" if nones or beyond else None


def _percentages(document: Any) -> Iterator[tuple[str, float]]:
    """Yield (name, value) of all fields whose names end in `percent`."""
    inner = (
        document.items() if isinstance(document, dict) else enumerate(document if isinstance(document, list) else ())
    )
    for name, value in inner:
        if str(name).endswith("percent") and isinstance(value, int | float):
            yield str(name), value
        yield from _percentages(value)


def _too_long(_number: int, _frame: Any) -> None:
    raise TooLong


def _peak_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0
