"""Test the command line: help, version, every kind of failure, and closed pipes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from gpudiag import commands
from gpudiag.commands import main as cli
from gpudiag.errors import GpudiagError, HardwareMissingError, UnreadableInputError, UsageError, WorkerFailedError
from tests.cli_process import SECONDS, environment, gpudiag
from tests.trace.documents import TRACES

if TYPE_CHECKING:
    from pathlib import Path

VERBS = tuple(commands.SUMMARIES)


def lines_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return the lines of standard error; standard output must be empty."""
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.splitlines()


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"]])
def test_help_lists_every_verb_on_standard_output(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 0
    out = capsys.readouterr().out
    assert all(f"\n  {verb} " in out for verb in VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_has_help_with_examples(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([verb, "--help"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert commands.SUMMARIES[verb] in out, "the first line of the docstring and SUMMARIES must be the same"
    assert f"Examples: gpudiag {verb}" in out


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("gpudiag 0.")


@pytest.mark.processes
def test_completion_can_be_installed(tmp_path: Path) -> None:
    installed = gpudiag("--install-completion", HOME=str(tmp_path), SHELL="/bin/bash")
    if "not supported" in installed.stderr + installed.stdout:
        pytest.skip("no shell is found above this process")
    assert "completion installed" in installed.stdout
    for words, place, expected in (("gpudiag an", "1", "analyze"), ("gpudiag analyze --fa", "2", "--fail-on")):
        asked = gpudiag(_GPUDIAG_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=place)
        assert (asked.returncode, asked.stdout.strip()) == (0, expected)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("words", "place", "expected"),
    [
        ("gpudiag profile den", "2", ["densenet40-cifar", "densenet100-cifar"]),
        ("gpudiag profile --strategy cpu", "3", ["cpu-reduce"]),
        ("gpudiag profile --framework tensorflow --strategy cen", "5", ["central-storage"]),
        ("gpudiag profile --framework ", "3", ["torch", "tensorflow"]),
        ("gpudiag analyze run --fail-on stra", "4", ["straggler"]),
        ("gpudiag table run --form models,lad", "4", ["models,ladder"]),
    ],
)
def test_option_values_are_completed(words: str, place: str, expected: list[str]) -> None:
    asked = gpudiag(_GPUDIAG_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=place)
    assert (asked.returncode, asked.stdout.split()) == (0, expected)


@pytest.mark.processes
def test_python_dash_m_is_the_same_program() -> None:
    assert gpudiag("--version").stdout.startswith("gpudiag 0.")


@pytest.mark.parametrize(
    ("words", "wrong", "hint"),
    [
        (["analize"], "there is no command 'analize'", "Did you mean 'analyze'?"),
        (["xyzzy"], "there is no command 'xyzzy'", "There are: "),
        (["--verison"], "no such option: --verison", "Did you mean '--version'?"),
        (["analyze", "x", "--jsn"], "no such option: --jsn", "Did you mean '--json'?"),
        (["profile", "resnet51"], "there is no workload 'resnet51'", "Did you mean 'resnet50'?"),
        (["profile", "mlp", "--strategy", "glo"], "there is no strategy 'glo'", "Did you mean 'gloo'?"),
        (["analyze", "x", "--fail-on", "stragler"], "--fail-on knows no 'stragler'", "Did you mean 'straggler'?"),
        (["analyze"], "missing argument", "gpudiag analyze --help"),
        (["analyze", "x", "--width", "wide"], "--width", "gpudiag analyze --help"),
        (["analyze", "x", "--width", "3"], "--width", "gpudiag analyze --help"),
        (["analyze", "x", "--world-size", "0"], "--world-size", "gpudiag analyze --help"),
        (["analyze", "x", "--fail-on", "sloth"], "--fail-on knows no 'sloth'", "critical, warning, info, input-bound"),
    ],
)
def test_usage_errors_are_two_lines_and_exit_code_2(
    words: list[str], wrong: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == 2
    first, second = lines_of(capsys)
    assert first.startswith("gpudiag: ")
    assert wrong in first
    assert second.startswith("  hint: ")
    assert hint in second


def raising(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Make every command raise `error`."""

    def dispatch(words: list[str]) -> int:
        raise error

    monkeypatch.setattr(cli, "dispatch", dispatch)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("u"), 2),
        (HardwareMissingError("h"), 3),
        (UnreadableInputError("r"), 4),
        (WorkerFailedError("w"), 5),
        (GpudiagError("g"), 5),
        (ValueError("surprise"), 5),
        (MemoryError(), 5),
        (RecursionError("deep"), 5),
    ],
)
def test_every_error_has_its_exit_code_and_two_lines(
    error: Exception, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raising(monkeypatch, error)
    assert cli.main(["report"]) == code
    first, second = lines_of(capsys)
    assert first.startswith("gpudiag: ")
    assert second.startswith("  hint: ")


@pytest.mark.parametrize("place", [["--debug", "report"], ["report", "--debug"]])
def test_debug_anywhere_shows_a_traceback(
    place: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raising(monkeypatch, ValueError("surprise"))
    assert cli.main(place) == 5
    lines = lines_of(capsys)
    assert lines[0].startswith("Traceback")
    assert lines[-2] == "gpudiag: unexpected ValueError: surprise"


def test_debug_option_of_the_users_command_is_kept() -> None:
    words, debug = cli._without_debug(["profile", "--", "python", "train.py", "--debug"])
    assert words == ["profile", "--", "python", "train.py", "--debug"]
    assert not debug


def test_messages_contain_no_terminal_escapes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raising(monkeypatch, UnreadableInputError("bad \x1b[2J\nname \u202e", hint="\x07 try\nagain"))
    assert cli.main(["report", "--debug"]) == 4
    err = capsys.readouterr().err
    assert "\x1b" not in err
    assert "\x07" not in err
    assert err.splitlines()[-2:] == ["gpudiag: bad ␛[2J name <U+202E>", "  hint: ␇ try again"]


@pytest.mark.processes
def test_interrupt_during_work_gives_exit_code_130() -> None:
    slow = (
        "import time, gpudiag.app.analyze as p\n"
        "p.analyze = lambda *a, **k: print('working', flush=True) or time.sleep(600)"
    )
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"{slow}\nfrom gpudiag.commands.main import main\nraise SystemExit(main(['analyze', 'x']))",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "working\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    assert err == "gpudiag: interrupted\n"


def test_interrupt_prints_one_word_and_gives_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raising(monkeypatch, KeyboardInterrupt())
    assert cli.main(["report"]) == cli.INTERRUPTED == 130
    assert lines_of(capsys) == ["gpudiag: interrupted"]


@pytest.mark.processes
def test_closed_pipe_is_no_error() -> None:
    """Run `gpudiag --help | head -0`: no traceback, and the shell's exit code for SIGPIPE."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as gone:
        result = subprocess.run(
            [sys.executable, "-m", "gpudiag", "--help"],
            stdout=gone,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            timeout=SECONDS,
            check=False,
        )
    assert result.stderr == ""
    assert result.returncode == cli.READER_GONE == 128 + signal.SIGPIPE


@pytest.mark.processes
def test_ascii_terminal_shows_ascii_only(tmp_path: Path) -> None:
    result = gpudiag("analyze", str(tmp_path / "méthode-\udcff.json"), PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert result.returncode == 4
    assert "Traceback" not in result.stderr


@pytest.mark.processes
def test_ascii_terminal_gets_replacement_characters() -> None:
    traces = TRACES / "vgg_p2poff"
    result = gpudiag("analyze", str(traces), PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert result.returncode == 0
    assert "4 x NVIDIA H200" in result.stdout
    assert "39.7 > 21.7 ms per step at best (-45 %)" in result.stdout
    assert "?" not in result.stdout


@pytest.mark.processes
def test_file_size_limit_gives_one_line_with_the_path_and_leaves_no_file(tmp_path: Path) -> None:
    trace = str(TRACES / "gloo_dataloader" / "rank0.pt.trace.json.gz")
    formats = ("csv", "chrome", "perfetto", "xspace")
    place = tmp_path / "place"
    place.mkdir()
    commands = [
        *(["report", trace, option, str(place / "report")] for option in ("--html", "--markdown", "--csv")),
        *(["export", trace, "--to", to, "-o", str(place / f"events.{to}")] for to in formats),
        ["topology", "--save", str(place / "facts.json")],
    ]
    code = (
        "import resource\nfrom gpudiag.commands.main import main\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))\n"
        f"assert {{main(command) for command in {commands!r}}} == {{5}}"
    )
    # The option -B prevents cached bytecode, which the file size limit would truncate.
    command = [sys.executable, "-B", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment())
    errors = [line for line in done.stderr.splitlines() if "File too large" in line]
    assert [words[-1] in line for words, line in zip(commands, errors, strict=True)] == [True] * len(commands)
    assert done.returncode == 0, done.stderr
    assert list(place.iterdir()) == []
