"""Write facts.json atomically, and read it as untrusted data."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from gpudiag.errors import GpudiagError, UnreadableInputError
from gpudiag.model.facts import FACTS_SCHEMA, Facts
from gpudiag.model.run_directory import encode_json, write_whole
from gpudiag.model.sanitize import sanitize

#: Maximum size of a file; the facts of 16 GPUs with all measurements take less than 1 MB.
_MOST_BYTES = 64 << 20
_HINT = "Write it with `gpudiag topology --save FILE` or `gpudiag bandwidth`."


def save_facts(facts: Facts, path: Path) -> None:
    """Write the facts to `path`. Replace an old file only when the new file is complete.

    Raises:
        GpudiagError: the file cannot be written.
    """
    umask = os.umask(0)  # the umask can be read only by setting it
    os.umask(umask)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, encode_json(facts), mode=0o666 & ~umask, sync=True)  # the permissions of any new file
    except OSError as error:
        raise GpudiagError(f"cannot write {path}: {error.strerror}", "Choose another path with --save.") from error


def decode_facts(data: bytes, source: str = "facts") -> Facts:
    """Decode facts, and remove control characters from every string in them.

    Args:
        data: the JSON.
        source: name of the file or program in messages.

    Raises:
        UnreadableInputError: the data is not JSON, not facts, or facts of an unknown schema.
    """
    try:
        tree = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableInputError(f"{source} is not JSON: {error}", _HINT) from error
    schema = tree.get("schema") if isinstance(tree, dict) else None
    if schema != FACTS_SCHEMA:
        stated = f"schema {sanitize(schema)[:60]!r}" if isinstance(schema, str) else "no schema"
        raise UnreadableInputError(f"{source} has {stated}; this gpudiag reads {FACTS_SCHEMA}", _HINT)
    try:
        return msgspec.convert(sanitize(tree), Facts)
    except (msgspec.ValidationError, RecursionError) as error:
        raise UnreadableInputError(f"{source} is damaged: {sanitize(str(error))}", _HINT) from error


def load_facts(path: Path) -> Facts:
    """Read facts from a file of at most 64 MB.

    Raises:
        UnreadableInputError: the file cannot be read, is too large, or does not contain facts.
    """
    name = sanitize(str(path))
    try:
        if not path.is_file():  # a pipe or a device would block or never end
            reason = "a directory" if path.is_dir() else "not a file" if path.exists() else "not there"
            raise UnreadableInputError(f"{name} is {reason}", _HINT)
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise UnreadableInputError(f"cannot read {name}: {error.strerror}", _HINT) from error
    if len(data) > _MOST_BYTES:
        raise UnreadableInputError(f"{name} is larger than {_MOST_BYTES >> 20} MB, which no facts file is", _HINT)
    return decode_facts(data, name)
