"""Test the help of `gpudiag profile`: the user's own command comes first, and each option has one heading."""

from __future__ import annotations

import re
from collections import Counter

import typer

from gpudiag.commands import profile
from gpudiag.commands.command_line.parser import app
from gpudiag.commands.command_line.user_command import _APPLICABLE
from tests.cli_process import in_this_process


def shown() -> str:
    result = in_this_process("profile", "--help", COLUMNS="100")
    assert result.returncode == 0
    return result.stdout


def test_own_command_is_the_first_usage_and_the_first_example() -> None:
    lines = shown().splitlines()
    assert lines[0] == "Usage: gpudiag profile [OPTIONS] -- COMMAND..."
    assert lines[1].strip() == "gpudiag profile [OPTIONS] [WORKLOAD | MODULE:FUNCTION]"
    commands = [line.strip() for line in lines if line.strip().startswith("gpudiag profile ")]
    assert commands[1] == "gpudiag profile -- torchrun --nproc-per-node 4 train.py"
    assert lines.index("    gpudiag profile -- torchrun --nproc-per-node 4 train.py") < 10


def test_each_parameter_has_one_heading() -> None:
    group = typer.main.get_command(app)
    command = group.get_command(None, "profile")  # type: ignore[attr-defined]
    names = [parameter.name for parameter in command.params]
    grouped = [name for members in profile.GROUPS.values() for name in members]
    assert sorted(grouped) == sorted(names)
    assert set(Counter(grouped).values()) == {1}


def test_options_of_workloads_are_apart_from_those_of_own_commands() -> None:
    of_workloads = {name for heading, names in profile.GROUPS.items() if "Workload" in heading for name in names}
    assert not of_workloads & _APPLICABLE


def test_every_option_is_shown_once() -> None:
    text = shown().partition("Examples:")[0]
    options = re.findall(r"^  (--[a-z0-9-]+)", text, re.MULTILINE)
    assert len(options) == len(set(options)) >= 30
    assert [line for line in text.splitlines() if line.endswith(":") and not line.startswith(" ")] == [
        *(f"{heading}:" for heading in profile.GROUPS),
        "Other options:",
    ]
