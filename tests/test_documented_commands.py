"""Test that gpudiag accepts every command in its documentation and in its help."""

from __future__ import annotations

import importlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from gpudiag import commands
from gpudiag.commands.command_line.parser import app

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
SHELLS = {"sh", "bash", "console"}
#: Shell operators that end a command.
ENDS = {"|", "||", "&&", ";", ">", ">>", "2>", "&"}
#: Words of placeholders: `…`, `<run>`, `[OPTIONS]`.
PLACEHOLDER = re.compile(r"…|\.\.\.|<\w+>|\[")


def commands_of(page: str) -> Iterator[str]:
    """Yield the commands in the shell blocks of a page, with continued lines joined."""
    for _, language, block in FENCE.findall(page):
        if language in SHELLS:
            for line in block.replace("\\\n", " ").splitlines():
                if (command := line.strip().removeprefix("$ ")).startswith("gpudiag "):
                    yield command


def pages() -> Iterator[tuple[str, str]]:
    """Yield (name of a page or help text, one of its commands)."""
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for command in commands_of(path.read_text(encoding="utf-8")):
            yield str(path.relative_to(ROOT)), command
    for verb in commands.SUMMARIES:
        for command, _ in importlib.import_module(commands.module_of(verb)).EXAMPLES:
            yield f"gpudiag {verb} --help", command


def words_of(command: str) -> list[str]:
    """Return the words after `gpudiag`, without comments, redirections and further commands of the shell."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words = list(lexer)[1:]
    return words[: next((index for index, word in enumerate(words) if word in ENDS), len(words))]


WRITTEN = [(page, command) for page, command in pages() if not PLACEHOLDER.search(command)]


def test_documentation_has_commands() -> None:
    assert len({page for page, _ in WRITTEN if page.startswith("docs/guides")}) == 6
    assert len(WRITTEN) > 100


@pytest.mark.parametrize(("page", "command"), WRITTEN)
def test_command_is_accepted(page: str, command: str) -> None:
    group: Any = typer.main.get_command(app)
    with group.make_context("gpudiag", words_of(command)) as context:
        name, verb, words = group.resolve_command(context, [*context._protected_args, *context.args])
        verb.make_context(name, words, parent=context)


def test_wrong_option_is_not_accepted() -> None:
    with pytest.raises(Exception, match="--fall-on"):
        test_command_is_accepted("", "gpudiag analyze traces/ --fall-on info")
