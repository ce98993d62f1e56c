"""Write files of run directories atomically, read them with checks of size and types, and check private directories."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, TypeVar

from gpudiag.errors import GpudiagError, UnreadableInputError, UsageError
from gpudiag.model.run import INFERENCE_FILE, INFERENCE_SCHEMA, RUN_SCHEMA, InferenceRecord, RunRecord
from gpudiag.model.sanitize import escaped_json, without_surrogates
from gpudiag.model.structs import msgspec

RUN_FILE = "run.json"
FACTS_FILE = "facts.json"
ANALYSIS_FILE = "analysis.json"
TRACES_DIR = "traces"
DIGESTS_DIR = "digests"
DIGEST_ENDING = ".gpudiag-digest"
LINES_DIR = "lines"
TRIES_FILE = "tries.json"
#: Environment variable. With the value 0, no text of source lines is saved.
SOURCE_TEXT_VARIABLE = "GPUDIAG_SOURCE_TEXT"
#: Subdirectory of `TRACES_DIR` with kernel-only traces.
KERNEL_ONLY_TRACES = "light"

#: Maximum size of a JSON file of a run directory in bytes; traces may be larger.
MOST_BYTES = 64 * 1024 * 1024

#: A path that means standard output.
STANDARD_OUTPUT = "-"
#: Resolved paths of the directories that this process has locked.
_locked: set[Path] = set()

Struct = TypeVar("Struct", bound=msgspec.Struct)


def encode_json(struct: msgspec.Struct, *, indent: int = 2) -> bytes:
    r"""Return a struct as UTF-8 JSON with a newline at its end, for files and for `--json`.

    NaN and infinity become null. Characters that a terminal may act on are escaped (`\\u202e`). `indent` is the number
    of spaces per level; 0 for one line.
    """
    try:
        text = msgspec.json.encode(struct)
    except UnicodeEncodeError:  # a path whose name is not UTF-8
        text = msgspec.json.encode(without_surrogates(msgspec.to_builtins(struct)))
    return (escaped_json(msgspec.json.format(text, indent=indent) if indent else text)) + b"\n"


def write_json(path: Path, struct: msgspec.Struct, *, indent: int = 2) -> None:
    """Write a struct as JSON atomically: into a temporary file beside `path`, which is then renamed.

    `indent` is the number of spaces per level; 0 for one line, which suits structs of mostly long arrays.
    """
    write_whole(path, encode_json(struct, indent=indent))


def write_whole(path: Path, data: bytes, *, mode: int = 0o644, sync: bool = False) -> None:
    """Write a file atomically, as `whole_file` does."""
    with whole_file(path, mode=mode, sync=sync) as file:
        file.write(data)


@contextlib.contextmanager
def whole_file(path: Path, *, mode: int = 0o644, sync: bool = False) -> Iterator[BinaryIO]:
    """Yield a file that appears at `path` when it is complete.

    Its permissions are `mode`, regardless of the user's umask. With `sync`, the file survives a power failure.

    Raises:
        OSError: the file cannot be written; the attempt leaves no file, and an existing file is unchanged.
    """
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:100]}.")
    except OSError as error:
        error.filename = str(path)  # the intended file instead of the temporary file
        raise
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            if sync:
                file.flush()
                os.fsync(file.fileno())
        Path(name).chmod(mode)
        Path(name).replace(path)
    except BaseException as error:
        Path(name).unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename, error.filename2 = str(path), None
        raise


def write_output(path: Path, data: bytes) -> None:
    """Write an output file atomically. The path `-` is standard output.

    Raises:
        BrokenPipeError: the reader of standard output has exited.
        GpudiagError: the file cannot be written; an existing file is unchanged.
    """
    if str(path) == STANDARD_OUTPUT:
        sys.stdout.flush()
        left = memoryview(data)
        while left:  # unbuffered output may accept only a part of the data
            left = left[sys.stdout.buffer.write(left) :]
        sys.stdout.flush()
        return
    try:
        if path.exists() and not path.is_file():  # a device or a pipe cannot be replaced
            with path.open("wb") as file:
                file.write(data)
        else:
            write_whole(path.resolve(), data)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise GpudiagError(f"cannot write {path}: {error.strerror or error}", "Choose another place.") from error


def below(directory: Path, relative: str) -> Path:
    """Return a path inside a directory. No component below the directory may be a link.

    A directory may come from an untrusted person, and a link in it could redirect the output. Only the path `directory`
    itself may contain links, because the user gave it.

    Raises:
        UnreadableInputError: a component is a link, is `..`, or is absolute.
    """
    path = directory
    for component in Path(relative).parts:
        path = path / component
        if component == ".." or path.is_symlink() or Path(component).is_absolute():
            raise UnreadableInputError(
                f"{path} leads out of its directory, and nothing is written there",
                "Links inside of a directory of results are not followed: put the files there, or choose another.",
            )
    return path


def write_beside(path: Path, data: bytes) -> None:
    """Write a file in a directory of results atomically. An existing link at this path is replaced, not followed.

    Raises:
        GpudiagError: the file cannot be written; an existing file is unchanged.
    """
    try:
        write_whole(path, data)
    except OSError as error:
        raise GpudiagError(f"cannot write {path}: {error.strerror or error}", "Choose another place.") from error


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Lock a run directory for this process. The lock ends with the block or the process, and leaves no file.

    Raises:
        UsageError: another process holds the lock.
    """
    if directory.resolve() in _locked:  # a caller in this process holds the lock
        yield
        return
    descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(
                f"{directory}: another gpudiag is writing to it", "Wait for it, or choose another with --output."
            ) from error
        except OSError:  # a file system without locks
            pass
        _locked.add(directory.resolve())
        yield
    finally:
        _locked.discard(directory.resolve())
        os.close(descriptor)


