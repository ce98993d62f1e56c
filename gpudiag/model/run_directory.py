"""The files of a run directory: where each noun is saved, written whole or not at all, read with bounds and types."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from gpudiag.errors import UnreadableInputError
from gpudiag.model.run import RUN_SCHEMA, RunRecord

RUN_FILE = "run.json"
FACTS_FILE = "facts.json"
ANALYSIS_FILE = "analysis.json"
TRACES_DIR = "traces"
#: In it, recordings without operators.
LIGHT_TRACES = "light"

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
    write_whole(path, (msgspec.json.format(text, indent=indent) if indent else text) + b"\n")


def write_whole(path: Path, data: bytes, *, mode: int = 0o644, sync: bool = False) -> None:
    """Write a file whole or not at all, with this mode, whatever the user's umask; `sync`: it outlives a power cut.

    Raises:
        OSError: it cannot be written; nothing is left of the attempt, and a file that was there is as it was.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        Path(name).chmod(mode)
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
        stated = msgspec.json.decode(data, type=_Schema).schema
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableInputError(
            f"{path}: not a JSON object ({error})", "Run the command that wrote it again."
        ) from error
    if stated != schema:
        raise UnreadableInputError(
            f"{path}: has schema {stated or 'none'!r}, not {schema!r}",
            "It was written by another version or is another file.",
        )
    try:
        return msgspec.json.decode(data, type=noun)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableInputError(f"{path}: {error}", "Run the command that wrote it again.") from error


def readable_json(path: Path, noun: type[Noun], schema: str) -> Noun | None:
    """The same; None where there is none that can be read."""
    with contextlib.suppress(UnreadableInputError):
        return read_json(path, noun, schema)
    return None


class _Schema(msgspec.Struct):
    schema: str = ""


def find_run_record(paths: Sequence[Path | str]) -> RunRecord | None:
    """The run record beside the given traces, if a single path names a run directory (or its `traces/`)."""
    directory = _run_directory(paths)
    return None if directory is None else read_json(directory / RUN_FILE, RunRecord, RUN_SCHEMA)


def find_light_traces(paths: Sequence[Path | str]) -> Path | None:
    """The recordings without operators beside the given traces, if a single path names a run directory."""
    directory = _run_directory(paths)
    light = None if directory is None else directory / TRACES_DIR / LIGHT_TRACES
    return light if light is not None and light.is_dir() and any(light.iterdir()) else None


def find_facts_file(paths: Sequence[Path | str]) -> Path | None:
    """The facts beside the given traces, if a single path names a run directory (or its `traces/`)."""
    directory = _run_directory(paths)
    return directory / FACTS_FILE if directory is not None and (directory / FACTS_FILE).is_file() else None


def _run_directory(paths: Sequence[Path | str]) -> Path | None:
    given = Path(paths[0]) if len(paths) == 1 else None
    candidates = () if given is None else (given, given.parent)
    return next((place for place in candidates if place.is_dir() and (place / RUN_FILE).is_file()), None)
