"""The files of a run directory: where each noun is saved, written whole or not at all, read with bounds and types."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from gpudiag.errors import UnreadableInputError
from gpudiag.model.run import RUN_SCHEMA, RunRecord

if TYPE_CHECKING:
    from collections.abc import Sequence

RUN_FILE = "run.json"
FACTS_FILE = "facts.json"
ANALYSIS_FILE = "analysis.json"
TRACES_DIR = "traces"

#: No JSON of a run directory but its traces comes near this size.
MOST_BYTES = 64 * 1024 * 1024

Noun = TypeVar("Noun", bound=msgspec.Struct)


def write_json(path: Path, noun: msgspec.Struct, *, indent: int = 2) -> None:
    """Write a noun as JSON, whole or not at all: into a temporary file beside `path`, then renamed.

    Args:
        path: where to.
        noun: what.
        indent: spaces per level; 0 for one line, where the noun is mostly long arrays.
    """
    text = msgspec.json.encode(noun)
    if indent:
        text = msgspec.json.format(text, indent=indent)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text + b"\n")
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def read_json(path: Path, noun: type[Noun], schema: str) -> Noun:
    """Read a noun that `write_json` wrote.

    Raises:
        UnreadableInputError: the file is missing, too large, no JSON, of another schema, or has fields of wrong types.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise UnreadableInputError(f"{path}: larger than {MOST_BYTES >> 20} MB, which no such file is")
        data = path.read_bytes()
    except OSError as error:
        raise UnreadableInputError(f"{path}: {error.strerror or error}", "Check the path.") from error
    try:
        found = msgspec.json.decode(data, type=_Schema).schema
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableInputError(
            f"{path}: not a JSON object ({error})", "Run the command that wrote it again."
        ) from error
    if found != schema:
        raise UnreadableInputError(
            f"{path}: has schema {found or 'none'!r}, not {schema!r}",
            "It was written by another version or is another file.",
        )
    try:
        return msgspec.json.decode(data, type=noun)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableInputError(f"{path}: {error}", "Run the command that wrote it again.") from error


class _Schema(msgspec.Struct):
    schema: str = ""


def find_run_record(paths: Sequence[Path | str]) -> RunRecord | None:
    """The run record beside the given traces, if a single path names a run directory (or its `traces/`)."""
    if len(paths) != 1:
        return None
    given = Path(paths[0])
    for directory in (given, given.parent):
        path = directory / RUN_FILE
        if directory.is_dir() and path.is_file():
            return read_json(path, RunRecord, RUN_SCHEMA)
    return None


def find_facts_file(paths: Sequence[Path | str]) -> Path | None:
    """The facts beside the given traces, if a single path names a run directory (or its `traces/`)."""
    if len(paths) != 1:
        return None
    given = Path(paths[0])
    for directory in (given, given.parent):
        if directory.is_dir() and (directory / RUN_FILE).is_file():
            path = directory / FACTS_FILE
            return path if path.is_file() else None
    return None