def read_bounded(path: Path) -> bytes:
    """Return the content of a regular file of at most `MOST_BYTES`.

    Raises:
        UnreadableInputError: the file cannot be read, is not a regular file, or is too large.
    """
    try:
        # Opening is non-blocking, so that a pipe cannot hang this process.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise UnreadableInputError(f"{path} is not a regular file", "Check the path.")
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise UnreadableInputError(f"{path}: {error.strerror or error}", "Check the path.") from error
    if len(data) > MOST_BYTES:
        raise UnreadableInputError(f"{path}: larger than {MOST_BYTES >> 20} MB, which no such file is")
    return data


def read_json(path: Path, struct: type[Struct], schema: str) -> Struct:
    """Read a struct that `write_json` wrote.

    Raises:
        UnreadableInputError: the file is missing, too large, not JSON, or has another schema or fields of wrong types.
    """
    data = read_bounded(path)
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
        return msgspec.json.decode(data, type=struct)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableInputError(f"{path}: {error}", "Run the command that wrote it again.") from error


def readable_json(path: Path, struct: type[Struct], schema: str) -> Struct | None:
    """Read a struct as `read_json` does; return None if this fails."""
    with contextlib.suppress(UnreadableInputError):
        return read_json(path, struct, schema)
    return None


class _Schema(msgspec.Struct):
    schema: str = ""


def find_run_record(paths: Sequence[Path | str]) -> RunRecord | None:
    """Return the run record of the run directory that `paths` names; None if `paths` is not one run directory."""
    directory = find_run_directory(paths)
    return None if directory is None else read_json(directory / RUN_FILE, RunRecord, RUN_SCHEMA)


def find_inference(paths: Sequence[Path | str]) -> InferenceRecord | None:
    """Return the inference record of the run directory that `paths` names; None if it is missing or unreadable."""
    directory = find_run_directory(paths)
    return None if directory is None else readable_json(directory / INFERENCE_FILE, InferenceRecord, INFERENCE_SCHEMA)


def find_kernel_only_traces(paths: Sequence[Path | str]) -> Path | None:
    """Return the directory of kernel-only traces in the run directory that `paths` names; None without such traces."""
    directory = find_run_directory(paths)
    light = None if directory is None else directory / TRACES_DIR / KERNEL_ONLY_TRACES
    return light if light is not None and light.is_dir() and any(light.iterdir()) else None


def digest_file_name(rank: int) -> str:
    """Return the path of a rank's digest, relative to the run directory."""
    return f"{DIGESTS_DIR}/rank{rank}{DIGEST_ENDING}"


def find_facts_file(paths: Sequence[Path | str]) -> Path | None:
    """Return the facts file of the run directory that `paths` names; None if it is missing."""
    directory = find_run_directory(paths)
    return directory / FACTS_FILE if directory is not None and (directory / FACTS_FILE).is_file() else None


def find_run_directory(paths: Sequence[Path | str]) -> Path | None:
    """Return the run directory if `paths` is a single path, of a run directory or of its `traces/`; else None."""
    if len(paths) != 1:
        return None
    candidates = (Path(paths[0]), Path(paths[0]).parent)
    return next((path for path in candidates if path.is_dir() and (path / RUN_FILE).is_file()), None)


def cache_home(environment: Mapping[str, str]) -> Path:
    """Return `$XDG_CACHE_HOME`, by default ~/.cache; a relative path is ignored (XDG Base Directory Specification).

    Raises:
        RuntimeError: this user has no home directory.
    """
    base = Path(environment.get("XDG_CACHE_HOME", ""))
    return base if base.is_absolute() else Path.home() / ".cache"


def is_private(directory: Path) -> bool:
    """Return whether only this user and root can put files into a directory, or replace the directory.

    The directory must not be a link and must belong to this user. Directories above it may belong to root. Other users
    may write to such a directory if it is sticky like /tmp, because no user can replace another user's entries there.

    Raises:
        OSError: the directory cannot be inspected.
    """
    status = directory.lstat()
    if (
        not stat.S_ISDIR(status.st_mode)
        or status.st_uid != os.getuid()
        or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    ):
        return False
    return all(_cannot_be_replaced(above) for above in directory.resolve().parents)


def _cannot_be_replaced(above: Path) -> bool:
    """Return whether other users cannot replace this user's entries in the directory `above`."""
    status = above.stat()
    if status.st_uid not in {0, os.getuid()}:
        return False
    # Members of a group count as others, except for the groups of root and of this user (often one group per user).
    by_others = status.st_mode & stat.S_IWOTH or (
        status.st_mode & stat.S_IWGRP and status.st_gid not in {0, os.getgid()}
    )
    return not by_others or bool(status.st_mode & stat.S_ISVTX)
