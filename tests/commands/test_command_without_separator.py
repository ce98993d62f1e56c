"""Test a user's command without `--`: gpudiag runs it, or the error message contains the correct command."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gpudiag.commands.command_line.without_separator import with_separator
from gpudiag.errors import UsageError
from tests.cli_process import in_this_process


class Option:
    """An option as the parser describes it."""

    def __init__(self, *names: str, flag: bool = False) -> None:
        self.opts = list(names)
        self.secondary_opts: list[str] = []
        self.is_flag = flag


OPTIONS = [Option("--output"), Option("--steps"), Option("--stop-after", flag=True), Option("--python")]


@pytest.mark.parametrize(
    ("words", "position"),
    [
        (["sh", "-c", "true"], 0),
        (["--stop-after", "sh", "--stop-after"], 1),
        (["--output", "sh", "sh", "train.sh"], 2),
        (["--output=sh", "--steps", "3", "sh"], 3),
        (["--python", sys.executable, sys.executable, "train.py"], 2),
    ],
)
def test_separator_is_put_before_the_first_command(words: list[str], position: int) -> None:
    assert with_separator(words, OPTIONS, ["gpt"]) == [*words[:position], "--", *words[position:]]


@pytest.mark.parametrize(
    "words",
    [
        [], ["gpt"], ["gpt", "--steps", "3"], ["module:main"], ["--", "sh"], ["sh", "--", "x"], ["--output", "sh"],
        ["--unknown", "sh"], ["resnt50", "--steps", "3"],
    ],
)  # fmt: skip
def test_other_command_lines_are_unchanged(words: list[str]) -> None:
    assert with_separator(words, OPTIONS, ["gpt"]) == words


def test_workload_is_preferred_over_a_program_of_its_name() -> None:
    assert with_separator(["sh"], OPTIONS, ["sh"]) == ["sh"]


def test_message_contains_the_command_to_type(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text("true\n")
    for words, hint in (
        (["train.py", "--lr", "3"], "gpudiag profile -- python train.py --lr 3"),
        (["--stop-after", "train.py"], "gpudiag profile --stop-after -- python train.py"),
        ([str(script), "-x"], f"gpudiag profile -- sh {script} -x"),
        (["torchrunx", "--nproc", "2", "t.py"], "gpudiag profile -- torchrunx --nproc 2 t.py"),
    ):
        with pytest.raises(UsageError) as caught:
            with_separator(words, OPTIONS, ["gpt"])
        assert hint in caught.value.hint
    with pytest.raises(UsageError, match="does not exist"):
        with_separator([str(tmp_path / "none.sh")], OPTIONS, ["gpt"])


@pytest.mark.processes
def test_options_of_the_command_are_not_parsed(tmp_path: Path) -> None:
    done = in_this_process("profile", "--output", str(tmp_path / "run"), "sh", "-c", "exit 9", "--strategy")
    assert done.returncode == 9, done.stderr
    assert "your command failed with exit code 9 before its first optimizer step" in done.stderr
