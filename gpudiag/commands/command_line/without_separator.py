"""`gpudiag profile torchrun … train.py`: recognize the user's command without `--` before it."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

from gpudiag.errors import UsageError

SEPARATOR = "--"


class Parameter(Protocol):
    """Declare the attributes of a click parameter that this module uses."""

    opts: list[str]  # names, such as `--open`
    secondary_opts: list[str]  # names that switch it off, such as `--no-open`
    is_flag: bool  # whether no value follows


def with_separator(words: Sequence[str], parameters: Sequence[Parameter], workloads: Iterable[str]) -> list[str]:
    """Insert `--` before the user's command, unless the words contain `--` or a workload (a name or `MODULE:FUNCTION`).

    Args:
        words: the words after `gpudiag profile`.
        parameters: the options of `gpudiag profile`.
        workloads: names of workloads.

    Raises:
        UsageError: the command's first word is a script without its interpreter, a file that does not exist, or a file
            that is not executable; or the first word is unknown and options unknown to gpudiag follow it.
    """
    if SEPARATOR in words:
        return list(words)
    position = _first_word(words, parameters)
    if position is None:
        return list(words)
    word = words[position]
    if word in set(workloads) or ":" in word:
        return list(words)
    before, command = list(words[:position]), list(words[position:])
    if word.endswith(".py") and shutil.which(word) is None:
        raise UsageError(
            f"{word} is a script, not a workload", _write([*before, SEPARATOR, "python", *command], or_torchrun=True)
        )
    if shutil.which(word) is not None:
        return [*before, SEPARATOR, *command]
    if "/" in word or word.endswith(".sh"):
        if not Path(word).is_file():
            raise UsageError(f"{word} does not exist", "Check the path.")
        raise UsageError(f"{word} is not executable", _write([*before, SEPARATOR, "sh", *command]))
    known = _takes_value(parameters)
    if any(option.startswith("-") and option.partition("=")[0] not in known for option in command):
        raise UsageError(
            f"{word} is neither a workload nor a command on this machine", _write([*before, SEPARATOR, *command])
        )
    return list(words)


def _write(words: Sequence[str], *, or_torchrun: bool = False) -> str:
    """Return a hint with the right command line."""
    several_gpus = " (several GPUs: torchrun --nproc-per-node N in place of python)" if or_torchrun else ""
    return f"Write: gpudiag profile {shlex.join(words)}{several_gpus}"


def _first_word(words: Sequence[str], parameters: Sequence[Parameter]) -> int | None:
    """Return the position of the first word that is neither an option nor its value; None after an unknown option."""
    takes_value = _takes_value(parameters)
    position = 0
    while position < len(words):
        word = words[position]
        if not word.startswith("-"):
            return position
        name, equals, _ = word.partition("=")
        if name not in takes_value:
            return None
        position += 2 if takes_value[name] and not equals else 1
    return None


def _takes_value(parameters: Sequence[Parameter]) -> dict[str, bool]:
    """Return {name of an option: whether a value follows the option}."""
    return {
        name: not getattr(parameter, "is_flag", False)
        for parameter in parameters
        for name in (*parameter.opts, *parameter.secondary_opts)
    }
